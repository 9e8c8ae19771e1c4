"""The estimators with nothing given on tables of 100 and 60 rows, beside scikit-learn's with nothing given.

    uv run python -m benchmarks.small_tables                     # all sets, ten seeds; or name some
    uv run python -m benchmarks.small_tables sines yacht

A seed draws the rows: 100 to train on for regression, 60 for classification, the others of the set (1000 new ones where
data are simulated) to test on. It is also the random state. scikit-learn's models see standardised inputs and, for
regression, targets. Appends a row for each (set, seed) to benchmarks/results/small-tables.csv, goes on from what
stands there, and writes benchmarks/results/small-tables.md.

- "mlp" is MLPRegressor(hidden_layer_sizes=50, max_iter=2000), "linear" is RidgeCV or LogisticRegression, "gp" a
  Gaussian process: a constant times an RBF kernel with a length for each input, and noise; for classes one length.
- R2 and log score are those of the test part; the log score is per row, in original units.
"""

import csv
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.stats import norm
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_iris,
    load_wine,
    make_friedman1,
    make_friedman3,
    make_moons,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss, r2_score
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

import pyrobnn as bnn

RESULTS = Path(__file__).parent / "results"
NUM_SEEDS = 10
ROWS = {"regression": 100, "classification": 60}
NUM_NEW = 1000
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Table = tuple[np.ndarray, np.ndarray]


def sines(num: int, rng: np.random.Generator) -> Table:
    """Return y = sin(2 x0) + x1 x2 + 0.3 noise, x normal."""
    x = rng.normal(size=(num, 3))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=num)


def bend(num: int, rng: np.random.Generator) -> Table:
    """Return a line in which a sine starts in the middle: y = x / 2 + [x > 0] sin(3 x) + 0.1 noise on [-4, 4]."""
    x = rng.uniform(-4, 4, size=(num, 1))
    wave = np.where(x[:, 0] > 0, np.sin(3 * x[:, 0]), 0.0)
    return x, 0.5 * x[:, 0] + wave + 0.1 * rng.normal(size=num)


def friedman1(num: int, rng: np.random.Generator) -> Table:
    """Return Friedman's first problem with noise of 1; five of the ten inputs do not matter."""
    return make_friedman1(num, noise=1.0, random_state=int(rng.integers(2**30)))


def friedman3(num: int, rng: np.random.Generator) -> Table:
    """Return Friedman's third problem with noise of 0.1."""
    return make_friedman3(num, noise=0.1, random_state=int(rng.integers(2**30)))


def moons(num: int, rng: np.random.Generator) -> Table:
    """Return two half moons with noise of 0.2."""
    return make_moons(num, noise=0.2, random_state=int(rng.integers(2**30)))


def published(name: str) -> Callable[[], Table]:
    """Return the function that loads one of the published sets."""

    def read() -> Table:
        data = bnn.datasets.load(name).data
        return data.x.double().numpy(), data.y.double().numpy()

    return read


SIMULATED = {"sines": sines, "bend": bend, "friedman1": friedman1, "friedman3": friedman3, "moons": moons}
LOADED: dict[str, Callable[[], Table]] = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "yacht": published("yacht"),
    "concrete": published("concrete"),
    "energy": published("energy"),
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast-cancer": lambda: load_breast_cancer(return_X_y=True),
}
SETS = {
    "regression": ("sines", "bend", "friedman1", "friedman3", "diabetes", "yacht", "concrete", "energy"),
    "classification": ("iris", "wine", "breast-cancer", "moons"),
}
COLUMNS = {
    "regression": ("r2", "r2_mlp", "r2_linear", "r2_gp", "log_score", "log_score_gp", "coverage", "seconds"),
    "classification": ("log_score", "log_score_linear", "log_score_gp", "seconds"),
}


def split(name: str, seed: int, num: int) -> Arrays:
    """Return inputs and targets to train on, and to test on."""
    rng = np.random.default_rng(seed)
    if name in SIMULATED:
        train, test = SIMULATED[name](num, rng), SIMULATED[name](NUM_NEW, rng)
        return *train, *test
    x, y = LOADED[name]()
    order = rng.permutation(len(y))
    return x[order[:num]], y[order[:num]], x[order[num:]], y[order[num:]]


