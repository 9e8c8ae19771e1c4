"""Stochastic variational inference as a method for `fit`."""

import dataclasses
import inspect
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from pyro import poutine
from torch import Tensor
from torch.distributions import Normal

from pyrobnn import guides
from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD, ignored_warnings
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import Positive, described, setting
from pyrobnn._torch.devices import running
from pyrobnn._torch.inputs import X, shape_of
from pyrobnn._torch.private import tree_leaves
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch, TensorBatches
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import Loader
from pyrobnn.distributions.support import base_of
from pyrobnn.guides.base import as_guide
from pyrobnn.guides.divergence import KL
from pyrobnn.guides.given import noise_of
from pyrobnn.guides.mean_field import MeanFieldGuide
from pyrobnn.inference.capture.updates import VariationalNewton
from pyrobnn.inference.data import Source, check_validation, make_source
from pyrobnn.inference.laplace import complete
from pyrobnn.inference.method import BaseMethod, Offer, Run, registry
from pyrobnn.inference.training.descent import NotFinite, descend, why_steps
from pyrobnn.inference.training.loop import Checkpoint, train
from pyrobnn.inference.training.state import Asked, StochasticMethod, build_parts, start, start_record
from pyrobnn.inference.training.watch import Stop
from pyrobnn.optimizers import Optimizer, light, resolve_schedule
from pyrobnn.posterior.posterior import Posterior


@registry.register
@setting
class SVI(BaseMethod[Posterior], StochasticMethod):
    """Maximise the ELBO, E_q[log p(D|w)] - KL(q || p), by stochastic gradients.

    Attributes:
        guide: the family of q: a guide, its name, an autoguide or a guide function of Pyro, or a mapping from patterns
            of site names (docs/how-to/guides.md).
        steps: number of optimiser steps. Without `steps` and `epochs` the fit ends by itself: it runs cycles of the
            schedule, with twice as many steps while that gains, then at lower rates, until neither gains `tolerance`.
        epochs: number of passes over the data, instead of steps.
        max_steps: steps after which a fit ends that has not converged by itself.
        tolerance: nats that more steps or a lower rate may still gain; None for 0.005 an example, less below 250.
        lr: learning rate; for other rates of some parameters write a loop of your own, by `prepare`.
        batch_size: examples in a mini-batch, or "all". None: all up to 500 or 20 million over the weights, else 128.
        optimizer: an optimiser of `torch.optim` by name, or a table with `type` and its options.
        schedule: a schedule of `torch.optim.lr_scheduler`, likewise; None for a constant rate, or for a cosine to 0 in
            each cycle of a fit that ends by itself.
        num_particles: draws of the weights for each estimate of the ELBO.
        loss: an objective of `pyro.infer` in place of the ELBO, such as RenyiELBO(alpha=0.5, num_particles=10). It runs
            eagerly, with draws that all examples share. Minus its value stands in `history.elbo`.
        kl: "mc" estimates the KL from the same draws (`Trace_ELBO`), "analytic" uses its closed form
            (`TraceMeanField_ELBO`) and refuses guides and priors that have none. "quadrature" uses the closed form or,
            for an independent normal guide, one-dimensional quadrature for each weight, as under a mixture prior.
            "auto": "analytic" where every site has it, "quadrature" where a fixed `ScaleMixture` has no closed form,
            and "mc" otherwise.
        temperature: factor on the KL; 1 is Bayes, less than 1 a cold posterior.
        clip_norm: bound on the norm of the gradient of all parameters together, or None for none.
        kl_warmup: number of first steps over which the factor on the KL grows from 0 to the temperature.
        patience: stop after this many evaluations of the validation score without a new best, and go back to the best.
        eval_every: steps between evaluations of the validation score.

    Examples:
        >>> method = bnn.SVI(guide="low_rank", steps=30, lr=0.02, batch_size=16)
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> posterior.record.num_steps
        30
    """

    def offer(self) -> Offer:
        return Offer(
            guide=self.guide,
            follows_validation=True,
            resumable=True,
            goes_on=True,
            wants_measured_scales=True,
            starts_at_mode=True,
        )

    def check(self, bnn: BNN, data: Any, run: Run) -> None:
        """Build model and guide, to refuse what does not go together before scales are measured."""
        if bnn.has_open_numbers(inferred=True):
            with seeded(run.seed, "check"), fast_pyro(), ignored_warnings():  # they are told when it begins
                source = make_source(data, bnn, self.batch_size, seed=run.seed)
                build_parts(bnn, self, source, run.seed, run.device, earlier=run.start)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        if self.patience is not None and run.validation is None:
            raise InputError("SVI: `patience` needs a validation score: pass `validation=Data(x, y)` to fit.")
        source = make_source(data, bnn, self.batch_size, seed=run.seed)
        if run.validation is not None:
            check_validation(run.validation, bnn, source, seed=run.seed)
        return _together([Asked(bnn, self, source, run.seed)], run, Stop(puts_off=run.method is self))[0]

    def side_by_side(self, bnn: BNN, data: Any, run: Run, *, replicates: int, bootstrap: bool) -> list[Posterior]:
        return fit_side_by_side(bnn, self, data, run, replicates=replicates, bootstrap=bootstrap)

    def bounded(self, steps: int) -> "SVI":
        """Return the method with at most so many steps."""
        if self.steps is not None:
            return dataclasses.replace(self, steps=min(steps, self.steps))
        return dataclasses.replace(self, max_steps=min(steps, self.max_steps))


