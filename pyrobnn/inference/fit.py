"""The verb: fit a model to data by a method, and get its posterior."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, overload

import torch
from pyro import poutine
from pyro.nn import PyroModule

from pyrobnn import guides
from pyrobnn._core.checks import check_range
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import to_dict
from pyrobnn._core.tree_files import digest
from pyrobnn._torch.denormals import flushed_denormals
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.threads import threads_for
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch, TensorBatches
from pyrobnn.data.in_memory import Data
from pyrobnn.data.stored import StoredData
from pyrobnn.guides.empirical import require_density
from pyrobnn.guides.laplace import BlockGuide
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.checkpoint import Checkpoint, open_checkpoint
from pyrobnn.inference.devices import resolve_device
from pyrobnn.inference.ending import tell
from pyrobnn.inference.history import History
from pyrobnn.inference.laplace.curve import checked_sites, curve
from pyrobnn.inference.memory import named_batch_size
from pyrobnn.inference.method import Method, keeps_checkpoints
from pyrobnn.inference.monitor import Callback, Monitor
from pyrobnn.inference.source import Source, as_data, make_source, refuse_checkpoints
from pyrobnn.inference.svi.eager import Eager
from pyrobnn.inference.svi.engine import Engine
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training import train
from pyrobnn.posterior.posterior import Posterior, latent_names

_DRAWS_TO_VALIDATE = 50


@overload
def fit(
    bnn: BNN,
    method: SVI,
    data: Any,
    *,
    seed: int,
    device: str = ...,
    engine: Engine = ...,
    progress: bool = ...,
    validation: Any = ...,
    callbacks: Sequence[Callback] = ...,
    checkpoint: str | Path | None = ...,
    every: int = ...,
) -> Posterior: ...
@overload
def fit[R](
    bnn: BNN,
    method: Method[R],
    data: Any,
    *,
    seed: int,
    device: str = ...,
    engine: Engine = ...,
    progress: bool = ...,
    validation: Any = ...,
    callbacks: Sequence[Callback] = ...,
    checkpoint: str | Path | None = ...,
    every: int = ...,
) -> R: ...
def fit(
    bnn: BNN,
    method: Any,
    data: Any,
    *,
    seed: int,
    device: str = "auto",
    engine: Engine = "auto",
    progress: bool = True,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    every: int = 1000,
) -> Any:
    """Infer the posterior of a model's weights.

    The model is not changed: its parts are built anew, under the seed, and trained as a copy. The same arguments give
    the same bits on the same machine, and every global random state is left as it was. Numbers
    below float32's normal range count as zero meanwhile. When the ELBO or a parameter is no longer finite, the fit goes
    back to a state that was good, by at most 500 steps, and on with a quarter of the learning rate, up to five times
    (`Posterior.info["rewinds"]`); then, or when the very first step is not finite, it ends with an error that names
    the site.

    Args:
        bnn: the model.
        method: how to infer it: `SVI`, or any setting with a function `run` (`Method`), such as `NUTS`.
        data: `Data`, a pair (x, y) of arrays or tensors, `StoredData`, or a DataLoader of such pairs.
        seed: seed of starting values, mini-batches and draws.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.
        engine: "captured" compiles the whole step once and runs it without Python, "eager" runs Pyro at each step. With
            one particle or one antithetic pair they give the same numbers for the same seed, up to rounding (from 2^17
            weights on with one thread), else other noise of the same distribution. "auto" takes what is predicted to
            end sooner, from what the first step computes and figures kept in the code, not from a clock or from what
            was compiled before: the same call takes the same, and has the bits that it has where that is asked for.
            `Posterior.info` tells what was used and why.
        progress: show a progress bar with the ELBO, and warn at the end of a fit that is no better than a constant.
        validation: `Data` or a pair (x, y) whose log score is followed, and decides if `method.patience` is set; for
            `SVI` only.
        callbacks: functions called with a `Progress` after every 50 steps, and again where the fit went back; one that
            returns True ends the fit.
        checkpoint: a folder in which the fit keeps its place. After an interruption the same call goes on from there,
            on the same machine to the same bits as without one; after the end it returns the same posterior at once.
            For `SVI`, and for an `Ensemble` of it; callbacks are not called again for steps done before.
        every: steps between two checkpoints.

    Returns:
        The `Posterior`, or what the method's `run` returns.

    Raises:
        InputError: anything that does not fit together, before training starts.
        FloatingPointError: the ELBO is no longer finite, also after going back with smaller steps.
    """
    settings: dict[str, Any] = {"seed": seed, "device": device, "engine": engine, "progress": progress}
    settings["callbacks"] = callbacks
    if isinstance(method, Method) and not isinstance(method, type):
        check_engine(engine)
        if validation is not None:
            raise InputError(
                f"`validation` is followed along the steps of SVI, not by {type(method).__name__}: leave it out, and "
                "score the posterior afterwards."
            )
        if checkpoint is not None:
            settings |= {"checkpoint": _checked_folder(checkpoint, method), "every": every}
        found = method.run(bnn, data, **settings)
    else:
        found = fit_by_svi(bnn, method, data, **settings, validation=validation, checkpoint=checkpoint, every=every)
    if progress:
        tell(found, data, validation)
    return found


def fit_by_svi(
    bnn: BNN,
    method: Any,
    data: Any,
    *,
    seed: int,
    device: str,
    engine: Engine,
    progress: bool,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    every: int = 1000,
) -> Posterior:
    """Fit by SVI; the arguments are those of `fit`."""
    check_request(method, engine)
    if method.patience is not None and validation is None:
        raise InputError("SVI: `patience` needs a validation score: pass `validation=Data(x, y)` to fit.")
    started = time.perf_counter()
    source = prepare_source(bnn, method, data, seed)
    with seeded(seed, "data"):
        held_out = None if validation is None else _checked_validation(bnn, validation)
    keeper = None
    if checkpoint is not None:
        asked = request([bnn], [method], [source], seed=seed, engine=engine, validation=held_out)
        keeper = open_checkpoint(checkpoint, every, asked)
    with running(bnn, source.batch_size(method.batch_size), seed, "fit") as threads:
        posterior, eager = start(bnn, method, source, seed, device)
        validate = None if held_out is None else _validator(posterior, held_out)
        train_alone(
            posterior,
            eager,
            method,
            source,
            engine=engine,
            progress=progress,
            callbacks=callbacks,
            validate=validate,
            checkpoint=keeper,
        )
    posterior.info |= {"threads": threads, "seconds": time.perf_counter() - started}
    return complete(posterior, method, source, progress=progress)


def train_alone(
    posterior: Posterior,
    eager: Eager,
    method: SVI,
    source: Source,
    *,
    engine: Engine,
    progress: bool,
    callbacks: Sequence[Callback],
    validate: Callable[[], float] | None = None,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Train the posterior of a fit that `start` began, and note in it how it was fitted."""
    num_steps = method.num_steps(source.batches_per_epoch(method.batch_size))
    monitor = Monitor(
        posterior.bnn,
        posterior.guide,
        num_steps=num_steps,
        progress=progress,
        callbacks=callbacks,
        validate=validate,
        eval_every=method.eval_every,
        patience=method.patience,
    )
    record = train([eager], engine, monitor, num_steps, checkpoint=checkpoint)
    monitor.restore_best()
    finish(posterior, method, source, monitor.recorder.histories(record)[0])
    posterior.info |= monitor.summary(0)


