"""Markov chain Monte Carlo with all data at each step: the base for samplers, and NUTS and HMC on Pyro's kernels."""

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple, cast

import torch
from pydantic import Field
from pyro.infer import mcmc
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyrobnn._core.errors import InputError, progress_bar, warn_user
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import Count, Positive, setting
from pyrobnn.data.batches import Batch
from pyrobnn.guides.sites import Site
from pyrobnn.inference.capture.graph import capture, choose_engine
from pyrobnn.inference.mcmc import chains
from pyrobnn.inference.mcmc.chains import ChainMethod, Chains, Init, LogJoint, Target, ValueAndGradient
from pyrobnn.inference.method import Run, registry

_STEPS_AT_ONCE = 64  # leapfrog steps after which other threads get a turn
Share = Annotated[float, Field(gt=0, lt=1)]
_TYPICAL_STEPS = 50
"""Leapfrog steps of a transition, for the choice of the engine: a linear model needs 5, a small network up to 1000."""
_MOST_NUMBERS = 2**26  # latents of all steps that a recorded kernel remembers, at most
_LENGTH_ROUNDING = 1e-6  # relative length added to a trajectory, so that 0.3 holds three steps of 0.1
_LARGEST_CHANGE = 1000.0  # change of energy in nats above which a trajectory has diverged, as in Pyro


