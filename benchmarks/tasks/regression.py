"""Regression sets: every entry on every split, its settings chosen on a part of each training split alone.

For each split, each candidate of an entry is fitted to the training part without its validation rows; the one with the
best mean log score on those is fitted to the whole training part, and scored once on the test part. A table beside the
suite has the random splits of a set without published ones. Splits of a set are replicates of one captured graph.
Ensembles may be tuned with fewer members than they are fitted with: `tuning_members`.
"""

import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import torch
from pydantic import BaseModel, Field

import pyrobnn as bnn
from benchmarks.report.regression import figures, tables
from benchmarks.tasks import schema
from benchmarks.tasks.regression_fits import Fitted, engine_of, fit_all
from pyrobnn.data import InputColumns
from pyrobnn.datasets.base import NUM_RANDOM_SPLITS
from pyrobnn.runs.spec import DataSpec, RunSpec

__all__ = ["datasets", "figures", "jobs", "run", "tables"]

_PIT_BINS = 10
Parts = list[tuple[bnn.Data, bnn.Data]]


class Sections(TypedDict, total=False):
    """Parts of a spec, and how inputs are given to it, which [base], an entry and [for_data] have."""

    inputs: InputColumns

    net: Any
    prior: Any
    likelihood: Any
    guide: Any
    fit: dict[str, Any]
    predict: dict[str, Any]


class OfData(Sections, total=False):
    """What a data set has in place of [base], and of the grid of an entry."""

    grid: schema.Grid


class Entry(OfData, total=False):
    """An entry, with the grid of its candidates."""

    name: str


class SuiteSettings(BaseModel):
    """What a suite may set, with defaults."""

    data: Annotated[list[str | dict[str, Any]], schema.NOT_SHARED] = []
    splits: Literal["published", "gap"] = "published"
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seeds: Annotated[schema.Seeds, schema.NOT_SHARED] = [0]
    num_splits: schema.Count | None = None
    side_by_side: schema.Count = 20
    tuning_members: schema.Count | None = None
    base: Annotated[dict[str, Any], schema.NOT_SHARED] = {}
    for_data: Annotated[dict[str, dict[str, Any]], schema.NOT_SHARED] = {}
    entries: schema.Tables = []


class Settings(SuiteSettings):
    """The settings of a job: those of its suite, its data, in a folder if they are a table, its entry and its seed."""

    folder: Path
    entry: str
    data: str
    table: dict[str, Any] = {}
    seed: schema.Seed
    numbers: list[int]
    grid: list[str]
    candidates: list[dict[str, Any]]


