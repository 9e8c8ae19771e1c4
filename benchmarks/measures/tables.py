"""The estimators with nothing given on tables of 30 to 10,000 rows, beside scikit-learn's with nothing given.

A seed draws the rows to train on; the others of the set are to test on, 1000 at most (1000 new ones where data are
simulated). It is also the random state. A set that has too few rows for a size is left out there. scikit-learn's models
see standardised inputs and, for regression, targets.

- "mlp" is MLPRegressor or MLPClassifier with 50 hidden units and max_iter=2000, "linear" is RidgeCV or
  LogisticRegression, "trees" HistGradientBoosting, "gp" a Gaussian process: a constant times an RBF kernel with a
  length for each input, and noise; for classes one length. It is left out above 1,000 rows.
- R2 and log score are on the test part; the log score is per row, in original units.
"""

import itertools
import time
from collections.abc import Callable

import numpy as np
from sklearn import datasets
from sklearn.metrics import r2_score

import pyrobnn as bnn
from benchmarks import references
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.references import Arrays, Table
from benchmarks.rows import Row, grid
from benchmarks.timing import timed

KEY = ("task", "data", "rows", "seed")
ROWS = {"regression": 100, "classification": 60}
"""Where no size is asked for."""
NUM_NEW = 1000
MOST_OF_GP = 1000


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
    return datasets.make_friedman1(num, noise=1.0, random_state=int(rng.integers(2**30)))


def friedman2(num: int, rng: np.random.Generator) -> Table:
    """Return Friedman's second problem with noise of 125, a third of the spread."""
    return datasets.make_friedman2(num, noise=125.0, random_state=int(rng.integers(2**30)))


def friedman3(num: int, rng: np.random.Generator) -> Table:
    """Return Friedman's third problem with noise of 0.1."""
    return datasets.make_friedman3(num, noise=0.1, random_state=int(rng.integers(2**30)))


def moons(num: int, rng: np.random.Generator) -> Table:
    """Return two half moons with noise of 0.2."""
    return datasets.make_moons(num, noise=0.2, random_state=int(rng.integers(2**30)))


def hastie(num: int, rng: np.random.Generator) -> Table:
    """Return whether ten normal numbers lie outside a sphere that holds half of them."""
    x, y = datasets.make_hastie_10_2(num, random_state=int(rng.integers(2**30)))
    return x, (y > 0).astype(int)


def published(name: str) -> Callable[[], Table]:
    """Return the function that loads a published set."""

    def read() -> Table:
        data = bnn.datasets.load(name).data
        return data.x.double().numpy(), data.y.double().numpy()

    return read


SIMULATED = {
    "sines": sines, "bend": bend, "friedman1": friedman1, "friedman2": friedman2, "friedman3": friedman3,
    "moons": moons, "hastie": hastie,
}  # fmt: skip
LOADED: dict[str, Callable[[], Table]] = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "yacht": published("yacht"),
    "concrete": published("concrete"),
    "energy": published("energy"),
    "wine-quality-red": published("wine-quality-red"),
    "power-plant": published("power-plant"),
    "protein": published("protein-tertiary-structure"),
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast-cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "spambase": published("spambase"),
}
SETS = {
    "regression": ("sines", "bend", "friedman1", "friedman3", "diabetes", "yacht", "concrete", "energy"),
    "classification": ("iris", "wine", "breast-cancer", "moons"),
}
LARGE = {
    "regression": ("friedman2", "wine-quality-red", "power-plant", "protein"),
    "classification": ("hastie", "spambase"),
}
"""Sets beside those, from `FROM_ROWS` rows on."""
FROM_ROWS = 1000
OPTIONS = {
    "sets": [name for sets in (SETS, LARGE) for names in sets.values() for name in names],
    "rows": {"type": int, "nargs": "+", "help": "sizes; 100, and 60 for classes, by default"},
    "seeds": 10,
}
MODELS = ("mlp", "linear", "trees", "gp")
COLUMNS = {
    "regression": ("r2", *(f"r2_{model}" for model in MODELS), "log_score", "log_score_gp", "coverage", "seconds"),
    "classification": ("log_score", *(f"log_score_{model}" for model in MODELS), "seconds"),
}


