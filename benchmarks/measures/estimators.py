"""The estimators with nothing given beside scikit-learn's: mean log score and error, on published splits and folds.

The random state is the number of the split; the first split of every set comes first. `ABOUT` says how the others fit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor

import pyrobnn as bnn
from benchmarks import references
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.references import Arrays
from benchmarks.report.parts import mean_cell
from benchmarks.rows import Row, grid
from benchmarks.timing import timed

ABOUT = """\
The regressors of scikit-learn see standardised inputs and targets. Their predictive distribution is a normal around the
prediction whose variance is the mean squared residual of the training part; `BayesianRidge` has one of its own, shown
beside. Classifiers have five stratified, shuffled folds."""
REGRESSION = ("energy", "concrete", "yacht", "wine-quality-red", "power-plant", "protein-tertiary-structure")
CLASSIFICATION = {"breast_cancer": load_breast_cancer, "wine": load_wine, "digits": load_digits}
KEY = ("data", "split", "model")
OPTIONS = {"sets": [*CLASSIFICATION, *REGRESSION]}
Scores = tuple[float, float]


def with_residuals(model: Any, data: Arrays) -> Scores:
    """Return log score and RMSE of a regressor with the variance of its training residuals."""
    return _scores(references.normals(model, data), data)


def with_own_std(model: Any, data: Arrays) -> Scores:
    """Return log score and RMSE of a regressor with the standard deviation that it states."""
    return _scores(references.normals(model, data, states_std=True), data)


def _scores(predicted: references.Normals, data: Arrays) -> Scores:
    return predicted.log_score(data[3]), np.sqrt(np.mean((predicted.mean - data[3]) ** 2))


def with_mixture(model: Any, data: Arrays) -> Scores:
    """Return log score and RMSE of a `BNNRegressor`."""
    x, y, x_test, y_test = data
    prediction = model.fit(x, y).predict_dist(x_test)
    mean = prediction.mean.numpy()
    return float(prediction.log_prob(y_test).mean()), np.sqrt(np.mean((mean - y_test) ** 2))


def of_classes(model: Any, data: Arrays) -> Scores:
    """Return log score and share of errors of a `BNNClassifier`."""
    x, y, x_test, y_test = data
    probs = model.fit(x, y).predict_proba(x_test)
    error = float(np.mean(model.classes_[probs.argmax(1)] != y_test))
    return references.log_score_of_labels(probs, model.classes_, y_test), error


Run = tuple[Callable[[Any, Arrays], Scores], Callable[[int], Any]]
REGRESSORS: dict[str, Run] = {
    "BNNRegressor": (with_mixture, lambda seed: bnn.BNNRegressor(random_state=seed)),
    "Ridge": (with_residuals, lambda seed: Ridge()),
    "BayesianRidge": (with_own_std, lambda seed: BayesianRidge()),
    "MLPRegressor": (with_residuals, lambda seed: MLPRegressor(random_state=seed)),
}
CLASSIFIERS: dict[str, Run] = {
    "BNNClassifier": (of_classes, lambda seed: bnn.BNNClassifier(random_state=seed)),
    "LogisticRegression": (references.label_scores, lambda seed: LogisticRegression()),
    "MLPClassifier": (references.label_scores, lambda seed: MLPClassifier(random_state=seed)),
}


def num_splits(name: str) -> int:
    """Return the number of splits of a set."""
    return 5 if name in CLASSIFICATION else bnn.datasets.load(name).num_splits


def load(name: str, split: int) -> Arrays:
    """Return training inputs and targets, and test inputs and targets, of a split."""
    if name in CLASSIFICATION:
        x, y = CLASSIFICATION[name](return_X_y=True)
        train, test = list(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y))[split]
        return x[train], y[train], x[test], y[test]
    parts = bnn.datasets.load(name).split(split)
    x, y, x_test, y_test = (values.double().numpy() for part in parts for values in (part.x, part.y))
    return x, y, x_test, y_test


def jobs(options: Options) -> list[Row]:
    """Return the models on each split, the first split of every set first."""
    splits = sorted((split, name) for name in options.sets for split in range(num_splits(name)))
    return [
        {"data": name, "split": split, "model": model}
        for split, name in splits
        for model in (CLASSIFIERS if name in CLASSIFICATION else REGRESSORS)
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Fit and score a model on a split."""
    score, make = (REGRESSORS | CLASSIFIERS)[job["model"]]
    (log_score, error), seconds, _ = timed(lambda: score(make(job["split"]), load(job["data"], job["split"])))
    return [job | {"log_score": round(log_score, 5), "error": round(float(error), 5), "seconds": round(seconds, 1)}]


def page(rows: list[Row], options: Options) -> Page:
    """Return the page of results."""
    regression, classification = (list(REGRESSION), list(REGRESSORS)), (list(CLASSIFICATION), list(CLASSIFIERS))
    more = "Means and standard errors over splits, in original units. Log scores are natural logs, higher is better."
    lines: list[str] = []
    for title, key, kinds in (
        ("Regression: mean test log score", "log_score", [regression]),
        ("Regression: RMSE", "error", [regression]),
        ("Classification: mean test log score", "log_score", [classification]),
        ("Classification: share of errors", "error", [classification]),
        ("Seconds to fit and score, one thread", "seconds", [regression, classification]),
    ):
        lines += [f"## {title}", ""]
        for names, models in kinds:
            lines += [*means(rows, names, models, key), ""]
    return Page("Estimators with nothing given, beside scikit-learn's", [ABOUT, "", more], lines[:-1])


def means(rows: list[Row], names: list[str], models: list[str], key: str) -> list[str]:
    """Return means and standard errors over splits as a table, the models side by side."""
    lines = []
    for name in names:
        values = [[row[key] for row in chosen(rows, data=name, model=model)] for model in models]
        if all(values):
            count = min(map(len, values))
            lines.append([name, count, *(_cell(scores[:count], key) for scores in values)])
    return grid(["data", "splits", *models], lines)


def _cell(values: list[float], key: str) -> str:
    return f"{sum(values) / len(values):.1f}" if key == "seconds" else mean_cell(values, 3)
