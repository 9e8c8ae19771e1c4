"""The demonstration: three problems that no straight line solves, fitted, scored beside simple models, and reported."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pyrobnn._torch.inputs import single
from pyrobnn.metrics import Score
from pyrobnn.runs.run import RunResult, run
from pyrobnn.runs.run_folders import check_new_run
from pyrobnn.runs.spec import RunSpec

if TYPE_CHECKING:
    from pandas import DataFrame

_GAP = 0.35
_SHOWN = ("accuracy", "r2", "log_likelihood", "coverage_95")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A table that is generated, and its subject.

    Attributes:
        shows: a description of the problem, in a sentence.
        target: the column to predict.
        make: makes the table.
        picture: the file of the main picture, in the folder of figures.
    """

    shows: str
    target: str
    make: Callable[[], "DataFrame"]
    picture: str


def _with_a_gap() -> "DataFrame":
    import pandas as pd

    generator = np.random.default_rng(0)
    x = generator.uniform(_GAP, 1.0, 200) * np.repeat([-1, 1], 100)
    return pd.DataFrame({"x": x, "y": 10 * np.sin(2 * np.pi * x) + generator.normal(size=200)})


def _friedman() -> "DataFrame":
    import pandas as pd
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(300, noise=1.0, random_state=0)
    return pd.DataFrame(x, columns=[f"x{column}" for column in range(1, 11)]).assign(y=y)


def _moons() -> "DataFrame":
    import pandas as pd
    from sklearn.datasets import make_moons

    x, label = make_moons(500, noise=0.2, random_state=0)
    return pd.DataFrame(x, columns=["x1", "x2"]).assign(moon=np.where(label == 1, "lower", "upper"))


PROBLEMS: Mapping[str, Problem] = {
    "gap": Problem(
        f"a sine wave with noise, and no data for x between -{_GAP} and {_GAP}", "y", _with_a_gap, "fit.png"
    ),
    "friedman": Problem(
        "ten columns, five of which matter, in products and curves (Friedman 1991)",
        "y",
        _friedman,
        "observed_vs_predicted.png",
    ),
    "moons": Problem("two classes in the shape of moons", "moon", _moons, "surface.png"),
}
FIT: Mapping[str, Any] = {"type": "evidence_framework"}
"""The method for small tables. From two starts in place of five, the fit of friedman has 1.5 times the error."""


def demo(out_dir: Path, *, seed: int, progress: bool, console: Console) -> None:
    """Write the three tables and run folders below `out_dir`, and print the results of each.

    Args:
        out_dir: the folder for tables and run folders; those of an earlier demonstration are replaced.
        seed: seed of every fit.
        progress: show progress bars.
        console: where to print.

    Raises:
        InputError: a folder of another kind is in the way.
    """
    for name in PROBLEMS:
        check_new_run(out_dir / name, overwrite=True)
    out_dir.mkdir(parents=True, exist_ok=True)
    for number, (name, problem) in enumerate(PROBLEMS.items(), 1):
        _say(console, f"{number}. {name}: {problem.shows}")
        table = out_dir / f"{name}.csv"
        problem.make().to_csv(table, index=False, float_format="%.4f")
        data, fit = {"path": str(table), "target": problem.target}, {**FIT, "seed": seed}
        result = run(RunSpec.from_dict({"data": data, "fit": fit}), out_dir / name, progress=progress, overwrite=True)
        _tell(console, result, has_gap=name == "gap")
    first, problem = next(iter(PROBLEMS.items()))
    folder = out_dir / first
    _say(console, "The same for your own table: pyrobnn fit my.csv --target COLUMN")
    _say(console, f"Look at {folder / 'figures' / problem.picture}, then open {folder / 'report.html'}")


def _tell(console: Console, result: RunResult, *, has_gap: bool) -> None:
    from pyrobnn.report.words import concluded, found

    _say(console, found(result.scores, result.baselines, result.train, len(result.test), has_test=True))
    _say(console, concluded(result.diagnosis, str(result.path)))
    shown = {name: entry for name, entry in result.scores.items() if name in _SHOWN}
    console.print(score_table("", shown, result.baselines))
    _say(console, confidence(result) if "accuracy" in result.scores else epistemic(result, has_gap=has_gap))
    _say(console, f"Report: {result.path / 'report.html'}\n")


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def epistemic(result: RunResult, *, has_gap: bool) -> str:
    """Say how the epistemic uncertainty of real targets grows from the test data to where there are no data."""
    x, centre = single(result.test.x, "The demo"), single(result.train.x, "The demo").mean(0)
    places = {"at the test data": x}
    if has_gap:
        places["in the gap"] = torch.linspace(-_GAP, _GAP, 50, dtype=x.dtype)[:, None]
    places["three times as far from the middle"] = centre + 3 * (x - centre)
    stds = {where: float(result.posterior.predict(inputs).epistemic_std.mean()) for where, inputs in places.items()}
    parts = ", ".join(f"{where} {value:.2g}" for where, value in stds.items())
    return f"Its epistemic uncertainty grows away from the data (standard deviation of y): {parts}."


def confidence(result: RunResult) -> str:
    """Say how sure a classification is where it is right, and where it is wrong."""
    prediction = result.posterior.predict(result.test.x)
    right = prediction.label == result.test.y
    sure = prediction.class_probs.amax(-1)
    parts = [
        f"{100 * float(sure[mask].mean()):.0f} % where it is {word} ({int(mask.sum())} of {len(right)})"
        for word, mask in (("right", right), ("wrong", ~right))
        if bool(mask.any())
    ]
    return f"It says how sure it is, on average {', '.join(parts)}."


def score_table(title: str, scores: Mapping[str, Score], baselines: Mapping[str, Mapping[str, Score]]) -> Table:
    """Return the main scores with their standard errors as a table, beside the scores of the baselines."""
    from pyrobnn.report.words import IN_TABLES, score_rows

    table = Table("score", "pyrobnn", *baselines, title=title, title_justify="left")
    for name, entry, _ in score_rows(scores)["main"]:
        table.add_row(
            IN_TABLES.get(name, name), str(entry), *(str(baseline.get(name, "–")) for baseline in baselines.values())
        )
    return table
