"""How close each guide comes to NUTS: three small problems, distances between predictions, a table and a figure.

    uv run python benchmarks/nuts_agreement.py                 # all problems and methods, with the stored references
    uv run python benchmarks/nuts_agreement.py --reference     # run NUTS anew first (minutes to an hour)
    uv run python benchmarks/nuts_agreement.py --problems sinusoid --methods mean_field map

Writes benchmarks/results/nuts-agreement.{json,md,png}; the references are benchmarks/results/nuts/*.npz. Distances are
means over test inputs, between NUTS and the method:

- function: Wasserstein-1 distance of the draws of the mean function (for classes: of the probability of class 1), in
  units of the standard deviation of the targets, or in probability;
- predictive: total variation distance of the predictive distributions of a target, on a grid of 200 cells;
- agreement: share of test inputs with the same most probable class (classes only);
- member: for ensembles, the predictive distance of one member alone, mean and standard deviation over the members. A
  mixture is never farther than its members are on average, for total variation is convex.

Two halves of NUTS, chains 1-2 against 3-4, give the floor: what Monte Carlo error alone leaves.
"""

import argparse
import csv
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import wasserstein_distance
from sklearn.datasets import make_moons
from torch import Tensor

import pyrobnn as bnn

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DRAWS = 1000
SEED = 0
CELLS = 200


@dataclass(frozen=True)
class Problem:
    """A model, its data, and the inputs at which posteriors are compared.

    Attributes:
        widths: units of each layer, inputs first; tanh between, N(0, 1) priors on weights and biases.
        kind: "gaussian" with a known noise, "heteroscedastic" or "categorical".
        data: training data.
        test: inputs (T, *in), inside and outside the data.
        noise: standard deviation, if it is known.
        range: values of the targets that the grid covers; None for classes.
    """

    widths: tuple[int, ...]
    kind: str
    data: bnn.Data
    test: Tensor
    noise: float = 1.0
    range: tuple[float, float] | None = None

    def model(self) -> bnn.BNN:
        """Return the network as a BNN."""
        inputs, *hidden, outputs = self.widths
        likelihoods: dict[str, Any] = {
            "gaussian": bnn.likelihoods.Gaussian(scale=self.noise),
            "heteroscedastic": bnn.likelihoods.Gaussian(scale="heteroscedastic"),
            "categorical": "categorical",
        }
        net = bnn.MLP(inputs, hidden, outputs, activation="tanh")
        return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihoods[self.kind])


def sinusoid() -> Problem:
    """Return 1-10-1 with known noise on a gap in a sinusoid."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.cat([torch.linspace(-1, -0.3, 16), torch.linspace(0.3, 1, 16)])[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(32, generator=generator)
    test = torch.linspace(-1.5, 1.5, 61)[:, None]
    return Problem((1, 10, 1), "gaussian", bnn.Data(x, y), test, noise=0.1, range=(-4.0, 4.0))


def motorcycle() -> Problem:
    """Return 1-10-2 with heteroscedastic noise on the motorcycle data (Silverman 1985)."""
    path = HERE.parents[1] / "shared/data/one_d/mcycle.csv"
    with path.open() as file:
        rows = [(float(row["times"]), float(row["accel"])) for row in csv.DictReader(file)]
    values = torch.tensor(rows)
    values = (values - values.mean(0)) / values.std(0)
    data, test = bnn.Data(values[:, :1], values[:, 1]), torch.linspace(-2.5, 3.5, 61)[:, None]
    return Problem((1, 10, 2), "heteroscedastic", data, test, range=(-5.0, 5.0))


def moons() -> Problem:
    """Return 2-8-2 on two moons."""
    x, y = make_moons(100, noise=0.2, random_state=SEED)
    axis = torch.linspace(-2, 3, 15)
    grid = torch.stack(torch.meshgrid(axis, axis - 0.5, indexing="xy"), -1).reshape(-1, 2)
    data = bnn.Data(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return Problem((2, 8, 2), "categorical", data, grid)


PROBLEMS: dict[str, Callable[[], Problem]] = {"sinusoid": sinusoid, "motorcycle": motorcycle, "moons": moons}
_SCHEDULE = {"type": "cosine_annealing_lr"}


def svi(guide: Any, steps: int = 20_000, **settings: Any) -> bnn.SVI:
    """Return the method with which every guide is trained."""
    return bnn.SVI(guide=guide, steps=steps, lr=0.01, schedule=_SCHEDULE, **settings)


METHODS: dict[str, Any] = {
    "map": svi("map", steps=5000),
    "mean_field": svi("mean_field"),
    "mean_field, analytic KL": svi("mean_field", kl="analytic"),
    "matrix_normal": svi("matrix_normal"),
    "radial": svi("radial"),
    "dropout": svi(bnn.guides.Dropout(rate=0.1)),
    "low_rank": svi(bnn.guides.LowRank(rank=5)),
    "full_rank": svi("full_rank"),
    "flow": svi("flow", steps=5000),
    "swag": bnn.SWAG(svi("map", steps=5000, batch_size=16), lr=1e-3, steps=5000, every=50),
    "ensemble of map": bnn.Ensemble(svi("map", steps=5000), members=20),
    "ensemble of map, anchored": bnn.Ensemble(svi("map", steps=5000), members=20, anchored=True),
    "ensemble of mean_field": bnn.Ensemble(svi("mean_field"), members=20),
    "ensemble of full_rank": bnn.Ensemble(svi("full_rank"), members=20),
    "laplace, full": svi(bnn.guides.Laplace(structure="full"), steps=5000),
    "laplace, kron": svi(bnn.guides.Laplace(structure="kron"), steps=5000),
    "laplace, diag": svi(bnn.guides.Laplace(structure="diag"), steps=5000),
    "ensemble of laplace, full": bnn.Ensemble(svi(bnn.guides.Laplace(structure="full"), steps=5000), members=20),
}


def reference_path(name: str) -> Path:
    """Return the file of a problem's reference."""
    return RESULTS / "nuts" / f"{name}.npz"