def regression(data: Arrays, seed: int) -> dict[str, float]:
    """Return the scores of a table of numbers."""
    x, y, x_test, y_test = data
    started = time.perf_counter()
    prediction = bnn.BNNRegressor(random_state=seed).fit(x, y).predict_dist(x_test)
    mean, log_score = prediction.mean.numpy(), float(prediction.log_prob(y_test).mean())
    seconds = time.perf_counter() - started
    lower, upper = (bound.numpy() for bound in prediction.interval(0.95))
    scaler, loc, unit = StandardScaler().fit(x), y.mean(), y.std()
    inputs, new, targets = scaler.transform(x), scaler.transform(x_test), (y - loc) / unit
    mlp = MLPRegressor(hidden_layer_sizes=(50,), max_iter=2000, random_state=seed).fit(inputs, targets)
    linear = RidgeCV(np.logspace(-3, 3, 13)).fit(inputs, targets)
    kernel = ConstantKernel(1.0) * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, random_state=seed).fit(inputs, targets)
    gp_mean, gp_std = process.predict(new, return_std=True)
    return {
        "r2": r2_score(y_test, mean),
        "r2_mlp": r2_score(y_test, loc + unit * mlp.predict(new)),
        "r2_linear": r2_score(y_test, loc + unit * linear.predict(new)),
        "r2_gp": r2_score(y_test, loc + unit * gp_mean),
        "log_score": log_score,
        "log_score_gp": norm.logpdf(y_test, loc + unit * gp_mean, unit * gp_std).mean(),
        "coverage": ((lower <= y_test) & (y_test <= upper)).mean(),
        "seconds": seconds,
    }


def classification(data: Arrays, seed: int) -> dict[str, float]:
    """Return the scores of a table of classes."""
    x, y, x_test, y_test = data
    started = time.perf_counter()
    probs = bnn.BNNClassifier(random_state=seed).fit(x, y).predict_proba(x_test)
    seconds = time.perf_counter() - started
    scaler = StandardScaler().fit(x)
    inputs, new = scaler.transform(x), scaler.transform(x_test)
    linear = LogisticRegression().fit(inputs, y)
    process = GaussianProcessClassifier(ConstantKernel(1.0) * RBF(1.0)).fit(inputs, y)
    return {
        "log_score": -log_loss(y_test, probs),
        "log_score_linear": -log_loss(y_test, linear.predict_proba(new)),
        "log_score_gp": -log_loss(y_test, process.predict_proba(new)),
        "seconds": seconds,
    }


TASKS = {"regression": regression, "classification": classification}


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows so far."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, row: dict[str, object]) -> None:
    """Write a row at the end of the file."""
    fields = ("task", "data", "seed", *dict.fromkeys([*COLUMNS["regression"], *COLUMNS["classification"]]))
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def table(rows: list[dict[str, str]], task: str) -> list[str]:
    """Return a table of means over seeds, with the smallest and largest value of our own score."""
    columns = COLUMNS[task]
    own = columns[0]
    lines = [
        f"| data | seeds | {own}, smallest to largest | {' | '.join(columns)} |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for name in SETS[task]:
        found = [row for row in rows if row["data"] == name]
        if not found:
            continue
        values = {column: np.array([float(row[column]) for row in found]) for column in columns}
        means = " | ".join(f"{values[column].mean():.3f}" for column in columns)
        spread = f"{values[own].min():.3f} to {values[own].max():.3f}"
        lines.append(f"| {name} | {len(found)} | {spread} | {means} |")
    return lines


def write(path: Path, rows: list[dict[str, str]]) -> None:
    """Write the tables."""
    text = ["# The estimators with nothing given on small tables, beside scikit-learn's", ""]
    text += ["Made by `uv run python -m benchmarks.small_tables`; its first lines say how. Means over seeds.", ""]
    for task in TASKS:
        text += [f"## {task.capitalize()}, {ROWS[task]} rows", "", *table(rows, task), ""]
    path.write_text("\n".join(text), encoding="utf-8")


def main(names: list[str]) -> None:
    """Run what is not there yet, seed by seed, and write the tables."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    path = RESULTS / "small-tables.csv"
    done = {(row["data"], int(row["seed"])) for row in read(path)}
    jobs = [
        (task, name, seed)
        for seed in range(NUM_SEEDS)
        for task, sets in SETS.items()
        for name in sets
        if (not names or name in names) and (name, seed) not in done
    ]
    for task, name, seed in tqdm(jobs, disable=not sys.stderr.isatty() and "CI" not in os.environ):
        scores = TASKS[task](split(name, seed, ROWS[task]), seed)
        append(path, {"task": task, "data": name, "seed": seed} | scores)
        write(path.with_suffix(".md"), read(path))


if __name__ == "__main__":
    main(sys.argv[1:])
