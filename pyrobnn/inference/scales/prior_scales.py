"""Precisions of normal priors, tuned by groups of weights."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrobnn.inference.scales.evidence import Hyperprior, next_precisions

_PRECISIONS = (1e-12, 1e8)


class PriorScales:
    """Precisions of normal priors, tuned by groups of weights under a hyperprior.

    Args:
        normals: the prior of each site.
        weights: values by site, for their shapes and device.
        group: the number of each weight's group, flat over the sites.
        held: names of weights whose prior stays as it is.
        hyperprior: of the precisions.

    Attributes:
        loc: means by site.
        precision: of each weight, flat, in double precision.
    """

    def __init__(
        self,
        normals: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        group: Tensor,
        held: Collection[str],
        hyperprior: Hyperprior,
    ) -> None:
        self._shapes, self._group = {name: value.shape for name, value in weights.items()}, group
        self.loc = {name: law.loc.detach().expand(self._shapes[name]) for name, law in normals.items()}
        scales = [law.scale.detach().expand(self._shapes[name]).reshape(-1) for name, law in normals.items()]
        self.precision = self._declared = torch.cat(scales).double().pow(-2)
        sizes = self._sizes = self._by_group(torch.ones_like(self.precision))
        self._counts = torch.full_like(sizes, hyperprior.counts)
        self._squares = self._counts
        if hyperprior.share is not None:
            self._counts = self._counts.minimum(sizes)
            self._squares = self._counts * hyperprior.share * self._by_group(1 / self.precision) / sizes
        is_held = [torch.full((shape.numel(),), name in held) for name, shape in self._shapes.items()]
        self._is_held = torch.cat(is_held).to(self.precision.device)

    def multiply(self, factor: float) -> None:
        """Multiply the precisions that are tuned."""
        self.precision = torch.where(self._is_held, self.precision, factor * self.precision)

    def narrow(self, name: str, ratio: Tensor) -> None:
        """Multiply the scales of a site by numbers for its columns; a prior that is held stays."""
        factors = {n: torch.ones(shape).to(self.precision) for n, shape in self._shapes.items()}
        factors[name] = factors[name] * ratio.to(self.precision)
        flat = torch.cat([factor.reshape(-1) for factor in factors.values()])
        self.precision = torch.where(self._is_held, self.precision, self.precision / flat.square())

    def update(self, determined: Tensor, deviation: Tensor) -> None:
        """Move the precisions by MacKay's fixed point, (gamma + counts) / (squares + counts x mean square).

        Groups of weights that the outputs do not depend on, as those of an input that is constant, keep the declared
        precision.

        Args:
            determined: gamma of each weight, flat.
            deviation: of each weight from the mean of its prior, flat.
        """
        squares = self._by_group(deviation.square())
        by_group = (self._by_group(determined), squares, self._sizes, self._counts, self._squares)
        gamma, squares, sizes, counts, counted = (value[self._group] for value in by_group)
        tuned = next_precisions(gamma, squares, sizes, self._declared, counts=counts, counted_squares=counted)
        self.precision = torch.where(self._is_held, self.precision, tuned.clamp(*_PRECISIONS))

    def _by_group(self, values: Tensor) -> Tensor:
        total = values.new_zeros(int(self._group.max()) + 1)
        return total.index_add(0, self._group, values)

    def by_site(self) -> dict[str, Tensor]:
        """Return the precision of each weight by site."""
        parts = self.precision.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
