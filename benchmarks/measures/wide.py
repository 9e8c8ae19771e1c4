"""Every default on tables with more columns than rows, or nearly, beside a constant and a linear model.

A seed draws the rows to train on, and others to test on: 1,000 new ones where data are simulated, else at most 400. It
is also the random state.

- "estimator" is BNNRegressor or BNNClassifier with nothing given. The others fit `BNN(MLP(columns, [20], outputs))` to
  standardised data: "svi" is SVI(), "evidence" EvidenceFramework(), "automatic" no method at all.
- "constant" is the normal distribution of the training targets, or the frequencies of labels plus one. "linear" is
  RidgeCV with the standard deviation of its own leave-one-out residuals, or LogisticRegression.
- Log scores are means over the rows to test on, in original units.
"""

import itertools

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits, make_friedman1
from sklearn.linear_model import LogisticRegression, RidgeCV

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.references import Arrays, Normals, Table, label_scores, log_score_of_labels, normals
from benchmarks.rows import Row, grid
from benchmarks.timing import timed

KEY = ("data", "method", "seed")
NUM_NEW, MOST_REAL = 1000, 400
METHODS = {"svi": bnn.SVI(), "evidence": bnn.EvidenceFramework(), "automatic": bnn.Automatic()}
Generator = np.random.Generator


def single(num: int, columns: int, rng: Generator) -> Table:
    """Return y = x0 + 0.5 noise, x normal."""
    x = rng.normal(size=(num, columns))
    return x, x[:, 0] + 0.5 * rng.normal(size=num)


def sparse(num: int, columns: int, rng: Generator) -> Table:
    """Return y = x0 - x1 + x2 + (x3 + x4 + noise) / 2, x normal."""
    x = rng.normal(size=(num, columns))
    return x, x[:, :5] @ [1, -1, 1, 0.5, 0.5] + 0.5 * rng.normal(size=num)


def friedman(num: int, columns: int, rng: Generator) -> Table:
    """Return Friedman's first problem with noise of 1, whose five inputs stand among others."""
    return make_friedman1(num, columns, noise=1.0, random_state=int(rng.integers(2**30)))


def spectra(num: int, columns: int, rng: Generator) -> Table:
    """Return columns that mix three factors, and a line and a sine of two of these with 0.3 noise."""
    loadings = np.random.default_rng(7).normal(size=(3, columns))
    z = rng.normal(size=(num, 3))
    return z @ loadings + rng.normal(size=(num, columns)), z[:, 0] + np.sin(2 * z[:, 1]) + 0.3 * rng.normal(size=num)


def diabetes(num: int, columns: int, rng: Generator) -> Table:
    """Return rows of diabetes, with columns of noise beside its ten."""
    x, y = load_diabetes(return_X_y=True)
    rows = rng.permutation(len(y))[:num]
    return np.hstack([x[rows] / x.std(0), rng.normal(size=(len(rows), columns - 10))]), y[rows]


def shift(num: int, columns: int, rng: Generator) -> Table:
    """Return two classes whose means lie 2 apart in four columns."""
    y = rng.integers(0, 2, num)
    x = rng.normal(size=(num, columns))
    x[:, :4] += 2 * y[:, None] - 1
    return x, y


def digits(num: int, columns: int, rng: Generator) -> Table:
    """Return rows of the small digits."""
    x, y = load_digits(return_X_y=True)
    rows = rng.permutation(len(y))[:num]
    return x[rows, :columns], y[rows]


SETS = {
    "one": (single, 20, 25), "one-60": (single, 30, 60), "sparse": (sparse, 60, 100), "friedman": (friedman, 40, 40),
    "spectra": (spectra, 60, 200), "diabetes": (diabetes, 30, 30), "shift": (shift, 30, 100),
    "digits": (digits, 50, 64),
}  # fmt: skip
"""Function that makes the data, rows, columns."""
OPTIONS = {"methods": ["estimator", *METHODS], "sets": list(SETS), "seeds": 10}


def split(name: str, seed: int) -> Arrays:
    """Return inputs and targets to train on, and to test on."""
    make, rows, columns = SETS[name]
    num_new = MOST_REAL if name in ("diabetes", "digits") else NUM_NEW
    x, y = make(rows + num_new, columns, np.random.default_rng(seed))
    return x[:rows], y[:rows], x[rows:], y[rows:]


def references(data: Arrays) -> dict[str, float]:
    """Return the log scores of a constant and of a linear model."""
    _, y, _, y_test = data
    if y.dtype.kind == "i":
        counts = np.bincount(y, minlength=y_test.max() + 1) + 1
        constant = float(np.log(counts / counts.sum())[y_test].mean())
        return {"constant": constant, "linear": label_scores(LogisticRegression(max_iter=2000), data)[0]}
    ridge = RidgeCV(np.logspace(-2, 4, 25), store_cv_results=True)
    mean = normals(ridge, data).mean
    left_out = ridge.cv_results_[:, np.flatnonzero(ridge.alphas == ridge.alpha_)[0]].mean()
    return {
        "constant": Normals(y.mean(), y.std(ddof=1)).log_score(y_test),
        "linear": Normals(mean, y.std() * np.sqrt(left_out)).log_score(y_test),
    }


def log_score(method: str, data: Arrays, seed: int) -> float:
    """Return the log score of a default."""
    x, y, x_test, y_test = data
    is_class = y.dtype.kind == "i"
    if method == "estimator" and is_class:
        fitted = bnn.BNNClassifier(random_state=seed).fit(x, y)
        return log_score_of_labels(fitted.predict_proba(x_test), fitted.classes_, y_test)
    if method == "estimator":
        return float(bnn.BNNRegressor(random_state=seed).fit(x, y).predict_dist(x_test).log_prob(y_test).mean())
    outputs, likelihood = (max(y.max(), y_test.max()) + 1, "categorical") if is_class else (1, "gaussian")
    model = bnn.BNN(bnn.MLP(x.shape[1], [20], int(outputs)), likelihood=likelihood)
    posterior = bnn.fit(model, bnn.Data(x, y, standardize=True), METHODS[method], seed=seed, progress=False)
    return float(posterior.predict(x_test).log_prob(torch.from_numpy(y_test)).mean())


def jobs(options: Options) -> list[Row]:
    """Return methods and sets, seed by seed."""
    return [
        {"data": name, "rows": SETS[name][1], "columns": SETS[name][2], "method": method, "seed": seed}
        for seed in range(options.seeds)
        for method in options.methods
        for name in options.sets
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Fit and score a default."""
    data = split(job["data"], job["seed"])
    score, seconds, _ = timed(lambda: log_score(job["method"], data, job["seed"]))
    return [job | {"log_score": score} | references(data) | {"seconds": seconds}]


def page(rows: list[Row], options: Options) -> Page:
    """Return a table of means over seeds, with the smallest difference from the constant."""
    scores = ("log_score", "constant", "linear")
    lines = []
    for (name, (_, *size)), method in itertools.product(SETS.items(), ("estimator", *METHODS)):
        if same := chosen(rows, data=name, method=method):
            means = [f"{np.mean([row[column] for row in same]):.3f}" for column in scores]
            least = min(row["log_score"] - row["constant"] for row in same)
            seconds = np.mean([row["seconds"] for row in same])
            lines.append([name, *size, method, len(same), *means, f"{least:+.3f}", f"{seconds:.0f}"])
    columns = ("data", "rows", "columns", "method", "seeds", *scores, "least beyond the constant", "seconds")
    title = "Every default on tables with more columns than rows, or nearly"
    return Page(title, ["Log scores are means over seeds."], grid(columns, lines))
