"""The density that chains sample: of unconstrained latents given data, with its gradient, eager or recorded."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Normal
from torch.func import functional_call, vmap

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._torch.private import private
from pyrobnn._torch.transforms import vmap_or_loop
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.distributions.support import base_of
from pyrobnn.guides.empirical import segments
from pyrobnn.guides.sites import Site

ValueAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From latents to U = -log p(z, D) and its gradient: of a chain, (P,), or of several, (C, P), as new tensors."""
_STEPS_AT_ONCE = 64
"""Leapfrog steps after which other threads get a turn."""


class LogJoint(nn.Module):
    """log p(D | w) + log p(w) + log |dw/dz| as a function of the unconstrained latents z, a flat vector.

    w(z) is Pyro's bijection to the support of each site. Where weights are normal given other latents, as under
    `Hierarchical`, and more than the examples, w = m + s z with their conditional mean m and deviation s: the
    non-centred form (Papaspiliopoulos, Roberts & Skold 2007). The log-likelihood of a batch is scaled by N / B.
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

        def flat(row: Tensor) -> Tensor:
            values, _ = self._values(row)
            return torch.cat([values[name].reshape(-1) for name in self._transforms])

        return vmap(flat)(z.reshape(-1, z.shape[-1])).reshape(*z.shape[:-1], -1)

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
        with poutine.block(), poutine.condition(data=dict(values)):
            prior: TorchDistributionMixin = self.bnn.prior(name, self._starts[name])
        return prior

    def _has_scale(self, name: str) -> bool:
        """Return whether a weight is normal given latents of its prior."""
        with poutine.block(), poutine.trace() as latents, torch.no_grad():
            prior = self.bnn.prior(name, self._starts[name])
        return bool(latents.trace.stochastic_nodes) and isinstance(base_of(prior), Normal)


def eager_potential(log_joint: LogJoint, data: Batch) -> ValueAndGradient:
    """Return U and its gradient for a chain through Pyro and autograd; data are all examples."""
    return lambda z: _differentiated(log_joint, z, data)


def potential_of_chains(
    log_joint: LogJoint, points: Tensor, batch: Batch, *, own_batches: bool = False
) -> tuple[Callable[..., tuple[Tensor, Tensor]], bool]:
    """Return the function from latents (C, P) and data to U (C,) and its gradient (C, P), and whether it is batched.

    A network that vmap cannot take runs chain by chain. `own_batches` says that data have a leading axis of chains.
    """
    together = vmap(log_joint, in_dims=(0, *[0 if own_batches else None] * len(batch)))

    def mapped(z: Tensor, *data: Any) -> tuple[Tensor, Tensor]:
        return _differentiated(together, z, data)

    def one_by_one(z: Tensor, *data: Any) -> tuple[Tensor, Tensor]:
        batches = zip(*data, strict=True) if own_batches else itertools.repeat(data)
        pairs = [_differentiated(log_joint, *pair) for pair in zip(z, batches, strict=False)]
        potentials, gradients = map(torch.stack, zip(*pairs, strict=True))
        return potentials, gradients

    each = vmap_or_loop(mapped, one_by_one, points, *batch)
    return each, each is mapped


def _differentiated(log_density: Callable[..., Tensor], z: Tensor, data: Batch) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        point = z.detach().requires_grad_()
        potential = -log_density(point, *data)
        (gradient,) = torch.autograd.grad(potential.sum(), point)
    return potential.detach(), gradient


def recorded_steps(
    log_joint: LogJoint, data: Batch, state: Sequence[Tensor], step: Callable[[list[Tensor], ValueAndGradient], None]
) -> Callable[[int], None]:
    """Return a function that takes a number of steps without Python, or raise `NotCapturable`.

    A step changes stand-ins of the state in place, by U and its gradient, of a chain (P,) or of several (C, P).
    """
    from pyrobnn.inference.capture.graph import recorded, refuse_moving, slope  # eager chains do without

    refuse_moving(log_joint.bnn)
    model = {name: t.detach() for name, t in (*log_joint.named_parameters(), *log_joint.named_buffers())}
    examples, spec = private("tree_flatten")(data)

    def run(*tensors: Tensor) -> tuple[()]:
        held, others = list(tensors[: len(state)]), tensors[len(state) :]
        batch = private("tree_unflatten")(others[: len(examples)], spec)
        numbers = dict(zip(model, others[len(examples) :], strict=True))

        def potential(z: Tensor) -> Tensor:
            value: Tensor = -functional_call(log_joint, numbers, (z, *batch))
            return value

        def evaluate(place: Tensor) -> tuple[Tensor, Tensor]:
            each = potential if place.ndim == 1 else vmap(potential)
            gradients, values = slope(lambda point: (each(point["z"]),) * 2, {"z": place})
            return values, gradients["z"]

        step(held, evaluate)
        return ()

    return recorded(run, [*state, *examples, *model.values()])


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

    With masses M, a root A of their inverse (A A^T = M^-1) and momenta r in units of the root of the masses, a step of
    size e is r - e/2 A^T dU/dz, then z + e A r, then again r - e/2 A^T dU/dz (Neal 2011, sec. 5.2.3). Latents are
    `like` a vector (P,); `path` can remember `num_kept` steps; A is a matrix (P, P) if it is dense, else a diagonal.
    """

    def __init__(
        self, log_joint: LogJoint, data: Batch, like: Tensor, *, num_kept: int = 0, dense: bool = False
    ) -> None:
        self.num_kept = num_kept
        self._state = PhasePoint(like.clone(), torch.zeros_like(like), torch.zeros_like(like))
        self._potential, self._size = like.new_zeros(()), like.new_zeros(())
        self._root = torch.eye(len(like)).to(like) if dense else torch.ones_like(like)
        self._index = torch.zeros(1, dtype=torch.long, device=like.device)
        kept = [like.new_zeros(num_kept, len(like)), like.new_zeros(num_kept, len(like)), like.new_zeros(num_kept)]
        self._path = kept if num_kept else []
        state = [*self._state, self._potential, self._size, self._root, self._index, *self._path]
        self._loop = recorded_steps(log_joint, data, state, _leap)

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
        places, momenta, potentials = self._path
        return places[:num_steps], momenta[:num_steps], potentials[:num_steps]

    def set_root(self, root: Tensor) -> None:
        self._root.copy_(root)

    def _begin(self, start: PhasePoint, size: float) -> None:
        for mine, given in zip(self._state, start, strict=True):
            mine.copy_(given)
        self._size.fill_(size)
        self._index.zero_()
