"""MacKay's fixed point: the next precisions of normal priors and the next noise, for groups of weights around a mode.

With gamma the number of weights that the data determine, the evidence is largest where alpha = gamma / sum w^2 and the
variance of the noise is the sum of squared errors / (targets - gamma). Source: MacKay (1992), "Bayesian Interpolation",
section 4.
"""

import dataclasses
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrobnn import priors
from pyrobnn._core.errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.distributions.support import base_of
from pyrobnn.inference import defaults
from pyrobnn.priors.given import choices_of

_PRECISIONS = (1e-12, 1e8)
_UNDETERMINED_SHARE = 1e-8
_LEAST_SQUARES = 1e-30
_LEAST_FREE = 1e-3
"""Least share of the targets that is left to tell the noise by."""


@dataclasses.dataclass(frozen=True)
class Hyperprior:
    """The prior of scales: gamma priors of precisions, and a price for weights.

    Each group counts weights beside those that the data determine, twice the shape of the prior of its precision. Their
    mean square is a share of the variance that the prior declares, and a group then counts at most its weights; it is 1
    without a share. Gaussian noise counts targets likewise, with a tenth of their variance as mean square.
    """

    counts: float = 0.0
    share: float | None = None
    noise_counts: float = 0.0
    penalty: float = 0.0  # nats taken off the leave-one-out score for each weight that the data determine

    @classmethod
    def of_real_targets(cls, num_data: float, num_inputs: int, counts: float | None = None) -> "Hyperprior":
        """Return the prior for real targets; without counts, fewer than six rows per input are few."""
        if counts is None:
            counts = defaults.FEW_ROW_COUNTS if num_data < defaults.ROWS_FOR_EACH_INPUT * num_inputs else 0.0
        return cls(counts, defaults.PRIOR_SHARE, min(counts, 1.0), penalty=1.0)

    @classmethod
    def of_labels(cls, counts: float | None = None, *, is_linear: bool = False) -> "Hyperprior":
        """Return the prior for labels and counts, of which any number of rows is few.

        Without the penalty the mode of most flexible functions is taken where cases are rare.
        """
        share = defaults.SHARE_OF_LINEAR_LABELS if is_linear else defaults.PRIOR_SHARE
        return cls(defaults.LABEL_COUNTS if counts is None else counts, share, penalty=1.0)


def next_precisions(
    gamma: Tensor,
    squares: Tensor,
    sizes: Tensor,
    stay: Tensor,
    *,
    counts: Tensor | float = 0.0,
    counted_squares: Tensor | float = 0.0,
    rounding: float = 0.0,
) -> Tensor:
    """Return the next precision of each group of weights, (gamma + counts) / (squares + counted squares).

    Of the `sizes` weights the data determine gamma, with a relative error of `rounding`; `squares` sums squared
    distances to the means of the prior. The hyperprior counts the others. Groups that the outputs do not depend on, as
    those of an input that is constant, `stay`.
    """
    is_determined = gamma > max(_UNDETERMINED_SHARE, rounding) * sizes
    moved = (gamma + counts) / (squares + counted_squares).clamp_min(_LEAST_SQUARES)
    return torch.where(is_determined, moved, stay)


def next_variance(squares: Tensor, free: Tensor, targets: float) -> Tensor:
    """Return the next variance of the noise from the sum of squared errors and targets - gamma, of so many targets."""
    return squares / free.clamp_min(_LEAST_FREE * targets)


class PriorScales:
    """Precisions of normal priors, by site, tuned by groups of weights under a hyperprior.

    `group` has the number of each weight's group, flat over the sites; sites that are `held` keep their prior. `loc`
    has the means by site, `precision` that of each weight, flat, in double precision.
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
        self.precision = torch.where(self._is_held, self.precision, factor * self.precision)

    def narrow(self, name: str, ratio: Tensor) -> None:
        """Multiply the scales of a site by numbers for its columns; a prior that is held stays."""
        factors = {n: torch.ones(shape).to(self.precision) for n, shape in self._shapes.items()}
        factors[name] = factors[name] * ratio.to(self.precision)
        flat = torch.cat([factor.reshape(-1) for factor in factors.values()])
        self.precision = torch.where(self._is_held, self.precision, self.precision / flat.square())

    def update(self, determined: Tensor, deviation: Tensor) -> None:
        """Move the precisions to the next, by each weight's gamma and deviation from the mean of its prior, flat."""
        squares = self._by_group(deviation.square())
        by_group = (self._by_group(determined), squares, self._sizes, self._counts, self._squares)
        gamma, squares, sizes, counts, counted = (value[self._group] for value in by_group)
        tuned = next_precisions(gamma, squares, sizes, self._declared, counts=counts, counted_squares=counted)
        self.precision = torch.where(self._is_held, self.precision, tuned.clamp(*_PRECISIONS))

    def _by_group(self, values: Tensor) -> Tensor:
        total = values.new_zeros(int(self._group.max()) + 1)
        return total.index_add(0, self._group, values)

    def by_site(self) -> dict[str, Tensor]:
        parts = self.precision.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


def normal_of(law: Any, name: str) -> Any:
    """Return the normal distributions of the entries of a site."""
    law = base_of(law)
    if not isinstance(law, dist.Normal):
        raise InputError(
            f"The evidence tunes the precision of normal priors, but {name!r} has {type(law).__name__}: compare "
            "fits with other settings on held-out data, or take a prior with latent scales, such as Hierarchical()."
        )
    return law


def normal_prior(name: str, loc: Tensor, scale: Tensor) -> Any:
    """Return the normal prior of a site: with a single number if all entries share it."""
    if bool((scale == scale.reshape(-1)[0]).all() & (loc == loc.reshape(-1)[0]).all()):
        return priors.Normal(scale=float(scale.reshape(-1)[0]), loc=float(loc.reshape(-1)[0]))
    return priors.FromPosterior({name: (loc.contiguous(), scale.contiguous())})


def untuned(old: BNN, sites: list[str]) -> dict[str, Any]:
    """Return the priors of the parameters that were not tuned, by pattern."""
    names = [name for name, value in old.net.named_parameters() if value.requires_grad] + list(old.site_names)
    choices = dict(choices_of(old.settings["prior"]))
    first = {next((p for p in choices if fnmatchcase(name, p)), None) for name in names if name not in sites}
    return {pattern: choice for pattern, choice in choices.items() if pattern in first}
