"""Fits by SVI, one or several side by side: the one place where they are assembled, trained and recorded."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import described
from pyrobnn._torch.inputs import X, shape_of
from pyrobnn._torch.private import tree_leaves
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import TensorBatches
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import Loader
from pyrobnn.guides.base import as_guide
from pyrobnn.guides.given import noise_of
from pyrobnn.inference.data import Source, check_validation, make_source
from pyrobnn.inference.laplace.curve import complete
from pyrobnn.inference.method import Run
from pyrobnn.inference.training.checkpoint import Checkpoint, open_checkpoint
from pyrobnn.inference.training.convergence import ConvergenceRule
from pyrobnn.inference.training.descent import descend, why_steps
from pyrobnn.inference.training.loop import train
from pyrobnn.inference.training.start import build_parts, running, start, start_record
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.inference.training.watch import Ended, Stop
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import FitRecord

if TYPE_CHECKING:
    from pyrobnn.inference.svi.svi import SVI

_DRAWS_TO_VALIDATE = 50
_IN_MEMORY = "Replicates need their data in memory: pass Data(x, y), or of a loader bnn.Loader(loader).in_memory()."


@dataclasses.dataclass(eq=False)
class Fit:
    """A fit as it was asked for, and as it goes on."""

    bnn: BNN
    method: "SVI"
    source: Source
    seed: int
    posterior: Posterior = dataclasses.field(init=False)  # what is trained, once the fit has begun
    state: TrainingState = dataclasses.field(init=False)  # its steps; `state.method` has the settings as resolved


@dataclasses.dataclass
class Session:
    """R fits of one shape: `train`, and then `complete`."""

    fits: Sequence[Fit]  # R of them; the length of the first is that of all
    run: Run  # the arguments of all together
    threads: int = 1  # threads that a step uses
    by_lbfgs: bool = False  # whether L-BFGS seeks the modes, in place of steps
    why_steps: str | None = None  # why steps seek the modes of points; None of other fits
    are_replicates: bool = False  # whether the records number the fits
    _ended: list[Ended] = dataclasses.field(default_factory=list)

    @property
    def posteriors(self) -> list[Posterior]:
        """What is trained."""
        return [fit.posterior for fit in self.fits]

    def train(
        self,
        *,
        validate: Callable[[], float] | None = None,
        checkpoint: Checkpoint | None = None,
        stop: Stop | None = None,
    ) -> None:
        """Do the steps of all fits."""
        stop = stop or Stop()
        with stop.put_off():
            ended = self._descended(stop) if self.by_lbfgs else None
            self._ended = self._stepped(validate, checkpoint, stop) if ended is None else ended

    def _stepped(self, validate: Callable[[], float] | None, checkpoint: Checkpoint | None, stop: Stop) -> list[Ended]:
        states, first = [fit.state for fit in self.fits], self.fits[0]
        method = first.state.method
        length = method.length(first.source.batches_per_epoch(method.batch_size))
        pairs = zip(states, self._tolerances(), strict=True)
        rules = [ConvergenceRule(*pair, length.most) for pair in pairs] if method.ends_by_itself else []
        ended = train(states, self.run, length, rules=rules, validate=validate, checkpoint=checkpoint, stop=stop)
        for end in ended if self.why_steps is not None else []:
            engine = end.history.engine
            end.history.engine = dataclasses.replace(engine, reason=f"{engine.reason}; not L-BFGS: {self.why_steps}")
        return ended

    def _tolerances(self) -> list[float]:
        """Return the tolerance of each fit."""
        return [fit.state.method.tolerance_for(fit.source.num_data) for fit in self.fits]

    def _descended(self, stop: Stop) -> list[Ended] | None:
        """Seek the modes by L-BFGS; where that fails the fits are at their start again, with batches as declared."""
        ended = descend([fit.state for fit in self.fits], self._tolerances(), self.run, stop)
        if ended is None:
            for fit in self.fits:
                size, state = fit.method.batch_size, fit.state
                state.method = dataclasses.replace(state.method, batch_size=size)
                state.batches = fit.source.batches(state.bnn, size, derive(fit.seed, "batches"))
        return ended

    def complete(self) -> list[Posterior]:
        """Do the second phase of the guides that have one, and return the posteriors with their records."""
        until_now = self.run.seconds
        for index, (fit, end) in enumerate(zip(self.fits, self._ended, strict=True)):
            started = time.perf_counter()
            posterior, method, source = fit.posterior, fit.method, fit.source
            posterior.history = end.history
            posterior.record = FitRecord(
                method=described(method),
                num_data=source.num_data,
                feature_names=source.feature_names,
                num_steps=len(end.history),
                device=str(posterior.example[0].device),
                engine=end.history.engine,
                batch_size=source.batch_size(fit.state.method.batch_size),
                noise=noise_of(fit.state.method.guide),
                kl=fit.state.method.kl,
                stopped_by=end.stopped_by,
                stop_reason=end.stop_reason,
                convergence=end.convergence,
                threads=self.threads,
                replicate=index if self.are_replicates else None,
                replicates=len(self.fits) if self.are_replicates else None,
                start=start_record(self.run.start),
                **self.run.scales_of(posterior.bnn),
            )
            if as_guide(method.guide).curvature is not None:
                complete(posterior, method.guide, source, progress=self.run.progress)
            seconds = until_now + time.perf_counter() - started
            posterior.note(seconds=seconds)
        return self.posteriors


@contextmanager
def opened(fits: Sequence[Fit], run: Run, *, replicates: bool = False) -> Iterator[Session]:
    """Yield the session of fits that have begun, with the random state and the settings that their steps need.

    Replicates start under a seed each, and share a stream of noise.
    """
    of_points = all(as_guide(fit.method.guide).seeks_mode for fit in fits)
    reason = _why_steps(fits, run) if of_points else None
    by_lbfgs = of_points and reason is None
    size = "all" if by_lbfgs else fits[0].method.batch_size  # L-BFGS sees all data
    batch_size, purpose = fits[0].source.batch_size(size), "replicates" if replicates else "fit"
    with running(fits[0].bnn, batch_size, run.seed, purpose, copies=len(fits)) as threads:
        for fit in fits:
            ONE_THREAD.let_waiting_in()
            method = dataclasses.replace(fit.method, batch_size=size)
            with seeded(fit.seed, "fit") if replicates else nullcontext():
                begun = start(fit.bnn, method, fit.source, fit.seed, run.device, earlier=run.start)
            fit.posterior, fit.state = begun
        yield Session(fits, run, threads, by_lbfgs, reason, replicates)


def _why_steps(fits: Sequence[Fit], run: Run) -> str | None:
    """Return why steps seek the modes of points; None where L-BFGS does."""
    if run.callbacks and len(fits) > 1:
        return "callbacks see several fits at once"
    reasons = [why_steps(fit.bnn, fit.method, fit.source, run) for fit in fits]
    return next((reason for reason in reasons if reason is not None), None)


def check_parts(bnn: BNN, method: "SVI", data: Any, run: Run) -> None:
    """Build model and guide, to refuse what does not go together."""
    source = make_source(data, bnn, method.batch_size, seed=run.seed)
    with seeded(run.seed, "check"), fast_pyro():
        build_parts(bnn, method, source, run.seed, run.device, earlier=run.start)


def fit_by_svi(bnn: BNN, method: "SVI", data: Any, run: Run) -> Posterior:
    """Fit by SVI, with a validation score to follow and a checkpoint to keep where the run has them."""
    if method.patience is not None and run.validation is None:
        raise InputError("SVI: `patience` needs a validation score: pass `validation=Data(x, y)` to fit.")
    source = make_source(data, bnn, method.batch_size, seed=run.seed)
    if run.validation is not None:
        check_validation(run.validation, bnn, seed=run.seed)
    keeper = None if run.checkpoint is None else open_checkpoint(run, [bnn], [method], [source], run.validation)
    with opened([Fit(bnn, method, source, run.seed)], run) as session:
        validate = None if run.validation is None else _validator(session.posteriors[0], run.validation)
        session.train(validate=validate, checkpoint=keeper, stop=Stop(puts_off=run.method is method))
    (posterior,) = session.complete()
    return posterior


def fit_side_by_side(
    bnn: BNN | list[BNN],
    method: "SVI | list[SVI]",
    data: Any,
    run: Run,
    *,
    replicates: int | None = None,
    bootstrap: bool = False,
) -> list[Posterior]:
    """Fit replicates of models whose scales are closed; arguments as in `fit_replicates`."""
    bnns, methods, sets = aligned(replicates, bnn, method, data)
    seeds = [derive(run.seed, f"replicate {index}") for index in range(len(bnns))]
    sources = [
        make_source(own, model, choice.batch_size, seed=seed)
        for model, choice, own, seed in zip(bnns, methods, sets, seeds, strict=True)
    ]
    keeper = None if run.checkpoint is None else open_checkpoint(run, bnns, methods, sources, bootstrap=bootstrap)
    if bootstrap:
        sources = [resampled(source, seed) for source, seed in zip(sources, seeds, strict=True)]
    fits = [Fit(*parts) for parts in zip(bnns, methods, sources, seeds, strict=True)]
    with opened(fits, run, replicates=True) as session:
        _share_data([fit.state.batches for fit in session.fits])
        session.train(checkpoint=keeper)
    for posterior in session.posteriors:
        own_storage(posterior)
    return session.complete()


def aligned(replicates: int | None, *given: Any) -> tuple[list[Any], ...]:
    """Return a list of R entries for each argument; a single value is repeated."""
    asked = set() if replicates is None else {check_count(replicates, "replicates")}
    lengths = {len(value) for value in given if isinstance(value, list)} | asked
    if len(lengths) != 1:
        raise InputError(
            f"Say how many replicates: `replicates=R`, or lists of equal length; got {sorted(lengths) or 'neither'}."
        )
    count = lengths.pop()
    if count < 1:
        raise InputError("Lists of replicates must not be empty.")
    return tuple(value if isinstance(value, list) else [value] * count for value in given)


def _share_data(batches: list[Any]) -> None:
    """Refuse data of different sizes, and hold equal data once."""
    if len(batches) == 1:
        return
    first = batches[0]
    for batch in batches:
        if not isinstance(batch, TensorBatches):
            raise InputError(_IN_MEMORY)
        if _shapes(batch) != _shapes(first):
            raise InputError(
                f"The data of replicates need equal shapes; got {_shapes(first)} and {_shapes(batch)} (weights must "
                "be in all or none)."
            )
    pairs = (pair for batch in batches[1:] for pair in zip(*map(tree_leaves, (batch.data, first.data)), strict=True))
    if all(bool((values == others).all()) for values, others in pairs):
        for batch in batches:
            batch.data = first.data


def _shapes(batches: TensorBatches) -> str:
    parts = zip(("inputs", "targets", "weights"), batches.data, strict=False)
    return ", ".join(f"{name} {shape_of(values)}" for name, values in parts)


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
