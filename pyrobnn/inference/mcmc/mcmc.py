"""Markov chain Monte Carlo with gradients of all data, as methods for `fit`: NUTS and HMC on Pyro's kernels."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from pyro.infer import mcmc
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyrobnn._core.errors import progress_bar, warn_user
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import Count, Positive, setting
from pyrobnn.data.batches import Batch
from pyrobnn.inference.capture.graph import capture, choose_engine
from pyrobnn.inference.mcmc import chains
from pyrobnn.inference.mcmc.chains import ChainMethod, Chains, Init, LogJoint, Target, ValueAndGradient
from pyrobnn.inference.method import Run, registry

_STEPS_AT_ONCE = 64  # leapfrog steps after which other threads get a turn
Share = Annotated[float, Field(gt=0, lt=1)]
_TYPICAL_STEPS = 50
"""Leapfrog steps of a transition, for the choice of the engine: a linear model needs 5, a small network up to 1000."""
_MOST_NUMBERS = 2**26  # latents of all steps that a recorded kernel remembers, at most
_STATISTICS = ("diverging", "acceptance_rate", "step_size", "n_steps")
_LENGTH_ROUNDING = 1e-6  # relative length added to a trajectory, so that 0.3 holds three steps of 0.1
_LARGEST_CHANGE = 1000.0  # change of energy in nats above which a trajectory has diverged, as in Pyro


class Potential:
    """U(z) as Pyro's kernels call it, on {"z": vector}, with its gradient; `num_evaluations` counts calls and steps."""

    def __init__(self, evaluate: ValueAndGradient, leapfrog: Any = None) -> None:
        self.evaluate, self.leapfrog = evaluate, leapfrog  # a `Leapfrog` under the captured engine
        self.num_evaluations = 0

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return U(z), (); its gradient in autograd is the gradient from `evaluate`."""
        ONE_THREAD.let_waiting_in()
        self.num_evaluations += 1
        value: Tensor = _Evaluated.apply(parameters["z"], self.evaluate)
        return value


class _Evaluated(torch.autograd.Function):
    """A value whose gradient was computed with it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, evaluate: ValueAndGradient) -> Tensor:
        value, gradient = evaluate(z.detach())
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        return outer * ctx.saved_tensors[0], None


class PhasePoint(NamedTuple):
    """Where a trajectory is: latents, momenta in units of the root of the masses, and the gradient of U, each (P,)."""

    place: Tensor
    momentum: Tensor
    gradient: Tensor


def _leap(held: list[Tensor], evaluate: ValueAndGradient) -> None:
    """Take a leapfrog step, in place; the path, where there is one, remembers it."""
    place, momentum, gradient, potential, size, root, index, *path = held
    dense = root.ndim > 1
    half = momentum - 0.5 * size * (root.T @ gradient if dense else root * gradient)
    moved = place + size * (root @ half if dense else root * half)
    value, there = evaluate(moved)
    after = half - 0.5 * size * (root.T @ there if dense else root * there)
    for current, new in zip((place, momentum, gradient, potential), (moved, after, there, value), strict=True):
        current.copy_(new)
    if path:
        for kept, new in zip(path, (moved, after, value), strict=True):
            kept.index_copy_(0, index, new.unsqueeze(0))
        index.add_(1)


class Leapfrog:
    """Leapfrog steps of Hamilton's equations, each a run of a recorded graph; many run without a step in Python.

    With masses M, a root A of their inverse (A A^T = M^-1), a matrix (P, P) if `dense`, and momenta r in units of the
    root of the masses, a step of size e is r - e/2 A^T dU/dz, then z + e A r, then again r - e/2 A^T dU/dz (Neal 2011,
    sec. 5.2.3). `path` can remember `num_kept` steps.
    """

    def __init__(
        self, log_joint: LogJoint, data: Batch, like: Tensor, *, num_kept: int = 0, dense: bool = False
    ) -> None:
        self.num_kept = num_kept
        self._state = PhasePoint(like.clone(), torch.zeros_like(like), torch.zeros_like(like))
        self._potential, self._size = like.new_zeros(()), like.new_zeros(())
        self.root = torch.eye(len(like)).to(like) if dense else torch.ones_like(like)
        self._index = torch.zeros(1, dtype=torch.long, device=like.device)
        shapes = [(num_kept, len(like)), (num_kept, len(like)), (num_kept,)] if num_kept else []
        self._path = [like.new_zeros(shape) for shape in shapes]
        state = [*self._state, self._potential, self._size, self.root, self._index, *self._path]
        self._loop = chains.recorded_steps(log_joint, data, state, _leap)

    def evaluate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return U and its gradient at z (P,), by a step of size 0."""
        self._begin(PhasePoint(z, torch.zeros_like(z), torch.zeros_like(z)), 0.0)
        self._loop(1)
        return self._potential.clone(), self._state.gradient.clone()

    def move(self, start: PhasePoint, size: float, num_steps: int) -> tuple[PhasePoint, Tensor]:
        """Return where that many steps lead, and U there, ()."""
        self._begin(start, size)
        for done in range(0, num_steps, _STEPS_AT_ONCE):
            ONE_THREAD.let_waiting_in()
            self._loop(min(_STEPS_AT_ONCE, num_steps - done))
        return PhasePoint(*(tensor.clone() for tensor in self._state)), self._potential.clone()

    def path(self, num_steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return latents (n, P), momenta (n, P) and U (n,) after each of the steps of the last move, until the next."""
        places, momenta, potentials = (kept[:num_steps] for kept in self._path)
        return places, momenta, potentials

    def _begin(self, start: PhasePoint, size: float) -> None:
        for mine, given in zip(self._state, start, strict=True):
            mine.copy_(given)
        self._size.fill_(size)
        self._index.zero_()


