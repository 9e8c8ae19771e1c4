"""Microcanonical Langevin chains as a method for `fit`, unadjusted and adjusted."""

import math
from functools import partial

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, warn_user
from pyrobnn._core.random import seeded
from pyrobnn._core.remedies import Remedy, change
from pyrobnn._core.settings import Count, setting
from pyrobnn._core.waiting import progress_bar
from pyrobnn.data.batches import Batch
from pyrobnn.inference.mcmc.chains import ChainMethod, Chains, Init, Target
from pyrobnn.inference.mcmc.isokinetic import Walk
from pyrobnn.inference.mcmc.potential import LogJoint, eager_potential, is_finite, log_densities
from pyrobnn.inference.mcmc.warmup import Tuned, descended, warm_up
from pyrobnn.inference.method import Run, registry
from pyrobnn.inference.training.engines import Choice, Engine, Work, capture, choose
from pyrobnn.posterior.record import EngineRecord

_SMALLER_STEPS = (
    Remedy("raise `warmup`", f"warm up longer {change('fit.warmup=2000')}"),
    Remedy("use NUTS()", f"use NUTS {change('fit.type=nuts')}"),
    Remedy("choose a smoother prior", f"choose a smoother prior {change('prior.type=normal')}"),
)
_TYPICAL_STEPS = 20
"""Steps from one draw to the next, for the choice of the engine."""
_ACCEPTANCE, _TRANSITIONS, _DECAY = 0.9, 100, 0.6
"""Aim for the acceptance of adjusted chains, transitions to reach it, and the power at which their weights fall."""


