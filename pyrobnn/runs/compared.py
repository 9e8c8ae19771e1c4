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
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.report.words import aligned, flat, name_of, score_rows, shown, text
from pyrobnn.runs.folder import Manifest, run_folder
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
        sentences = []
        for name, table in self.differences.items():
            row: Any = table.loc["log_likelihood"]
            errors = abs(row["difference"]) / row["stderr"] if row["stderr"] > 0 else 0.0
            apart = f"{self.best} is better than {name}, by {errors:.1f} standard errors."
            near = f"{name} cannot be told apart from {self.best}: less than {_BETTER_ERRORS} standard errors between."
            sentences.append(apart if errors >= _BETTER_ERRORS else near)
        return f"By log score {' '.join(sentences)}"

    def __str__(self) -> str:
        lines = [self.verdict]
        for name, paired in self.differences.items():
            last = "" if paired["p_value"].isna().all() else "p-value"
            rows: list[Sequence[str]] = [(f"{self.num_test} held-out rows", self.best, name, "difference", last)]
            rows += [self._row(key, name) for key in score_rows(self.scores[name])[0] if key in paired.index]
            lines += ["", aligned(rows)]
        if self.specs:
            settings = [(key, *map(text, values.values())) for key, values in self.specs.items()]
            lines += ["", aligned([("setting", *self.scores), *settings])]
        return "\n".join(lines)

    def _row(self, key: str, name: str) -> tuple[str, ...]:
        best, other = self.scores[self.best][key], self.scores[name][key]
        paired: Any = self.differences[name].loc[key]
        difference = plus_minus(paired["difference"], paired["stderr"], "+")
        p_value = "< 0.0001" if paired["p_value"] < 1e-4 else f"{paired['p_value']:.2g}".replace("nan", "")
        return name_of(key, other), shown(key, best), shown(key, other), difference, p_value


def compare_runs(run_dirs: Sequence[str | Path]) -> Comparison:
    """Score two or more runs on the rows that all of them held out, and compare them example by example."""
    if len(run_dirs) < 2 or len({Path(path).resolve() for path in run_dirs}) < len(run_dirs):
        raise InputError(f"Pass two or more different run folders to compare, got {', '.join(map(str, run_dirs))}.")
    runs = {str(path): RunSpec.from_toml(run_folder(path) / "spec.toml").prepare() for path in run_dirs}
    _require_same_rows(runs)
    predictions = {name: predicted(run, load(Path(name) / "posterior")) for name, run in runs.items()}
    scores = {name: dict(score(predictions[name], run.test.y)) for name, run in runs.items()}
    best = max(runs, key=lambda name: scores[name]["log_likelihood"].value)
    others = [name for name in runs if name != best]
    differences = {name: _difference(runs[name], predictions[name], runs[best], predictions[best]) for name in others}
    settings = {name: dict(flat(run.spec.as_dict())) for name, run in runs.items()}
    return Comparison(best, scores, differences, _unlike(settings), len(runs[best].test))


def _require_same_rows(runs: Mapping[str, Prepared]) -> None:
    """Refuse runs whose data have changed, or that held out other rows than the first."""
    (first_name, first), *_ = runs.items()
    for name, run in runs.items():
        if run.dataset.checksum != Manifest.read(Path(name)).data.sha256:
            raise InputError(f"The data of {name} have changed since its fit: fit it again.")
        rows, of_first = (prepared.dataset.rows(prepared.spec.data.split)[1] for prepared in (run, first))
        is_same = run.dataset.checksum == first.dataset.checksum or _targets(run) == _targets(first)
        if not (is_same and np.array_equal(rows, of_first)):
            how = "fit one again with the same --groups, --test-last, data.test and data.split"
            raise InputError(f"{name} was scored on other examples than {first_name}, so they are not compared: {how}.")


def _difference(run: Prepared, prediction: Prediction, best: Prepared, of_best: Prediction) -> pd.DataFrame:
    """Return the scores of a run less those of the best one; counts and classes share the log score alone."""
    if run.dataset.task == best.dataset.task:
        return compare_scores(prediction, of_best, best.test.y)
    if prediction.is_continuous or of_best.is_continuous:
        raise InputError("A density of numbers and probabilities of classes cannot be compared: fit one --task.")
    gap = (prediction.log_prob(run.test.y) - of_best.log_prob(best.test.y)).double()
    row = {"difference": float(gap.mean()), "stderr": float(gap.std()) / len(gap) ** 0.5, "p_value": math.nan}
    return pd.DataFrame(row, index=["log_likelihood"])


def _targets(run: Prepared) -> list[Any]:
    """Return the held-out targets, or their classes by name."""
    names, y = run.dataset.class_names, run.test.y.tolist()
    return [names[label] for label in y] if names else y


def _unlike(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the types that differ, and the settings of all types that do."""
    of_any = set[str]().union(*specs.values())
    of_all = set.intersection(*map(set, specs.values()))
    compared = sorted(key for key in of_any if key in of_all or (key.count(".") == 1 and key.endswith(".type")))
    rows = {key: {name: spec.get(key) for name, spec in specs.items()} for key in compared}
    return {key: row for key, row in rows.items() if len({repr(value) for value in row.values()}) > 1}
