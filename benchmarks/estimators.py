"""The estimators with nothing given beside scikit-learn's: mean log score and error, on published splits and folds.

    uv run python benchmarks/estimators.py                    # all sets; or name some
    uv run python benchmarks/estimators.py yacht digits

Appends a row for each (set, split, model) to benchmarks/results/estimators.csv, the first split of every set first,
goes on from what stands there, and writes benchmarks/results/estimators.md. The random state is the number of the
split.

The regressors of scikit-learn see standardised inputs and targets. Their predictive distribution is a normal around the
prediction whose variance is the mean squared residual of the training part; `BayesianRidge` has one of its own, shown
beside. The log scores of classifiers are those of `sklearn.metrics.log_loss`, with five stratified, shuffled folds.
"""

import csv
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

import pyrobnn as bnn

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("data", "split", "model", "log_score", "error", "seconds")
REGRESSION = ("energy", "concrete", "yacht", "wine-quality-red", "power-plant", "protein-tertiary-structure")
CLASSIFICATION = {"breast_cancer": load_breast_cancer, "wine": load_wine, "digits": load_digits}
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Scores = tuple[float, float]


def standardised(model: Any) -> Any:
    """Return a regressor that sees standardised inputs and targets."""
    return make_pipeline(StandardScaler(), TransformedTargetRegressor(model, transformer=StandardScaler()))


def with_residuals(model: Any, data: Arrays) -> Scores:
    """Return log score and RMSE of a regressor with the variance of its training residuals."""
    x, y, x_test, y_test = data
    fitted = standardised(model).fit(x, y)
    scale = np.sqrt(np.mean((fitted.predict(x) - y) ** 2))
    mean = fitted.predict(x_test)
    return norm.logpdf(y_test, mean, scale).mean(), np.sqrt(np.mean((mean - y_test) ** 2))


def with_own_std(model: Any, data: Arrays) -> Scores:
    """Return log score and RMSE of a linear regressor with the standard deviation that it states."""
    x, y, x_test, y_test = data
    scaler = StandardScaler().fit(x)
    unit = y.std()
    fitted = model.fit(scaler.transform(x), (y - y.mean()) / unit)
    mean, std = fitted.predict(scaler.transform(x_test), return_std=True)
    mean, std = y.mean() + unit * mean, unit * std
    return norm.logpdf(y_test, mean, std).mean(), np.sqrt(np.mean((mean - y_test) ** 2))


def with_mixture(model: Any, data: Arrays) -> Scores:
    """Return log score and RMSE of a `BNNRegressor`."""
    x, y, x_test, y_test = data
    prediction = model.fit(x, y).predict_dist(x_test)
    mean = prediction.mean.numpy()
    return float(prediction.log_prob(y_test).mean()), np.sqrt(np.mean((mean - y_test) ** 2))


def of_classes(model: Any, data: Arrays) -> Scores:
    """Return log score and share of errors of a classifier."""
    x, y, x_test, y_test = data
    fitted = model.fit(x, y)
    error = float(np.mean(fitted.predict(x_test) != y_test))
    return -log_loss(y_test, fitted.predict_proba(x_test), labels=fitted.classes_), error


Run = tuple[Callable[[Any, Arrays], Scores], Callable[[int], Any]]
REGRESSORS: dict[str, Run] = {
    "BNNRegressor": (with_mixture, lambda seed: bnn.BNNRegressor(random_state=seed)),
    "Ridge": (with_residuals, lambda seed: Ridge()),
    "BayesianRidge": (with_own_std, lambda seed: BayesianRidge()),
    "MLPRegressor": (with_residuals, lambda seed: MLPRegressor(random_state=seed)),
}
CLASSIFIERS: dict[str, Run] = {
    "BNNClassifier": (of_classes, lambda seed: bnn.BNNClassifier(random_state=seed)),
    "LogisticRegression": (of_classes, lambda seed: make_pipeline(StandardScaler(), LogisticRegression())),
    "MLPClassifier": (of_classes, lambda seed: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed))),
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


def run(name: str, split: int, path: Path) -> None:
    """Append the missing rows of a split."""
    done = {(row["data"], row["split"], row["model"]) for row in read(path)}
    models = CLASSIFIERS if name in CLASSIFICATION else REGRESSORS
    for label, (score, make) in models.items():
        if (name, str(split), label) in done:
            continue
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            log_score, error = score(make(split), load(name, split))
        seconds = time.perf_counter() - started
        with path.open("a", encoding="utf-8") as file:
            row = (name, split, label, f"{log_score:.5f}", f"{error:.5f}", f"{seconds:.1f}")
            csv.writer(file, lineterminator="\n").writerow(row)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows that stand in the file; make it if there is none."""
    if not path.exists():
        path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(rows: list[dict[str, str]], names: list[str], models: list[str], key: str) -> str:
    """Return means and standard errors over splits as a Markdown table, the models side by side."""
    lines = ["| data | splits | " + " | ".join(models) + " |", "|---|---|" + "---|" * len(models)]
    for name in names:
        values = [[float(row[key]) for row in rows if (row["data"], row["model"]) == (name, model)] for model in models]
        if all(values):
            count = min(map(len, values))
            lines.append(f"| {name} | {count} | " + " | ".join(_cell(own[:count], key) for own in values) + " |")
    return "\n".join(lines)


def _cell(values: list[float], key: str) -> str:
    mean = sum(values) / len(values)
    if key == "seconds":
        return f"{mean:.1f}"
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return f"{mean:.3f} ± {math.sqrt(variance / len(values)):.3f}"


def report(rows: list[dict[str, str]]) -> str:
    """Return the page of results."""
    regression = (rows, list(REGRESSION), list(REGRESSORS))
    classification = (rows, list(CLASSIFICATION), list(CLASSIFIERS))
    parts = [
        "# Estimators with nothing given, beside scikit-learn's",
        f"Made by `uv run python benchmarks/estimators.py`. {__doc__.split('\n\n')[-1].strip()}".replace("\n", " "),
        "Means and standard errors over splits, in original units. Log scores are natural logs, higher is better.",
        "## Regression: mean test log score",
        table(*regression, "log_score"),
        "## Regression: RMSE",
        table(*regression, "error"),
        "## Classification: mean test log score",
        table(*classification, "log_score"),
        "## Classification: share of errors",
        table(*classification, "error"),
        "## Seconds to fit and score, one thread",
        table(*regression, "seconds"),
        table(*classification, "seconds"),
    ]
    return "\n\n".join(parts) + "\n"


def main(names: list[str]) -> None:
    """Run the sets and write the results."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "estimators.csv"
    jobs = sorted((split, name) for name in names for split in range(num_splits(name)))
    for split, name in tqdm(jobs, unit="split"):
        run(name, split, path)
        (RESULTS / "estimators.md").write_text(report(read(path)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or [*CLASSIFICATION, *REGRESSION])
