"""Outputs of a network linearised around a point, f(m) + (J T) e for draws m + T e of its weights, and without any."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, mark, seeded
from pyrobnn._core.tree_files import digest
from pyrobnn._torch.inputs import X, flat_rows
from pyrobnn._torch.kernels import PlainLayerNorm
from pyrobnn._torch.transforms import missing_forward_mode, once
from pyrobnn._torch.vectorize import DrawMap, is_alike
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import Pulled, Tracker, examples_at_once
from pyrobnn.curvature.uses import Use
from pyrobnn.guides.blocks import Axes, Block

LastLayer = tuple[Tensor, Tensor, Tensor]
"""Outputs at the point (N, C), inputs of the layer (N, I), and the order of its entries as in `Pulled.only_matrix`."""
MOST_DERIVATIVES = 2**24
"""Largest number of derivatives of an input's outputs in the weights that is held where forward mode fails."""
_MOST_NOISE = 2**25
"""Normal numbers of all draws of the weights up to which the outputs are those of these draws."""
_HELD = 2**28
"""Numbers of activations and rows of J that may be held, roughly."""
_FEW = 64
"""Inputs up to which the outputs of a last layer are drawn by their joint covariance, for each output of the layer."""
_AT_ONCE = 2**24
"""Numbers of draws of a layer's outputs that are held at once."""