_DRAWS_TO_VALIDATE = 50
_IN_MEMORY = "Replicates need their data in memory: pass Data(x, y), or of a loader bnn.Loader(loader).in_memory()."


def fit_side_by_side(
    bnn: BNN | list[BNN],
    method: StochasticMethod | Sequence[StochasticMethod],
    data: Any,
    run: Run,
    *,
    replicates: int | None = None,
    bootstrap: bool = False,
) -> list[Posterior]:
    """Fit replicates of models whose scales are closed; arguments as in `fit_replicates`."""
    asked = []
    for index, (model, choice, rows) in enumerate(zip(*aligned(replicates, bnn, method, data), strict=True)):
        seed = derive(run.seed, f"replicate {index}")
        source = make_source(rows, model, choice.batch_size, seed=seed)
        asked.append(Asked(model, choice, resampled(source, seed) if bootstrap else source, seed))
    return _together(asked, run, Stop(), replicates=True)


def _together(asked: Sequence[Asked], run: Run, stop: Stop, *, replicates: bool = False) -> list[Posterior]:
    """Fit models of one shape and method: modes by L-BFGS where it suits and its numbers stay finite, else by steps."""
    why = why_steps(asked, run) if all(as_guide(fit.method.guide).seeks_mode for fit in asked) else ""
    if why is None:
        try:
            return _fitted(asked, run, stop, None, replicates=replicates)
        except NotFinite:
            why = "its numbers ceased to be finite"
    return _fitted(asked, run, stop, why, replicates=replicates)


