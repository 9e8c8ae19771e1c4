"""Digits: networks of two hidden layers on MNIST, as in Blundell et al. (2015), section 5.1.

Pixels divided by 126, the first 50,000 training images to train on, the other 10,000 to choose hyper-parameters on, the
10,000 test images to score once. A job is a fit and all that is measured of it: test error, NLL, calibration, how well
uncertainty tells clothes from digits, digits that are turned, and the test error without the weights of least signal to
noise. Laplace approximations belong to the job of the network that they are put around.

With `--keep FOLDER`, fits keep their place there and go on after an interruption; rows of such fits have no seconds.
"""

import hashlib
import itertools
import json
import time
from pathlib import Path
from typing import Annotated, Any, Required, TypedDict

import torch
from pydantic import BaseModel, Field

import pyrobnn as bnn
from benchmarks.provenance import code_digest
from benchmarks.report.mnist import figures, tables
from benchmarks.tasks import mnist_scores as scores
from benchmarks.tasks import schema
from pyrobnn.runs.spec import RunSpec

__all__ = ["datasets", "figures", "jobs", "run", "tables"]


Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")]


class Sections(TypedDict, total=False):
    """Parts of a spec, which [base] and an entry have."""

    prior: Any
    guide: Any
    fit: dict[str, Any]


class Laplace(TypedDict, total=False):
    """A Laplace approximation around the fit of an entry."""

    name: Required[str]
    structure: Any
    sites: Any
    tuned: bool


class Entry(Sections, total=False):
    """An entry: its candidates, and its measurements beyond those of all entries."""

    name: str
    grid: schema.Grid
    tuning: dict[str, Any]
    pruned: list[schema.Share]
    laplace: list[dict[str, Any]]


class SuiteSettings(BaseModel):
    """What a suite may set, with defaults."""

    units: list[schema.Count] = [400]
    seeds: schema.Seeds = [0]
    num_draws: schema.Count = 100
    num_train: Annotated[int, Field(gt=0, le=scores.NUM_TRAIN)] = 50_000
    num_held_out: Annotated[int, Field(gt=0, le=scores.NUM_HELD_OUT)] = 10_000
    rotations: list[float] = list(range(0, 181, 15))
    num_rotated: schema.Count = 1000
    engine: Any = "captured"
    device: Annotated[Device | None, schema.NOT_SHARED] = None
    base: Annotated[dict[str, Any], schema.NOT_SHARED] = {}
    entries: schema.Tables = []


class Settings(SuiteSettings):
    """The settings of a job: those of its suite, its data and its entry."""

    entry: str
    data: str
    units: int
    seed: int
    device: str = "cpu"
    grid: list[str]
    candidates: list[dict[str, Any]]
    tuning: dict[str, Any]
    pruned: list[float]
    laplace: list[dict[str, Any]]


