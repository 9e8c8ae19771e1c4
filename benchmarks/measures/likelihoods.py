"""Every likelihood by its name alone on 200 simulated rows.

Targets are drawn from the likelihood itself around a function that is not linear, so the best log score is known.
Beside the network stands the linear model of the same likelihood. Nothing is set but the likelihood, and nothing was
chosen on these seeds (100 and up).
"""

import time
from collections.abc import Callable
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special, stats

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, Row, chosen, short
from benchmarks.problems import drawn
from benchmarks.report.parts import grid
from pyrobnn.verdict.baselines import fit_baselines

KEY = ("likelihood", "seed")
OPTIONS = {"seeds": 5}
ROWS = 200


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


def jobs(options: Options) -> list[Row]:
    """Return the likelihoods, seed by seed."""
    seeds = range(100, 100 + options.seeds)
    return [{"likelihood": name, "seed": seed} for seed in seeds for name in LIKELIHOODS]


def run(job: Row, options: Options) -> list[Row]:
    """Fit a likelihood, with nothing else set, and score it on 1,000 other rows."""
    name, seed = job["likelihood"], job["seed"]
    g, x, f = drawn(seed, ROWS, 4)
    given = LIKELIHOODS[name](g, x, f)
    model = bnn.BNN(bnn.MLP(4, [50], given.outputs), likelihood=given.likelihood)
    data = bnn.Data(x[:ROWS], given.y[:ROWS], standardize=True)
    targets = torch.tensor(given.y[ROWS:])
    started = time.perf_counter()
    posterior = bnn.fit(model, data, bnn.SVI(), seed=seed, progress=False)
    score = float(posterior.predict(x[ROWS:], num_draws=300).log_prob(targets).mean())
    seconds = time.perf_counter() - started
    linear = fit_baselines(model, data)["linear"].predict(torch.tensor(x[ROWS:]))
    learned = posterior.bnn.settings["likelihood"]
    noise = "dispersion" if name == "negative_binomial" else "scale"
    row = {"log_score": score, "linear": float(linear.log_prob(targets).mean()), "truth": given.truth}
    if given.noise is not None:
        row["noise"] = getattr(learned, noise) / given.noise
    return [short(job | row | {"seconds": seconds})]


def page(rows: list[Row], options: Options) -> Page:
    """Return the page."""
    seeds = sorted({row["seed"] for row in rows})
    about = (
        f"{ROWS} rows with four inputs are drawn from each likelihood, around a function that is not linear, and",
        "MLP(4, [50]) is fitted with nothing set but the likelihood. Log scores are of 1,000 other rows, in nats,",
        f"means over seeds {seeds[0]} to {seeds[-1]}. The way is the share of the distance from the linear model of",
        "the same likelihood to the true distribution. The noise is the learned scale over the true one: the median,",
        "and the range. Seconds are of one core.",
    )
    cells = []
    for name in LIKELIHOODS:
        if own := chosen(rows, likelihood=name):
            scores = [f"{mean(row[column] for row in own):.2f}" for column in ("log_score", "linear", "truth")]
            ways = [way(row) for row in own]
            noise = sorted(row["noise"] for row in own if "noise" in row)
            shown = f"{median(noise):.2f} ({noise[0]:.2f} to {noise[-1]:.2f})" if noise else ""
            seconds = f"{mean(row['seconds'] for row in own):.0f}"
            cells.append([name, *scores, f"{mean(ways):.2f}", f"{min(ways):.2f}", shown, seconds])
    columns = ["likelihood", "network", "linear", "truth", "way", "least way", "noise", "seconds"]
    return Page("Every likelihood by its name alone", about, grid(columns, cells))


def way(row: Row) -> float:
    """Return the share of the way from the linear model to the truth that a fit has come."""
    return (row["log_score"] - row["linear"]) / (row["truth"] - row["linear"])
