"""Markov chain Monte Carlo with gradients of mini-batches, as methods for `fit`: SGLD and SGHMC of posteriors."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from pyrobnn._core.errors import progress_bar, warn_user
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import Count, Positive, setting
from pyrobnn.curvature.hessian import largest_curvature
from pyrobnn.data.batches import Batch, TensorBatches
from pyrobnn.inference.mcmc.chains import ChainMethod, Chains, Init, Target, eager_potential, potential_of_chains
from pyrobnn.inference.method import Run, registry
from pyrobnn.optimizers import resolve_schedule
from pyrobnn.posterior.record import EngineRecord

_STEPS_BETWEEN_LOOKS = 50
_BETWEEN_MEASURES = 100
_SHARE = 0.2  # step size, in the smallest variance of the posterior as its largest curvature tells
_DAMPING = 0.1  # friction, in frequencies of the fastest oscillation: at 2 it no longer oscillates


State = tuple[Tensor, Tensor]  # of chains: latents (C, P), and momenta (C, P), empty for a method without any


@setting
class StochasticGradient(ChainMethod):
    """Base of the methods that follow noisy gradients: write `moved`, the rest is inherited."""

    step_size: Positive | None = None
    num_draws: Count = 1000
    burn_in: Annotated[int, Field(ge=0)] | None = None
    thinning: Count = 10
    num_chains: Count = 4
    batch_size: Count | Literal["all"] = "all"
    schedule: Annotated[Any, BeforeValidator(resolve_schedule)] = None
    temperature: Positive = 1.0
    init: Init = "net"

    def begun(self, place: Tensor) -> State:
        """Return chains at their starts, with momenta under a method that has any."""
        return place, torch.empty(0)

    def usual_step_size(self, smallest_variance: float) -> float:
        """Return the step size where none is given, for the smallest variance of the posterior in any direction."""
        return _SHARE * smallest_variance

    def moved(self, state: State, gradient: Tensor, size: Tensor, smallest_variance: float) -> State:
        """Return where a step leads, by the gradient of the log density of each chain, (C, P)."""
        raise NotImplementedError

    @property
    def burnt(self) -> int:
        """The number of steps before the first draw."""
        return self.num_draws * self.thinning if self.burn_in is None else self.burn_in

    def sample(self, target: Target, run: Run) -> Chains:
        """Run the chains side by side, each on separate mini-batches; all chains share the batches of a DataLoader."""
        name = type(self).__name__
        if run.engine == "captured":
            warn_user(f"The chains run eagerly: {name} has no captured form.")
        walk, draws = _Walk(self, target, run.seed), list[Tensor]()
        with seeded(run.seed, "transitions"), progress_bar(total=walk.num_steps, shown=run.progress, desc=name) as bar:
            walk.state = self.begun(walk.state[0])
            while walk.step < walk.num_steps:
                walk.advance()
                if walk.step > self.burnt and (walk.step - self.burnt) % self.thinning == 0:
                    draws.append(walk.state[0])
                if walk.step % _STEPS_BETWEEN_LOOKS == 0 or walk.step == walk.num_steps:
                    finite = walk.state[0].isfinite().all(1)
                    if not bool(finite.all()):
                        chain = int((~finite).nonzero()[0]) + 1
                        fault = f"Chain {chain} of {name} is no longer finite at step {walk.step}"
                        raise FloatingPointError(f"{fault}: give a smaller `step_size`, or standardise the data.")
                    bar.update(walk.step - bar.n)
        record = EngineRecord(run.engine, "eager", f"{name} runs eagerly, its chains side by side")
        kept = walk.rates[self.burnt + self.thinning - 1 :: self.thinning].expand(self.num_chains, -1)
        statistics = {"step_size": kept} if self.step_size is None else {}
        return Chains(torch.stack(draws, 1), statistics, record, walk.step)

    def _rates(self, num_steps: int) -> Tensor:
        """Return the step size of each step, (steps,), in units of that to be measured where none is given."""
        size = 1.0 if self.step_size is None else self.step_size
        if self.schedule is None:
            return torch.full((num_steps,), size, dtype=torch.float64)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=size)
        schedule, rates = self.schedule.build(optimizer, num_steps), []
        optimizer.step()  # torch warns of schedules that move before the optimiser
        for _ in range(num_steps):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            schedule.step()
        return torch.tensor(rates, dtype=torch.float64)


@registry.register
@setting
class SGLD(StochasticGradient):
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011), on unconstrained latents z.

    z <- z + e grad log p(z, D) + N(0, 2 e T), with the log density of all data estimated from a mini-batch. It has no
    accept step: its draws come from the posterior only as e goes to 0. For a direction of posterior variance v the
    variance becomes v / (1 - e / (2 v)); e above 2 v diverges.

    Attributes:
        step_size: e, half that of Welling & Teh. None for 0.2 v, with v the smallest posterior variance, the inverse
            of the largest curvature of the log density along the burn-in.
        num_draws: draws kept of each chain.
        burn_in: steps before them. None for as many as follow, `num_draws` times `thinning`.
        thinning: steps from one draw kept to the next.
        num_chains: number of chains, run side by side.
        batch_size: examples in a mini-batch, or "all".
        schedule: a schedule of `torch.optim.lr_scheduler` for the step size, or None. All draws have equal weight.
        temperature: T; 1 is Bayes, less than 1 a cold posterior, p(z | D)^(1/T).
        init: where each chain starts, as in `NUTS`; steps are too small for the way from the prior.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.SGLD(step_size=1e-4, num_draws=10, burn_in=10, thinning=1, num_chains=2, batch_size=8)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, progress=False)
    """

    def moved(self, state: State, gradient: Tensor, size: Tensor, smallest_variance: float) -> State:
        noise = (self.temperature * size * 2) ** 0.5 * torch.randn_like(state[0])
        return state[0] + size * gradient + noise, state[1]


