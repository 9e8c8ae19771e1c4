"""Draws of a linearised network's outputs under a Gaussian of curvature, without draws of its weights.

A draw of the weights is m + T e for standard normal noise e, and its outputs are f(m) + (J T) e. The rows of J come
from C pulled-back columns, however many draws there are.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyrobnn._core.random import derive, seeded
from pyrobnn._core.tree_files import digest
from pyrobnn._torch.inputs import X, flat_rows
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import Pulled, Tracker
from pyrobnn.guides.blocks import Axes, Block
from pyrobnn.posterior.roots import has_axes, joint_covariance, passes_once, root_parts, symmetric_root, use_of

_MOST_NOISE = 2**25
"""Normal numbers of all draws of the weights up to which the outputs are those of these draws."""
_HELD = 2**28
"""Numbers of activations and rows of J that may be held, roughly."""
_FEW = 64
"""Inputs up to which the outputs of a last layer are drawn by their joint covariance, for each output of the layer."""
_AT_ONCE = 2**24
"""Numbers of draws of a layer's outputs that are held at once."""


def output_draws(
    bnn: BNN, blocks: Sequence[Block], point: Mapping[str, Tensor], inputs: X, sizes: Sequence[int], *, seed: int
) -> Tensor | None:
    """Return draws of f(m) + J (w - m), (S, N, C); None where draws of w cost less.

    If all noise of the weights is at most 2^25 numbers, a draw is that of the same draw of the weights, by the random
    numbers of the caller. Else draws are joint over these inputs, and independent of those of other inputs.

    Args:
        bnn: the model.
        blocks: of the Gaussian.
        point: m, values of all weights by site name.
        inputs: x (N, *in).
        sizes: numbers of draws that the guide makes at a time, which sum to S.
        seed: seed of draws that are not those of weights; each set of inputs has its own stream.
    """
    num_draws, dimension = sum(sizes), sum(block.dimension for block in blocks)
    tracker = Tracker(bnn, point, [name for block in blocks for name in block.shapes], inputs[:1])
    is_few = tracker.num_outputs * len(inputs) < num_draws
    have_axes = all(has_axes(block, tracker) for block in blocks)
    if num_draws * dimension > _MOST_NOISE:
        is_few |= tracker.is_last_layer and have_axes and len(inputs) <= _FEW
        if not is_few or not _fits(tracker, inputs, blocks):
            return None
        with seeded(derive(seed, f"outputs {digest([flat_rows(inputs)])}"), "outputs"):
            return _joint(blocks, tracker.pull(inputs), num_draws)
    if not is_few and (not have_axes or tracker.num_outputs >= num_draws):
        return None
    made = [[_noise(block, size) for block in blocks] for size in sizes]
    noise = [torch.cat(parts) for parts in zip(*made, strict=True)]
    widest = max(num_draws * math.prod(shape[:1]) for block in blocks for shape in block.shapes.values())
    at_once = tracker.inputs_at_once(max(1, _AT_ONCE // widest))
    return torch.cat([_moved(blocks, noise, tracker.pull(part)) for part in inputs.split(at_once)], 1)


def _noise(block: Block, num_draws: int) -> Tensor:
    like = next(block.buffers())
    return torch.randn(num_draws, block.dimension, dtype=like.dtype, device=like.device)


def _fits(tracker: Tracker, inputs: X, blocks: Sequence[Block]) -> bool:
    """Return whether the inputs can be taken together."""
    rows = sum(sum(block.sizes) for block in blocks if not has_axes(block, tracker))
    return len(inputs) * (tracker.held + tracker.num_outputs * rows) <= _HELD


def _moved(blocks: Sequence[Block], noise: Sequence[Tensor], pulled: Pulled) -> Tensor:
    """Return the outputs for the noise (S, dimension) of each block, (S, B, C)."""
    total = pulled.f.expand(len(noise[0]), *pulled.f.shape).clone()
    for block, e in zip(blocks, noise, strict=True):
        found = use_of(block, pulled)
        if found is None:
            for place, root in root_parts(block, pulled):
                total += _product(e[:, place], root)
            continue
        use, axes = found
        matrices = block.noise_in_axes(e, axes, transposed=use.transposed)
        if passes_once(axes):
            z = (matrices * axes.scale).flatten(0, 1) @ axes.a[:, 0].T
            total += _through(axes, z.view(*matrices.shape[:2], -1), pulled)
        else:
            for place, root in root_parts(block, pulled):
                total += _product(matrices[:, place].flatten(1), root)
    return total


def _joint(blocks: Sequence[Block], pulled: Pulled, num_draws: int) -> Tensor:
    """Return draws from the joint normal distribution of the outputs of all inputs, (S, B, C)."""
    f = pulled.f
    total = f.expand(num_draws, *f.shape).clone()
    rest = list[Block]()
    for block in blocks:
        found = use_of(block, pulled)
        if found is not None and pulled.is_last_layer:
            root = symmetric_root(_covariance_of_units(found[1]))
            noise = torch.randn(*root.shape[:2], num_draws, dtype=f.dtype, device=f.device)
            total += _through(found[1], (root @ noise).permute(2, 0, 1), pulled)
        else:
            rest.append(block)
    if rest:
        covariance = joint_covariance(root for block in rest for _, root in root_parts(block, pulled))
        noise = torch.randn(num_draws, len(covariance), dtype=f.dtype, device=f.device)
        total += _product(noise, symmetric_root(covariance).view(*f.shape[::-1], -1))
    return total


def _covariance_of_units(axes: Axes) -> Tensor:
    """Return the covariance over examples of each output of a layer that these pass once, in its axes, (O, B, B)."""
    a, size = axes.a[:, 0], max(1, _AT_ONCE // axes.a.numel())
    return torch.cat([(a * part.square()[:, None]) @ a.T for part in axes.scale.split(size)])


def _through(axes: Axes, z: Tensor, pulled: Pulled) -> Tensor:
    """Return changes of the network's outputs, (S, B, C), by changes z (S, O, B) of a layer's outputs in its axes."""
    if not pulled.is_last_layer:
        return torch.einsum("sob,cbo->sbc", z, axes.g[:, :, 0])
    return z.mT if axes.g is pulled.gradients[0] else z.mT @ axes.g[:, 0, 0].T


def _product(noise: Tensor, root: Tensor) -> Tensor:
    """Return noise (S, r) times a root (C, B, r) of the outputs' covariance, (S, B, C)."""
    return (noise @ root.flatten(0, 1).T).view(len(noise), *root.shape[:2]).mT