class Tangent:
    """f(m) + J (w - m) at inputs x (N, *in) for draws w and a point m of all weights (Immer et al. 2021)."""

    def __init__(self, bnn: BNN, point: Mapping[str, Tensor], inputs: X) -> None:
        self._bnn, self._point, self._inputs = bnn, dict(point), inputs
        self._functions: dict[tuple[str, ...], Callable[[Mapping[str, Tensor]], Tensor]] = {}

    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs for draws (S, *event) by site name, (S, N, C)."""
        pairs = {name: (weights[name], m) for name, m in self._point.items()}
        moving = tuple(name for name, (w, m) in pairs.items() if not (is_alike(w) and w[0].equal(m)))
        return self.function(moving)(weights)

    def is_exact(self, moving: tuple[str, ...]) -> bool:
        """Return whether the network itself is linear in these weights: those of its last layer."""
        return Tracker(self._bnn, self._point, list(moving), self._inputs[:1]).look.is_last_layer

    def function(self, moving: tuple[str, ...]) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Return the function behind `outputs` for draws of some weights; the other weights stay at the point."""
        if moving not in self._functions:
            self._functions[moving] = self._chosen(moving)
        return self._functions[moving]

    def _chosen(self, moving: tuple[str, ...]) -> Callable[[Mapping[str, Tensor]], Tensor]:
        if not moving:
            return self._by_jvp(moving)
        tracker = Tracker(self._bnn, self._point, list(moving), self._inputs[:1])
        layer = self._last_layer(tracker, list(moving))
        if layer is not None:
            return partial(self._product, layer, moving)
        fault = once(self._bnn, ("forward mode", moving), lambda: self._fault_of_forward_mode(tracker, moving))
        if not fault:
            return self._by_jvp(moving)
        num_outputs, size = tracker.alone.f.shape[1], sum(self._point[name].numel() for name in moving)
        if num_outputs * size > MOST_DERIVATIVES:
            text = f"The network has no forward-mode derivative ({fault}), and too many in reverse mode"
            remedy = "Use guides.Laplace(linearized=False), or predict(x, linearized=False)"
            raise InputError(f"{text}, {num_outputs:,} x {size:,}. {remedy}.", page="how-to/laplace")
        return partial(self._by_rows, tracker, moving)

    def _product(self, layer: LastLayer, moving: tuple[str, ...], weights: Mapping[str, Tensor]) -> Tensor:
        f, a, order = layer
        change = torch.cat([(weights[name] - self._point[name]).flatten(1) for name in moving], 1)
        matrices = torch.empty_like(change)
        matrices[:, order] = change
        moved = matrices.view(-1, a.shape[1]) @ a.T  # a single product is four times faster than a product per draw
        return moved.view(len(change), *f.shape[::-1]).mT.contiguous().add_(f)

    def _last_layer(self, tracker: Tracker, moving: list[str]) -> LastLayer | None:
        """Return the layer for draws if these sites are a linear layer and its outputs are the network's."""
        if tracker.alone.others or len(tracker.alone.uses) != 1:
            return None
        at_once = tracker.inputs_at_once(len(self._inputs))
        parts = []
        for x in self._inputs.split(at_once):
            pulled = tracker.pull(x)
            layer = pulled.only_matrix(moving)
            if layer is None:
                return None
            derivatives = layer[0]  # of the outputs by those of the layer, (C, B, O): they are the same
            num, _, width = derivatives.shape
            if num != width or not derivatives.equal(torch.eye(num).to(derivatives)[:, None].expand_as(derivatives)):
                return None
            parts.append((pulled.f, *layer[1:]))
        return torch.cat([f for f, _, _ in parts]), torch.cat([a for _, a, _ in parts]), parts[0][2]

    def _by_jvp(self, moving: tuple[str, ...]) -> DrawMap:
        def outputs(values: Mapping[str, Tensor], x: X) -> Tensor:
            f, slope = along(self._bnn, self._point, {name: values[name] - self._point[name] for name in moving}, x)
            return f + slope

        function = outputs if moving else self._bnn.outputs
        return DrawMap(function, self._inputs, self._bnn.net, copies=2)

    def _fault_of_forward_mode(self, tracker: Tracker, moving: tuple[str, ...]) -> str:
        """Return why the derivative of an input fails in forward mode or differs from reverse mode; "" if neither."""
        x, has_drawn = self._inputs[:1].detach(), mark()

        def outputs(*values: Tensor) -> Tensor:
            return self._bnn.outputs(self._point | dict(zip(moving, values, strict=True)), x)

        fault = missing_forward_mode(outputs, *(self._point[name] for name in moving))
        if fault or has_drawn():
            return fault
        like = {name: self._point[name] for name in moving}
        change = {n: torch.arange(m.numel(), device=m.device).view(m.shape).cos().to(m) for n, m in like.items()}
        _, slope = along(self._bnn, self._point, change, x)
        column = torch.arange(1, 1 + slope.numel(), device=slope.device).view(1, *slope.shape).cos().to(slope)
        row = tracker.pull(x, lambda _: column).rows(moving).reshape(-1)
        flat = torch.cat([value.reshape(-1) for value in change.values()])
        error = float((column * slope).sum() - row @ flat)
        rounding = torch.finfo(row.dtype).eps ** 0.5 * float(row.norm() * flat.norm())
        return "" if abs(error) <= rounding else "the derivative of torch differs from reverse mode"

    def _by_rows(self, tracker: Tracker, moving: tuple[str, ...], weights: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs by the rows of J in reverse mode, of some inputs at a time."""
        change = torch.cat([(weights[name] - self._point[name]).flatten(1) for name in moving], 1)
        parts = []
        for x in self._inputs.split(tracker.examples_at_once(tracker.alone.f.shape[1], change.shape[1])):
            pulled = tracker.pull(x)
            parts.append(pulled.f + (pulled.rows(moving) @ change.T).permute(2, 1, 0))
        return torch.cat(parts, 1)


def along(bnn: BNN, point: dict[str, Tensor], change: dict[str, Tensor], x: X) -> tuple[Tensor, Tensor]:
    """Return the outputs at a point of all weights, and their derivative along a change of some, by forward mode."""
    start = {name: point[name] for name in change}
    with PlainLayerNorm():
        f, slope, *_ = torch.func.jvp(lambda some: bnn.outputs(point | some, x), (start,), (change,))
    return f, slope


def output_draws(
    bnn: BNN, blocks: Sequence[Block], point: Mapping[str, Tensor], inputs: X, sizes: Sequence[int], *, seed: int
) -> Tensor | None:
    """Return draws of f(m) + J (w - m), (S, N, C), for blocks of a Gaussian around m; None where draws of w cost less.

    If all noise of the weights is at most 2^25 numbers, a draw is that of the same draw of the weights, by the random
    numbers of the caller. Else draws are joint over these inputs, and independent of those of others, by a seed.
    """
    num_draws, dimension = sum(sizes), sum(block.dimension for block in blocks)
    tracker = Tracker(bnn, point, [name for block in blocks for name in block.shapes], inputs[:1])
    num_outputs, without_axes = tracker.look.num_outputs, [b for b in blocks if not has_axes(b, tracker)]
    is_few = num_outputs * len(inputs) < num_draws
    if num_draws * dimension <= _MOST_NOISE:
        pays = is_few or (not without_axes and num_outputs < num_draws)
        return _of_weights(blocks, tracker, inputs, sizes) if pays else None
    is_few |= tracker.look.is_last_layer and not without_axes and len(inputs) <= _FEW
    held = len(inputs) * (tracker.look.held + num_outputs * sum(sum(block.sizes) for block in without_axes))
    if not is_few or held > _HELD:
        return None
    with seeded(derive(seed, f"outputs {digest([flat_rows(inputs)])}"), "outputs"):
        return _joint(blocks, tracker.pull(inputs), num_draws)


def _of_weights(blocks: Sequence[Block], tracker: Tracker, inputs: X, sizes: Sequence[int]) -> Tensor:
    """Return the outputs for the draws of the weights that the guide makes in these sizes, (S, N, C)."""
    like = next(blocks[0].buffers())
    made = [
        [torch.randn(size, block.dimension, dtype=like.dtype, device=like.device) for block in blocks] for size in sizes
    ]
    noise = [torch.cat(parts) for parts in zip(*made, strict=True)]
    widest = max(sum(sizes) * math.prod(shape[:1]) for block in blocks for shape in block.shapes.values())
    at_once = tracker.inputs_at_once(max(1, _AT_ONCE // widest))
    return torch.cat([_moved(blocks, noise, tracker.pull(part)) for part in inputs.split(at_once)], 1)


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
            a, size = found[1].a[:, 0], max(1, _AT_ONCE // found[1].a.numel())
            units = [(a * part.square()[:, None]) @ a.T for part in found[1].scale.split(size)]
            root = symmetric_root(torch.cat(units))  # of each output of the layer over the inputs, (O, B, B)
            noise = torch.randn(*root.shape[:2], num_draws, dtype=f.dtype, device=f.device)
            total += _through(found[1], (root @ noise).permute(2, 0, 1), pulled)
        else:
            rest.append(block)
    if rest:
        covariance = joint_covariance(root for block in rest for _, root in root_parts(block, pulled))
        noise = torch.randn(num_draws, len(covariance), dtype=f.dtype, device=f.device)
        total += _product(noise, symmetric_root(covariance).view(*f.shape[::-1], -1))
    return total


def _through(axes: Axes, z: Tensor, pulled: Pulled) -> Tensor:
    """Return changes of the network's outputs, (S, B, C), by changes z (S, O, B) of a layer's outputs in its axes."""
    if not pulled.is_last_layer:
        return torch.einsum("sob,cbo->sbc", z, axes.g[:, :, 0])
    return z.mT if axes.g is pulled.gradients[0] else z.mT @ axes.g[:, 0, 0].T


def _product(noise: Tensor, root: Tensor) -> Tensor:
    """Return noise (S, r) times a root (C, B, r) of the outputs' covariance, (S, B, C)."""
    return (noise @ root.flatten(0, 1).T).view(len(noise), *root.shape[:2]).mT


def has_axes(block: Block, tracker: Tracker) -> bool:
    """Return whether a block describes a layer in axes in which its entries are independent."""
    return block.has_axes and tracker.look.matrices.issuperset(block.shapes)


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


def symmetric_root(covariance: Tensor) -> Tensor:
    """Return R with R R^T a covariance (*, M, M), which may have no full rank."""
    values, vectors = torch.linalg.eigh(covariance.double())
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return root.to(covariance)


def joint_covariance(roots: Iterable[Tensor]) -> Tensor:
    """Return the covariance of all outputs of all inputs from parts of columns, each (C, B, r), or (B, C, r)."""
    first, *others = (root.flatten(0, 1) for root in roots)
    total = first @ first.T
    for rows in others:
        total.addmm_(rows, rows.T)
    return total
