"""Isokinetic Langevin steps of many chains at once, eager or recorded, and their warm-up."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from pyro.ops.stats import effective_sample_size
from torch import Tensor

from pyrobnn._core.errors import InputError, progress_bar, warn_user
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import seeded
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import Count, setting
from pyrobnn._torch.lbfgs import descend_in_place, joined
from pyrobnn.data.batches import Batch
from pyrobnn.inference.capture.graph import capture, choose_engine
from pyrobnn.inference.mcmc import chains
from pyrobnn.inference.mcmc.chains import ChainMethod, Chains, Init, LogJoint, Target, ValueAndGradient
from pyrobnn.inference.method import Run, registry
from pyrobnn.posterior.record import EngineRecord

_END = 0.1931833275037836
"""Share of a step in the first and in the last turn of the direction, of the least error (McLachlan 1995)."""
_LARGEST_ERROR = 1000.0  # error of the energy in nats above which a step is not taken, as of trajectories of NUTS
_STEPS_AT_ONCE = 64
_MOST_RANDOM_NUMBERS = 2**24
ERROR = 5e-4
"""Aim for the mean squared change of the energy in a step, in square nats for each latent (Robnik et al. 2023)."""
_TOO_LARGE = 0.1  # squared change beyond which it says nothing of other step sizes
_ORDER = 6  # the squared change grows with this power of the step size
_STEPS_BETWEEN_LOOKS = 10
_WARM_UP_PARTS = 4
_MEMORY = 3  # weight of the latest look, in mean weights of all
_LENGTH = 0.4  # the length, in steps for each independent draw (Robnik et al. 2023, sec. 5).
_COORDINATES = 256  # latents of which the autocorrelation is measured, at most
_SHRINKAGE_LOOKS, _SHRUNK_VARIANCE = 5, 1e-3  # looks that count for a small variance of each latent, as in Stan
_MOST_DESCENT_ITERATIONS, _DESCENT_PATIENCE = 500, 5  # or until five gain less than the latents' share of the energy


@dataclasses.dataclass(frozen=True)
class IsokineticState:
    """C chains and their settings; all tensors stay in their places."""

    place: Tensor  # latents z (C, P)
    direction: Tensor  # unit vectors u (C, P)
    gradient: Tensor  # of U at z, (C, P)
    potential: Tensor  # U(z), (C,)
    size: Tensor  # of a step, e (C,)
    turn: Tensor  # weight of the noise that a step adds to the direction, (C,)
    root: Tensor  # unit of each latent, s (C, P): a step of size e moves z by e s u
    squares: Tensor  # sum of squared changes of the energy for each latent since it was zeroed, each 1 at most, (C,)
    refused: Tensor  # number of steps not taken since it was zeroed, (C,)
    noise: Tensor  # normal numbers for steps to come, (steps, C, P)
    index: Tensor  # number of the next step in `noise`, (1,)

    @classmethod
    def at(cls, place: Tensor, potential: Tensor, gradient: Tensor) -> "IsokineticState":
        """Return chains at places (C, P) with U and its gradient there, of step size and direction 0."""
        num_rows = max(1, min(_STEPS_AT_ONCE, _MOST_RANDOM_NUMBERS // place.numel()))
        zeros = {name: torch.zeros_like(potential) for name in ("size", "turn", "squares", "refused")}
        index = torch.zeros(1, dtype=torch.long, device=place.device)
        at = {"place": place.clone(), "gradient": gradient.clone(), "potential": potential.clone(), "index": index}
        units = {"direction": torch.zeros_like(place), "root": torch.ones_like(place)}
        return cls(noise=place.new_zeros(num_rows, *place.shape), **zeros, **at, **units)

    @property
    def tensors(self) -> list[Tensor]:
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


def stepped(state: IsokineticState, slopes: ValueAndGradient) -> None:
    """Take a step of each chain, in place.

    Turns of the direction alternate with moves along it, B A B A B of minimal norm (McLachlan 1995); then noise is
    added to it (Robnik & Seljak 2023). A step with a huge error of the energy is not taken: the chain turns anew.
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
    """Steps of C chains side by side, with U and its gradient, from places (C, P); `tell` hears of steps just done."""

    def __init__(self, slopes: ValueAndGradient, place: Tensor) -> None:
        self.state, self._slopes = IsokineticState.at(place, *slopes(place)), slopes
        self.num_steps = 0
        self.tell: Callable[[int], object] = lambda _: None
        self._loop: Callable[[int], None] = self._step_eagerly

    def _step_eagerly(self, num_steps: int) -> None:
        for _ in range(num_steps):
            stepped(self.state, self._slopes)

    def recorded(self, log_joint: LogJoint, data: Batch) -> "Walk":
        """Record a step, so that steps run without Python from now on; return the walk, or raise `NotCapturable`."""

        def step(held: list[Tensor], slopes: ValueAndGradient) -> None:
            stepped(IsokineticState(*held), slopes)

        self._loop = chains.recorded_steps(log_joint, data, self.state.tensors, step)
        return self

    def set(self, size: Tensor | float, length: float) -> None:
        """Set step sizes, (C,) or one for all, and the length on which noise makes directions forget themselves."""
        state = self.state
        state.size.copy_(torch.as_tensor(size))
        state.turn.copy_((torch.expm1(2 * state.size / length) / (state.place.shape[-1] - 1)).sqrt())

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


