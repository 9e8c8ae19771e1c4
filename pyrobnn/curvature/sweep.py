"""Columns pulled back through the network, for a part of the data: what products with its Jacobian are made of."""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from pyrobnn._torch.vectorize import vmap_or_loop
from pyrobnn.bnn import BNN
from pyrobnn.curvature.layers import Recording, Use

_ENTRIES = 2**24
"""Entries of a per-example derivative that are held at once, roughly."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pulled:
    """J^T v for K columns v and B examples, in the parts that layers make of it.

    Attributes:
        uses: the layers.
        gradients: derivative in the outputs of each of them, (K, B, T, O).
        dense: for sites of other layers the derivatives themselves, (K, B, *shape).
        shapes: shape of each site.
        weights: how often each example counts in means over examples, (B,), or None for once each.
    """

    uses: list[Use]
    gradients: list[Tensor]
    dense: dict[str, Tensor]
    shapes: dict[str, torch.Size]
    weights: Tensor | None = None

    def only_matrix(self, sites: list[str]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return derivatives (K, B, O), inputs (B, I) and the order of entries if the sites are one linear layer's.

        The bias counts as one more input, the last; an entry of the sites, weight first, stands at that place in the
        (O, I) matrix. None if they are not one layer that each example passes once.
        """
        if len(self.uses) != 1 or self.dense or self.uses[0].sites != sites:
            return None
        use, g = self.uses[0], self.gradients[0]
        if use.kind != "matrix" or use.weight is None or g.shape[2] > 1:
            return None
        a = use.inputs[:, 0]
        a = a if use.bias is None else torch.cat([a, a.new_ones(len(a), 1)], 1)
        places = torch.arange(g.shape[3] * a.shape[1], device=g.device).view(g.shape[3], a.shape[1])
        weight = places if use.bias is None else places[:, :-1]
        parts = [(weight.T if use.transposed else weight).flatten(), *([] if use.bias is None else [places[:, -1]])]
        return g[:, :, 0], a, torch.cat(parts)

    def derivative(self, name: str) -> Tensor:
        """Return the derivative in a site, (K, B, size of the site)."""
        if name in self.dense:
            return self.dense[name].flatten(2)
        use, g = next(pair for pair in zip(self.uses, self.gradients, strict=True) if name in pair[0].sites)
        return _derivative(use, g, name)

    def squares(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the sum over columns and examples of the squared derivatives in some sites, in their shapes."""
        wanted = set(names)
        found = {name: self.dense[name].square().sum((0, 1)) for name in wanted & set(self.dense)}
        for use, g in zip(self.uses, self.gradients, strict=True):
            found |= self._squares(use, g, [name for name in use.sites if name in wanted])
        return {name: value.reshape(self.shapes[name]) for name, value in found.items()}

    def _squares(self, use: Use, g: Tensor, sites: list[str]) -> dict[str, Tensor]:
        if sites and use.kind == "matrix" and g.shape[2] == 1:
            squares = g[:, :, 0].square().sum(0)
            found = {} if use.bias is None else {use.bias: squares.sum(0)}
            if use.weight in sites:
                total = squares.T @ use.inputs[:, 0].square()
                found[use.weight] = total.T if use.transposed else total
            return {name: found[name] for name in sites}
        return {name: self._squares_in_parts(use, g, name) for name in sites}

    def _squares_in_parts(self, use: Use, g: Tensor, name: str) -> Tensor:
        size = examples_at_once(g.shape[0] * self.shapes[name].numel())
        parts = [
            _derivative(dataclasses.replace(use, inputs=a), part, name).square().sum((0, 1))
            for a, part in zip(use.inputs.split(size), g.split(size, 1), strict=True)
        ]
        return torch.stack(parts).sum(0)


def _derivative(use: Use, g: Tensor, name: str) -> Tensor:
    """Return the derivative in the weight or bias of a use, (K, B, size)."""
    if name == use.bias:
        return g.sum(2)
    if use.kind == "scale":
        return (g * use.inputs).sum(2)
    product = g.transpose(-1, -2) @ use.inputs
    return (product.transpose(-1, -2) if use.transposed else product).flatten(2)


def pull_recorded(bnn: BNN, weights: Mapping[str, Tensor], x: Tensor, recording: Recording, columns: Tensor) -> Pulled:
    """Pull columns (K, B, C) back through a recorded pass of a network.

    Args:
        bnn: the model, in evaluation mode.
        weights: values of all its weights by name.
        x: inputs (B, *in).
        recording: the pass with these.
        columns: (K, B, C).
    """
    names = [*(name for use in recording.uses for name in use.sites), *recording.others]
    return Pulled(
        recording.uses,
        recording.pull_back(columns) if recording.uses else [],
        {name: _one_by_one(bnn, weights, x, columns, name) for name in recording.others},
        {name: weights[name].shape for name in names},
    )


def _one_by_one(bnn: BNN, weights: Mapping[str, Tensor], x: Tensor, columns: Tensor, name: str) -> Tensor:
    """Return the derivatives of sum_c columns[k, b, c] f[b, c] in a weight, example by example, (K, B, *shape)."""
    fixed = {other: value.detach() for other, value in weights.items()}

    def derivatives(x_row: Tensor, columns_row: Tensor) -> Tensor:
        pull: Any = vjp(lambda w: bnn.outputs(fixed | {name: w}, x_row[None])[0], fixed[name])[1]
        return vmap(pull)(columns_row)[0]

    def looped(x: Tensor, rows: Tensor) -> Tensor:
        return torch.stack([_by_autograd(bnn, fixed, name, *pair) for pair in zip(x, rows, strict=True)])

    rows = columns.transpose(0, 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # torch's, of operations without a rule
        each = vmap_or_loop(vmap(derivatives), looped, x[:1], rows[:1])
        return each(x, rows).transpose(0, 1)


def _by_autograd(bnn: BNN, fixed: Mapping[str, Tensor], name: str, x_row: Tensor, columns_row: Tensor) -> Tensor:
    with torch.enable_grad():
        weight = fixed[name].clone().requires_grad_()
        f = bnn.outputs({**fixed, name: weight}, x_row[None])[0]
        return torch.stack([torch.autograd.grad(f, weight, column, retain_graph=True)[0] for column in columns_row])


def examples_at_once(numbers: int) -> int:
    """Return how many examples to take at once if each needs that many numbers."""
    return max(1, _ENTRIES // max(1, numbers))