def make_reference(name: str, problem: Problem) -> None:
    """Run NUTS, in an environment of its own, and store what predictions are made of."""
    uv = shutil.which("uv")
    if uv is None:
        raise FileNotFoundError("uv was not found: pip install uv")
    reference_path(name).parent.mkdir(exist_ok=True)
    numbers = {"widths": problem.widths, "kind": problem.kind, "noise": problem.noise}
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "problem.npz"
        np.savez(given, x=problem.data.x, y=problem.data.y, test=problem.test, **numbers)
        command = [uv, "run", "--quiet", "--script", str(HERE / "nuts_reference.py"), str(given)]
        subprocess.run([*command, str(reference_path(name))], check=True)
    found = np.load(reference_path(name))
    print(f"{name}: NUTS took {found['seconds']:.0f} s, largest R-hat {found['max_rhat']:.3f}")


def parameters(prediction: bnn.Prediction) -> dict[str, np.ndarray]:
    """Return mean and standard deviation, or class probabilities, of each draw at each input."""
    if prediction.is_classification:
        return {"probs": prediction.draw_means.detach().numpy()[..., 1]}
    distribution = prediction.distribution
    return {"mean": distribution.mean.detach().numpy(), "std": distribution.stddev.detach().numpy()}


def distances(found: dict[str, np.ndarray], reference: dict[str, np.ndarray], problem: Problem) -> dict[str, float]:
    """Return the distances of one set of draws to another."""
    function = "mean" if problem.range else "probs"
    unit = float(problem.data.y.float().std()) if problem.range else 1.0
    pairs = zip(found[function].T, reference[function].T, strict=True)
    scores = {"function": float(np.mean([wasserstein_distance(a, b) for a, b in pairs])) / unit}
    if problem.range is None:
        a, b = (parts["probs"].mean(0) for parts in (found, reference))
        same = float(np.mean((a > 0.5) == (b > 0.5)))
        return scores | {"predictive": float(np.abs(a - b).mean()), "agreement": same}
    a, b = (grid_probabilities(parts, problem.range) for parts in (found, reference))
    return scores | {"predictive": float(0.5 * np.abs(a - b).sum(-1).mean())}


def grid_probabilities(parts: dict[str, np.ndarray], limits: tuple[float, float]) -> np.ndarray:
    """Return the predictive probability of each cell of a grid at each input, both tails included, (T, cells + 2)."""
    edges = torch.linspace(*limits, CELLS + 1)
    mean, std = (torch.tensor(parts[key].astype(np.float32)) for key in ("mean", "std"))
    below = torch.stack([torch.special.ndtr((edge - mean) / std).mean(0) for edge in edges], -1)
    ends = torch.zeros(len(below), 1)
    return np.diff(torch.cat([ends, below, ends + 1], -1).numpy(), axis=-1)


def distance_of(posterior: Any, reference: dict[str, np.ndarray], problem: Problem) -> dict[str, float]:
    """Return the distances of a posterior to the reference."""
    return distances(parameters(posterior.predict(problem.test, num_draws=DRAWS)), reference, problem)