def complete(posterior: Posterior, method: SVI, source: Source, *, progress: bool) -> Posterior:
    """Return a posterior after the second phase of its guide, if that has one."""
    if not isinstance(method.guide, guides.Laplace):
        return posterior
    started = time.perf_counter()
    with seeded(posterior.seed, "latent sites"), fast_pyro():
        latents = latent_sites(posterior.bnn, *posterior.example)
    curve(posterior, method.guide, source, latents, progress=progress)
    posterior.info["seconds"] += time.perf_counter() - started
    return posterior


def request(
    bnns: Sequence[BNN],
    methods: Sequence[SVI],
    sources: Sequence[Source],
    *,
    seed: int,
    engine: str,
    validation: Data | None = None,
) -> dict[str, Any]:
    """Return what makes a fit what it is, by which a checkpoint knows its own."""
    return {
        "seed": seed,
        "method": methods,
        "model": bnns,
        "engine": engine,
        "data": [_fingerprint(source) for source in sources],
        "validation data": None if validation is None else digest([validation.x, validation.y]),
    }


def _fingerprint(source: Source) -> str:
    data = source.data
    if isinstance(data, Data):
        return f"{digest([data.x, data.y])}, standardize={data.standardize}"
    own = data.fingerprint if isinstance(data, StoredData) else f"{source.batches_per_epoch(None)} batches"
    return f"{type(data).__name__} of {source.num_data} examples, {own}, the first {digest(source.head)}"


def _checked_folder(folder: str | Path, method: Any) -> str | Path:
    if not keeps_checkpoints(method):
        raise InputError(
            f"{type(method).__name__} keeps no checkpoints, which are for SVI and for an Ensemble of it: leave out "
            "`checkpoint`."
        )
    return folder


def check_request(method: Any, engine: Any) -> None:
    """Refuse what is not SVI or an engine."""
    if not isinstance(method, SVI):
        raise InputError(f"Expected a method such as SVI(...), got {method!r}.")
    check_engine(engine)