def _fitted(asked: Sequence[Asked], run: Run, stop: Stop, why: str | None, *, replicates: bool) -> list[Posterior]:
    """Fit by L-BFGS on all data; by steps where `why_steps` says why."""
    keeper = None if run.checkpoint is None else Checkpoint(run, asked)
    size = "all" if why is None else asked[0].method.batch_size
    batch_size, purpose = asked[0].source.batch_size(size), "replicates" if replicates else "fit"
    with running(asked[0].bnn.net, batch_size, run.seed, purpose, copies=len(asked)) as threads, stop.put_off():
        begun = []
        for fit in asked:
            ONE_THREAD.let_waiting_in()
            method = dataclasses.replace(fit.method, batch_size=size)
            with seeded(fit.seed, "fit") if replicates else nullcontext():  # else the whole run has its seed
                begun.append(start(fit.bnn, method, fit.source, fit.seed, run.device, earlier=run.start))
        posteriors, states = map(list, zip(*begun, strict=True))
        _share_data([state.batches for state in states])
        if why is None:
            ended = descend(states, run, stop)
        else:
            validate = None if run.validation is None else _validator(posteriors[0], run.validation)
            ended = train(states, run, stop, validate=validate, checkpoint=keeper)
    until_now = run.seconds
    for index, (fit, posterior, state, end) in enumerate(zip(asked, posteriors, states, ended, strict=True)):
        started = time.perf_counter()
        posterior.history, engine = end.history, end.history.engine
        posterior.note(
            method=described(dataclasses.replace(fit.method, loss=None)),
            num_steps=len(end.history),
            engine=dataclasses.replace(engine, reason=f"{engine.reason}; not L-BFGS: {why}") if why else engine,
            batch_size=batch_size,
            noise=noise_of(state.method.guide),
            kl=state.method.kl if fit.method.loss is None else _told(fit.method.loss),
            stopped_by=end.stopped_by,
            stop_reason=end.stop_reason,
            convergence=end.convergence,
            start=start_record(run.start),
            threads=threads,
        )
        if replicates:
            own_storage(posterior)
            posterior.note(replicate=index, replicates=len(asked))
        if as_guide(fit.method.guide).curvature is not None:
            complete(posterior, fit.method.guide, fit.source, progress=run.progress)
        posterior.note(seconds=until_now + time.perf_counter() - started)
    return posteriors


def _told(loss: Any) -> str:
    """Return a loss of Pyro in words, with the options that differ from their defaults."""
    usual = inspect.signature(type(loss)).parameters
    told = {name: value for name, value in vars(loss).items() if name in usual and value != usual[name].default}
    return f"{type(loss).__name__}({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def aligned(replicates: int | None, *given: Any) -> tuple[list[Any], ...]:
    """Return a list of R entries for each argument; a single value is repeated."""
    asked = set() if replicates is None else {check_count(replicates, "replicates")}
    lengths = {len(value) for value in given if isinstance(value, list)} | asked
    if len(lengths) != 1:
        found = sorted(lengths) or "neither"
        raise InputError(f"Say how many replicates: `replicates=R`, or lists of equal length; got {found}.")
    if (count := lengths.pop()) < 1:
        raise InputError("Lists of replicates must not be empty.")
    return tuple(value if isinstance(value, list) else [value] * count for value in given)


def _share_data(batches: list[Any]) -> None:
    """Refuse data of different sizes, and hold equal data once."""
    first, *others = batches
    for batch in batches if others else []:
        if not isinstance(batch, TensorBatches):
            raise InputError(_IN_MEMORY)
        parts = ("inputs", "targets", "weights")
        pair = [[f"{name} {shape_of(x)}" for name, x in zip(parts, each.data, strict=False)] for each in (first, batch)]
        if pair[0] != pair[1]:
            raise InputError(f"The data of replicates need equal shapes; got {' and '.join(map(', '.join, pair))}.")
    pairs = (pair for batch in others for pair in zip(*map(tree_leaves, (batch.data, first.data)), strict=True))
    if others and all(bool((values == same).all()) for values, same in pairs):
        for batch in others:
            batch.data = first.data


def resampled(source: Source, seed: int) -> Source:
    """Return a source of as many examples drawn with replacement, in the units of all; data in memory alone."""
    if not isinstance(source.data, Data):
        raise InputError(_IN_MEMORY)
    with seeded(seed, "bootstrap"):
        rows = torch.randint(source.num_data, (source.num_data,))
    data = source.data[rows]
    return dataclasses.replace(source, data=data, head=(data.x, data.y))


def own_storage(posterior: Posterior) -> None:
    """Copy the tensors of a replicate out of the stacked tensors."""
    for module in (posterior.bnn, posterior.guide):
        for value in itertools.chain(module.parameters(), module.buffers()):
            value.data = value.data.clone()


def _validator(posterior: Posterior, validation: Data | Loader) -> Callable[[], float]:
    seed = derive(posterior.seed, "validation")

    def log_prob(x: X, y: Tensor) -> Tensor:
        return posterior.predict(x, num_draws=_DRAWS_TO_VALIDATE, seed=seed).log_prob(y)

    def score() -> float:
        posterior.bnn.eval()
        mean = validation.mean_over(log_prob)
        posterior.bnn.train()
        return mean

    return score


