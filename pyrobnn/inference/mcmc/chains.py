"""The density that chains sample: of unconstrained latents given data, with its gradient, eager or recorded."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Normal
from torch.func import functional_call, vmap

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import fields_of, to_dict
from pyrobnn._torch.devices import running
from pyrobnn._torch.private import private
from pyrobnn._torch.transforms import vmap_or_loop
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.data.in_memory import Data
from pyrobnn.distributions.support import base_of
from pyrobnn.guides.empirical import Empirical, segments
from pyrobnn.guides.sites import Site, latent_sites
from pyrobnn.inference.data import BatchSize, Source, check_calls, make_source
from pyrobnn.inference.method import BaseMethod, Offer, Run
from pyrobnn.likelihoods.base import open_numbers
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import EngineRecord

ValueAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From latents to U = -log p(z, D) and its gradient: of a chain, (P,), or of several, (C, P), as new tensors."""


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
        self._scaled = []  # weights that are normal given latents of their prior
        for name in bnn.site_names if bnn.num_weights > num_data else ():
            with poutine.block(), poutine.trace() as latents, torch.no_grad():
                prior = bnn.prior(name, self._starts[name])
            self._scaled += [name] if latents.trace.stochastic_nodes and isinstance(base_of(prior), Normal) else []

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
    """Return what takes a number of steps without Python; a step changes stand-ins of the state in place."""
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


Init = Literal["prior", "net"]
Starts = Init | Sequence[Posterior]  # where chains start: as a setting says, or each at a draw of a posterior
_JITTER = 0.1  # standard deviation of the noise that is added to the network's weights, so that chains start apart
_TRIES = 100


def diverged(count: int, draws: int) -> str:
    """Return the text on draws with a diverging trajectory."""
    return f"{count} of {draws} draws diverged: some region of the posterior is too narrow for the step size."


class Chains(NamedTuple):
    """The result of chains."""

    draws: Tensor  # unconstrained latents, (chain, draw, P)
    statistics: dict[str, Tensor]  # by name, (chain, draw)
    engine: EngineRecord
    num_steps: int  # of each chain
    num_diverging: int | None = None  # draws with a diverging trajectory, if the method knows


class Target:
    """The joint density of a model, copied to its device in the units of the data, and starts of chains."""

    def __init__(self, bnn: BNN, source: Source, device: str, seed: int, init: Starts) -> None:
        self._declared, self._device, self._seed, self._init = bnn, device, seed, init
        self.source = source
        with seeded(seed, "model"):
            self.bnn, self.example = source.fresh_model(bnn, device)
            check_calls(self.bnn, self.example[0], training=False)
            self.sites = latent_sites(self.bnn, *self.example)
        self.log_joint = LogJoint(self.bnn, self.sites, source.num_data)

    def starts(self, num_chains: int, evaluate: ValueAndGradient | None = None) -> Tensor:
        """Return latents (C, P), each from its chain's random stream, where U and its gradient are finite."""
        return torch.stack([self._start(chain, evaluate) for chain in range(num_chains)])

    def _start(self, chain: int, evaluate: ValueAndGradient | None) -> Tensor:
        with seeded(derive(self._seed, f"chain {chain}"), "start"), torch.no_grad():
            for _ in range(_TRIES):
                point = self._point(chain)
                if evaluate is None or all(bool(values.isfinite().all()) for values in evaluate(point)):
                    return point
        where = f"with init={self._init!r}" if isinstance(self._init, str) else "at the members"
        text = f"None of {_TRIES} starts {where} has a finite density and gradient: standardise the data, or narrow "
        raise InputError(text + "the prior.", page="how-to/mcmc")

    def _point(self, chain: int) -> Tensor:
        if self._init == "prior":
            with poutine.block():
                trace = poutine.trace(self.bnn).get_trace(*self.example)
            return self.log_joint.unconstrain({site.name: trace.nodes[site.name]["value"] for site in self.sites})
        if self._init == "net":
            model, _ = self.source.fresh_model(self._declared, self._device)
            starts = {site.name: site.start for site in latent_sites(model, *self.example)}
            point = self.log_joint.unconstrain(starts)
            return point + _JITTER * torch.randn_like(point)
        draw = self._init[chain].draw(1)
        return self.log_joint.unconstrain({name: values[0] for name, values in draw.items()})

    def all_data(self, method: str) -> Batch:
        """Return all examples in the units of the model; the method's name is for the refusal of data not in memory."""
        if not isinstance(self.source.data, Data):
            text = f"{method} uses all data at every step: pass Data(x, y), or use SGLD or SGHMC."
            raise InputError(text, page="how-to/mcmc")
        return self.source.scaled(self.bnn, *self.source.data.tensors)