def split(name: str, seed: int, num: int) -> Arrays:
    """Return inputs and targets to train on, and to test on."""
    rng = np.random.default_rng(seed)
    if name in SIMULATED:
        train, test = SIMULATED[name](num, rng), SIMULATED[name](NUM_NEW, rng)
        return *train, *test
    x, y = LOADED[name]()
    order = rng.permutation(len(y))
    train, test = order[:num], order[num:][:NUM_NEW]
    return x[train], y[train], x[test], y[test]


def regression(data: Arrays, seed: int) -> dict[str, float]:
    """Return the scores of a table of numbers."""
    x, y, x_test, y_test = data
    started = time.perf_counter()
    prediction = bnn.BNNRegressor(random_state=seed).fit(x, y).predict_dist(x_test)
    mean, log_score = prediction.mean.numpy(), float(prediction.log_prob(y_test).mean())
    seconds = time.perf_counter() - started
    lower, upper = (bound.numpy() for bound in prediction.interval(0.95))
    scores = {"r2": r2_score(y_test, mean), "log_score": log_score, "seconds": seconds}
    scores["coverage"] = ((lower <= y_test) & (y_test <= upper)).mean()
    predicted = {name: references.normals(model, data) for name, model in references.regressors(seed).items()}
    if len(x) <= MOST_OF_GP:
        predicted["gp"] = references.normals(references.process(x.shape[1], seed), data, states_std=True)
        scores["log_score_gp"] = predicted["gp"].log_score(y_test)
    return scores | {f"r2_{name}": r2_score(y_test, normals.mean) for name, normals in predicted.items()}


def classification(data: Arrays, seed: int) -> dict[str, float]:
    """Return the scores of a table of classes."""
    x, y, x_test, y_test = data
    probs, seconds, _ = timed(lambda: bnn.BNNClassifier(random_state=seed).fit(x, y).predict_proba(x_test))
    scores = {"log_score": references.log_score_of_labels(probs, np.unique(y), y_test), "seconds": seconds}
    for name, model in references.classifiers(seed).items():
        if name != "gp" or len(x) <= MOST_OF_GP:
            scores[f"log_score_{name}"] = references.label_scores(model, data)[0]
    return scores


TASKS = {"regression": regression, "classification": classification}


def jobs(options: Options) -> list[Row]:
    """Return sets and sizes, seed by seed."""
    return [
        {"task": task, "data": name, "rows": size, "seed": seed}
        for seed in range(options.seeds)
        for task, sets in SETS.items()
        for size in options.rows or [ROWS[task]]
        for name in (*sets, *(LARGE[task] if size >= FROM_ROWS else ()))
        if name in options.sets and has_rows(name, size)
    ]


def has_rows(name: str, size: int) -> bool:
    """Return whether a set has that many rows to train on, and as many as a third of them to test on."""
    return name in SIMULATED or len(LOADED[name]()[1]) >= size + size // 3


def run(job: Row, options: Options) -> list[Row]:
    """Fit and score all models."""
    scores = TASKS[job["task"]](split(job["data"], job["seed"], job["rows"]), job["seed"])
    return [job | {name: float(value) for name, value in scores.items()}]


def page(rows: list[Row], options: Options) -> Page:
    """Return a table for each task."""
    lines: list[str] = []
    for task in TASKS:
        lines += [f"## {task.capitalize()}", "", *table(rows, task), ""]
    title = "The estimators with nothing given on tables, beside scikit-learn's"
    return Page(title, ["Means over seeds."], lines[:-1])


def table(rows: list[Row], task: str) -> list[str]:
    """Return a table of means over seeds, with the smallest and largest value of pyrobnn's score."""
    columns = COLUMNS[task]
    score = columns[0]
    lines = []
    for size, name in itertools.product(sorted({row["rows"] for row in rows}), SETS[task] + LARGE[task]):
        if same := chosen(rows, data=name, rows=size):
            values = {column: [row[column] for row in same if column in row] for column in columns}
            means = [f"{np.mean(values[column]):.3f}" if values[column] else "" for column in columns]
            spread = f"{min(values[score]):.3f} to {max(values[score]):.3f}"
            lines.append([name, size, len(same), spread, *means])
    return grid(["data", "rows", "seeds", f"{score}, smallest to largest", *columns], lines)