class Microcanonical(ChainMethod):
    """Base of the methods that run isokinetic Langevin chains."""

    warmup: int
    thinning: int | None
    adjusted: bool

    @property
    def num_steps(self) -> int:
        """The number of steps of each chain, as guessed before the warm-up."""
        return self.warmup + self.num_draws * (self.thinning or _TYPICAL_STEPS)

    def sample(self, target: Target, run: Run) -> Chains:
        """Run the chains side by side.

        Raises:
            InputError: data that are not in memory, a model of a single latent, or no start with a finite density.
        """
        name = type(self).__name__
        data = target.all_data(name)
        evaluate = eager_potential(target.log_joint, data)
        starts = [target.start(chain, lambda z: is_finite(evaluate, z)) for chain in range(self.num_chains)]
        points = torch.stack([descended(start, evaluate) for start in starts])
        if points.shape[1] == 1:
            raise InputError(f"{name} turns directions, and a single latent has none: use NUTS.", page="how-to/mcmc")
        walk, record = self._walk(target.log_joint, data, points, run.engine)
        with (
            seeded(run.seed, "transitions"),
            progress_bar(total=self.num_steps, shown=run.progress, desc=name, unit="step") as bar,
        ):
            walk.tell = bar.update
            tuned = warm_up(walk, self.warmup)
            sampler = _Adjusted(walk, tuned) if self.adjusted else _Unadjusted(walk, tuned)
            thinning = sampler.usual_thinning if self.thinning is None else self.thinning
            bar.total = walk.num_steps + self.num_draws * thinning * sampler.num_steps
            pairs = [sampler.draw(thinning) for _ in range(self.num_draws)]
        draws, rows = (torch.stack(parts, 1) for parts in zip(*pairs, strict=True))
        numbers = dict(zip(sampler.statistics, rows.unbind(-1), strict=True))
        diverging = int(numbers["diverging"].sum())
        if diverging:
            warn_user(
                f"{diverging} of {self.num_chains * self.num_draws} draws diverged: a step before them changed the "
                "energy by far, and was not taken. Some region of the posterior is too narrow for the step size and "
                "not explored.",
                remedies=_SMALLER_STEPS,
            )
        return Chains(draws, numbers, record, diverging, num_steps=walk.num_steps)

    def _walk(self, log_joint: LogJoint, data: Batch, points: Tensor, engine: Engine) -> tuple[Walk, EngineRecord]:
        """Return chains at points (C, P) under the engine that was asked for or pays, and the record of that choice."""
        each, is_batched = log_densities(log_joint, points, data)

        def slopes(place: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                point = place.detach().requires_grad_()
                potential = -each(point, *data)
                (gradient,) = torch.autograd.grad(potential.sum(), point)
            return potential.detach(), gradient

        choice = Choice(engine, engine)
        if not is_batched:
            choice = Choice(engine, "eager", "torch does not batch the model")
        elif engine == "auto":
            with Work() as work:
                slopes(points)
            choice = choose(work, 2 * self.num_steps, points.device.type)
        walk = Walk(slopes, points)
        recorded, record = capture(choice, partial(walk.recorded, log_joint, data), what="chains run", from_step=1)
        return recorded or walk, record


@registry.register
@setting
class MCLMC(Microcanonical):
    """Microcanonical Langevin Monte Carlo (Robnik et al. 2023), all chains side by side.

    A chain moves at constant speed: the gradient turns its direction, and noise makes it forget the direction along a
    length L. It takes steps of a size e and has no accept step, so its draws come from the posterior as e goes to 0.
    The size is such that a step changes the energy, which would be constant, by the square root of 5e-4 nats squared
    for each latent: a bias below the Monte Carlo error of some thousand draws. `adjusted=True` accepts or refuses
    trajectories of L on average, and is exact in the limit (Robnik, Cohn-Gordon & Seljak 2025). A chain cannot go from
    one mode to another more easily than `NUTS`. It needs two latents.

    In the warm-up the step size follows the changes of the energy, latents get their standard deviations as units, and
    L follows from their autocorrelation.

    Attributes:
        num_draws: draws kept of each chain.
        warmup: steps before them, each with two gradients. Adjusted chains add 100 trajectories.
        num_chains: number of chains.
        adjusted: accept or refuse trajectories.
        thinning: from one draw kept to the next, steps, or trajectories if adjusted. None for steps of a length L, or
            one trajectory.
        init: where each chain starts, as in `NUTS`.

    Examples:
        >>> likelihood = bnn.likelihoods.Gaussian(scale=1.0)
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(1.0), likelihood=likelihood)
        >>> method = bnn.MCLMC(num_draws=10, warmup=40, num_chains=2)  # take 500 draws or more
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
        >>> posterior.predict([[0.0], [1.0]], num_draws=20)
        Prediction(Normal, num_draws=20, num_inputs=2)
    """

    num_draws: Count = 1000
    warmup: Count = 10_000
    num_chains: Count = 4
    adjusted: bool = False
    thinning: Count | None = None
    init: Init = "prior"


class _Unadjusted:
    """Draws of chains without an accept step.

    Attributes:
        num_steps: number of steps of a unit of thinning.
        usual_thinning: number of such units from one draw to the next.
    """

    statistics = ("diverging", "energy_error", "step_size", "n_steps")

    def __init__(self, walk: Walk, tuned: Tuned) -> None:
        self._walk, self.num_steps = walk, 1
        self.usual_thinning = tuned.num_steps
        walk.set(*tuned)

    def draw(self, thinning: int) -> tuple[Tensor, Tensor]:
        """Return places (C, P) and statistics (C, statistic) after that many steps."""
        state = self._walk.state
        self._walk.run(thinning)
        error = (state.squares / thinning).sqrt()
        taken = torch.full_like(error, thinning)
        return state.place.clone(), torch.stack([state.refused > 0, error, state.size, taken], 1).double()


class _Adjusted:
    """Draws of chains that accept or refuse trajectories, whose step size is tuned first.

    A trajectory has new directions, and 1 to 2 n - 1 steps with equal probability; energies are kept along it.

    Attributes:
        num_steps: n.
        usual_thinning: number of trajectories from one draw to the next.
    """

    statistics = ("diverging", "acceptance_rate", "step_size", "n_steps")

    def __init__(self, walk: Walk, tuned: Tuned) -> None:
        self._walk, self.usual_thinning = walk, 1
        size = mean = math.log(tuned.size)
        for number in range(1, _TRANSITIONS + 1):
            self._set(tuned._replace(size=math.exp(size)))
            acceptance = float(self._move()[1].mean())
            rate = number**-_DECAY
            size += rate * (acceptance - _ACCEPTANCE)
            mean += rate * (size - mean)
        self._set(tuned._replace(size=math.exp(mean)))

    def draw(self, thinning: int) -> tuple[Tensor, Tensor]:
        """Return places (C, P) and statistics (C, statistic) after that many trajectories."""
        rows = torch.stack([torch.stack(self._move(), 1).double() for _ in range(thinning)])
        diverging, acceptance, size, taken = rows.unbind(-1)
        numbers = [diverging.amax(0), acceptance.mean(0), size[0], taken.sum(0)]
        return self._walk.state.place.clone(), torch.stack(numbers, 1)

    def _set(self, tuned: Tuned) -> None:
        self._walk.set(tuned.size, math.inf)
        self.num_steps = tuned.num_steps

    def _move(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Make a transition of each chain, and return the statistics, (C,) each."""
        walk, state = self._walk, self._walk.state
        kept = ("place", "gradient", "potential")
        before = {name: getattr(state, name).clone() for name in kept}
        walk.turn_anew()
        num_steps = int(torch.randint(1, 2 * self.num_steps, ()))
        walk.run(num_steps)
        acceptance = (-state.change).exp().clamp(max=1)
        accepted = torch.rand_like(acceptance) < acceptance
        for name, value in before.items():
            now = getattr(state, name)
            now.copy_(torch.where(accepted.view(-1, *[1] * (now.ndim - 1)), now, value))
        return state.refused > 0, acceptance, state.size.clone(), torch.full_like(acceptance, num_steps)
