"""Runs beside each other: their scores on the same held-out data, and the differences of their specs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pyrobnn._core.errors import InputError
from pyrobnn.metrics import Score, compare_scores, score
from pyrobnn.metrics.base import plus_minus
from pyrobnn.report.words import aligned, flat, name_of, score_rows, shown, text
from pyrobnn.runs.folder import read_json, run_folder
from pyrobnn.runs.run import predicted
from pyrobnn.runs.spec import Prepared, RunSpec
from pyrobnn.storage.load import load

_BETTER_ERRORS = 3  # of equally good runs 0.6 % are told apart so, and 2 % of eight; by two errors 5 % and 40 %


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Runs that were scored on the same examples; str() says which is better, by which scores, and how they differ.

    `differences` compare the others with the `best` by log score; `specs` are settings in which the runs differ.
    """

    best: str
    scores: dict[str, dict[str, Score]]
    differences: dict[str, pd.DataFrame]
    specs: dict[str, dict[str, Any]]
    num_test: int

    @property
    def verdict(self) -> str:
        """Whether the best run is better than the others by log score, a sentence for each."""
        told = []
        for name, table in self.differences.items():
            row: Any = table.loc["log_likelihood"]
            errors = abs(row["difference"]) / row["stderr"] if row["stderr"] > 0 else 0.0
            apart = f"{self.best} is better than {name}, by {errors:.1f} standard errors."
            near = f"{name} cannot be told apart from {self.best}: less than {_BETTER_ERRORS} standard errors between."
            told.append(apart if errors >= _BETTER_ERRORS else near)
        return f"By log score {' '.join(told)}"

    def __str__(self) -> str:
        told = [self.verdict]
        for name, paired in self.differences.items():
            last = "" if paired["p_value"].isna().all() else "p-value"
            rows: list[Sequence[str]] = [(f"{self.num_test} held-out rows", self.best, name, "difference", last)]
            for key in [key for key in score_rows(self.scores[name])[0] if key in paired.index]:
                scores = (shown(key, self.scores[run][key]) for run in (self.best, name))
                row: Any = paired.loc[key]
                p_value = "< 0.0001" if row["p_value"] < 1e-4 else f"{row['p_value']:.2g}"
                cells = plus_minus(row["difference"], row["stderr"], "+"), p_value.replace("nan", "")
                rows.append((name_of(key, self.scores[name][key]), *scores, *cells))
            told += ["", aligned(rows)]
        if self.specs:
            settings = [(key, *map(text, values.values())) for key, values in self.specs.items()]
            told += ["", aligned([("setting", *self.scores), *settings])]
        return "\n".join(told)


def compare_runs(run_dirs: Sequence[str | Path]) -> Comparison:
    """Score two or more runs on the rows that all of them held out, and compare them example by example."""
    if len(run_dirs) < 2 or len({Path(path).resolve() for path in run_dirs}) < len(run_dirs):
        raise InputError(f"Pass two or more different run folders to compare, got {', '.join(map(str, run_dirs))}.")
    runs = {str(path): RunSpec.from_toml(run_folder(path) / "spec.toml").prepare() for path in run_dirs}
    (first, one), *_ = runs.items()
    for name, run in runs.items():
        checksum = run.dataset.checksum
        if checksum != read_json(Path(name) / "manifest.json")["data"]["sha256"]:
            raise InputError(f"The data of {name} have changed since its fit: fit it again.")
        rows, others = (each.dataset.rows(each.spec.data.split)[1] for each in (run, one))
        is_same = checksum == one.dataset.checksum or _targets(run) == _targets(one)
        if not (is_same and np.array_equal(rows, others)):
            raise InputError(
                f"{name} was scored on other examples than {first}: only runs with the same rows held out can be "
                "compared. Fit one again with the same --groups, --test-last, data.test and data.split."
            )
    predictions = {name: predicted(run, load(Path(name) / "posterior")) for name, run in runs.items()}
    scores = {name: dict(score(found, runs[name].test.y)) for name, found in predictions.items()}
    best = max(runs, key=lambda name: scores[name]["log_likelihood"].value)
    differences = {}
    for name in [name for name in runs if name != best]:
        pair = predictions[name], predictions[best]
        if runs[name].dataset.task == runs[best].dataset.task:
            differences[name] = compare_scores(*pair, runs[best].test.y)
        elif any(prediction.is_continuous for prediction in pair):
            raise InputError("A density of numbers and probabilities of classes cannot be compared: fit one --task.")
        else:  # counts and classes: the probabilities that both gave to the same values
            ours, others = (predictions[run].log_prob(runs[run].test.y).double() for run in (name, best))
            gap, error = (ours - others).mean(), (ours - others).std() / len(ours) ** 0.5
            row = {"difference": float(gap), "stderr": float(error), "p_value": math.nan}
            differences[name] = pd.DataFrame(row, index=["log_likelihood"])
    settings = {name: dict(flat(run.spec.as_dict())) for name, run in runs.items()}
    return Comparison(best, scores, differences, _unlike(settings), len(one.test))


def _targets(run: Prepared) -> list[Any]:
    """Return the held-out targets, or their classes by name."""
    names, y = run.dataset.class_names, run.test.y.tolist()
    return [names[label] for label in y] if names else y


def _unlike(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the types that differ, and the settings of all types that do."""
    every, shared = set[str]().union(*specs.values()), set.intersection(*map(set, specs.values()))
    told = sorted(key for key in every if key in shared or (key.count(".") == 1 and key.endswith(".type")))
    rows = {key: {name: spec.get(key) for name, spec in specs.items()} for key in told}
    return {key: row for key, row in rows.items() if len({repr(value) for value in row.values()}) > 1}
