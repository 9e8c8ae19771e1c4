"""A single fit by SVI, with a validation score to follow and a checkpoint to keep."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.tree_files import digest
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.data.stored import StoredData
from pyrobnn.inference.checkpoint import open_checkpoint
from pyrobnn.inference.monitor import Callback
from pyrobnn.inference.preparing import prepare_source
from pyrobnn.inference.session import opened
from pyrobnn.inference.source import Source, as_data, make_source
from pyrobnn.inference.svi.engine import Engine
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.posterior.posterior import Posterior

_DRAWS_TO_VALIDATE = 50


def fit_by_svi(
    bnn: BNN,
    method: SVI,
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
    with opened([bnn], [method], [source], [seed], seed=seed, device=device, started=started) as session:
        validate = None if held_out is None else _validator(session.posteriors[0], held_out)
        session.train(engine, progress=progress, callbacks=callbacks, validate=validate, checkpoint=keeper)
    return session.complete(progress=progress)[0]


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
