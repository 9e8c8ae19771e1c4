"""The covariance of a linearised network's outputs under a Gaussian of curvature, block by block and in parts."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pyrobnn.curvature.tracker import Pulled, Tracker, examples_at_once
from pyrobnn.curvature.uses import Use
from pyrobnn.guides.blocks import Axes, Block


def has_axes(block: Block, tracker: Tracker) -> bool:
    """Return whether a block describes a layer in axes in which its entries are independent."""
    return block.has_axes and tracker.matrices.issuperset(block.shapes)


def use_of(block: Block, pulled: Pulled) -> tuple[Use, Axes] | None:
    """Return the layer that a block describes, in axes in which its entries are independent; None if there are none."""
    names = set(block.shapes)
    for use, g in zip(pulled.uses, pulled.gradients, strict=True):
        if names <= set(use.sites) and use.kind == "matrix":
            axes = block.axes(g, use.inputs_of(names, use.inputs), transposed=use.transposed)
            return None if axes is None else (use, axes)
    return None


def passes_once(axes: Axes) -> bool:
    """Return whether each example passes the layer once."""
    return axes.a.shape[1] == 1


def root_parts(block: Block, pulled: Pulled) -> Iterator[tuple[slice, Tensor]]:
    """Yield parts R of columns, (C, B, r), and their place: all R R^T sum to the covariance that a block makes.

    The place is that of the block's noise, or of the rows of its noise in `axes`.
    """
    found = use_of(block, pulled)
    if found is None:
        rows = pulled.rows(block.shapes)
        yield slice(None), block.root(rows.flatten(0, 1)).view(*rows.shape[:2], -1)
        return
    g, a, scale = found[1]
    size = examples_at_once(g.shape[0] * g.shape[1] * a.shape[2])
    for start in range(0, len(scale), size):
        place = slice(start, start + size)
        yield place, ((g[..., place].mT @ a) * scale[place]).flatten(2)


def covariance(block: Block, pulled: Pulled) -> Tensor:
    """Return the part of the covariance of the outputs that a block makes, (B, C, C)."""
    whole = whole_layer(block, pulled)
    if whole is not None:
        rows = _rows_of_layer(block, *whole)
        return rows @ rows.mT
    found = use_of(block, pulled)
    if found is not None and passes_once(found[1]):
        g, along = found[1].g[:, :, 0], variances(found[1])
        return torch.einsum("cbo,dbo->bcd", g * along, g)
    total = pulled.f.new_zeros(len(pulled.f), *(pulled.f.shape[1],) * 2)
    for _, root in root_parts(block, pulled):
        total += root.transpose(0, 1) @ root.permute(1, 2, 0)
    return total


def symmetric_root(covariance: Tensor) -> Tensor:
    """Return R with R R^T a covariance (*, M, M), which may have no full rank."""
    values, vectors = torch.linalg.eigh(covariance.double())
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return root.to(covariance)


def variances(axes: Axes) -> Tensor:
    """Return the variance of each output of a layer that each example passes once, in its axes, (B, O)."""
    return axes.a[:, 0].square() @ axes.scale.square().T


def whole_layer(block: Block, pulled: Pulled) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return `Pulled.only_matrix` of a block with all correlations of one linear layer, None for other blocks."""
    is_whole = block.spec.kind == "full" and block.spec.size is None
    return pulled.only_matrix(list(block.shapes)) if is_whole else None


def _rows_of_layer(block: Block, g: Tensor, a: Tensor, order: Tensor) -> Tensor:
    """Return roots (B, C, D) for a layer with all correlations: inputs times the root first, then derivatives."""
    factor = block.get_buffer("factor")
    root = torch.empty_like(factor)
    root[order] = factor
    by_output = (a @ root.view(g.shape[2], a.shape[1], -1)).transpose(0, 1)
    return g.transpose(0, 1) @ by_output