@registry.register
@setting
class SGHMC(StochasticGradient):
    """Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014), on unconstrained latents z.

    With momenta m of unit variance: z <- z + e m and m <- m + e grad log p(z, D) - e a m + N(0, 2 e a T), both from the
    values before the step. It moves further than `SGLD` for the same number of gradients, and likewise has no accept
    step: e > a v diverges, with v the smallest posterior variance.

    Attributes:
        step_size: e; None for 0.2 a v, v measured as in `SGLD`.
        friction: a; None for 0.1 / sqrt(v), so that momenta are new after 1 / (a e) = 500 steps; or for 1 if a step
            size is given.
        num_draws, burn_in, thinning, num_chains, batch_size, schedule, temperature, init: as in `SGLD`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.SGHMC(step_size=1e-3, num_draws=10, burn_in=10, thinning=1, num_chains=2)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, progress=False)
    """

    friction: Positive | None = None

    def begun(self, place: Tensor) -> State:
        return place, torch.randn_like(place)

    def usual_step_size(self, smallest_variance: float) -> float:
        return self.friction_of(smallest_variance) * super().usual_step_size(smallest_variance)

    def friction_of(self, smallest_variance: float) -> float:
        if self.friction is not None:
            return self.friction
        return 1.0 if self.step_size is not None else _DAMPING / math.sqrt(smallest_variance)

    def moved(self, state: State, gradient: Tensor, size: Tensor, smallest_variance: float) -> State:
        (place, momentum), friction = state, self.friction_of(smallest_variance)
        noise = (self.temperature * size * (2 * friction)) ** 0.5 * torch.randn_like(place)
        return place + size * momentum, momentum + size * gradient - size * friction * momentum + noise


class _Walk:
    """Chains side by side, at `state` after `step` steps, of sizes `rates`, by default from the largest curvature."""

    def __init__(self, method: StochasticGradient, target: Target, seed: int) -> None:
        seeds = [derive(seed, f"batches {chain}") for chain in range(method.num_chains)]
        stream = target.source.batches(target.bnn, method.batch_size, seeds[0])
        streams: list[Any] = [stream]  # one for all if each batch is the whole set or a loader's
        if isinstance(stream, TensorBatches) and stream.batch_size is not None:
            streams += [TensorBatches(stream.data, stream.batch_size, later) for later in seeds[1:]]
        own_batches = len(streams) > 1
        self._method, self._batches = method, _joined(streams)
        first = next(self._batches)
        evaluate = eager_potential(target.log_joint, tuple(v[0] for v in first) if own_batches else first)
        points = target.starts(method.num_chains, evaluate)
        self._potential, _ = potential_of_chains(target.log_joint, points, first, own_batches=own_batches)
        self._first, self._evaluate = first, evaluate
        self.step, self.num_steps = 0, method.burnt + method.num_draws * method.thinning
        self._relative = method._rates(self.num_steps).to(points.device)
        self.rates, self.smallest_variance = self._relative.clone(), 1.0
        self._curvatures: list[float] = []
        self.state: State = points, torch.empty(0)

    def advance(self) -> None:
        ONE_THREAD.let_waiting_in()
        measures = self._method.step_size is None and self.step % _BETWEEN_MEASURES == 0
        if measures and self.step < max(1, self._method.burnt):  # by the later half of all measurements
            self._curvatures.append(largest_curvature(lambda z: self._evaluate(z)[1], self.state[0]))
            self.smallest_variance = 1 / max(self._curvatures[len(self._curvatures) // 2 :])
            size = self._method.usual_step_size(self.smallest_variance)
            self.rates[self.step :] = self._relative[self.step :] * size
        batch = self._first if self.step == 0 else next(self._batches)
        _, slopes = self._potential(self.state[0], *batch)
        self.state = self._method.moved(self.state, -slopes, self.rates[self.step], self.smallest_variance)
        self.step += 1


def _joined(streams: list[Any]) -> Iterator[Batch]:
    """Yield the next batch of a single stream, or of several streams side by side, (chain, B, ...)."""
    if len(streams) == 1:
        while True:
            yield next(streams[0])
    while True:
        for rows in torch.stack([stream.rows(_STEPS_BETWEEN_LOOKS) for stream in streams], 1):
            yield tuple(values[rows] for values in streams[0].data)
