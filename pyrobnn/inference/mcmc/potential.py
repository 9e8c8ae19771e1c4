"""The density that chains sample: of unconstrained latents given data, with its gradient, eager or recorded."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.func import functional_call, vmap

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._torch.batching import vmap_or_loop
from pyrobnn._torch.private import private
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.guides.empirical import segments
from pyrobnn.guides.sites import Site
from pyrobnn.inference.method import Engine
from pyrobnn.inference.training.engines import MakeLoop, capture, choose
from pyrobnn.posterior.record import EngineRecord

ValueAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]
_STEPS_AT_ONCE = 64
"""Leapfrog steps after which other threads get a turn."""


class LogJoint(nn.Module):
    """log p(D | w) + log p(w) + log |dw/dz| as a function of the unconstrained latents z, a flat vector.

    w(z) is Pyro's bijection to the support of each site, the identity for weights on the real line. Where weights are
    normal given other latents, as under `Hierarchical`, and more than the examples, w = m + s z with their conditional
    mean m and deviation s: the non-centred form (Papaspiliopoulos, Roberts & Skold 2007). Weights that the data leave
    open do not hold their common scale then. The model's plate scales the log-likelihood of a batch by N / B, so that
    it is unbiased for all data.
    """

    def __init__(self, bnn: BNN, sites: list[Site], num_data: int) -> None:
        super().__init__()
        self.bnn = bnn
        self._num_data = num_data
        self._transforms = {site.name: site.transform for site in sites}
        self._shapes = [site.unconstrained.shape for site in sites]
        self._starts = bnn.initial_values
        are_open = bnn.num_weights > num_data
        self._scaled = [name for name in bnn.site_names if are_open and self._has_scale(name)]

    def forward(self, z: Tensor, *batch: Any) -> Tensor:
        """Return the log density, (), of latents z (P,) and a batch in the units of the model."""
        values, volumes = self._values(z)
        with poutine.block():
            model = poutine.condition(self.bnn, data=values)
            trace = poutine.trace(model).get_trace(*batch, num_data=self._num_data)
        trace.compute_log_prob(lambda name, node: not site_is_subsample(node))
        densities = [node["log_prob_sum"] for node in trace.nodes.values() if "log_prob_sum" in node]
        return torch.stack([*densities, *volumes]).sum()

    def constrain(self, z: Tensor) -> Tensor:
        """Return the values w(z) of unconstrained latents (..., P) as flat vectors (..., Q)."""

        def one(row: Tensor) -> Tensor:
            values, _ = self._values(row)
            return torch.cat([values[name].reshape(-1) for name in self._transforms])

        return vmap(one)(z.reshape(-1, z.shape[-1])).reshape(*z.shape[:-1], -1)

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the unconstrained latents z (P,) of values by site name."""
        parts = {name: values[name] if t is None else t.inv(values[name]) for name, t in self._transforms.items()}
        for name in self._scaled:
            prior = self._prior(name, values)
            parts[name] = (values[name] - prior.mean) / prior.stddev
        return torch.cat([part.reshape(-1) for part in parts.values()])

    def _values(self, z: Tensor) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return the values of latents z (P,) by site name, and parts of log |dw/dz|, each ()."""
        values, volumes = {}, []
        for (name, transform), part in zip(self._transforms.items(), segments(z, self._shapes), strict=True):
            values[name] = part if transform is None else transform(part)
            if transform is not None:
                volumes.append(transform.log_abs_det_jacobian(part, values[name]).sum())
        for name in self._scaled:
            prior = self._prior(name, values)
            values[name] = prior.mean + prior.stddev * values[name]
            volumes.append(prior.stddev.log().sum())
        return values, volumes

    def _prior(self, name: str, values: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """Return the prior of a weight given the other latents."""
        with poutine.block(), poutine.condition(data=dict(values)):
            prior: TorchDistributionMixin = self.bnn.prior(name, self._starts[name])
        return prior

    def _has_scale(self, name: str) -> bool:
        """Return whether a weight is normal given latents of its prior."""
        with poutine.block(), poutine.trace() as latents, torch.no_grad():
            prior = self.bnn.prior(name, self._starts[name])
        return bool(latents.trace.stochastic_nodes) and isinstance(_entries(prior), Normal)


def _entries(distribution: Any) -> Any:
    """Return the distribution of the entries of a site."""
    return distribution.base_dist if isinstance(distribution, Independent) else distribution


class Potential:
    """U(z) = -log p(z, D) as Pyro's kernels call it, on {"z": vector}, with a gradient that comes with the value.

    Args:
        evaluate: returns the value (), and the gradient (P,), at z (P,), as new tensors.
        leapfrog: recorded steps, if there are any.

    Attributes:
        num_evaluations: how often it was called, and steps that kernels add.
    """

    def __init__(self, evaluate: ValueAndGradient, leapfrog: "Leapfrog | None" = None) -> None:
        self.evaluate, self.leapfrog = evaluate, leapfrog
        self.num_evaluations = 0

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return U(z), (); its gradient in autograd is the gradient from `evaluate`."""
        ONE_THREAD.let_waiting_in()
        self.num_evaluations += 1
        return evaluated(parameters["z"], self.evaluate)


