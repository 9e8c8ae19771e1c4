"""Isokinetic Langevin steps of many chains at once: momenta of fixed length, eager or recorded."""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._torch.private import private
from pyrobnn.data.batches import Batch
from pyrobnn.inference.mcmc.potential import LogJoint
from pyrobnn.inference.training.engines import MakeLoop

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From latents (C, P) of C chains to U (C,) and its gradient (C, P)."""
_END = 0.1931833275037836
"""Share of a step in the first and in the last turn of the direction, of the least error (McLachlan 1995)."""
_LARGEST_ERROR = 1000.0
"""Error of the energy in nats above which a step is not taken, as of trajectories of NUTS."""
_STEPS_AT_ONCE, _MOST_NUMBERS = 64, 2**24
"""Steps after which other threads get a turn, and random numbers held for them, at most."""


@dataclasses.dataclass(frozen=True)
class State:
    """C chains and their settings; all tensors stay in their places.

    Attributes:
        place: latents z (C, P).
        direction: unit vectors u (C, P).
        gradient: of U at z, (C, P).
        potential: U(z), (C,).
        size: of a step, e (C,).
        turn: weight of the noise that a step adds to the direction, (C,).
        root: unit of each latent, s (C, P): a step of size e moves z by e s u.
        squares: sum of squared changes of the energy for each latent since it was zeroed, each 1 at most, (C,).
        refused: number of steps not taken since it was zeroed, (C,).
        noise: normal numbers for steps to come, (steps, C, P).
        index: number of the next step in `noise`, (1,).
    """

    place: Tensor
    direction: Tensor
    gradient: Tensor
    potential: Tensor
    size: Tensor
    turn: Tensor
    root: Tensor
    squares: Tensor
    refused: Tensor
    noise: Tensor
    index: Tensor

    @classmethod
    def at(cls, place: Tensor, potential: Tensor, gradient: Tensor) -> "State":
        """Return chains at places (C, P) with U and its gradient there, of step size and direction 0."""
        num_rows = max(1, min(_STEPS_AT_ONCE, _MOST_NUMBERS // place.numel()))
        each = torch.zeros_like(potential)
        return cls(
            place=place.clone(),
            direction=torch.zeros_like(place),
            gradient=gradient.clone(),
            potential=potential.clone(),
            size=each.clone(),
            turn=each.clone(),
            root=torch.ones_like(place),
            squares=each.clone(),
            refused=each.clone(),
            noise=place.new_zeros(num_rows, *place.shape),
            index=torch.zeros(1, dtype=torch.long, device=place.device),
        )

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, in order."""
        return [getattr(self, field.name) for field in dataclasses.fields(self)]


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (..., P) of length 1."""
    return vectors / vectors.square().sum(-1, keepdim=True).sqrt()


def turned(direction: Tensor, gradient: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Return directions (C, P) after a time (C,) in a constant gradient (C, P), and the changes of kinetic energy (C,).

    With g = |dU/dz| and the angle c = -u dU/dz / g, the direction turns down the gradient by d = g e / (P - 1), and the
    energy is (P - 1) log(cosh d + c sinh d) (Robnik et al. 2023, sec. 3; ver Steeg & Galstyan 2021).
    """
    length = gradient.square().sum(-1, keepdim=True).sqrt().clamp(min=torch.finfo(gradient.dtype).tiny)
    down, freedom = -gradient / length, direction.shape[-1] - 1
    cosine = (direction * down).sum(-1, keepdim=True)
    angle = size.unsqueeze(-1) * length / freedom
    shrink = (-angle).exp()  # sinh and cosh over exp(angle), which may be huge
    ahead, behind = 1 + cosine, (1 - cosine) * shrink.square()
    new = unit(2 * shrink * direction + (ahead - behind - 2 * cosine * shrink) * down)
    return new, freedom * (angle + ((ahead + behind) / 2).log()).squeeze(-1)