def jobs(suite: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job for each seed, data set and entry; its candidates are whole specs.

    Raises:
        InputError: an unknown key, no data or entries, data for classification, a number that cannot be, more splits
            than there are, or a bad spec.
    """
    settings = schema.check_suite(suite, SuiteSettings)
    schema.check_entries(suite, Entry)
    if not suite.get("data"):
        raise bnn.InputError("The suite needs `data`, a list of names of data sets, or { file = ..., target = ... }.")
    sources, seeds = schema.tables_by_name(suite["data"]), suite.get("seeds", SuiteSettings().seeds)
    schema.check_table("[base]", suite.get("base", {}), Sections)
    schema.check_keys("[for_data]", suite.get("for_data", {}), sources)
    for name, table in suite.get("for_data", {}).items():
        schema.check_table(f"[for_data.{name}]", table, OfData)
    every = itertools.product(seeds, sources, suite["entries"])
    return [_job(settings | {"seed": seed}, suite, name, sources[name], entry) for seed, name, entry in every]


def _job(
    settings: dict[str, Any], suite: dict[str, Any], name: str, table: dict[str, Any], entry: dict[str, Any]
) -> dict[str, Any]:
    of_data = suite.get("for_data", {}).get(name, {})
    layers = (suite.get("base", {}), entry, of_data)
    grid = of_data.get("grid", entry.get("grid", {}))
    open_to_choice = schema.candidates(schema.merged(layers, Sections.__annotations__), grid)
    specs = [_checked(entry["name"], name, candidate) for candidate in open_to_choice]
    if settings["tuning_members"] and not all(isinstance(spec.fit.method, bnn.Ensemble) for spec in specs):
        raise bnn.InputError(f"`tuning_members` is for ensembles, and {entry['name']} has {specs[0].fit.method!r}.")
    job = {key: value for key, value in settings.items() if key != "num_splits"}
    job |= {"numbers": _numbers(name, table, settings), "grid": list(grid), "candidates": open_to_choice}
    return {"entry": entry["name"], "data": name} | job | ({"table": table} if table else {})


def _checked(entry: str, data: str, candidate: dict[str, Any]) -> RunSpec:
    schema.check_keys(f"what the grid of {entry} names", candidate, Sections.__annotations__)
    schema.check_fit(entry, candidate)
    spec = _spec(candidate, data)
    schema.check_engine(spec.fit.engine)
    return spec


def _spec(candidate: dict[str, Any], data: str) -> RunSpec:
    spec = schema.make_spec({key: value for key, value in candidate.items() if key != "inputs"}, data)
    return dataclasses.replace(spec, data=dataclasses.replace(spec.data, inputs=candidate.get("inputs", "plain")))


def _numbers(name: str, table: dict[str, Any], settings: dict[str, Any]) -> list[int]:
    """Return the numbers of the splits: of as many as the suite asks for, or all."""
    there = NUM_RANDOM_SPLITS
    if table and settings["splits"] == "gap":
        raise bnn.InputError(f"`splits` must be published, which are random ones for a table such as {name}: got gap.")
    if not table:
        info = schema.data_info(name, "regression")
        there = info.splits if settings["splits"] == "published" else info.columns
    wanted = settings["num_splits"] or there
    if wanted > there:
        kind = settings["splits"]
        raise bnn.InputError(f"{name} has {there} {kind} splits, and `num_splits` is {wanted}: ask for fewer.")
    return list(range(wanted))


def gap_split(data: bnn.Data, feature: int) -> tuple[bnn.Data, bnn.Data]:
    """Return the outer two thirds of the rows along a feature, to train on, and the middle third, to test on.

    Foong et al. (2019), "'In-Between' Uncertainty in Bayesian Neural Networks", section 4.
    Equal values keep their order.
    """
    order = np.argsort(data.x[:, feature].numpy(), kind="stable")
    third = len(order) // 3
    middle = slice(third, len(order) - third)
    return data[np.sort(np.delete(order, middle))], data[np.sort(order[middle])]


def run(settings: Settings, keep: Path | None = None) -> list[dict[str, Any]]:
    """Tune, fit and score an entry on the splits of a data set; a row for each split."""
    parts = _parts(settings)
    rows: list[dict[str, Any]] = []
    for first in range(0, len(parts), settings.side_by_side):
        chunk = slice(first, first + settings.side_by_side)
        rows += _run_chunk(settings, parts[chunk], settings.numbers[chunk])
    return rows


def _parts(settings: Settings) -> Parts:
    """Return (train, test) of each split, standardised by the training part when fitted."""
    parts = []
    for number in settings.numbers:
        dataset = load(settings, number)
        data = bnn.Data(dataset.data.x, dataset.data.y, standardize=True, groups=dataset.data.groups)
        standardised = dataclasses.replace(dataset, data=data)
        parts.append(gap_split(data, number) if settings.splits == "gap" else standardised.split(number))
    return parts


def load(settings: Settings, number: int = 0) -> bnn.datasets.Dataset:
    """Return the data of a job; the categories of a table are those of the training part of a split."""
    if not settings.table:
        return bnn.datasets.load(settings.data)
    path = str(settings.folder / settings.table["path"])
    return DataSpec(**settings.table | {"path": path, "split": number}).load("regression")


def datasets(settings: Settings) -> tuple[str, ...]:
    """Return the data set of a job, or the file of its table, which can be read."""
    if not settings.table:
        return (settings.data,)
    load(settings)
    return (settings.table["path"],)


def _run_chunk(settings: Settings, parts: Parts, numbers: list[int]) -> list[dict[str, Any]]:
    started = time.perf_counter()
    seed = settings.seed + numbers[0]
    specs = [_spec(candidate, settings.data) for candidate in settings.candidates]
    scores = _validation_scores(settings, specs, parts, numbers) if len(specs) > 1 else None
    best = np.zeros(len(parts), int) if scores is None else np.nan_to_num(scores, nan=-np.inf).argmax(0)
    tuned = time.perf_counter()
    chosen = [(specs[index], train) for index, (train, _) in zip(best, parts, strict=True)]
    fitted = fit_all([(spec, train.with_inputs(spec.data.inputs)) for spec, train in chosen], seed)
    rows = [
        {"entry": settings.entry, "data": settings.data, "splits": settings.splits}
        | {"split": number, "seed": seed, "engine": engine_of(fit)}
        | _scores(fit, specs[index], test)
        | {
            "chosen": json.dumps(schema.values_at(settings.candidates[index], settings.grid)),
            "candidates": len(specs),
        }
        | _convergence(fit)
        | {"validation_log_score": None if scores is None else float(scores[index, place])}
        for place, (number, index, fit, (_, test)) in enumerate(zip(numbers, best, fitted, parts, strict=True))
    ]
    ended = time.perf_counter()
    times = {"tuning_seconds": (tuned - started) / len(parts), "seconds": (ended - tuned) / len(parts)}
    return [row | times for row in rows]


def _validation_scores(settings: Settings, specs: list[RunSpec], parts: Parts, numbers: list[int]) -> np.ndarray:
    """Return the mean log score of each candidate (rows) on the validation rows of each split (columns)."""
    tuned = _with_members(specs, settings.tuning_members)
    cut = [train.split(settings.validation, seed=number) for (train, _), number in zip(parts, numbers, strict=True)]
    every = [(spec, *both) for spec in tuned for both in cut]
    fitted = fit_all(
        [(spec, train.with_inputs(spec.data.inputs)) for spec, train, _ in every], settings.seed + numbers[0]
    )
    scores = [_log_score(fit, spec, held_out) for fit, (spec, _, held_out) in zip(fitted, every, strict=True)]
    return np.array(scores).reshape(len(specs), len(parts))


def _with_members(specs: list[RunSpec], members: int | None) -> list[RunSpec]:
    if members is None:
        return specs
    fits = [(spec, spec.fit, dataclasses.replace(spec.fit.method, members=members)) for spec in specs]
    return [dataclasses.replace(spec, fit=dataclasses.replace(fit, method=method)) for spec, fit, method in fits]


def _predict(fitted: Fitted, spec: RunSpec, data: bnn.Data) -> bnn.Prediction:
    copies = (spec.fit.method or bnn.Ensemble()).offer().copies
    return fitted.predict(data.x, num_draws=max(spec.predict.num_draws, copies))


def _log_score(fitted: Fitted, spec: RunSpec, data: bnn.Data) -> float:
    return float(_predict(fitted, spec, data).log_prob(data.y).double().mean())


def _convergence(fitted: Fitted) -> dict[str, Any]:
    """Return where a fit that ended by itself came to, in nats and model units; nothing of any other fit."""
    convergence = fitted.record.convergence
    if convergence is None:
        return {}
    return {
        "converged": convergence.converged,
        "elbo": convergence.elbo,
        "elbo_error": convergence.elbo_error,
        "gain": convergence.gain,
        "steps": fitted.record.num_steps,
    }


def _scores(fitted: Fitted, spec: RunSpec, data: bnn.Data) -> dict[str, Any]:
    """Return scores in original units, and how often the target fell into each tenth of its predictive distribution."""
    prediction = _predict(fitted, spec, data)
    error = (prediction.mean - data.y).double()
    pit = prediction.cdf(data.y).double()
    counts = torch.histc(pit, _PIT_BINS, 0, 1)
    return {
        "log_score": float(prediction.log_prob(data.y).double().mean()),
        "rmse": float(error.square().mean().sqrt()),
        "coverage_95": float(((pit > 0.025) & (pit < 0.975)).double().mean()),
        "pit": [int(count) for count in counts],
    }