def evaluated(z: Tensor, evaluate: ValueAndGradient) -> Tensor:
    """Return the value at z; autograd and `torch.func` take the gradient computed with it."""
    value: Tensor = _Evaluated.apply(z, evaluate)[0]
    return value


class _Evaluated(torch.autograd.Function):
    """A value and its gradient, computed together."""

    @staticmethod
    def forward(z: Tensor, evaluate: ValueAndGradient) -> tuple[Tensor, Tensor]:
        return evaluate(z.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ValueAndGradient], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, outer: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return outer * gradient, None


def eager_potential(log_joint: LogJoint, data: Batch) -> ValueAndGradient:
    """Return U and its gradient through Pyro and autograd; data are all examples."""

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = z.detach().requires_grad_()
            energy = -log_joint(point, *data)
            (gradient,) = torch.autograd.grad(energy, point)
        return energy.detach(), gradient

    return evaluate


def log_densities(
    log_joint: LogJoint, points: Tensor, batch: Batch, *, own_batches: bool = False
) -> tuple[Callable[..., Tensor], bool]:
    """Return the function from latents of chains (C, P) and data to log densities (C,), and whether it is batched.

    A network that vmap cannot take runs chain by chain.

    Args:
        log_joint: the density.
        points: latents of the chains, (C, P).
        batch: data to try it on.
        own_batches: whether data have a leading axis of chains.
    """

    def one_by_one(z: Tensor, *data: Any) -> Tensor:
        batches = zip(*data, strict=True) if own_batches else itertools.repeat(data)
        pairs = zip(z, batches, strict=False)
        return torch.stack([-evaluated(row, eager_potential(log_joint, chain_batch)) for row, chain_batch in pairs])

    mapped = vmap(log_joint, in_dims=(0, *[0 if own_batches else None] * len(batch)))
    each = vmap_or_loop(mapped, one_by_one, points, *batch)
    return each, each is mapped


class State(NamedTuple):
    """Where a trajectory is: latents, momenta in units of the root of the masses, and the gradient of U, each (P,)."""

    place: Tensor
    momentum: Tensor
    gradient: Tensor