def descended(start: Tensor, evaluate: ValueAndGradient) -> Tensor:
    """Return a point (P,) in the bulk of the posterior, P / 2 above the least U, by L-BFGS from a start (P,)."""
    point, least = start.clone(), [math.inf]

    def slope() -> Tensor:
        value, gradient = evaluate(point)
        least[-1] = min(least[-1], float(value))
        return joined([value, gradient])

    def is_near() -> bool:
        least.append(least[-1])
        return len(least) > _DESCENT_PATIENCE and least[-1 - _DESCENT_PATIENCE] - least[-1] < len(point) / 2

    descend_in_place(slope, [point], after=is_near, maxiter=_MOST_DESCENT_ITERATIONS)
    return point


def warm_up(walk: Walk, num_steps: int) -> tuple[float, float]:
    """Run the warm-up of chains, in a multiple of 40 steps; return step size and length for all.

    In four equal parts, chains reach the bulk of the posterior, their standard deviations become the units of latents,
    twice, and the autocorrelation gives the length.
    """
    warm = _WarmUp(walk, num_steps)
    walk.state.direction.copy_(unit(torch.randn_like(walk.state.direction)))
    for _ in warm.looks():
        pass
    warm.take_units()
    warm.take_units()
    length = warm.length()
    return warm.shared_size(), length