class ChainMethod(BaseMethod[Posterior]):
    """Base of the methods that run Markov chains: write `sample`, the rest is inherited."""

    num_draws: int
    num_chains: int
    init: Init
    batch_size: BatchSize = "all"

    def bounded(self, steps: int) -> Any:
        """Return the method with at most so many transitions in each chain, half of them to warm up."""
        half, of_any = math.ceil(steps / 2), cast("Any", self)
        most = {"warmup", "num_draws"} & fields_of(type(self)).keys()
        return dataclasses.replace(of_any, **{name: min(half, getattr(self, name)) for name in most})

    def sample(self, target: Target, run: Run) -> Chains:
        raise NotImplementedError

    def starts(self, bnn: BNN, data: Any, run: Run) -> Starts:
        return self.init

    def offer(self) -> Offer:
        return Offer(callbacks=False, copies=self.num_chains, wants_measured_scales=True)

    def check(self, bnn: BNN, data: Any, run: Run) -> None:
        """Refuse parameters without a prior; numbers that are "tuned" are none once they are measured."""
        tuned = {f"likelihood.{name}_unconstrained" for name in open_numbers(bnn.settings["likelihood"], ("tuned",))}
        check_all_inferred(bnn, type(self).__name__, but=tuned)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        source = make_source(data, bnn, None if self.batch_size == "all" else self.batch_size, seed=run.seed)
        check_all_inferred(bnn, type(self).__name__)
        starts = self.starts(bnn, data, run)
        with running(bnn.net, source.batch_size(self.batch_size), run.seed, "fit") as threads:
            target = Target(bnn, source, run.device, run.seed, starts)
            chains = self.sample(target, run)
            setting = Empirical(self.num_chains, self.num_draws, tuple(chains.statistics))
            with seeded(run.seed, "guide"):
                guide = setting.build(target.bnn, *target.example)
            kept = torch.stack([*chains.statistics.values()], -1) if chains.statistics else guide.statistics
            guide.hold(target.log_joint.constrain(chains.draws), kept)
            return source.posterior(
                target.bnn,
                guide,
                target.example,
                seed=run.seed,
                method=to_dict(self) | {"guide": to_dict(setting)},
                num_steps=chains.num_steps,
                stopped_by="steps",
                stop_reason="all steps done",
                engine=chains.engine,
                num_diverging=chains.num_diverging,
                threads=threads,
                seconds=run.seconds,
            )


def check_all_inferred(bnn: BNN, method: str, *, but: Collection[str] = ()) -> None:
    """Refuse parameters without a prior, which draws do not hold."""
    learned = [name for name, parameter in bnn.named_parameters() if parameter.requires_grad and name not in but]
    names = [name.removesuffix("_unconstrained") for name in learned]
    if not names:
        return
    advice = {
        "likelihood.": 'the noise a number, Gaussian(scale=0.1), or a prior, Gaussian(scale={"type": "half_normal"})',
        "prior.": "the numbers of the prior fixed values, learnable=False",
        "net.": "the weights a prior instead of None, or freeze them with requires_grad_(False)",
    }
    hints = "; ".join(hint for prefix, hint in advice.items() if any(name.startswith(prefix) for name in names))
    shown = ", ".join(name.removeprefix("net.") for name in names)
    text = f"{method} draws from priors, and {shown} would have to be optimised without one: give {hints}."
    raise InputError(text, page="how-to/mcmc")
