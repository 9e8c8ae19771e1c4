"""Targets drawn from each likelihood around a function of the inputs, so that the best log score is known."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

import pyrobnn as bnn

ROWS = 200
"""Rows to train on; the others are to test on."""


class Drawn(NamedTuple):
    """Targets, the log score of the true distribution at the test rows, and the true noise scale, or None."""

    y: np.ndarray
    truth: float
    noise: float | None
    likelihood: Any
    outputs: int = 1


type Draw = Callable[[np.random.Generator, np.ndarray, np.ndarray], Drawn]


def _scored(y: np.ndarray, log_prob: np.ndarray, noise: float | None, likelihood: Any, outputs: int = 1) -> Drawn:
    return Drawn(y, float(log_prob[ROWS:].mean()), noise, likelihood, outputs)


def _poisson(g: np.random.Generator, x: np.ndarray, f: np.ndarray) -> Drawn:
    y = g.poisson(rate := np.exp(f + 0.5))
    return _scored(y, stats.poisson(rate).logpmf(y), None, "poisson")


def _negative_binomial(g: np.random.Generator, x: np.ndarray, f: np.ndarray) -> Drawn:
    rate, dispersion = np.exp(f + 1), 0.5
    known = stats.nbinom(1 / dispersion, 1 / (1 + dispersion * rate))
    y = known.rvs(random_state=g)
    return _scored(y, known.logpmf(y), dispersion, "negative_binomial")


def _bernoulli(g: np.random.Generator, x: np.ndarray, f: np.ndarray) -> Drawn:
    y = g.binomial(1, share := special.expit(2 * f))
    return _scored(y, stats.bernoulli(share).logpmf(y), None, "bernoulli")


def _categorical(g: np.random.Generator, x: np.ndarray, f: np.ndarray) -> Drawn:
    """Three classes, of 90, 8 and 2 percent."""
    logits = np.stack([0 * f, 1.5 * f, -1.5 * f], axis=1)
    for _ in range(100):
        logits += np.log([0.9, 0.08, 0.02]) - np.log(special.softmax(logits, axis=1).mean(0))
    share = special.softmax(logits, axis=1)
    y = (share.cumsum(1) < g.uniform(size=(len(f), 1))).sum(1)
    return _scored(y, np.log(share[np.arange(len(y)), y]), None, "categorical", 3)


def _with_noise(name: str, noise: Any, scale: float) -> Draw:
    def draw(g: np.random.Generator, x: np.ndarray, f: np.ndarray) -> Drawn:
        y = f + noise.rvs(len(f), random_state=g)
        return _scored(y, noise.logpdf(y - f), scale, name)

    return draw


def _heteroscedastic(g: np.random.Generator, x: np.ndarray, f: np.ndarray) -> Drawn:
    """The noise grows with one input: 0.14 to 0.99 over four standard deviations of it."""
    known = stats.norm(f, np.exp(0.5 * x[:, 1] - 1))
    y = known.rvs(random_state=g)
    return _scored(y, known.logpdf(y), None, bnn.likelihoods.Gaussian(scale="heteroscedastic"), 2)


def _ordinal(g: np.random.Generator, x: np.ndarray, f: np.ndarray) -> Drawn:
    cuts = np.array([-1.5, -0.5, 0.3, 1.2])
    below = np.concatenate([0 * f[:, None], special.expit((cuts - f[:, None]) / 0.5), 0 * f[:, None] + 1], axis=1)
    y = (below[:, 1:-1] < g.uniform(size=(len(f), 1))).sum(1)
    return _scored(y, np.log(np.diff(below, axis=1)[np.arange(len(y)), y]), None, bnn.likelihoods.Ordinal(5))


def _censored(g: np.random.Generator, x: np.ndarray, f: np.ndarray) -> Drawn:
    """Values below -0.5, about a quarter of them, are seen as -0.5."""
    y = np.maximum(f + 0.3 * g.normal(size=len(f)), -0.5)
    known = stats.norm(f, 0.3)
    log_prob = np.where(y > -0.5, known.logpdf(y), known.logcdf(-0.5))
    return _scored(y, log_prob, 0.3, bnn.likelihoods.CensoredGaussian(lower=-0.5))


LIKELIHOODS: dict[str, Draw] = {
    "gaussian": _with_noise("gaussian", stats.norm(0, 0.3), 0.3),
    "poisson": _poisson,
    "negative_binomial": _negative_binomial,
    "bernoulli": _bernoulli,
    "categorical": _categorical,
    "student_t": _with_noise("student_t", stats.t(4, 0, 0.3), 0.3),
    "laplace": _with_noise("laplace", stats.laplace(0, 0.3), 0.3),
    "heteroscedastic": _heteroscedastic,
    "ordinal": _ordinal,
    "censored": _censored,
}