class Hamiltonian(ChainMethod):
    """Base of the methods that follow Hamilton's equations, one chain after another: write `kernel`."""

    warmup: int
    full_mass: bool
    max_tree_depth: int = 0  # of trajectories that double, which a recorded kernel remembers

    @property
    def smaller_steps(self) -> Remedy:
        return Remedy("take smaller steps", ("fit.target_accept=0.95",))

    def kernel(self, potential: Potential) -> MCMCKernel:
        raise NotImplementedError

    def sample(self, target: Target, run: Run) -> Chains:
        name, data = type(self).__name__, target.all_data(type(self).__name__)
        (like,) = target.starts(1)
        longest = 2**self.max_tree_depth // 2  # steps of a subtree
        kept = longest if longest * len(like) <= _MOST_NUMBERS else 0
        steps = self.warmup + self.num_draws
        total = self.num_chains * steps
        make = partial(Leapfrog, target.log_joint, data, like, num_kept=kept, dense=self.full_mass)
        choice = choose_engine(run.engine, total * _TYPICAL_STEPS)
        leapfrog, record = capture(choice, make, what="chains run", from_step=1)
        evaluate = chains.eager_potential(target.log_joint, data) if leapfrog is None else leapfrog.evaluate
        potential, starts = Potential(evaluate, leapfrog), target.starts(self.num_chains, evaluate)
        with progress_bar(total=total, shown=run.progress, desc=name, unit="step") as bar:
            runs = [self._run_chain(chain, start, potential, run.seed, bar) for chain, start in enumerate(starts)]
        statistics = torch.stack([numbers for _, numbers in runs])
        diverging = int(statistics[..., 0].sum())
        if diverging:
            text = chains.diverged(diverging, self.num_chains * self.num_draws)
            warn_user(text, remedy=self.smaller_steps)
        by_name = dict(zip(_STATISTICS, statistics.unbind(-1), strict=True))
        return Chains(torch.stack([draws for draws, _ in runs]), by_name, record, steps, diverging)

    def _run_chain(self, chain: int, start: Tensor, potential: Potential, seed: int, bar: Any) -> tuple[Tensor, Tensor]:
        """Return the draws (draw, P) of a chain and their statistics (draw, statistic)."""
        kernel: Any = self.kernel(potential)
        point, draws, statistics = {"z": start}, [], []
        mean, divergences = 0.0, 0
        with seeded(derive(seed, f"chain {chain}"), "transitions"):
            kernel.initial_params = point
            kernel.setup(self.warmup)
            evaluations = potential.num_evaluations
            for step in range(self.warmup + self.num_draws):
                point = kernel.sample(point)
                # Pyro keeps a running mean for each phase alone
                index = step - self.warmup if step >= self.warmup else step
                total, mean = mean * index, kernel._mean_accept_prob
                bar.update()
                if step >= self.warmup:
                    acceptance = min(max(mean * (index + 1) - total, 0.0), 1.0)
                    has_diverged = len(kernel._divergences) > divergences
                    steps = potential.num_evaluations - evaluations
                    draws.append(point["z"].detach())
                    statistics.append([float(has_diverged), acceptance, float(kernel.step_size), float(steps)])
                evaluations, divergences = potential.num_evaluations, len(kernel._divergences)
            bar.set_postfix({"chain": chain + 1, **kernel.logging()})
        return torch.stack(draws), torch.tensor(statistics, dtype=torch.float64)


@registry.register
@setting
class NUTS(Hamiltonian):
    """The No-U-Turn sampler of Pyro (Hoffman & Gelman 2014): exact in the limit, for small networks and data sets.

    Step size and masses adapt in the warm-up. The posterior holds all draws in order. Chains agree in predictions long
    before they agree in weights, which have symmetries: judge them by `function_rhat`.

    Attributes:
        num_draws: draws kept of each chain.
        warmup: transitions before them.
        num_chains: number of chains.
        target_accept: target acceptance probability of the step size; higher is slower and diverges less.
        max_tree_depth: a trajectory has at most 2^depth - 1 leapfrog steps.
        full_mass: adapt a full mass matrix, for strongly correlated latents, up to a few hundred.
        init: where each chain starts: "prior" at a draw from the prior, wider than the posterior, as R-hat requires;
            "net" at the network's weights, new ones of a declared network, with noise of standard deviation 0.1.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
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

    def kernel(self, potential: Potential) -> MCMCKernel:
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
        num_draws, warmup, num_chains, target_accept, full_mass, init: as in `NUTS`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.HMC(step_size=0.01, trajectory_length=0.05, num_draws=10, warmup=5, num_chains=2)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
    """

    step_size: Positive | None = None
    trajectory_length: Positive = math.pi / 2
    num_draws: Count = 1000
    warmup: Count = 1000
    num_chains: Count = 4
    target_accept: Share = 0.8
    full_mass: bool = False
    init: Init = "prior"

    def kernel(self, potential: Potential) -> MCMCKernel:
        return mcmc.HMC(
            potential_fn=potential,
            step_size=self.step_size or 1.0,
            trajectory_length=self.trajectory_length * (1 + _LENGTH_ROUNDING),
            adapt_step_size=self.step_size is None,
            adapt_mass_matrix=self.step_size is None,
            full_mass=self.full_mass,
            target_accept_prob=self.target_accept,
        )

    @property
    def smaller_steps(self) -> Remedy:
        if self.step_size is None:
            return super().smaller_steps
        return Remedy("take smaller steps", (f"fit.step_size={self.step_size / 2:g}",))


