"""Markov chain Monte Carlo with gradients of all data, as methods for `fit`: Pyro's NUTS and HMC."""

import math
from typing import Annotated, Any

import torch
from pydantic import Field
from pyro.infer import mcmc
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyrobnn._core.errors import warn_user
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.remedies import Remedy, change
from pyrobnn._core.settings import Count, setting
from pyrobnn._core.waiting import progress_bar
from pyrobnn.inference.mcmc.chains import ChainMethod, Chains, Init, Target
from pyrobnn.inference.mcmc.kernels import RecordedNUTS
from pyrobnn.inference.mcmc.potential import Potential, is_finite, make_potential
from pyrobnn.inference.method import Run, registry

Share = Annotated[float, Field(gt=0, lt=1)]
_SMALLER_STEPS = Remedy(
    "raise `target_accept`, or lower `step_size`", f"take smaller steps {change('fit.target_accept=0.95')}"
)
_SMOOTHER_PRIOR = Remedy("choose a smoother prior", f"choose a smoother prior {change('prior.type=normal')}")
_TYPICAL_STEPS = 50
"""Leapfrog steps of a transition, for the choice of the engine: a linear model needs 5, a small network up to 1000."""
_MOST_NUMBERS = 2**26
"""Latents of all steps that a recorded kernel remembers, at most."""
_STATISTICS = ("diverging", "acceptance_rate", "step_size", "n_steps")
_ROUNDING = 1e-6
"""Relative length added to a trajectory, so that 0.3 holds three steps of 0.1."""


class Hamiltonian(ChainMethod):
    """Base of the methods that follow Hamilton's equations: write `kernel`, the rest is inherited."""

    warmup: int
    full_mass: bool

    @property
    def num_kept(self) -> int:
        """The number of steps of a trajectory that a recorded kernel remembers."""
        return 0

    @property
    def num_steps(self) -> int:
        """The number of transitions of each chain, warm-up included."""
        return self.warmup + self.num_draws

    def kernel(self, potential: Potential) -> MCMCKernel:
        """Return Pyro's kernel for a chain."""
        raise NotImplementedError

    def sample(self, target: Target, run: Run) -> Chains:
        """Run the chains, one after another.

        Raises:
            InputError: data that are not in memory.
        """
        name, data = type(self).__name__, target.all_data(type(self).__name__)
        like = target.start(0, lambda point: True)
        expected = self.num_chains * self.num_steps * _TYPICAL_STEPS
        kept = self.num_kept if self.num_kept * len(like) <= _MOST_NUMBERS else 0
        potential, record = make_potential(
            target.log_joint, data, like, run.engine, expected, num_kept=kept, dense=self.full_mass
        )
        total = self.num_chains * self.num_steps
        with progress_bar(total=total, shown=run.progress, desc=name, unit="step") as bar:
            runs = [self._run_chain(chain, target, potential, run.seed, bar) for chain in range(self.num_chains)]
        statistics = torch.stack([numbers for _, numbers in runs])
        diverging = int(statistics[..., 0].sum())
        if diverging:
            warn_user(
                f"{diverging} of {self.num_chains * self.num_draws} draws diverged: some region of the posterior is "
                "too narrow for the step size and not explored.",
                remedies=(_SMALLER_STEPS, _SMOOTHER_PRIOR),
            )
        by_name = dict(zip(_STATISTICS, statistics.unbind(-1), strict=True))
        return Chains(torch.stack([draws for draws, _ in runs]), by_name, record, diverging)

    def _run_chain(
        self, chain: int, target: Target, potential: Potential, seed: int, bar: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the draws (draw, P) of a chain and their statistics (draw, statistic)."""
        kernel = self.kernel(potential)
        point = {"z": target.start(chain, lambda z: is_finite(potential.evaluate, z))}
        draws, statistics = [], []
        with seeded(derive(seed, f"chain {chain}"), "transitions"):
            kernel.initial_params = point
            kernel.setup(self.warmup)
            watch = _ChainWatch(kernel, potential)
            for step in range(self.num_steps):
                point = kernel.sample(point)
                numbers = watch.look(step - self.warmup if step >= self.warmup else step)
                bar.update()
                if step >= self.warmup:
                    draws.append(point["z"].detach())
                    statistics.append(numbers)
            bar.set_postfix({"chain": chain + 1, **kernel.logging()})
        return torch.stack(draws), torch.tensor(statistics, dtype=torch.float64)


@registry.register
@setting
class NUTS(Hamiltonian):
    """The No-U-Turn sampler of Pyro (Hoffman & Gelman 2014): exact in the limit, for small networks and data sets.

    If the model can be captured, a trajectory runs without Python. Chains run one after another. Each moves a
    single vector: the unconstrained latents of weights, priors and likelihood. Step size and masses adapt in the
    warm-up. The posterior holds all draws in order, and `to_datatree` has them as chains. Weights of a network have
    symmetries, so chains agree in predictions long before they agree in weights: judge them by `function_rhat`.

    See docs/how-to/mcmc.md.

    Attributes:
        num_draws: draws kept of each chain.
        warmup: transitions before them.
        num_chains: number of chains.
        target_accept: target acceptance probability of the step size; higher is slower and diverges less.
        max_tree_depth: a trajectory has at most 2^depth - 1 leapfrog steps.
        full_mass: adapt a full mass matrix, for strongly correlated latents, up to a few hundred.
        init: where each chain starts: "prior" at a draw from the prior, wider than the posterior, as R-hat requires;
            "net" at the network's weights (new random weights for a declared network) with noise of standard deviation
            0.1.

    Examples:
        >>> likelihood = bnn.likelihoods.Gaussian(scale=1.0)
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(1.0), likelihood=likelihood)
        >>> method = bnn.NUTS(num_draws=10, warmup=10, num_chains=2, max_tree_depth=3)  # take 500 draws or more
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
        >>> posterior.predict([[0.0], [1.0]], num_draws=20)
        Prediction(Normal, num_draws=20, num_inputs=2)
    """

    num_draws: Count = 1000
    warmup: Count = 1000
    num_chains: Count = 4
    target_accept: Share = 0.8
    max_tree_depth: Count = 10
    full_mass: bool = False
    init: Init = "prior"

    @property
    def num_kept(self) -> int:
        """The number of steps of the longest subtree."""
        return int(2 ** (self.max_tree_depth - 1))

    def kernel(self, potential: Potential) -> MCMCKernel:
        """Return Pyro's kernel for a chain, recorded if memory can hold all steps of a trajectory."""
        remembers = potential.leapfrog is not None and potential.leapfrog.num_kept
        return (RecordedNUTS if remembers else mcmc.NUTS)(
            potential_fn=potential,
            full_mass=self.full_mass,
            target_accept_prob=self.target_accept,
            max_tree_depth=self.max_tree_depth,
        )