class Leapfrog:
    """Leapfrog steps of Hamilton's equations, each a run of a recorded graph; many run without a step in Python.

    With masses M, a root A of their inverse (A A^T = M^-1) and momenta r in units of the root of the masses, a step of
    size e is r - e/2 A^T dU/dz, then z + e A r, then again r - e/2 A^T dU/dz (Neal 2011, sec. 5.2.3).

    Args:
        log_joint: the density; U is its negative.
        data: all examples.
        like: latents, (P,).
        make_loop: from a recorded graph and its inputs to a function that runs it a number of times.
        num_kept: steps that `path` can remember, 0 for none.
        dense: whether A is a matrix (P, P), else it is a diagonal (P,).

    Attributes:
        num_kept: as given.

    Raises:
        NotCapturable: with the reason.
    """

    def __init__(
        self,
        log_joint: LogJoint,
        data: Batch,
        like: Tensor,
        make_loop: MakeLoop,
        *,
        num_kept: int = 0,
        dense: bool = False,
    ) -> None:
        # eager chains do without
        from pyrobnn.inference.capture.record import drop_unused, lift_constants, record, slope

        model = {name: t.detach() for name, t in (*log_joint.named_parameters(), *log_joint.named_buffers())}
        self._state = State(like.clone(), torch.zeros_like(like), torch.zeros_like(like))
        self._potential, self._size = like.new_zeros(()), like.new_zeros(())
        self._root = torch.eye(len(like)).to(like) if dense else torch.ones_like(like)
        self._index = torch.zeros(1, dtype=torch.long, device=like.device)
        kept = [like.new_zeros(num_kept, len(like)), like.new_zeros(num_kept, len(like)), like.new_zeros(num_kept)]
        self._path = kept if num_kept else []
        state = [*self._state, self._potential, self._size, self._root, self._index, *self._path]
        self.num_kept = num_kept

        examples, spec = private("tree_flatten")(data)

        def with_value(point: dict[str, Tensor], numbers: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
            value = -functional_call(log_joint, numbers, (point["z"], *batch))
            return value, value

        def step(*tensors: Tensor) -> tuple[()]:
            place, momentum, gradient, potential, size, root, index, *rest = tensors
            path, others = rest[: len(self._path)], rest[len(self._path) :]
            batch = private("tree_unflatten")(others[: len(examples)], spec)
            numbers = dict(zip(model, others[len(examples) :], strict=True))
            half = momentum - 0.5 * size * (root.T @ gradient if dense else root * gradient)
            moved = place + size * (root @ half if dense else root * half)
            gradients, value = slope(lambda point: with_value(point, numbers, batch), {"z": moved})
            there = gradients["z"]
            after = half - 0.5 * size * (root.T @ there if dense else root * there)
            for current, new in zip((place, momentum, gradient, potential), (moved, after, there, value), strict=True):
                current.copy_(new)
            if path:
                for kept, new in zip(path, (moved, after, value), strict=True):
                    kept.index_copy_(0, index, new.unsqueeze(0))
                index.add_(1)
            return ()

        leaves = [*state, *examples, *model.values()]
        graph = record(step, leaves)
        constants = lift_constants(graph)
        inputs = drop_unused(graph, leaves + constants)
        self._loop = make_loop(graph, inputs)

    def evaluate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return U and its gradient at z (P,), by a step of size 0."""
        self._begin(State(z, torch.zeros_like(z), torch.zeros_like(z)), 0.0)
        self._loop(1)
        return self._potential.clone(), self._state.gradient.clone()

    def move(self, start: State, size: float, num_steps: int) -> tuple[State, Tensor]:
        """Return where that many steps lead, and U there, ()."""
        self._begin(start, size)
        for done in range(0, num_steps, _STEPS_AT_ONCE):
            ONE_THREAD.let_waiting_in()
            self._loop(min(_STEPS_AT_ONCE, num_steps - done))
        return State(*(tensor.clone() for tensor in self._state)), self._potential.clone()

    def path(self, num_steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return latents (n, P), momenta (n, P) and U (n,) after each of the steps of the last move, until the next."""
        places, momenta, potentials = self._path
        return places[:num_steps], momenta[:num_steps], potentials[:num_steps]

    def set_root(self, root: Tensor) -> None:
        """Set A."""
        self._root.copy_(root)

    def _begin(self, start: State, size: float) -> None:
        for mine, given in zip(self._state, start, strict=True):
            mine.copy_(given)
        self._size.fill_(size)
        self._index.zero_()


def make_potential(
    log_joint: LogJoint,
    data: Batch,
    like: Tensor,
    engine: Engine,
    num_evaluations: int,
    *,
    num_kept: int = 0,
    dense: bool = False,
) -> tuple[Potential, EngineRecord]:
    """Return the potential under the engine that was asked for or pays, and the record of that choice.

    The latents are as `like`, (P,); the number of evaluations is rough. `num_kept` and `dense` are for `Leapfrog`.
    """
    eager = eager_potential(log_joint, data)

    def make(make_loop: MakeLoop) -> Leapfrog:
        return Leapfrog(log_joint, data, like, make_loop, num_kept=num_kept, dense=dense)

    leapfrog, record = capture(choose(engine, num_evaluations), make, what="chains run", from_step=1)
    return Potential(eager if leapfrog is None else leapfrog.evaluate, leapfrog), record


def is_finite(evaluate: ValueAndGradient, z: Tensor) -> bool:
    """Say whether U and its gradient are finite at z (P,)."""
    value, gradient = evaluate(z)
    return bool(value.isfinite() & gradient.isfinite().all())
