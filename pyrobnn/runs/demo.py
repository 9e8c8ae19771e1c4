"""The demonstration: three problems that no straight line solves, fitted, scored beside simple models, and reported."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import make_friedman1, make_moons

from pyrobnn.runs.folder import check_new_run
from pyrobnn.runs.run import run
from pyrobnn.runs.spec import RunSpec

_HALF_GAP = 0.35


def _problems() -> Iterator[tuple[str, str, pd.DataFrame, str]]:
    """Yield the name of each problem, its description, its table, whose last column is the target, and its picture."""
    generator = np.random.default_rng(0)
    x = generator.uniform(_HALF_GAP, 1.0, 200) * np.repeat([-1, 1], 100)
    gap = pd.DataFrame({"x": x, "y": 10 * np.sin(2 * np.pi * x) + generator.normal(size=200)})
    description = f"a sine wave with noise, and no data for x between -{_HALF_GAP} and {_HALF_GAP}"
    yield "gap", description, gap, "fit.png"
    inputs, target = make_friedman1(300, noise=1.0, random_state=0)
    friedman = pd.DataFrame(inputs, columns=[f"x{column}" for column in range(1, 11)]).assign(y=target)
    description = "ten columns, five of which matter, in products and curves (Friedman 1991)"
    yield "friedman", description, friedman, "observed_vs_predicted.png"
    points, label = make_moons(500, noise=0.2, random_state=0)
    moons = pd.DataFrame(points, columns=["x1", "x2"]).assign(moon=np.where(label == 1, "lower", "upper"))
    yield "moons", "two classes in the shape of moons", moons, "surface.png"


def demo(out_dir: Path, *, seed: int, progress: bool, say: Callable[[str], object]) -> None:
    """Write the three tables and run folders below `out_dir` in place of earlier ones, and tell the results of each."""
    problems = list(_problems())
    for name, *_ in problems:
        check_new_run(out_dir / name, overwrite=True)
    out_dir.mkdir(parents=True, exist_ok=True)
    for number, (name, description, frame, picture) in enumerate(problems, 1):
        say(f"{number}. {name}: {description}")
        folder, table = out_dir / name, out_dir / f"{name}.csv"
        frame.to_csv(table, index=False, float_format="%.4f")
        data = {"path": str(table), "target": frame.columns[-1]}
        spec = RunSpec.from_dict({"data": data, "fit": {"type": "evidence_framework", "seed": seed}})
        say(run(spec, folder, progress=progress, overwrite=True).summary)
        say(f"Look at {folder / 'figures' / picture}, then open {folder / 'report.html'}\n")
    say("The same for your own table: pyrobnn fit my.csv --target COLUMN")