class LogDensity:
    """log p(D, w(z)) + log |dw/dz| of unconstrained latents z (P,), the density of which `Sampler.walk` draws.

    Attributes:
        sites: the latent sites, whose entries follow each other in z, unconstrained.
        num_evaluations: number of evaluations so far.
    """

    def __init__(self, sites: list[Site], evaluate: ValueAndGradient, leapfrog: "Leapfrog | None" = None) -> None:
        self.sites, self._evaluate, self.leapfrog = sites, evaluate, leapfrog
        self.num_evaluations = 0

    def __call__(self, z: Tensor) -> Tensor:
        """Return the log density of latents z (P,), (); not finite where the model overflows."""
        return self.with_gradient(z)[0]

    def with_gradient(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log density, (), and its gradient, (P,)."""
        ONE_THREAD.let_waiting_in()
        self.num_evaluations += 1
        potential, slope = self._evaluate(z.detach())
        return -potential, -slope

    def potential(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return minus the log density at {"z": latents} for a kernel of Pyro, with its gradient in autograd."""
        value: Tensor = _Evaluated.apply(parameters["z"], self)
        return value


class _Evaluated(torch.autograd.Function):
    """A value whose gradient was computed with it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, density: LogDensity) -> Tensor:
        value, gradient = density.with_gradient(z)
        ctx.save_for_backward(-gradient)
        return -value

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


class WalkMethod(ChainMethod):
    """Base of the methods whose chains see all data, one after another: `Sampler` without its fields."""

    warmup: int

    def walk(self, density: LogDensity, start: Tensor) -> Iterator[tuple[Tensor, Mapping[str, float]]]:
        """Yield the latents (P,) after each transition of a chain from `start`, and numbers by ArviZ's names, for ever.

        The first `warmup` transitions are left out. Random numbers are those of torch's seeded global generator.
        """
        raise NotImplementedError

    def recorded(self, log_joint: LogJoint, data: Batch, like: Tensor) -> "Leapfrog":
        return Leapfrog(log_joint, data, like)

    @property
    def smaller_steps(self) -> Remedy | None:
        return None

    def sample(self, target: Target, run: Run) -> Chains:
        name, data = type(self).__name__, target.all_data(type(self).__name__)
        steps, (like,) = self.warmup + self.num_draws, target.starts(1)
        total = self.num_chains * steps
        make = partial(self.recorded, target.log_joint, data, like)
        choice = choose_engine(run.engine, total * _TYPICAL_STEPS)
        leapfrog, record = capture(choice, make, what="chains run", from_step=1)
        evaluate = chains.eager_potential(target.log_joint, data) if leapfrog is None else leapfrog.evaluate
        density, starts = LogDensity(target.sites, evaluate, leapfrog), target.starts(self.num_chains, evaluate)
        kept = list[tuple[Tensor, Mapping[str, float]]]()
        with progress_bar(total=total, shown=run.progress, desc=name, unit="step") as bar:
            for chain, start in enumerate(starts):
                with seeded(derive(run.seed, f"chain {chain}"), "transitions"):
                    for step, (z, numbers) in zip(range(steps), self.walk(density, start), strict=False):
                        if z.shape != start.shape or not bool(z.isfinite().all()):
                            shape = f"latents {tuple(start.shape)}, got {tuple(z.shape)}, or values that are not finite"
                            raise InputError(f"{name}.walk must yield {shape}.", page="how-to/own-sampler")
                        bar.update()
                        kept += [(z.detach().clone(), numbers)] if step >= self.warmup else []
                bar.set_postfix({"chain": chain + 1, **{key: f"{value:.3g}" for key, value in kept[-1][1].items()}})
        columns = {key: torch.tensor([numbers[key] for _, numbers in kept], dtype=torch.float64) for key in kept[0][1]}
        diverging = int(columns["diverging"].sum()) if "diverging" in columns else None
        if diverging:
            warn_user(chains.diverged(diverging, len(kept)), remedy=self.smaller_steps)
        draws = torch.stack([z for z, _ in kept]).unflatten(0, (self.num_chains, -1))
        statistics = {key: values.view(self.num_chains, -1) for key, values in columns.items()}
        return Chains(draws, statistics, record, steps, diverging)


@setting
class Sampler(WalkMethod):
    """Base of the methods that draw with all data: write `walk`, the rest is inherited; see docs/how-to/own-sampler.md.

    Attributes:
        num_draws, warmup, num_chains, init: as in `NUTS`.
    """

    num_draws: Count = 1000
    warmup: Count = 1000
    num_chains: Count = 4
    init: Init = "prior"


class Hamiltonian(WalkMethod):
    """Base of the methods that follow Hamilton's equations by a kernel of Pyro: write `kernel`."""

    full_mass: bool
    max_tree_depth: int = 0  # of trajectories that double, which a recorded kernel remembers

    @property
    def smaller_steps(self) -> Remedy:
        return Remedy("take smaller steps", ("fit.target_accept=0.95",))

    def kernel(self, density: LogDensity) -> MCMCKernel:
        raise NotImplementedError

    def recorded(self, log_joint: LogJoint, data: Batch, like: Tensor) -> Leapfrog:
        longest = 2**self.max_tree_depth // 2  # steps of a subtree
        kept = longest if longest * len(like) <= _MOST_NUMBERS else 0
        return Leapfrog(log_joint, data, like, num_kept=kept, dense=self.full_mass)

    def walk(self, density: LogDensity, start: Tensor) -> Iterator[tuple[Tensor, Mapping[str, float]]]:
        kernel, point = cast("Any", self.kernel(density)), {"z": start}
        kernel.density, kernel.initial_params, sample_momenta = density, point, kernel._sample_r

        def momenta(name: str) -> Any:  # Pyro does not keep the energy
            drawn = sample_momenta(name)
            kernel.energy = float(_energy(kernel._potential_energy_last, drawn[1]["z",]))
            return drawn

        kernel._sample_r = momenta
        kernel.setup(self.warmup)
        mean, evaluations, divergences = 0.0, density.num_evaluations, 0
        for step in itertools.count():
            point = kernel.sample(point)
            # Pyro keeps a running mean for each phase alone
            index = step - self.warmup if step >= self.warmup else step
            total, mean = mean * index, kernel._mean_accept_prob
            num_steps = density.num_evaluations - evaluations
            numbers = {
                "diverging": float(len(kernel._divergences) > divergences),
                "acceptance_rate": min(max(mean * (index + 1) - total, 0.0), 1.0),
                "step_size": float(kernel.step_size),
                "n_steps": num_steps,
                "energy": kernel.energy,
            }
            yield point["z"], numbers | ({"tree_depth": num_steps.bit_length()} if self.max_tree_depth else {})
            evaluations, divergences = density.num_evaluations, len(kernel._divergences)


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

    def kernel(self, density: LogDensity) -> MCMCKernel:
        remembers = density.leapfrog is not None and density.leapfrog.num_kept
        return (RecordedNUTS if remembers else mcmc.NUTS)(
            potential_fn=density.potential,
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

    def kernel(self, density: LogDensity) -> MCMCKernel:
        return mcmc.HMC(
            potential_fn=density.potential,
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

    density: LogDensity
    _root_of: Tensor | None = None

    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        latents, potential, gradients = self._fetch_from_cache()
        leapfrog: Any = self.density.leapfrog
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
        before, leapfrog = _energy(potential, state.momentum), cast("Leapfrog", self.density.leapfrog)
        self.energy = float(before)
        ends, total = {1: state, -1: state}, state.momentum.double()
        log_weight, accepted, num_steps = torch.zeros((), dtype=torch.float64), 0.0, 0
        moved = None
        for depth in range(self._max_tree_depth):
            direction = 1 if float(torch.rand(())) < 0.5 else -1
            ends[direction], _ = leapfrog.move(ends[direction], direction * self.step_size, 2**depth)
            self.density.num_evaluations += 2**depth
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
