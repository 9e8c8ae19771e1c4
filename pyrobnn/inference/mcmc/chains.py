"""The common parts of Markov chain methods: the target, overdispersed starts, and a posterior of stored draws."""

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from pyro import poutine
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import fields_of, to_dict
from pyrobnn._torch.devices import running
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.empirical import Empirical
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import BatchSize, Source, make_source
from pyrobnn.inference.mcmc.potential import LogJoint, ValueAndGradient
from pyrobnn.inference.method import BaseMethod, Offer, Run
from pyrobnn.inference.network_checks import check_calls
from pyrobnn.likelihoods.base import open_numbers
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import EngineRecord

Init = Literal["prior", "net"]
Starts = Init | Sequence[Posterior]
"""Where chains start: as a setting says, or each at a draw of a posterior."""
_JITTER = 0.1
"""Standard deviation of the noise that is added to the network's weights, so that chains start apart."""
_TRIES = 100


def diverged(count: int, draws: int) -> str:
    """Return the text on draws with a diverging trajectory."""
    return (
        f"{count} of {draws} draws diverged: some region of the posterior is too narrow for the step size and not "
        "explored."
    )


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
        raise InputError(
            f"None of {_TRIES} starts {where} has a finite density and gradient: standardise the "
            "data, narrow the prior, or use another `init`.",
            page="how-to/mcmc",
        )

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
            raise InputError(
                f"{method} uses all data at every step, in memory: pass Data(x, y), which bnn.Loader(loader)."
                "in_memory() makes of a loader, or use SGLD or SGHMC.",
                page="how-to/mcmc",
            )
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
        """Run the chains."""
        raise NotImplementedError

    def starts(self, bnn: BNN, data: Any, run: Run) -> Starts:
        """Return where chains start."""
        return self.init

    def offer(self) -> Offer:
        return Offer(callbacks=False, copies=self.num_chains, wants_measured_scales=True)

    def check(self, bnn: BNN, data: Any, run: Run) -> None:
        """Refuse parameters without a prior; numbers that are "tuned" are none once they are measured."""
        tuned = {f"likelihood.{name}_unconstrained" for name in open_numbers(bnn.settings["likelihood"], ("tuned",))}
        _check_all_inferred(bnn, type(self).__name__, but=tuned)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        source = make_source(data, bnn, None if self.batch_size == "all" else self.batch_size, seed=run.seed)
        _check_all_inferred(bnn, type(self).__name__)
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


def _check_all_inferred(bnn: BNN, method: str, *, but: Collection[str] = ()) -> None:
    learned = [name for name, parameter in bnn.named_parameters() if parameter.requires_grad and name not in but]
    names = [name.removesuffix("_unconstrained") for name in learned]
    if not names:
        return
    advice = {
        "likelihood.": "the noise a known number, such as Gaussian(scale=0.1), or a prior, such as "
        'Gaussian(scale={"type": "half_normal", "scale": 1.0})',
        "prior.": "the numbers of the prior fixed values, learnable=False",
        "net.": "the weights a prior instead of None, or freeze them with requires_grad_(False)",
    }
    hints = [hint for prefix, hint in advice.items() if any(name.startswith(prefix) for name in names)]
    shown = ", ".join(name.removeprefix("net.") for name in names)
    raise InputError(
        f"{method} draws from priors, and {shown} would have to be optimised without one: give {'; '.join(hints)}.",
        page="how-to/mcmc",
    )