class _WarmUp:
    """The parts of a warm-up; at step sizes `size`, (C,), the squared change of the energy has its aim, on average."""

    def __init__(self, walk: Walk, num_steps: int) -> None:
        place = walk.state.place
        self._walk, self._num_looks = walk, math.ceil(num_steps / (_WARM_UP_PARTS * _STEPS_BETWEEN_LOOKS))
        self._length = math.sqrt(place.shape[-1])
        self.size = torch.full_like(walk.state.potential, 0.25 * self._length)

    def looks(self, every: int = _STEPS_BETWEEN_LOOKS) -> Iterator[None]:
        """Take the steps of a part, with a pause after so many, and follow the changes of the energy."""
        self._mean, self._count = torch.zeros_like(self.size), torch.zeros_like(self.size)
        for _ in range(self._num_looks):
            self._walk.set(self.size, self._length)
            squares = torch.zeros_like(self.size)
            for _ in range(_STEPS_BETWEEN_LOOKS // every):
                self._walk.run(every)
                squares += self._walk.state.squares
                yield
            self._follow(squares / _STEPS_BETWEEN_LOOKS)

    def _follow(self, squares: Tensor) -> None:
        """Take in the mean squared change in some steps of the present size, (C,)."""
        too_large = squares > _TOO_LARGE
        self._count = torch.where(too_large, 0, self._count + 1)
        rate = (_MEMORY / (self._count + _MEMORY - 1)).clamp(max=1)
        mean = self._mean + rate * (squares / self.size**_ORDER - self._mean)
        self._mean = torch.where(too_large, 0, mean)
        aim = torch.minimum((ERROR / self._mean) ** (1 / _ORDER), 2 * self.size)
        self.size = torch.where(too_large, self.size / 2, aim)

    def shared_size(self) -> float:
        """Return the size at which the squared change of all chains together has its aim, the largest one at most."""
        mean = float((self._mean * self._count).sum() / self._count.sum().clamp(min=1))
        largest = float(self.size.max())
        return min(largest, (ERROR / mean) ** (1 / _ORDER)) if mean else largest

    def take_units(self) -> None:
        place, root = self._walk.state.place, self._walk.state.root
        origin = place.double().clone()
        total, squares = torch.zeros_like(origin), torch.zeros_like(origin)
        for _ in self.looks():
            total += place - origin
            squares += (place - origin).square()
        variance = squares / self._num_looks - (total / self._num_looks).square()
        weight = self._num_looks / (self._num_looks + _SHRINKAGE_LOOKS)
        before = root.log().mean(1)
        root.copy_((weight * variance.clamp(min=0) + (1 - weight) * _SHRUNK_VARIANCE).sqrt())
        self.size = self.size * (before - root.log().mean(1)).exp()

    def length(self) -> float:
        """Return the length for all chains, by the autocorrelation of a part's steps."""
        place = self._walk.state.place
        chosen = torch.linspace(0, place.shape[-1] - 1, min(place.shape[-1], _COORDINATES), dtype=torch.float64).long()
        chosen = chosen.to(place.device)
        path = torch.stack([place[:, chosen] for _ in self.looks(every=1)], 1)
        late = path[None, :, path.shape[1] // 4 :].double()
        independent = effective_sample_size(late, chain_dim=0, sample_dim=2).clamp(min=1, max=late.shape[2])
        lengths = self.size * (late.shape[2] / independent).mean(-1)
        return _LENGTH * float(lengths.mean())


_LONGER_WARMUP = Remedy("warm up longer", ("fit.warmup=2000",))
_TYPICAL_STEPS = 20  # steps from one draw to the next, for the choice of the engine
_STATISTICS = ("diverging", "energy_error", "step_size", "n_steps")
_TOLERATED_SHARE = 0.1  # of draws with a refused step: a draw is many steps, and a step that is refused costs little


class Microcanonical(ChainMethod):
    """Base of the methods that run isokinetic Langevin chains."""

    warmup: int
    thinning: int | None

    def sample(self, target: Target, run: Run) -> Chains:
        name = type(self).__name__
        data = target.all_data(name)
        evaluate = chains.eager_potential(target.log_joint, data)
        points = torch.stack([descended(start, evaluate) for start in target.starts(self.num_chains, evaluate)])
        if points.shape[1] == 1:
            raise InputError(f"{name} turns directions, and a single latent has none: use NUTS.", page="how-to/mcmc")
        guessed = self.warmup + self.num_draws * (self.thinning or _TYPICAL_STEPS)
        choice = choose_engine(run.engine, 2 * guessed)
        each, is_batched = chains.potential_of_chains(target.log_joint, points, data)
        if not is_batched:
            choice = EngineRecord(run.engine, "eager", "torch does not batch the model")
        walk = Walk(lambda place: each(place, *data), points)
        record_step = partial(walk.recorded, target.log_joint, data)
        _, record = capture(choice, record_step, what="chains run", from_step=1)
        with (
            seeded(run.seed, "transitions"),
            progress_bar(total=guessed, shown=run.progress, desc=name, unit="step") as bar,
        ):
            walk.tell = bar.update
            size, length = warm_up(walk, self.warmup)
            thinning = self.thinning or max(1, round(length / size))
            bar.total = walk.num_steps + self.num_draws * thinning
            walk.set(size, length)
            pairs = []
            for _ in range(self.num_draws):
                walk.run(thinning)
                state, error = walk.state, (walk.state.squares / thinning).sqrt()
                row = [state.refused > 0, error, state.size, torch.full_like(error, thinning)]
                pairs.append((state.place.clone(), torch.stack(row, 1).double()))
        draws, rows = (torch.stack(parts, 1) for parts in zip(*pairs, strict=True))
        numbers = dict(zip(_STATISTICS, rows.unbind(-1), strict=True))
        diverging = int(numbers["diverging"].sum())
        if diverging > _TOLERATED_SHARE * self.num_chains * self.num_draws:
            warn_user(chains.diverged(diverging, self.num_chains * self.num_draws), remedy=_LONGER_WARMUP)
        return Chains(draws, numbers, record, walk.num_steps, diverging)


@registry.register
@setting
class MCLMC(Microcanonical):
    """Microcanonical Langevin Monte Carlo (Robnik et al. 2023), all chains side by side.

    A chain moves at constant speed: the gradient turns its direction, and noise makes it forget the direction along a
    length L. It has no accept step: steps are so small that the bias is below the Monte Carlo error of some 1000 draws.
    The warm-up gives step size, units of the latents, and L. It needs two latents.

    Attributes:
        num_draws: draws kept of each chain.
        warmup: steps before them, each with two gradients.
        num_chains: number of chains.
        thinning: steps from one draw kept to the next; None for a length L.
        init: where each chain starts, as in `NUTS`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.MCLMC(num_draws=10, warmup=40, num_chains=2)  # take 500 draws or more
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
    """

    num_draws: Count = 1000
    warmup: Count = 10_000
    num_chains: Count = 4
    thinning: Count | None = None
    init: Init = "prior"