def stepped(state: State, slopes: Slopes) -> None:
    """Take a step of each chain, in place.

    Turns of the direction alternate with moves along it, B A B A B of minimal norm (McLachlan 1995), with two
    gradients; then noise is added to the direction (Robnik & Seljak 2023). A step with an error of the energy that is
    not finite, or huge, is not taken: the chain stays, with a new direction.
    """
    step = state.size.unsqueeze(-1) * state.root
    direction, change = turned(state.direction, state.root * state.gradient, _END * state.size)
    place = state.place + 0.5 * step * direction
    _, gradient = slopes(place)
    direction, more = turned(direction, state.root * gradient, (1 - 2 * _END) * state.size)
    place, change = place + 0.5 * step * direction, change + more
    potential, gradient = slopes(place)
    direction, more = turned(direction, state.root * gradient, _END * state.size)
    error = potential - state.potential + change + more
    taken = (error.abs() < _LARGEST_ERROR) & (gradient.square().sum(-1) < math.inf)
    error = torch.where(taken, error, math.inf)
    noise = state.noise.index_select(0, state.index).squeeze(0)
    by_row = taken.unsqueeze(-1)
    new = {
        "place": torch.where(by_row, place, state.place),
        "direction": unit(torch.where(by_row, direction + state.turn.unsqueeze(-1) * noise, noise)),
        "gradient": torch.where(by_row, gradient, state.gradient),
        "potential": torch.where(taken, potential, state.potential),
        "squares": state.squares + (error.square() / place.shape[-1]).clamp(max=1.0),
        "refused": state.refused + (~taken).to(error.dtype),
        "index": state.index + 1,
    }
    for name, value in new.items():
        getattr(state, name).copy_(value)


class Walk:
    """Steps of C chains side by side.

    Args:
        slopes: U and its gradient, eager.
        place: where chains start, (C, P).

    Attributes:
        state: the chains.
        num_steps: number of steps done.
        tell: called with the number of steps done since the last call.
    """

    def __init__(self, slopes: Slopes, place: Tensor) -> None:
        self.state = State.at(place, *slopes(place))
        self.num_steps = 0
        self.tell: Callable[[int], object] = lambda _: None
        self._slopes = slopes
        self._loop: Callable[[int], None] = self._eagerly

    def recorded(self, log_joint: LogJoint, data: Batch, make_loop: MakeLoop) -> "Walk":
        """Record a step, so that steps run without Python from now on, and return the walk.

        Raises:
            NotCapturable: with the reason.
        """
        # eager chains do without
        from pyrobnn.inference.capture.record import drop_unused, lift_constants, record, slope

        model = {name: t.detach() for name, t in (*log_joint.named_parameters(), *log_joint.named_buffers())}
        examples, spec = private("tree_flatten")(data)
        own = self.state.tensors

        def step(*tensors: Tensor) -> tuple[()]:
            state, others = State(*tensors[: len(own)]), tensors[len(own) :]
            batch = private("tree_unflatten")(others[: len(examples)], spec)
            numbers = dict(zip(model, others[len(examples) :], strict=True))
            each = vmap(lambda z: -functional_call(log_joint, numbers, (z, *batch)))

            def slopes(place: Tensor) -> tuple[Tensor, Tensor]:
                gradients, values = slope(lambda point: (each(point["z"]),) * 2, {"z": place})
                return values, gradients["z"]

            stepped(state, slopes)
            return ()

        leaves = [*own, *examples, *model.values()]
        graph = record(step, leaves)
        constants = lift_constants(graph)
        self._loop = make_loop(graph, drop_unused(graph, leaves + constants))
        return self

    def _eagerly(self, num_steps: int) -> None:
        for _ in range(num_steps):
            stepped(self.state, self._slopes)

    def set(self, size: Tensor | float, length: float) -> None:
        """Set step sizes, (C,) or one for all, and the length on which noise makes directions forget themselves."""
        state = self.state
        state.size.copy_(torch.as_tensor(size))
        state.turn.copy_((torch.expm1(2 * state.size / length) / (state.place.shape[-1] - 1)).sqrt())

    def turn_anew(self) -> None:
        """Give each chain a direction at random."""
        self.state.direction.copy_(unit(torch.randn_like(self.state.direction)))

    def run(self, num_steps: int) -> None:
        """Take steps; `squares` and `refused` count from 0."""
        for count in (self.state.squares, self.state.refused):
            count.zero_()
        at_once = len(self.state.noise)
        for done in range(0, num_steps, at_once):
            ONE_THREAD.let_waiting_in()
            rows = min(at_once, num_steps - done)
            self.state.noise[:rows].normal_()
            self.state.index.zero_()
            self._loop(rows)
            self.tell(rows)
        self.num_steps += num_steps