@registry.register
@setting
class HMC(Hamiltonian):
    """Hamiltonian Monte Carlo of Pyro (Neal 2011), with trajectories of a fixed length in place of those of `NUTS`.

    Attributes:
        step_size: size of the leapfrog steps, kept, with unit masses; None to adapt it and the masses in the warm-up.
        trajectory_length: step size times leapfrog steps; the number of steps is rounded down, and at least 1.
        num_draws: as in `NUTS`.
        warmup: as in `NUTS`.
        num_chains: as in `NUTS`.
        target_accept: as in `NUTS`.
        full_mass: as in `NUTS`.
        init: as in `NUTS`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.HMC(step_size=0.01, trajectory_length=0.05, num_draws=10, warmup=5, num_chains=2)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
    """

    step_size: Annotated[float, Field(gt=0)] | None = None
    trajectory_length: Annotated[float, Field(gt=0)] = math.pi / 2
    num_draws: Count = 1000
    warmup: Count = 1000
    num_chains: Count = 4
    target_accept: Share = 0.8
    full_mass: bool = False
    init: Init = "prior"

    def kernel(self, potential: Potential) -> MCMCKernel:
        """Return Pyro's kernel for a chain."""
        shared = {"full_mass": self.full_mass, "target_accept_prob": self.target_accept}
        length, adapts = self.trajectory_length * (1 + _ROUNDING), self.step_size is None
        shared |= {"adapt_step_size": adapts, "adapt_mass_matrix": adapts}
        return mcmc.HMC(potential_fn=potential, step_size=self.step_size or 1.0, trajectory_length=length, **shared)


class _ChainWatch:
    """Reads the statistics of single transitions off a kernel, which keeps running means of some."""

    def __init__(self, kernel: Any, potential: Potential) -> None:
        self._kernel, self._potential = kernel, potential
        self._evaluations = potential.num_evaluations
        self._divergences, self._mean = 0, 0.0

    def look(self, index: int) -> list[float]:
        """Return the statistics of the latest transition, whose number in its phase is `index`, counted from 0."""
        kernel, before = self._kernel, self._mean if index else 0.0
        self._mean = kernel._mean_accept_prob
        acceptance = min(max(self._mean * (index + 1) - before * index, 0.0), 1.0)
        steps = self._potential.num_evaluations - self._evaluations
        diverged = len(kernel._divergences) - self._divergences
        self._evaluations, self._divergences = self._potential.num_evaluations, len(kernel._divergences)
        return [float(diverged), acceptance, float(kernel.step_size), float(steps)]
