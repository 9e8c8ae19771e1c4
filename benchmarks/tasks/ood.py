"""Out-of-distribution inputs: whether the uncertainty of a posterior tells them from the data.

Either classes that were left out of training, or another data set with inputs of the same shape. Inputs of any
shape become a row, and are scaled to [0, 1] by the largest value in the training part.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any, TypedDict

import torch
from pydantic import BaseModel
from torch import Tensor

import pyrobnn as bnn
from benchmarks.report.ood import figures, tables
from benchmarks.tasks import schema

__all__ = ["datasets", "figures", "jobs", "run", "tables"]

_OF_SET: dict[str, Any] = {"data": None, "without": [], "outside": None, "train": 1000, "test": 400, "hidden": [50]}


class Inputs(TypedDict, total=False):
    """A table of [[sets]]: data, and the inputs outside of them."""

    data: str
    without: list[int]
    outside: str
    train: schema.Count
    test: schema.Count
    hidden: list[schema.Count]


class SuiteSettings(BaseModel):
    """What a suite may set, with defaults."""

    seeds: schema.Count = 5
    draws: schema.Count = 200
    steps: schema.Count = 2000
    lr: schema.Positive = 0.005
    batch_size: schema.Count = 128
    engine: Any = "captured"
    sets: schema.Tables = []
    entries: schema.Tables = []


class Settings(SuiteSettings):
    """The settings of a job: those of its suite, its data and its entry."""

    data: str
    without: list[int]
    outside: str | None
    train: int
    test: int
    hidden: list[int]
    entry: str
    guide: Any
    prior: Any
    members: int


def jobs(suite: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job for each set and method.

    Raises:
        InputError: an unknown key, a number that cannot be, entries that are none, or no sets, each with either
            `without` or `outside`.
    """
    shared = schema.check_suite(suite, SuiteSettings)
    if not suite.get("sets"):
        raise bnn.InputError("The suite needs [[sets]], each with `data`.")
    sets = [_set(table) for table in suite["sets"]]
    return [{**shared, **table, **method} for table in sets for method in schema.entry_settings(suite)]


def _set(table: dict[str, Any]) -> dict[str, Any]:
    schema.check_table(f"set {table.get('data')}", table, Inputs)
    if not table.get("data") or bool(table.get("without")) == bool(table.get("outside")):
        raise bnn.InputError(f"Each set needs `data`, and either `without` (classes) or `outside` (data), got {table}.")
    inside = schema.data_info(table["data"], "classification")
    if table.get("outside"):
        outside = schema.data_info(table["outside"], "classification")
        if outside.columns != inside.columns:
            raise bnn.InputError(
                f"{table['outside']} has {outside.columns} columns, and {table['data']} {inside.columns}: they must "
                "agree."
            )
    return _OF_SET | table


def datasets(settings: Settings) -> tuple[str, ...]:
    """Return the names of the data sets."""
    return tuple(name for name in (settings.data, settings.outside) if name)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The training and test data of a seed; inputs in rows (N, pixels), labels 0, 1, ...

    Attributes:
        train: to train on.
        inside: held-out examples like those.
        outside: inputs of another kind.
    """

    train: bnn.Data
    inside: bnn.Data
    outside: Tensor


def parts_of(settings: Settings, seed: int) -> Parts:
    """Return random parts of the data: `train` and `test` examples inside, at most `test` outside."""
    generator = torch.Generator().manual_seed(seed)
    data = bnn.datasets.load(settings.data).data
    left_out = torch.isin(data.y, torch.tensor(settings.without, dtype=data.y.dtype))
    kept = (~left_out).nonzero()[:, 0]
    kept = kept[torch.randperm(len(kept), generator=generator)]
    classes = data.y[~left_out].unique()
    train, inside = kept[: settings.train], kept[settings.train : settings.train + settings.test]
    if len(inside) < settings.test:
        raise bnn.InputError(
            f"{settings.data} has {len(kept)} examples of the classes kept, and `train` + `test` is "
            f"{settings.train + settings.test}: ask for less."
        )
    others = bnn.datasets.load(settings.outside).data.x if settings.outside else data.x[left_out]
    others = others[torch.randperm(len(others), generator=generator)[: settings.test]]
    scale = float(data.x[train].float().max())
    labels = torch.searchsorted(classes, data.y)
    first, second = (bnn.Data(_rows(data.x[rows], scale), labels[rows]) for rows in (train, inside))
    return Parts(first, second, _rows(others, scale))


def _rows(x: Tensor, scale: float) -> Tensor:
    return x.float().flatten(1) / scale


def run(settings: Settings, keep: Path | None = None) -> list[dict[str, Any]]:
    """Fit all seeds side by side, and score them inside and outside; a row for each seed."""
    started = time.perf_counter()
    parts = [parts_of(settings, seed) for seed in range(settings.seeds)]
    first, members = parts[0].train, settings.members
    model = schema.model_of(settings, first.x.shape[1], int(first.y.max()) + 1, bnn.likelihoods.Categorical())
    method = bnn.SVI(guide=settings.guide, **schema.svi_settings(settings))
    data = [part.train for part in parts for _ in range(members)]
    how: dict[str, Any] = {"seed": 0, "device": "cpu", "engine": settings.engine, "progress": False}
    fits = bnn.fit_replicates(model, data, method, **how)
    rows = []
    for seed, (part, posterior) in enumerate(zip(parts, schema.mixed(fits, members), strict=True)):
        scores = _scores(posterior, part, schema.num_draws(settings), seed)
        rows.append({"entry": settings.entry, "data": _name(settings), "seed": seed, **scores})
    seconds = (time.perf_counter() - started) / len(rows)
    return [row | {"seconds": seconds} for row in rows]


def _name(settings: Settings) -> str:
    without = " and ".join(map(str, settings.without))
    return f"{settings.data} against {settings.outside or f'its classes {without}'}"


def _scores(posterior: schema.Fitted, part: Parts, draws: int, seed: int) -> dict[str, float | None]:
    """Return scores inside and of telling outside apart; of a point None where its mutual information, 0, is needed."""
    inside = posterior.predict(part.inside.x, num_draws=draws, seed=seed)
    outside = posterior.predict(part.outside, num_draws=draws, seed=seed)
    wrong = inside.label != part.inside.y
    scores = {"error": float(wrong.double().mean()), "log_score": float(inside.log_prob(part.inside.y).mean())}
    told = {name: score.value for name, score in bnn.score_ood(inside, outside).items()}
    return scores | {name: None if draws == 1 and "information" in name else value for name, value in told.items()}
