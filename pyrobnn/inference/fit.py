"""The verb: fit a model to data by a method, and get its posterior."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.nn import PyroModule

from pyrobnn import guides
from pyrobnn._errors import InputError
from pyrobnn._pyro import fast_pyro
from pyrobnn._random import derive, seeded
from pyrobnn._settings import to_dict
from pyrobnn._threads import threads_for
from pyrobnn.bnn import BNN
from pyrobnn.data import Data
from pyrobnn.inference.batches import Batch
from pyrobnn.inference.eager import make_eager_step
from pyrobnn.inference.monitor import Callback, Monitor
from pyrobnn.inference.source import Source, as_data, make_source
from pyrobnn.inference.svi import SVI
from pyrobnn.posterior import Posterior, latent_names

_DRAWS_TO_VALIDATE = 50


def fit(
    bnn: BNN,
    method: SVI,
    data: Any,
    *,
    seed: int,
    device: str = "auto",
    progress: bool = True,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
) -> Posterior:
    """Infer the posterior of a model's weights.

    The model is not changed: its parts are built anew, under the seed, and trained as a copy. The same arguments give
    the same bits on the same machine, and every global random state is left as it was.

    Args:
        bnn: the model.
        method: how to infer it.
        data: `Data`, a pair (x, y) of arrays or tensors, or a DataLoader of such pairs.
        seed: seed of starting values, mini-batches and draws.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.
        progress: show a progress bar with the ELBO.
        validation: `Data` or a pair (x, y) whose log score is followed, and decides if `method.patience` is set.
        callbacks: functions called with a `Progress` after every 50 steps; one that returns True ends the fit.

    Raises:
        InputError: anything that does not fit together, before training starts.
        FloatingPointError: the ELBO is no longer finite.
    """
    if not isinstance(method, SVI):
        raise InputError(f"Expected a method such as SVI(...), got {method!r}.")
    if method.patience is not None and validation is None:
        raise InputError("SVI: `patience` needs a validation score: pass `validation=Data(x, y)` to fit.")
    started = time.perf_counter()
    with seeded(seed, "data"):  # looking into a DataLoader draws random numbers
        source = make_source(data, bnn, method.batch_size)
        held_out = None if validation is None else _checked_validation(bnn, validation)
    with seeded(seed, "fit"), fast_pyro(), threads_for(bnn.net, source.batch_size(method.batch_size)) as threads:
        model = bnn.fresh().to(resolve_device(device))
        model.scale_targets(_target_scale(source))
        posterior = _build(model, method, source, seed)
        validate = None if held_out is None else _validator(posterior, held_out)
        num_steps = method.num_steps(source.batches_per_epoch(method.batch_size))
        with Monitor(
            model,
            posterior.guide,
            num_steps=num_steps,
            progress=progress,
            callbacks=callbacks,
            validate=validate,
            eval_every=method.eval_every,
            patience=method.patience,
        ) as monitor:
            _train(posterior, method, source, monitor, num_steps)
    posterior.history = monitor.recorder.history()
    posterior.info = {
        "method": to_dict(method) if _is_declared(method) else repr(method),
        "num_data": source.num_data,
        "feature_names": list(source.data.feature_names) if isinstance(source.data, Data) else [],
        "num_steps": len(posterior.history),
        "stop_reason": monitor.stop_reason,
        "device": str(posterior.example[0].device),
        "threads": threads,
        "seconds": time.perf_counter() - started,
    }
    return posterior


def _build(model: BNN, method: SVI, source: Source, seed: int) -> Posterior:
    example = source.example(model)
    guide = method.guide.build(model.eval(), *example).to(example[0].device)
    _check_covers(guide, model, example, method)
    return Posterior(model, guide, example=example, x_scaler=source.x_scaler, y_scaler=source.y_scaler, seed=seed)


def _train(posterior: Posterior, method: SVI, source: Source, monitor: Monitor, num_steps: int) -> None:
    model, guide = posterior.bnn, posterior.guide
    step = make_eager_step(model, guide, method, posterior.example, num_data=source.num_data, num_steps=num_steps)
    batches = source.batches(model, method.batch_size)
    model.train()
    for index in range(num_steps):
        monitor.recorder.add(*step(next(batches), method.kl_weight(index)))
        if monitor.stops_after(index + 1):
            break
    monitor.restore_best()
    model.eval()


def _check_covers(guide: PyroModule, model: BNN, example: Batch, method: SVI) -> None:
    with torch.no_grad(), poutine.block():
        drawn = set(latent_names(poutine.trace(guide).get_trace(*example)))
    missing = [site.name for site in guides.latent_sites(model, *example) if site.name not in drawn]
    if missing:
        raise InputError(
            f"The guide {method.guide!r} does not draw {', '.join(missing)}: a guide must cover every latent site."
        )


def _checked_validation(bnn: BNN, validation: Any) -> Data:
    data = as_data(validation)
    if not isinstance(data, Data):
        raise InputError("`validation` must be Data(x, y) or a pair (x, y), not a DataLoader.")
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
    _, y = source.first()
    return source.y_scaler.scale.expand(y.shape[1:])


def _is_declared(method: SVI) -> bool:
    try:
        to_dict(method)
    except InputError:
        return False
    return True


def resolve_device(device: str) -> torch.device:
    """Return the device of that name; "auto" is a GPU where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"Device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return torch.device(device)


def fit_svi(
    bnn: BNN,
    x: Any,
    y: Any = None,
    *,
    seed: int,
    standardize: bool = False,
    device: str = "auto",
    progress: bool = True,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Posterior:
    """Fit by SVI with its settings as keyword arguments; x may be inputs (with y), `Data` or a DataLoader."""
    if y is None and standardize:
        raise InputError("`standardize` belongs to Data here: pass Data(x, y, standardize=True).")
    data = x if y is None else Data(x, y, standardize=standardize)
    method = SVI(**settings)
    return fit(
        bnn, method, data, seed=seed, device=device, progress=progress, validation=validation, callbacks=callbacks
    )