class RecordedNUTS(mcmc.NUTS):
    """Pyro's NUTS (Betancourt 2017, appendix A), whose doublings run all steps before a look at where they turned."""

    potential_fn: Potential
    _root_of: Tensor | None = None

    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        latents, potential, gradients = self._fetch_from_cache()
        leapfrog = self.potential_fn.leapfrog
        place, gradient = latents["z"].detach(), gradients["z"]
        inverse = self._adapter.mass_matrix_adapter.inverse_mass_matrix[("z",)]
        if inverse is not self._root_of:
            leapfrog.root.copy_(torch.linalg.cholesky(inverse) if inverse.ndim > 1 else inverse.sqrt())
            self._root_of = inverse
        moved, acceptance, has_diverged = self.move(PhasePoint(place, torch.randn_like(place), gradient), potential)
        if moved is not None:
            potential, gradient = leapfrog.evaluate(moved)
            place = moved
        self._cache({"z": place}, potential, {"z": gradient})
        self._t += 1
        index = self._t - self._warmup_steps
        if index > 0:
            self._accept_cnt += moved is not None
            self._divergences += [index - 1] * has_diverged
        else:
            probability = torch.tensor(acceptance, dtype=place.dtype)
            self._adapter.step(self._t, {"z": place}, probability, {"z": gradient})
        self._mean_accept_prob += (acceptance - self._mean_accept_prob) / (index if index > 0 else self._t)
        return {"z": place}

    def move(self, state: PhasePoint, potential: Tensor) -> tuple[Tensor | None, float, bool]:
        """Return new latents (P,) or None if unchanged, the acceptance probability, and whether it diverged."""
        before, leapfrog = _energy(potential, state.momentum), self.potential_fn.leapfrog
        ends, total = {1: state, -1: state}, state.momentum.double()
        log_weight, accepted, num_steps = torch.zeros((), dtype=torch.float64), 0.0, 0
        moved = None
        for depth in range(self._max_tree_depth):
            direction = 1 if float(torch.rand(())) < 0.5 else -1
            ends[direction], _ = leapfrog.move(ends[direction], direction * self.step_size, 2**depth)
            self.potential_fn.num_evaluations += 2**depth
            places, momenta, potentials = leapfrog.path(2**depth)
            change = (_energy(potentials, momenta) - before).nan_to_num(math.inf, math.inf).cpu()
            accepted += float((-change).exp().clamp(max=1).sum())
            num_steps += 2**depth
            if bool((change > _LARGEST_CHANGE).any()):
                return moved, accepted / num_steps, True
            if turns_back(momenta):
                break
            log_weight_of_half = (-change).logsumexp(0)
            if float(torch.rand(())) < math.exp(min(0.0, float(log_weight_of_half - log_weight))):
                moved = places[torch.multinomial((-change - log_weight_of_half).exp(), 1)[0]].clone()
            total = total + momenta.double().sum(0)
            log_weight = torch.logaddexp(log_weight, log_weight_of_half)
            if bool(_turn(ends[-1].momentum, ends[1].momentum, total)):
                break
        return moved, accepted / num_steps, False


def turns_back(momenta: Tensor) -> bool:
    """Say whether any of the balanced subtrees of a trajectory, momenta (2^k, P), turns back on itself."""
    momenta = momenta.double()
    sums = torch.cat([torch.zeros_like(momenta[:1]), momenta.cumsum(0)])
    sizes = [2**power for power in range(1, len(momenta).bit_length())]
    ends = ((momenta[::size], momenta[size - 1 :: size], sums[size::size] - sums[:-1:size]) for size in sizes)
    return any(bool(_turn(*end).any()) for end in ends)


def _turn(first: Tensor, last: Tensor, total: Tensor) -> Tensor:
    """Say whether going on at either end would shorten the way, from end momenta and their sum, (..., P) to (...)."""
    way = total - (first + last) / 2
    return ((first * way).sum(-1) <= 0) | ((last * way).sum(-1) <= 0)


def _energy(potential: Tensor, momentum: Tensor) -> Tensor:
    return potential.double() + 0.5 * momentum.double().square().sum(-1)