@registry.register
@setting
class IVON(SVI):
    """Improved variational online Newton (Shen et al. 2024): a mean-field Gaussian, trained by natural gradients.

    It maximises the ELBO as `SVI` does. The mean of each weight moves by its gradient times its variance, as in
    Newton's method, so one learning rate serves data of any size. Parameters without a distribution, such as a learned
    noise scale, are trained by Adam. Of the paper's settings, the effective sample size is N / temperature, delta
    follows from the prior, and h0 from the guide. Normal priors enter exactly, any other prior by quadrature, or with
    kl="mc" at the draws, which is needed where the prior adds constrained sites.

    Attributes:
        guide: `MeanField`; `init_rho` is the start of all standard deviations, and so of the size of steps.
        lr: learning rate of the means: 1 is a whole Newton step. Lower it where the ELBO jumps about.
        optimizer: leave it out.
        schedule: as in `SVI`; by default the rate falls to 0 along half a cosine, and 1 - beta2 and the rate of Adam
            follow in proportion.
        patience: as in `SVI`, like steps, epochs, max_steps, tolerance, batch_size, num_particles, kl, temperature,
            clip_norm, kl_warmup and eval_every.
        adam_lr: learning rate of parameters without a distribution.
        beta1: share of the past in the mean of gradients.
        beta2: share of the past in the precisions, which settle after some 20 / (1 - beta2) steps.
        clip_radius: bound on the Newton step of each mean: no weight moves by more than lr * clip_radius at once.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1), prior=bnn.priors.Normal(1.0))
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), bnn.IVON(steps=30), seed=0, progress=False)
    """

    guide: Annotated[Any, BeforeValidator(guides.resolve)] = guides.MeanField(init_rho=-3.0)
    lr: Positive = 0.3
    schedule: Annotated[Any, BeforeValidator(resolve_schedule)] = resolve_schedule("cosine_annealing_lr")
    kl: KL = "quadrature"
    adam_lr: Positive = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(gt=0, lt=1)] = 0.98
    clip_radius: Positive = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.guide, guides.MeanField):
            raise InputError(f"IVON: trains independent normals: use guide='mean_field', got {self.guide!r}.")
        if self.optimizer != Optimizer():
            raise InputError(f"IVON: is an optimiser itself: leave out `optimizer`, got {self.optimizer!r}.")

    def make_optimizer(
        self, bnn: BNN, guide: Any, parameters: Sequence[Tensor], example: Batch
    ) -> torch.optim.Optimizer:
        names = ("lr", "adam_lr", "beta1", "beta2", "clip_radius", "temperature")
        settings = {name: getattr(self, name) for name in names}
        prior = _normal_prior(bnn, guide, example)
        return light(lambda: VariationalNewton(parameters, guide.loc, guide.rho, prior, **settings))


def _normal_prior(bnn: BNN, guide: MeanFieldGuide, example: Batch) -> tuple[Tensor, Tensor]:
    """Return mean and precision of the prior of each entry of the guide, both 0 where it is no fixed normal."""
    with torch.no_grad(), poutine.block():
        nodes = poutine.trace(bnn).get_trace(*example).nodes
    is_fixed = not any(name.startswith("prior.") for name in nodes) and not [*bnn.prior.parameters()]
    means, precisions = [], []
    for name, (loc, _) in guide.moments().items():
        prior = base_of(nodes[name]["fn"])
        is_normal = is_fixed and name in bnn.site_names and isinstance(prior, Normal)
        means.append(prior.loc.expand(loc.shape) if is_normal else torch.zeros_like(loc))
        precisions.append(prior.scale.expand(loc.shape) ** -2 if is_normal else torch.zeros_like(loc))
    mean, precision = (torch.cat([part.detach().reshape(-1) for part in parts]) for parts in (means, precisions))
    return mean, precision
