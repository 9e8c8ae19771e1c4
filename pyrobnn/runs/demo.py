"""The demonstration: three data sets, fitted, scored beside a constant and a linear model, and reported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from pyrobnn.data.in_memory import Data
from pyrobnn.datasets import sinusoid_curve
from pyrobnn.metrics import Score, score
from pyrobnn.runs.run import RunResult, run
from pyrobnn.runs.spec import RunSpec

SPECS: Mapping[str, dict[str, Any]] = {
    "sinusoid": {
        "data": {"name": "sinusoid", "standardize": False},
        "net": {"type": "mlp", "hidden": [20, 20], "activation": "relu"},
        "prior": {"type": "scale_mixture", "pi": 0.2, "sigma1": 1.0, "sigma2": 0.1, "learnable": True},
        "likelihood": {"type": "gaussian", "scale": 1.0},
        "guide": {"type": "mean_field", "init_loc": "prior", "init_rho": 0.0},
        "fit": {"type": "svi", "steps": 1500, "lr": 0.03},
    },
    "diabetes": {
        "data": {"name": "diabetes"},
        "net": {"type": "mlp", "hidden": [10], "activation": "tanh"},
        "prior": {"type": "scale_mixture", "pi": 0.25, "sigma1": 0.5, "sigma2": 0.05, "learnable": True},
        "likelihood": {"type": "gaussian", "scale": "learned"},
        "guide": {"type": "mean_field"},
        "fit": {"type": "svi", "steps": 1000, "lr": 0.01},
    },
    "breast-cancer": {
        "data": {"name": "breast-cancer"},
        "net": {"type": "mlp", "hidden": [20], "activation": "tanh"},
        "prior": {"type": "normal", "scale": "fan_in"},
        "likelihood": {"type": "categorical"},
        "guide": {"type": "mean_field"},
        "fit": {"type": "svi", "steps": 1500, "lr": 0.01},
    },
}
"""The specs of the demonstration; the first is that of Krasser (2019)."""


def demo(out_dir: Path, *, seed: int, steps: int | None, progress: bool, console: Console) -> None:
    """Run the three specs into folders below `out_dir`, and print a table of scores for each.

    Args:
        out_dir: where the run folders go.
        seed: seed of every fit.
        steps: number of steps instead of those of the specs.
        progress: show progress bars.
        console: where to print.
    """
    for name, tables in SPECS.items():
        changes = {"seed": seed} | ({} if steps is None else {"steps": steps})
        spec = RunSpec.from_dict(tables | {"fit": tables["fit"] | changes})
        result = run(spec, out_dir / name, progress=progress, overwrite=True)
        console.print(score_table(f"{name}: {len(result.test)} test examples", result.scores, result.baselines))
        if name == "sinusoid":
            console.print(_against_the_curve(result))
        console.print(f"Report: {result.path / 'report.html'}\n", soft_wrap=True, highlight=False)
    console.print("Each score is from one small test part: differences within two standard errors are noise.")


def score_table(title: str, scores: Mapping[str, Score], baselines: Mapping[str, Mapping[str, Score]]) -> Table:
    """Return the main scores with their standard errors as a table, beside those of the baselines."""
    from pyrobnn.report.words import score_rows

    table = Table("score", "pyrobnn", *baselines, title=title, title_justify="left")
    for name, entry, _ in score_rows(scores)["main"]:
        table.add_row(name, str(entry), *(str(found.get(name, "–")) for found in baselines.values()))
    return table


def _against_the_curve(result: RunResult) -> str:
    """Say how far the predictive mean is from the noise-free curve, and how the uncertainty grows outside the data."""
    inside, outside = torch.linspace(-0.5, 0.5, 200)[:, None], torch.linspace(0.5, 1.5, 200)[:, None]
    prediction = result.posterior.predict(inside)
    error = score(prediction, Data(inside, sinusoid_curve(inside)).y)["rmse"]
    spread = result.posterior.predict(torch.cat([-outside, outside])).epistemic_std.mean()
    ratio = float(spread / prediction.epistemic_std.mean())
    return (
        f"RMSE to the noise-free curve {error}; epistemic standard deviation outside the data "
        f"{ratio:.1f} times that inside"
    )
