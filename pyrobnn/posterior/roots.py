"""The covariance of a linearised network's outputs under a Gaussian of curvature, block by block and in parts."""

from collections.abc import Iterable, Iterator

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
    rows = rows_of_layer(block, pulled)
    if rows is not None:
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


def joint_covariance(roots: Iterable[Tensor]) -> Tensor:
    """Return the covariance of all outputs of all inputs from parts of columns.

    Args:
        roots: parts R, (C, B, r), or (B, C, r) for this order of the rows and columns of the result.
    """
    total: Tensor | None = None
    for root in roots:
        rows = root.flatten(0, 1)
        total = rows @ rows.T if total is None else total.addmm_(rows, rows.T)
    if total is None:
        raise ValueError("there were no parts")
    return total


def rows_of_layer(block: Block, pulled: Pulled) -> Tensor | None:
    """Return roots (B, C, D) for a block with all correlations of one linear layer, None for other blocks.

    Inputs are multiplied with the root first, and derivatives then.
    """
    whole = block.whole_root
    layer = None if whole is None else pulled.only_matrix(list(block.shapes))
    if whole is None or layer is None:
        return None
    g, a, order = layer
    root = torch.empty_like(whole)
    root[order] = whole
    by_output = (a @ root.view(g.shape[2], a.shape[1], -1)).transpose(0, 1)
    return g.transpose(0, 1) @ by_output
