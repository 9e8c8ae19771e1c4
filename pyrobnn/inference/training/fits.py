"""Fits by SVI, one or several side by side: from what is asked for to posteriors with their records."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import described
from pyrobnn._torch.devices import running
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
from pyrobnn.inference.training.checkpoint import open_checkpoint
from pyrobnn.inference.training.descent import NotFinite, descend, why_steps
from pyrobnn.inference.training.loop import train
from pyrobnn.inference.training.start import build_parts, start, start_record
from pyrobnn.inference.training.state import Asked, StochasticMethod
from pyrobnn.inference.training.watch import Stop
from pyrobnn.posterior.posterior import Posterior

_DRAWS_TO_VALIDATE = 50
_IN_MEMORY = "Replicates need their data in memory: pass Data(x, y), or of a loader bnn.Loader(loader).in_memory()."


def check_parts(bnn: BNN, method: StochasticMethod, data: Any, run: Run) -> None:
    """Build model and guide, to refuse what does not go together."""
    source = make_source(data, bnn, method.batch_size, seed=run.seed)
    with seeded(run.seed, "check"), fast_pyro():
        build_parts(bnn, method, source, run.seed, run.device, earlier=run.start)


def fit_by_svi(bnn: BNN, method: StochasticMethod, data: Any, run: Run) -> Posterior:
    """Fit by SVI, with a validation score to follow and a checkpoint to keep where the run has them."""
    if method.patience is not None and run.validation is None:
        raise InputError("SVI: `patience` needs a validation score: pass `validation=Data(x, y)` to fit.")
    source = make_source(data, bnn, method.batch_size, seed=run.seed)
    if run.validation is not None:
        check_validation(run.validation, bnn, source, seed=run.seed)
    return fit_together([Asked(bnn, method, source, run.seed)], run, Stop(puts_off=run.method is method))[0]


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
    return fit_together(asked, run, Stop(), replicates=True)


def fit_together(asked: Sequence[Asked], run: Run, stop: Stop, *, replicates: bool = False) -> list[Posterior]:
    """Fit models of one shape and method, and return the posteriors with their records.

    L-BFGS seeks the modes of points where that suits. Else, and where its numbers cease to be finite, fits take steps.
    """
    why = why_steps(asked, run) if all(as_guide(fit.method.guide).seeks_mode for fit in asked) else ""
    if why is None:
        try:
            return _fitted(asked, run, stop, None, replicates=replicates)
        except NotFinite:
            why = "its numbers ceased to be finite"
    return _fitted(asked, run, stop, why, replicates=replicates)


def _fitted(asked: Sequence[Asked], run: Run, stop: Stop, why: str | None, *, replicates: bool) -> list[Posterior]:
    """Fit by L-BFGS on all data; by steps where `why_steps` says why."""
    keeper = None if run.checkpoint is None else open_checkpoint(run, asked)
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
            method=described(fit.method),
            num_steps=len(end.history),
            engine=dataclasses.replace(engine, reason=f"{engine.reason}; not L-BFGS: {why}") if why else engine,
            batch_size=batch_size,
            noise=noise_of(state.method.guide),
            kl=state.method.kl,
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
