"""Outputs of a network linearised around a point of its weights, for many draws of these."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from pyrobnn._torch.forward_mode import value_and_slope
from pyrobnn._torch.vectorize import DrawMap, is_alike
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import Tracker

LastLayer = tuple[Tensor, Tensor, Tensor]
"""Outputs at the point (N, C), inputs of the layer (N, I), and the order of its entries as in `Pulled.only_matrix`."""


class Tangent:
    """f(m) + J (w - m) at some inputs for draws w (Immer et al. 2021).

    Where the last layer alone moves, the network runs once and a draw is a product; else forward-mode differentiation
    runs it for each draw.

    Args:
        bnn: the model.
        point: m, values by site name, of all weights.
        inputs: x (N, *in).
    """

    def __init__(self, bnn: BNN, point: Mapping[str, Tensor], inputs: Tensor) -> None:
        self._bnn, self._point, self._inputs = bnn, dict(point), inputs
        self._functions: dict[tuple[str, ...], Callable[[Mapping[str, Tensor]], Tensor]] = {}

    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs for draws (S, *event) by site name, (S, N, C)."""
        moving = tuple(name for name, m in self._point.items() if not _stays(weights[name], m))
        if moving not in self._functions:
            layer = self._last_layer(list(moving)) if moving else None
            self._functions[moving] = self._by_jvp(moving) if layer is None else partial(self._product, layer, moving)
        return self._functions[moving](weights)

    def _product(self, layer: LastLayer, moving: tuple[str, ...], weights: Mapping[str, Tensor]) -> Tensor:
        f, a, order = layer
        change = torch.cat([(weights[name] - self._point[name]).flatten(1) for name in moving], 1)
        matrices = torch.empty_like(change)
        matrices[:, order] = change
        moved = matrices.view(-1, a.shape[1]) @ a.T  # one product is four times faster than one a draw
        return moved.view(len(change), *f.shape[::-1]).mT.contiguous().add_(f)

    def _last_layer(self, moving: list[str]) -> LastLayer | None:
        """Return what draws need where these sites are a linear layer whose outputs are those of the network."""
        tracker = Tracker(self._bnn, self._point, moving, self._inputs[:1])
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
        def outputs(values: Mapping[str, Tensor], x: Tensor) -> Tensor:
            start = {name: self._point[name] for name in moving}
            change = {name: values[name] - self._point[name] for name in moving}
            f, slope = value_and_slope(lambda some: self._bnn.outputs(self._point | some, x), start, change)
            return f + slope

        function = outputs if moving else self._bnn.outputs
        return DrawMap(function, self._inputs, self._bnn.net, copies=2)


def _stays(draws: Tensor, point: Tensor) -> bool:
    return is_alike(draws) and draws[0].equal(point)


def _is_identity(derivatives: Tensor) -> bool:
    """Return whether derivatives of outputs (C, B, O) are those of the outputs themselves."""
    num, _, width = derivatives.shape
    return num == width and derivatives.equal(torch.eye(num).to(derivatives)[:, None].expand_as(derivatives))
