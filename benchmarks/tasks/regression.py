"""Regression sets: every entry on every split, its settings chosen on a part of each training split alone.

For each split, each candidate of an entry is fitted to the training part without its validation rows; the one with the
best mean log score on those is fitted to the whole training part, and scored once on the test part. Splits of a set are
replicates of one captured graph. Ensembles may be tuned with fewer members than they are fitted with: `tuning_members`.
"""

import copy
import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.report.regression import figures, tables
from benchmarks.tasks.entries import candidates, check_engine, check_entries, check_keys, values_at
from benchmarks.tasks.regression_fits import Fitted, engine_of, fit_all
from pyrobnn.spec import RunSpec

__all__ = ["datasets", "figures", "jobs", "run", "tables"]

DEFAULTS: dict[str, Any] = {
    "splits": "published",
    "validation": 0.2,
    "seed": 0,
    "num_splits": None,
    "side_by_side": 20,
    "tuning_members": None,
}
SECTIONS = ("net", "prior", "likelihood", "guide", "fit", "predict")
_KNOWN = {*DEFAULTS, "data", "base", "entries", "for_data"}
_PIT_BINS = 10
Parts = list[tuple[bnn.Data, bnn.Data]]


def jobs(suite: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job for each data set and entry; its candidates are whole specs.

    Raises:
        InputError: an unknown key, no data or entries, a share or a kind of splits that cannot be, or a bad spec.
    """
    check_keys("the suite", suite, _KNOWN)
    settings = DEFAULTS | {key: value for key, value in suite.items() if key in DEFAULTS}
    check_entries(suite, {*SECTIONS, "grid"})
    if not suite.get("data"):
        raise bnn.InputError("The suite needs `data`, a list of names of data sets.")
    if settings["splits"] not in ("published", "gap"):
        raise bnn.InputError(f"`splits` must be published or gap, got {settings['splits']!r}.")
    if not 0 < settings["validation"] < 1:
        raise bnn.InputError(f"`validation` is a share of the training part, in (0, 1), got {settings['validation']}.")
    return [_job(settings, suite, name, entry) for name in suite["data"] for entry in suite["entries"]]


def _job(settings: dict[str, Any], suite: dict[str, Any], name: str, entry: dict[str, Any]) -> dict[str, Any]:
    own = suite.get("for_data", {}).get(name, {})
    layers = (suite.get("base", {}), entry, own)
    tables = _merged([{key: part[key] for key in SECTIONS if key in part} for part in layers])
    grid = entry.get("grid", {})
    open_to_choice = candidates(tables, grid)
    specs = [RunSpec.from_dict(candidate | {"data": {"name": name}}) for candidate in open_to_choice]
    for spec in specs:
        check_engine(spec.fit.engine)
    if settings["tuning_members"] and not all(isinstance(spec.method, bnn.Ensemble) for spec in specs):
        raise bnn.InputError(f"`tuning_members` is for ensembles, and {entry['name']} has {specs[0].method!r}.")
    job = {key: value for key, value in settings.items() if key != "num_splits"}
    numbers = list(range(settings["num_splits"] or _num_splits(name, settings["splits"])))
    job |= {"numbers": numbers, "grid": list(grid), "candidates": open_to_choice}
    return {"entry": entry["name"], "data": name} | job


def _merged(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sections of all tables; a part of another type replaces the earlier one whole."""
    merged: dict[str, Any] = {}
    for section, value in itertools.chain.from_iterable(copy.deepcopy(table).items() for table in tables):
        earlier = merged.get(section)
        both = isinstance(value, dict) and isinstance(earlier, dict)
        same = both and value.get("type", earlier.get("type")) == earlier.get("type")
        merged[section] = earlier | value if same else value
    return merged


def _num_splits(name: str, splits: str) -> int:
    dataset = bnn.datasets.load(name)
    return dataset.num_splits if splits == "published" else dataset.data.x.shape[1]


def datasets(settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the name of the data set."""
    return (settings["data"],)


def gap_split(data: bnn.Data, feature: int) -> tuple[bnn.Data, bnn.Data]:
    """Return the outer two thirds of the rows along a feature, to train on, and the middle third, to test on.

    Foong et al. (2019), "'In-Between' Uncertainty in Bayesian Neural Networks", section 4.
    Equal values keep their order.
    """
    order = np.argsort(data.x[:, feature].numpy(), kind="stable")
    third = len(order) // 3
    middle = slice(third, len(order) - third)
    return data[np.sort(np.delete(order, middle))], data[np.sort(order[middle])]


def run(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Tune, fit and score an entry on the splits of a data set; a row for each split."""
    parts = _parts(settings)
    rows: list[dict[str, Any]] = []
    for first in range(0, len(parts), settings["side_by_side"]):
        chunk = slice(first, first + settings["side_by_side"])
        rows += _run_chunk(settings, parts[chunk], settings["numbers"][chunk])
    return rows


def _parts(settings: dict[str, Any]) -> Parts:
    """Return (train, test) of each split, standardised by the training part when fitted."""
    dataset = bnn.datasets.load(settings["data"])
    data = bnn.Data(dataset.data.x, dataset.data.y, standardize=True)
    if settings["splits"] == "gap":
        return [gap_split(data, number) for number in settings["numbers"]]
    pairs = [dataset.splits[number] if dataset.splits else None for number in settings["numbers"]]
    if all(pairs):
        return [(data[train], data[test]) for train, test in pairs if pairs]
    return [data.split(0.1, seed=number) for number in settings["numbers"]]


def _run_chunk(settings: dict[str, Any], parts: Parts, numbers: list[int]) -> list[dict[str, Any]]:
    started = time.perf_counter()
    seed = settings["seed"] + numbers[0]
    specs = [RunSpec.from_dict(tables | {"data": {"name": settings["data"]}}) for tables in settings["candidates"]]
    scores = _validation_scores(settings, specs, parts, numbers) if len(specs) > 1 else None
    best = np.zeros(len(parts), int) if scores is None else np.nan_to_num(scores, nan=-np.inf).argmax(0)
    tuned = time.perf_counter()
    fitted = fit_all([(specs[index], train) for index, (train, _) in zip(best, parts, strict=True)], seed)
    rows = [
        {key: settings[key] for key in ("entry", "data", "splits")}
        | {"split": number, "seed": seed, "engine": engine_of(one)}
        | _scores(one, specs[index], test)
        | {"chosen": json.dumps(values_at(settings["candidates"][index], settings["grid"])), "candidates": len(specs)}
        | {"validation_log_score": None if scores is None else float(scores[index, place])}
        for place, (number, index, one, (_, test)) in enumerate(zip(numbers, best, fitted, parts, strict=True))
    ]
    ended = time.perf_counter()
    times = {"tuning_seconds": (tuned - started) / len(parts), "seconds": (ended - tuned) / len(parts)}
    return [row | times for row in rows]


def _validation_scores(settings: dict[str, Any], specs: list[RunSpec], parts: Parts, numbers: list[int]) -> np.ndarray:
    """Return the mean log score of each candidate (rows) on the validation rows of each split (columns)."""
    tuned = _with_members(specs, settings["tuning_members"])
    cut = [train.split(settings["validation"], seed=number) for (train, _), number in zip(parts, numbers, strict=True)]
    every = [(spec, train, held_out) for spec in tuned for train, held_out in cut]
    fitted = fit_all([(spec, train) for spec, train, _ in every], settings["seed"] + numbers[0])
    scores = [_log_score(one, spec, held_out) for one, (spec, _, held_out) in zip(fitted, every, strict=True)]
    return np.array(scores).reshape(len(specs), len(parts))


def _with_members(specs: list[RunSpec], members: int | None) -> list[RunSpec]:
    if members is None:
        return specs
    fits = [(spec, spec.fit, dataclasses.replace(spec.fit.method, members=members)) for spec in specs]
    return [dataclasses.replace(spec, fit=dataclasses.replace(fit, method=method)) for spec, fit, method in fits]


def _predict(fitted: Fitted, spec: RunSpec, data: bnn.Data) -> bnn.Prediction:
    return fitted.predict(data.x, num_draws=max(spec.predict.num_draws, spec.fit.num_parts))


def _log_score(fitted: Fitted, spec: RunSpec, data: bnn.Data) -> float:
    return float(_predict(fitted, spec, data).log_prob(data.y).double().mean())


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
