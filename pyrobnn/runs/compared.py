"""Runs beside each other: their scores on the same held-out data, and the differences of their specs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import leaves
from pyrobnn.metrics import Score, compare_scores, score
from pyrobnn.metrics.base import plus_minus
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.report.words import aligned, name_of, score_rows, text
from pyrobnn.runs.folder import read_json, run_folder
from pyrobnn.runs.predict import predict_run
from pyrobnn.runs.spec import Prepared, RunSpec

_INNER_METHOD = "fit.method."
_DERIVED_SETTINGS = ("net.in_features", "net.out_features", "fit.method.type")
"""Settings that follow from the columns and the likelihood, or from others."""
_SMALLEST_SHOWN_P = 1e-4
_BETTER_ERRORS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Runs that were scored on the same examples.

    `best` has the highest log score, and `differences` the comparison of each other run with it. `specs` are types, and
    settings of all their types, in which the runs differ.
    """

    best: str
    scores: dict[str, dict[str, Score]]
    differences: dict[str, pd.DataFrame]
    specs: dict[str, dict[str, Any]]
    num_test: int

    @property
    def verdict(self) -> str:
        """A sentence or more on whether the best run is better than the others by log score.

        Three standard errors make a run clearly better: of equally good ones in 0.6 % of cases for two and 2 % for
        eight, where two errors would be 5 % and 40 %.
        """
        rows: dict[str, Any] = {name: table.loc["log_likelihood"] for name, table in self.differences.items()}
        apart = {key: abs(row["difference"]) / row["stderr"] if row["stderr"] > 0 else 0.0 for key, row in rows.items()}
        near = [name for name, errors in apart.items() if errors < _BETTER_ERRORS]
        far = {name: errors for name, errors in apart.items() if name not in near}
        told = []
        if near:
            between = f"less than {_BETTER_ERRORS} standard errors between them"
            told += [f"{' and '.join(near)} cannot be told apart from {self.best}: {between}."]
        if far:
            errors = f"{min(far.values()):.1f} standard errors{' or more' if len(far) > 1 else ''}"
            told += [f"{self.best} is better than {' and '.join(far)}, by {errors}."]
        return f"By log score {' '.join(told)}"

    def __str__(self) -> str:
        """The verdict, a table of scores for each other run, and the settings that differ."""
        told = [self.verdict]
        for name, paired in self.differences.items():
            rows: list[Sequence[str]] = [
                (f"{self.num_test} held-out examples", self.best, name, "difference", "p-value")
            ]
            for key in [key for key in score_rows(self.scores[name])[0] if key in paired.index]:
                scores = (str(self.scores[run][key]) for run in (self.best, name))
                rows.append((name_of(key, self.scores[name][key]), *scores, *_cells(paired.loc[key])))
            told += ["", aligned(rows)]
        if self.specs:
            names = list(self.scores)
            settings = [(key, *(text(values[name]) for name in names)) for key, values in self.specs.items()]
            told += ["", aligned([("setting", *names), *settings])]
        return "\n".join(told)


def _cells(row: Any) -> tuple[str, str]:
    p_value = f"< {_SMALLEST_SHOWN_P:g}" if row["p_value"] < _SMALLEST_SHOWN_P else f"{row['p_value']:.2g}"
    return plus_minus(row["difference"], row["stderr"], "+"), "" if math.isnan(row["p_value"]) else p_value


def compare_runs(run_dirs: Sequence[str | Path]) -> Comparison:
    """Score two or more runs of the same data and split on their test part, and compare them example by example."""
    folders = [run_folder(path) for path in run_dirs]
    if len(folders) < 2 or len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError(f"Pass two or more different run folders to compare, got {', '.join(map(str, run_dirs))}.")
    names = _short_names(folders)
    prepared = {name: _prepare(folder) for name, folder in zip(names, folders, strict=True)}
    first, *_ = prepared.values()
    for name, entry in prepared.items():
        if entry.dataset.checksum != first.dataset.checksum or not np.array_equal(_rows(entry), _rows(first)):
            raise InputError(
                f"{name} was scored on other examples than {names[0]}: runs can be compared only on the same rows of "
                "the same file, held out in the same way (--groups, --test-last, data.test, data.split). Fit one of "
                "them again so."
            )
    predictions: dict[str, Prediction] = {}
    for folder, (name, entry) in zip(folders, prepared.items(), strict=True):
        x = torch.from_numpy(entry.dataset.held_out(entry.spec.data.split))
        predictions[name] = predict_run(folder, x, num_draws=entry.spec.predict.num_draws)
    scores = {name: dict(score(found, prepared[name].test.y)) for name, found in predictions.items()}
    unlike = _unlike({name: _settings_of(entry) for name, entry in prepared.items()})
    best = max(names, key=lambda name: scores[name]["log_likelihood"].value)
    differences = {}
    for name in names:
        if name != best and prepared[name].dataset.task == prepared[best].dataset.task:
            differences[name] = compare_scores(predictions[name], predictions[best], prepared[best].test.y)
        elif name != best:
            differences[name] = _by_mass(*((predictions[run], prepared[run].test.y) for run in (name, best)))
    return Comparison(best, scores, differences, unlike, len(first.test))


def _rows(prepared: Prepared) -> np.ndarray:
    return np.asarray(prepared.dataset.rows(prepared.spec.data.split)[1])


def _by_mass(*pairs: tuple[Prediction, Any]) -> pd.DataFrame:
    """Compare predictions of counts with those of classes by the probability that both gave to the same values."""
    if any(prediction.is_continuous for prediction, _ in pairs):
        raise InputError("A density of numbers and probabilities of classes cannot be compared: fit one --task.")
    (a, b) = (prediction.log_prob(y).double() for prediction, y in pairs)
    row = {"difference": float((a - b).mean()), "stderr": float((a - b).std() / len(a) ** 0.5), "p_value": math.nan}
    return pd.DataFrame(row, index=["log_likelihood"])


def _short_names(folders: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths that tell them apart."""
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _prepare(folder: Path) -> Prepared:
    prepared = RunSpec.from_toml(folder / "spec.toml").prepare()
    if prepared.dataset.checksum != read_json(folder / "manifest.json")["data"]["sha256"]:
        raise InputError(f"The data of {folder} have changed since it was made: its checksum is another. Fit it again.")
    return prepared


def _settings_of(prepared: Prepared) -> dict[str, Any]:
    """Return dotted keys and values; an ensemble's settings of its members stand where a single fit has them."""
    settings = dict(leaves(prepared.spec.as_dict()))
    kept = {key: value for key, value in settings.items() if key not in _DERIVED_SETTINGS}
    return {key: value for key, value in kept.items() if not key.startswith(_INNER_METHOD)} | {
        key.replace(_INNER_METHOD, "fit."): value for key, value in kept.items() if key.startswith(_INNER_METHOD)
    }


def _unlike(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the types that differ, and the settings of all types that do."""
    keys = sorted({key for spec in specs.values() for key in spec})
    rows = {key: {name: spec.get(key) for name, spec in specs.items()} for key in keys}
    unlike = {key: row for key, row in rows.items() if len({repr(value) for value in row.values()}) > 1}
    types = {key for key in unlike if key.count(".") == 1 and key.endswith(".type")}
    return {key: row for key, row in unlike.items() if key in types or all(key in spec for spec in specs.values())}
