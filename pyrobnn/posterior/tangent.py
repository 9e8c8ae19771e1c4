"""Outputs of a network linearised around a point of its weights, for many draws of these."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import is_random_state, random_state
from pyrobnn._torch.batching import once
from pyrobnn._torch.forward_mode import missing_forward_mode
from pyrobnn._torch.inputs import X
from pyrobnn._torch.vectorize import DrawMap, is_alike
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import Tracker

LastLayer = tuple[Tensor, Tensor, Tensor]
"""Outputs at the point (N, C), inputs of the layer (N, I), and the order of its entries as in `Pulled.only_matrix`."""
MOST_DERIVATIVES = 2**24
"""Largest number of derivatives of an input's outputs in the weights that is held where forward mode fails."""


class Tangent:
    """f(m) + J (w - m) at some inputs for draws w (Immer et al. 2021).

    Where the last layer alone moves, the network runs once and a draw is a product; else forward-mode differentiation
    runs it for each draw. Operations without forward mode (`cdist`, `EmbeddingBag`, packed sequences) have J in reverse
    mode instead.

    Args:
        bnn: the model.
        point: m, values by site name, of all weights.
        inputs: x (N, *in).
    """

    def __init__(self, bnn: BNN, point: Mapping[str, Tensor], inputs: X) -> None:
        self._bnn, self._point, self._inputs = bnn, dict(point), inputs
        self._functions: dict[tuple[str, ...], Callable[[Mapping[str, Tensor]], Tensor]] = {}

    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs for draws (S, *event) by site name, (S, N, C)."""
        moving = tuple(name for name, m in self._point.items() if not _stays(weights[name], m))
        return self.function(moving)(weights)

    def is_exact(self, moving: tuple[str, ...]) -> bool:
        """Return whether the network itself is linear in these weights: those of its last layer."""
        return Tracker(self._bnn, self._point, list(moving), self._inputs[:1]).is_last_layer

    def function(self, moving: tuple[str, ...]) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Return the function behind `outputs` for draws of some weights; the other weights stay at the point.

        Raises:
            InputError: no forward mode, and too many derivatives.
        """
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
            raise InputError(
                f"The network has no forward-mode derivative ({fault}), and {num_outputs:,} outputs have too many "
                f"derivatives in {size:,} weights for reverse mode. Use guides.Laplace(linearized=False), or "
                "predict(x, linearized=False), which takes the network itself.",
                page="how-to/laplace",
            )
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
            if layer is None or not _is_identity(layer[0]):
                return None
            parts.append((pulled.f, *layer[1:]))
        return torch.cat([f for f, _, _ in parts]), torch.cat([a for _, a, _ in parts]), parts[0][2]

    def _by_jvp(self, moving: tuple[str, ...]) -> DrawMap:
        def outputs(values: Mapping[str, Tensor], x: X) -> Tensor:
            f, slope = self._moved({name: values[name] - self._point[name] for name in moving}, x)
            return f + slope

        function = outputs if moving else self._bnn.outputs
        return DrawMap(function, self._inputs, self._bnn.net, copies=2)

    def _moved(self, change: Mapping[str, Tensor], x: X) -> tuple[Tensor, Tensor]:
        """Return the outputs at the point, and their derivative along a change of some weights."""
        start = {name: self._point[name] for name in change}
        f, slope, *_ = torch.func.jvp(lambda some: self._bnn.outputs(self._point | some, x), (start,), (dict(change),))
        return f, slope

    def _fault_of_forward_mode(self, tracker: Tracker, moving: tuple[str, ...]) -> str:
        """Return why the derivative of an input fails in forward mode or differs from reverse mode; "" if neither."""
        x, before = self._inputs[:1], random_state()

        def outputs(*values: Tensor) -> Tensor:
            return self._bnn.outputs(self._point | dict(zip(moving, values, strict=True)), x)

        fault = missing_forward_mode(outputs, *(self._point[name] for name in moving))
        if fault or not is_random_state(before):
            return fault
        like = {name: self._point[name] for name in moving}
        change = {n: torch.arange(m.numel(), device=m.device).view(m.shape).cos().to(m) for n, m in like.items()}
        _, slope = self._moved(change, x)
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


def _stays(draws: Tensor, point: Tensor) -> bool:
    return is_alike(draws) and draws[0].equal(point)


def _is_identity(derivatives: Tensor) -> bool:
    """Return whether derivatives of outputs (C, B, O) are the identity."""
    num, _, width = derivatives.shape
    return num == width and derivatives.equal(torch.eye(num).to(derivatives)[:, None].expand_as(derivatives))
