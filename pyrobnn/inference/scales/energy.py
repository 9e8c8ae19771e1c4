"""The energy of weights on all rows, and its minimum by L-BFGS."""

import copy
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._torch.lbfgs import descend_in_place, polish_in_place, slope_of
from pyrobnn.bnn import BNN
from pyrobnn.curvature.metric import log_probs
from pyrobnn.inference.capture.graph import recorded_slope
from pyrobnn.inference.scales.fixed_point import PriorScales
from pyrobnn.inference.scales.noise import ModeNoise, Rows
from pyrobnn.nets import leftovers

_MEMORY = 20
"""Pairs of steps and gradients that L-BFGS keeps."""
_SLOPE = 1e-8
"""Largest entry of the gradient of the energy at which L-BFGS stops."""


def moving(bnn: BNN, noise: ModeNoise) -> list[Tensor]:
    """Return the tensors of a start, beside its weights, that its rounds may change in place."""
    return [*bnn.parameters(), *bnn.buffers(), *noise.state]


class Energy:
    """The negative log joint density of weights and learned parameters, up to a constant.

    Weights are views of one vector, which L-BFGS moves. The gradient is recorded and run without Python if `records`
    and nothing but weights is learned: then it has its own copy of the model, and takes any start of it.
    """

    def __init__(self, bnn: BNN, rows: Rows, noise: ModeNoise, weights: dict[str, Tensor], *, records: bool) -> None:
        tuned = {id(parameter) for parameter in noise.parameters}
        self._learned = [p for p in bnn.parameters() if p.requires_grad and id(p) not in tuned]
        self._records = records and not self._learned and not bnn.moving
        if self._records:
            bnn, noise = copy.deepcopy((bnn, noise), leftovers(bnn) | {id(rows): rows})
        self._bnn, self._rows, self._noise, self._moving = bnn, rows, noise, moving(bnn, noise)
        self._flat = torch.cat([value.detach().reshape(-1) for value in weights.values()])
        parts = self._flat.split([value.numel() for value in weights.values()])
        pairs = zip(weights.items(), parts, strict=True)
        self.places = {name: part.view_as(value).requires_grad_() for (name, value), part in pairs}
        self._loc = {name: torch.zeros_like(value) for name, value in weights.items()}
        self._precision = {name: torch.zeros_like(value) for name, value in weights.items()}

    def __call__(self, weights: dict[str, Tensor]) -> Tensor:
        """Return the energy under the prior of the last descent, ()."""
        outputs = self._bnn.outputs(weights, self._rows.x)
        likelihood = self._bnn.likelihood
        fitted = self._noise.log_prob(lambda f: log_probs(likelihood, f, *self._rows.targets).sum(), outputs)
        squares = [(self._precision[n] * (weights[n] - self._loc[n]).square()).sum() for n in weights]
        return 0.5 * torch.stack(squares).sum() - fitted

    @cached_property
    def recorded(self) -> Callable[[], Tensor] | None:
        """The energy and its gradient at `places`; None where that is not recorded."""
        return recorded_slope(self, self.places) if self._records else None

    @property
    def engine(self) -> str:
        """How the energy ran: "captured" if it was recorded, else "eager"."""
        return "eager" if self.recorded is None else "captured"

    def descend(
        self,
        weights: dict[str, Tensor],
        prior: PriorScales,
        bnn: BNN,
        noise: ModeNoise,
        *,
        iterations: int,
        tolerance: float,
        polishes: bool,
    ) -> dict[str, Tensor]:
        """Return weights closer to the mode; learned parameters move in place, weights that noise holds stay.

        Model and noise are those of the start. To polish goes on where rounding hides the gain.
        """
        named = ((self.places, weights), (self._loc, prior.loc), (self._precision, prior.by_site()))
        pairs = [(place, values[name]) for places, values in named for name, place in places.items()]
        for place, value in [*pairs, *zip(self._moving, moving(bnn, noise), strict=True)]:
            place.detach().copy_(value.detach())
        run = self.recorded or slope_of(lambda: self(self.places), [*self.places.values(), *self._learned])

        def slope() -> Tensor:
            ONE_THREAD.let_waiting_in()
            if not noise.is_held:
                return run()
            value, ours, learned = run().tensor_split([1, 1 + len(self._flat)])
            return torch.cat([value, noise.free(ours), learned])

        tensors, most = [self._flat, *self._learned], iterations + iterations // 4
        descend_in_place(slope, tensors, maxiter=iterations, maxfun=most, maxcor=_MEMORY, ftol=tolerance, gtol=_SLOPE)
        if polishes:
            polish_in_place(slope, tensors)
        return {name: value.detach().clone() for name, value in self.places.items()}
