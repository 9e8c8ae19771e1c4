"""Small problems, drawn from a seed, on which measures try every part."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes, make_friedman1, make_moons

import pyrobnn as bnn


class Problem(NamedTuple):
    """Training and test data, the true curve if it is known, the widths of the network, and a likelihood."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    curve: np.ndarray | None
    hidden: list[int]
    likelihood: Any
    outputs: int = 1

    @property
    def is_classification(self) -> bool:
        """Whether targets are labels."""
        return self.likelihood in ("categorical", "bernoulli")

    @property
    def is_real(self) -> bool:
        """Whether targets are real numbers."""
        return not self.is_classification and self.likelihood != "poisson"


def cubic(seed: int, likelihood: Any) -> Problem:
    """Return 20 points of x^3 with noise of 3, and the curve inside of them."""
    g = np.random.default_rng(seed)
    x, grid = g.uniform(-4, 4, (20, 1)), np.linspace(-4, 4, 200)[:, None]
    noise = 3 * g.normal(size=220)
    return Problem(x, x[:, 0] ** 3 + noise[:20], grid, grid[:, 0] ** 3 + noise[20:], grid[:, 0] ** 3, [100], likelihood)


def drawn(seed: int, rows: int, columns: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """Return a generator, inputs of that many rows and of 1,000 for tests, and a function of them."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(rows + 1000, columns))
    return g, x, np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] - 0.4 * x[:, 2] * x[:, 0]


def _cut(x: np.ndarray, y: np.ndarray, rows: int, hidden: list[int], likelihood: Any) -> Problem:
    return Problem(x[:rows], y[:rows], x[rows:], y[rows:], None, hidden, likelihood)


def _table(seed: int) -> Problem:
    g, x, f = drawn(seed, 100, 3)
    return _cut(x, f + 0.3 * g.normal(size=len(f)), 100, [50], "gaussian")


def _outliers(seed: int) -> Problem:
    g, x, f = drawn(seed, 200, 4)
    return _cut(x, f + 0.3 * g.standard_t(3, len(f)), 200, [50], "student_t")


def _counts(seed: int) -> Problem:
    g, x, f = drawn(seed, 200, 4)
    return _cut(x, g.poisson(np.exp(f + 0.5)), 200, [50], "poisson")


def _friedman(seed: int) -> Problem:
    x, y = make_friedman1(1300, noise=1.0, random_state=seed)
    return _cut(x, y, 300, [50], "gaussian")


def _diabetes(seed: int) -> Problem:
    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    return _cut(x[order], y[order], 331, [50], "gaussian")


def _moons(seed: int) -> Problem:
    x, y = make_moons(1060, noise=0.3, random_state=seed)
    return _cut(x, y, 60, [50], "categorical")._replace(outputs=2)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "cubic, noise learned": lambda seed: cubic(seed, "gaussian"),
    "cubic, noise known": lambda seed: cubic(seed, bnn.likelihoods.Gaussian(3.0)),
    "100 rows, 3 columns": _table,
    "diabetes, 331 rows": _diabetes,
    "Friedman 1, 300 rows": _friedman,
    "outliers, 200 rows": _outliers,
    "counts, 200 rows": _counts,
    "moons, 60 points": _moons,
}


def model_of(problem: Problem, prior: Any = "normal") -> bnn.BNN:
    """Return the network of a problem with a prior by its name."""
    net = bnn.MLP(problem.x.shape[1], problem.hidden, problem.outputs)
    return bnn.BNN(net, prior=prior, likelihood=problem.likelihood)