def jobs(suite: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job for each entry, width and seed; its candidates are whole specs.

    Raises:
        InputError: an unknown key, no entries, an unknown engine, a number out of its bounds, or a spec that is not
            valid.
    """
    settings = schema.check_suite(suite, SuiteSettings)
    schema.check_table("[base]", suite.get("base", {}), Sections)
    schema.check_entries(suite, Entry)
    shared = {key: value for key, value in settings.items() if key not in ("units", "seeds")}
    shared |= {key: suite[key] for key in ("device",) if key in suite}
    entries = [_entry(suite.get("base", {}), entry) for entry in suite["entries"]]
    schema.check_names(name for entry, _ in entries for name in _names(entry))
    return [
        {"entry": entry["name"], "data": "mnist", "units": units, "seed": seed} | shared | rest
        for units, (entry, rest), seed in itertools.product(settings["units"], entries, settings["seeds"])
    ]


def _names(entry: dict[str, Any]) -> list[str]:
    """Return the names of the rows of an entry."""
    return [entry["name"], *(laplace["name"] for laplace in entry.get("laplace", []))]


def _entry(base: dict[str, Any], entry: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an entry and the settings that its jobs share."""
    for laplace in entry.get("laplace", []):
        schema.check_table(f"laplace of {entry['name']}", laplace, Laplace)
        _around(laplace)
    grid, tuning = entry.get("grid", {}), entry.get("tuning", {})
    open_to_choice = schema.candidates(schema.merged([base, entry], Sections.__annotations__), grid)
    for candidate in [*open_to_choice, schema.changed(open_to_choice[0], tuning)]:
        schema.check_keys(f"what the grid of {entry['name']} names", candidate, Sections.__annotations__)
        schema.check_fit(entry["name"], candidate, "engine")
        _spec(candidate)
    rest = {"grid": list(grid), "candidates": open_to_choice, "tuning": tuning}
    return entry, rest | {"pruned": entry.get("pruned", []), "laplace": entry.get("laplace", [])}


def _spec(candidate: dict[str, Any]) -> RunSpec:
    sections = {name: table for name, table in candidate.items() if table}
    return schema.make_spec(sections, "mnist", likelihood="categorical")


def datasets(settings: Settings) -> tuple[str, ...]:
    """Return the names of the digits and of the images that are none."""
    return (settings.data, "fashion-mnist-test")


def run(settings: Settings, keep: Path | None = None) -> list[dict[str, Any]]:
    """Choose, fit and measure; return a row for the posterior and for each Laplace approximation around it.

    With several candidates, each is fitted with the changes of `tuning` (a shorter fit, say), and the one with the
    smallest validation error is taken, the first of those that are equal.
    """
    images = scores.load_images(settings.num_train, settings.num_held_out)
    started = time.perf_counter()
    tuning = settings.tuning
    open_to_choice = [schema.changed(candidate, tuning) for candidate in _open(settings.candidates)]
    was_tuned = any(_has_started(keep, settings, candidate) for candidate in open_to_choice)
    errors = [_validation_error(keep, settings, candidate, images) for candidate in open_to_choice]
    chosen = settings.candidates[errors.index(min(errors)) if errors else 0]
    tuned = time.perf_counter()
    is_resumed = _has_started(keep, settings, chosen)
    posterior = _fit(keep, settings, chosen, images.train)
    seconds = None if is_resumed else time.perf_counter() - tuned
    predict = scores.sampled(posterior, settings.num_draws, settings.seed)
    row = _row(settings, settings.entry, predict, images) | _of_fit(posterior, images.train)
    row |= scores.evaluate_pruned(posterior, images.test, settings.pruned, settings.num_draws, settings.seed)
    row |= {
        "chosen": json.dumps(schema.values_at(chosen, settings.grid)),
        "candidates": len(settings.candidates),
        "candidate_errors": errors or None,
        "tuning_seconds": None if was_tuned else tuned - started,
        "seconds": seconds,
    }
    return [row, *(_laplace_row(settings, laplace, posterior, images) for laplace in settings.laplace)]


def _open(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return candidates if len(candidates) > 1 else []


def _validation_error(keep: Path | None, settings: Settings, candidate: dict[str, Any], images: scores.Images) -> float:
    posterior = _fit(keep, settings, candidate, images.train)
    predict = scores.sampled(posterior, settings.num_draws, settings.seed)
    return scores.error_rate(predict(images.validation.x), images.validation.y)


def _fit(keep: Path | None, settings: Settings, candidate: dict[str, Any], train: bnn.Data) -> bnn.Posterior:
    spec = _spec(candidate)
    net = bnn.MLP(train.x.shape[1], [settings.units] * 2, 10)
    model = bnn.BNN(net, prior=spec.prior, likelihood=spec.likelihood)
    how = {"seed": settings.seed, "engine": settings.engine, "device": settings.device}
    return bnn.fit(model, train, spec.fit.method, progress=False, checkpoint=_kept(keep, settings, candidate), **how)


def _kept(keep: Path | None, settings: Settings, candidate: dict[str, Any]) -> Path | None:
    """Return the folder of the checkpoints of a fit, named by all that decides its bits; None if none are kept."""
    if keep is None:
        return None
    fit = {name: getattr(settings, name) for name in ("units", "seed", "num_train", "engine", "device")}
    fit |= {"candidate": candidate, "threads": torch.get_num_threads(), "code": code_digest("mnist")}
    return keep / hashlib.sha256(json.dumps(fit, sort_keys=True).encode()).hexdigest()[:16]


def _has_started(keep: Path | None, settings: Settings, candidate: dict[str, Any]) -> bool:
    kept = _kept(keep, settings, candidate)
    return kept is not None and kept.exists() and any(kept.iterdir())


def _row(settings: Settings, entry: str, predict: scores.Predict, images: scores.Images) -> dict[str, Any]:
    head = {"entry": entry, "data": settings.data, "seed": settings.seed, "units": settings.units}
    validation = scores.error_rate(predict(images.validation.x), images.validation.y)
    measured = scores.evaluate(predict, images, settings.rotations, settings.num_rotated)
    return head | {"num_draws": settings.num_draws, "validation_error": validation} | measured


def _of_fit(posterior: bnn.Posterior, train: bnn.Data) -> dict[str, Any]:
    """Return the size and length of a fit, and the two parts of the ELBO over its last epoch in nats an image."""
    history = posterior.history
    method = posterior.record.method
    per_epoch = -(-len(train) // (method["batch_size"] or len(train)))
    row = {"num_weights": posterior.bnn.num_weights, "epochs": len(history) / per_epoch}
    if method["guide"]["type"] in ("map", "dropout"):
        return row | {"log_likelihood": None, "kl": None}
    parts = {"log_likelihood": history.log_likelihood, "kl": history.kl}
    return row | {name: float(values[-per_epoch:].mean()) / len(train) for name, values in parts.items()}


def _around(laplace: dict[str, Any]) -> bnn.guides.Laplace:
    return bnn.guides.Laplace(**{key: value for key, value in laplace.items() if key in ("structure", "sites")})


def _laplace_row(
    settings: Settings, laplace: dict[str, Any], mode: bnn.Posterior, images: scores.Images
) -> dict[str, Any]:
    started = time.perf_counter()
    how: dict[str, Any] = {"device": settings.device, "progress": False}
    posterior = _around(laplace).around(mode.bnn, images.train, weights=mode.mean(), **how)
    if laplace.get("tuned"):
        posterior = bnn.tune_prior(posterior, images.train, per="site")
    seconds = time.perf_counter() - started
    predict = scores.linearized(posterior, settings.num_draws, settings.seed)
    return _row(settings, laplace["name"], predict, images) | {"seconds": seconds}