def check_engine(engine: Any) -> None:
    """Refuse what is not an engine."""
    if engine not in get_args(Engine):
        raise InputError(f"`engine` must be one of {', '.join(get_args(Engine))}, got {engine!r}.")


def prepare_source(bnn: BNN, method: SVI, data: Any, seed: int) -> Source:
    """Return the source of batches, checked against the model."""
    with seeded(seed, "data"):  # looking into a DataLoader draws random numbers
        return make_source(data, bnn, method.batch_size)


@contextmanager
def running(bnn: BNN, batch_size: int, seed: int, purpose: str, *, copies: int = 1) -> Iterator[int]:
    """Seed the block, and run it with the threads and settings of that many fits; yield the number of threads."""
    with (
        seeded(seed, purpose),
        fast_pyro(),
        threads_for(bnn.net, batch_size * copies) as threads,
        flushed_denormals(),
        named_batch_size(batch_size),
    ):
        yield threads


def start(bnn: BNN, method: SVI, source: Source, seed: int, device: str) -> tuple[Posterior, Eager]:
    """Return the untrained posterior, and the fit that trains it.

    Raises:
        InputError: a guide that has nothing to train, that misses a site, or that does not go with the method.
    """
    model, example = fresh_model(bnn, source, device)
    refuse_checkpoints(model, source, training=True)
    if isinstance(method.guide, guides.Laplace):
        _check_laplace(method, model, example)
    guide = method.guide.build(model, *example).to(example[0].device)
    require_density(guide)
    if isinstance(guide, BlockGuide):
        raise InputError("BlockGaussian holds what Laplace computed and has nothing to train: use guides.Laplace().")
    _check_covers(guide, model, example, method)
    posterior = Posterior(model, guide, example=example, x_scaler=source.x_scaler, y_scaler=source.y_scaler, seed=seed)
    batches = source.batches(model, method.batch_size, derive(seed, "batches"))
    if isinstance(batches, TensorBatches):
        check_range(batches.x, "x")
        check_range(batches.y, "y")
    num_steps = method.num_steps(source.batches_per_epoch(method.batch_size))
    return posterior, Eager(
        model, guide, method, batches, example=example, num_data=source.num_data, num_steps=num_steps
    )


def _check_laplace(method: SVI, model: BNN, example: Batch) -> None:
    if method.temperature != 1:
        raise InputError(
            "Laplace puts the curvature of the posterior itself around its mode, at temperature 1, got "
            f"temperature={method.temperature}: leave it out."
        )
    checked_sites(method.guide, model, example, latent_sites(model, *example))


def fresh_model(bnn: BNN, source: Source, device: str) -> tuple[BNN, Batch]:
    """Return an untrained copy in the units of the data, in evaluation mode, and a row of data to run it with."""
    model = bnn.fresh().to(resolve_device(device))
    model.scale_targets(_target_scale(source))
    example = source.example(model.eval())
    check_range(torch.stack([source.y_scaler.loc, source.y_scaler.scale]).to(example[1].dtype), "y")
    return model, example


def finish(posterior: Posterior, method: SVI, source: Source, history: History) -> None:
    """Note in the posterior how it was fitted."""
    posterior.history = history
    posterior.info = {
        "method": to_dict(method) if _is_declared(method) else repr(method),
        "num_data": source.num_data,
        "feature_names": source.feature_names,
        "num_steps": len(history),
        "device": str(posterior.example[0].device),
        "engine": dataclasses.asdict(history.engine),
    }


def _check_covers(guide: PyroModule, model: BNN, example: Batch, method: SVI) -> None:
    with torch.no_grad(), poutine.block():
        drawn = set(latent_names(poutine.trace(guide).get_trace(*example)))
    missing = [site.name for site in latent_sites(model, *example) if site.name not in drawn]
    if missing:
        raise InputError(
            f"The guide {method.guide!r} does not draw {', '.join(missing)}: a guide must cover every latent site."
        )


def _checked_validation(bnn: BNN, validation: Any) -> Data:
    data = as_data(validation)
    if not isinstance(data, Data):
        raise InputError("`validation` must be Data(x, y) or a pair (x, y), in memory.")
    make_source(data, bnn, None)
    return data


def _validator(posterior: Posterior, validation: Data) -> Callable[[], float]:
    seed = derive(posterior.seed, "validation")

    def score() -> float:
        posterior.bnn.eval()
        prediction = posterior.predict(validation.x, num_draws=_DRAWS_TO_VALIDATE, seed=seed)
        posterior.bnn.train()
        return float(prediction.log_prob(validation.y).mean())

    return score


def _target_scale(source: Source) -> torch.Tensor:
    return source.y_scaler.scale.expand(source.first()[1].shape[1:])


def _is_declared(method: SVI) -> bool:
    try:
        to_dict(method)
    except InputError:
        return False
    return True