def halves(reference: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return the draws of the first two and of the last two chains."""
    return [{key: np.split(value, 2)[half] for key, value in reference.items()} for half in (0, 1)]


def run(name: str, methods: list[str]) -> list[dict[str, Any]]:
    """Return a row for each method on a problem, and one for NUTS itself."""
    problem = PROBLEMS[name]()
    stored = np.load(reference_path(name))
    reference = {key: stored[key].astype(np.float32) for key in stored.files if stored[key].ndim}
    notes = {key: float(stored[key]) for key in stored.files if not stored[key].ndim}
    rows = [{"problem": name, "method": "NUTS, half of it", **distances(*halves(reference), problem), **notes}]
    for method in methods:
        started = time.perf_counter()
        posterior = bnn.fit(problem.model(), METHODS[method], problem.data, seed=SEED, progress=False)
        seconds = time.perf_counter() - started
        own = {"problem": name, "method": method, **distance_of(posterior, reference, problem), "seconds": seconds}
        if isinstance(posterior, bnn.Mixture):
            singles = [distance_of(member, reference, problem)["predictive"] for member in posterior.members]
            own |= {"member": float(np.mean(singles)), "member_std": float(np.std(singles, ddof=1))}
        rows.append(own)
        print(
            {key: value if isinstance(value, str) else round(value, 3) for key, value in rows[-1].items()}, flush=True
        )
    return rows


def merge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put new rows in the place of old ones in the file of results, and return all."""
    path = RESULTS / "nuts-agreement.json"
    old = json.loads(path.read_text()) if path.is_file() else []
    by_key = {(row["problem"], row["method"]): row for row in [*old, *rows]}
    problems, methods = list(PROBLEMS), ["NUTS, half of it", *METHODS]
    merged = sorted(by_key.values(), key=lambda r: (problems.index(r["problem"]), methods.index(r["method"])))
    path.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    return merged


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Distance of each method to NUTS",
        "",
        "Made by benchmarks/nuts_agreement.py, which says what the columns are; seed 0, one run of each method. "
        "Seconds are those of a machine that did other work too; the speed tables tell what methods cost.",
    ]
    for name in dict.fromkeys(row["problem"] for row in rows):
        own = [row for row in rows if row["problem"] == name]
        worst = f"largest R-hat of the function {own[0]['max_rhat']:.3f}, smallest ESS {own[0]['min_ess']:.0f}"
        lines += ["", f"## {name}", "", f"NUTS (NumPyro): {worst}.", ""]
        columns = ["function", "predictive", *(["agreement"] if "agreement" in own[0] else []), "member", "seconds"]
        lines += ["| method | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
        for row in own:
            cells = [cell(row, column) for column in columns]
            lines.append(f"| {row['method']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(row: dict[str, Any], column: str) -> str:
    """Return one entry of the table."""
    if column == "member":
        return f"{row['member']:.3f} ± {row['member_std']:.3f}" if "member" in row else ""
    return f"{row[column]:.0f}" if column == "seconds" else f"{row[column]:.3f}"


def draw_figure(rows: list[dict[str, Any]]) -> None:
    """Draw the distance of the predictive distributions, a panel a problem."""
    names = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(4.2 * len(names), 4.2), sharey=True, squeeze=False)
    methods = ["NUTS, half of it", *METHODS]
    for axis, name in zip(axes[0], names, strict=True):
        own = {row["method"]: row["predictive"] for row in rows if row["problem"] == name}
        shown = [method for method in methods if method in own]
        places = [methods.index(method) for method in shown]
        axis.hlines(places, 0, [own[method] for method in shown], color="0.8")
        axis.plot([own[method] for method in shown], places, "o", color="#0b4f8a")
        axis.set(title=name, xlabel="total variation distance to NUTS", yticks=range(len(methods)))
        axis.set_yticklabels(methods)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(left=0)
    axes[0][0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(RESULTS / "nuts-agreement.png", dpi=130)


def main() -> None:
    """Run what was asked for, and write table and figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--reference", action="store_true", help="run NUTS anew")
    arguments = parser.parse_args()
    for name in arguments.problems:
        if arguments.reference:
            make_reference(name, PROBLEMS[name]())
        merged = merge(run(name, arguments.methods))
    (RESULTS / "nuts-agreement.md").write_text(table(merged), encoding="utf-8")
    draw_figure(merged)


if __name__ == "__main__":
    main()
