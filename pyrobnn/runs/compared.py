"""Runs beside each other: their scores on the same held-out data, and the differences of their specs."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.markup import escape
from rich.table import Table

from pyrobnn._core.errors import InputError, printable
from pyrobnn._core.settings import leaves
from pyrobnn.metrics import Score, compare_scores, score
from pyrobnn.metrics.base import plus_minus
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.runs.files import predict_run
from pyrobnn.runs.run_folders import run_folder
from pyrobnn.runs.spec import Prepared, RunSpec

_INNER_METHOD = "fit.method."
_DERIVED_SETTINGS = ("net.in_features", "net.out_features")
"""Settings that follow from the columns and the likelihood."""
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
        told = [
            near
            and f"{' and '.join(near)} cannot be told apart from {self.best}: less than {_BETTER_ERRORS} standard "
            "errors between them.",
            far
            and f"{self.best} is better than {' and '.join(far)}, by {min(far.values()):.1f} standard errors"
            f"{' or more' if len(far) > 1 else ''}.",
        ]
        return f"By log score {' '.join(sentence for sentence in told if sentence)}"

    @property
    def tables(self) -> Iterator[Table]:
        """The best run beside each other run, in tables of 80 columns."""
        best = self.scores[self.best]
        for name, paired in self.differences.items():
            title = escape(printable(f"{name} less {self.best}, on {self.num_test} test examples"))
            headings = ("score", *(escape(printable(run)) for run in (self.best, name)), "difference", "p-value")
            table = Table(*headings, title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
            for key, value in best.items():
                cells = _cells(paired.loc[key]) if key in paired.index else ("–", "–")
                table.add_row(key, str(value), str(self.scores[name].get(key, "–")), *cells)
            yield table


def _cells(row: Any) -> tuple[str, str]:
    p_value = f"< {_SMALLEST_SHOWN_P:g}" if row["p_value"] < _SMALLEST_SHOWN_P else f"{row['p_value']:.2g}"
    return plus_minus(row["difference"], row["stderr"], "+"), "–" if math.isnan(row["p_value"]) else p_value


def compare_runs(run_dirs: Sequence[str | Path]) -> Comparison:
    """Score two or more runs of the same data and split on their test part, and compare them example by example."""
    folders = [run_folder(path) for path in run_dirs]
    if len(folders) < 2 or len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError(f"Pass two or more different run folders to compare, got {', '.join(map(str, run_dirs))}.")
    names = _short_names(folders)
    prepared = {name: _prepare(folder) for name, folder in zip(names, folders, strict=True)}
    test = prepared[names[0]].test
    for name, entry in prepared.items():
        if entry.test.y.shape != test.y.shape or not torch.equal(entry.test.y, test.y):
            raise InputError(
                f"{name} was scored on other examples than {names[0]}: runs can be compared only on the same "
                "rows of the same file, with the same target, `data.split` and `data.test`. Fit one of them again so."
            )
    predictions: dict[str, Prediction] = {}
    for folder, (name, entry) in zip(folders, prepared.items(), strict=True):
        x = torch.from_numpy(entry.dataset.held_out(entry.spec.data.split))
        predictions[name] = predict_run(folder, x, num_draws=entry.spec.predict.num_draws)
    scores: dict[str, dict[str, Score]] = {name: dict(score(p, test.y)) for name, p in predictions.items()}
    unlike = _unlike({name: _settings_of(entry) for name, entry in prepared.items()})
    best = max(names, key=lambda name: scores[name]["log_likelihood"].value)
    others = [name for name in names if name != best]
    differences = {name: compare_scores(predictions[name], predictions[best], test.y) for name in others}
    return Comparison(best, scores, differences, unlike, len(test))


def _short_names(folders: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths that tell them apart."""
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _prepare(folder: Path) -> Prepared:
    prepared = RunSpec.from_toml(folder / "spec.toml").prepare()
    then = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]["sha256"]
    if prepared.dataset.checksum != then:
        raise InputError(f"The data of {folder} have changed since it was made: its checksum is another. Fit it again.")
    return prepared


def _settings_of(prepared: Prepared) -> dict[str, Any]:
    """Return dotted keys and values; an ensemble's settings of its members stand where a single fit has them."""
    settings = dict(leaves(prepared.spec.as_dict()))
    inner = {key: settings.pop(key) for key in [*settings] if key.startswith(_INNER_METHOD)}
    inner.pop(f"{_INNER_METHOD}type", None)
    return settings | {key.replace(_INNER_METHOD, "fit."): value for key, value in inner.items()}


def _unlike(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the types that differ, and the settings of all types that do."""
    keys = sorted({key for spec in specs.values() for key in spec} - {*_DERIVED_SETTINGS})
    rows = {key: {name: spec.get(key) for name, spec in specs.items()} for key in keys}
    unlike = {key: row for key, row in rows.items() if len({repr(value) for value in row.values()}) > 1}
    types = {key for key in unlike if key.count(".") == 1 and key.endswith(".type")}
    return {key: row for key, row in unlike.items() if key in types or all(key in spec for spec in specs.values())}
