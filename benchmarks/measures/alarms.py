"""Whether the line at the end of a fit names bad fits, and only these.

Fits are made bad in 28 ways, and made as a user makes them in others, on small problems that a seed draws
(`benchmarks.problems`, `likelihoods`; rules were made on other seeds). A fit counts as bad if its log score on 1,000
new examples is more than 0.1 nats an example below a linear model of the same likelihood, and as good if it is at most
0.02 below. The fits are kept in a folder: to judge other rules, measure again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.problems import PROBLEMS, Problem, drawn, model_of
from benchmarks.rows import Row, grid
from benchmarks.targets import LIKELIHOODS as DRAWN
from benchmarks.targets import ROWS
from benchmarks.timing import timed
from pyrobnn.likelihoods import CensoredGaussian, Gaussian, NegativeBinomial, StudentT
from pyrobnn.verdict.baselines import fit_baselines
from pyrobnn.verdict.checks import complaint

KEY = ("way", "seed")
OPTIONS = {"seeds": 3, "fits": Path("runs/alarms")}
FIRST_SEED = 210
BAD, GOOD = -0.1, -0.02
"""Bounds on the difference to a linear model, nats an example."""
N = bnn.priors.Normal
LEARNED = Gaussian("learned")
POSED = {
    "noise by input": "heteroscedastic",
    "censored, 200 rows": "censored",
    "ratings, 200 rows": "ordinal",
    "rare classes, 200 rows": "categorical",
    "dispersed counts, 200 rows": "negative_binomial",
}
"""Problems by the likelihood that draws them."""


def _posed(name: str) -> Callable[[int], Problem]:
    """Return 200 rows with targets of a likelihood, from a seed."""

    def pose(seed: int) -> Problem:
        g, x, f = drawn(seed, ROWS, 4)
        given = DRAWN[name](g, x, f)
        y = given.y
        return Problem(x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:], None, [50], given.likelihood, given.outputs)

    return pose


class Way(NamedTuple):
    """A way to fit: a problem, a method, and the settings that are no defaults."""

    problem: str
    method: Any
    prior: Any = "normal"
    likelihood: Any = None
    hidden: list[int] | None = None
    standardize: bool = True


def svi(guide: str, steps: int, **rest: Any) -> bnn.SVI:
    """Return fits of that many steps."""
    return bnn.SVI(guide=guide, steps=steps, **rest)


TABLE, DIABETES, FRIEDMAN = "100 rows, 3 columns", "diabetes, 331 rows", "Friedman 1, 300 rows"
MOONS, COUNTS, OUTLIERS, CUBIC = "moons, 60 points", "counts, 200 rows", "outliers, 200 rows", "cubic, noise learned"
BY_INPUT, CENSORED, RATINGS, RARE, DISPERSED = POSED
CUT, DEEP = CensoredGaussian(lower=-0.5, scale="learned"), [50] * 3
SGLD = bnn.SGLD(step_size=1e-7, num_draws=50, burn_in=50, thinning=1, num_chains=1)
MADE_BAD = {
    "mean-field, N(0, 1), learned noise": Way(TABLE, svi("mean_field", 3000), N(1.0), LEARNED),
    "three layers, N(0, 1)": Way(DIABETES, svi("mean_field", 1500), N(1.0), LEARNED, DEEP),
    "point, learned noise": Way(DIABETES, svi("map", 8000), N(1.0), LEARNED),
    "ensemble of points": Way(DIABETES, bnn.Ensemble(members=2, method=svi("map", 6000)), N(1.0), LEARNED),
    "Laplace, noise by input": Way(BY_INPUT, svi("laplace", 6000), N(1.0)),
    "point, noise by input": Way(BY_INPUT, svi("map", 6000), N(1.0)),
    "point, learned Student-t": Way(OUTLIERS, svi("map", 8000), N(1.0), StudentT(scale="learned")),
    "60 steps": Way(FRIEDMAN, svi("mean_field", 60, lr=1e-3)),
    "rate of 1": Way(FRIEDMAN, svi("mean_field", 300, lr=1.0)),
    "point, noise ten times too small": Way(TABLE, svi("map", 4000), N(1.0), Gaussian(0.03)),
    "mean-field, noise ten times too small": Way(DIABETES, svi("mean_field", 4000), N(1.0), Gaussian(5.0)),
    "noise twenty times too large": Way(FRIEDMAN, svi("mean_field", 2000), N("he"), Gaussian(20.0)),
    "not standardised": Way(DIABETES, svi("mean_field", 1000), standardize=False),
    "point, N(0, 10), labels": Way(MOONS, svi("map", 8000), N(10.0)),
    "point, N(0, 3), counts": Way(COUNTS, svi("map", 8000), N(3.0)),
    "N(0, 0.01)": Way(FRIEDMAN, svi("mean_field", 3000), N(0.01)),
    "SGLD that hardly moves": Way(TABLE, SGLD, N(1.0), Gaussian(0.3)),
    "point, censored": Way(CENSORED, svi("map", 8000), N(1.0), CUT),
    "three layers, N(0, 1), censored": Way(CENSORED, svi("mean_field", 1500), N(1.0), CUT, DEEP),
    "censored, noise ten times too small": Way(
        CENSORED, svi("laplace", 3000), N(1.0), CensoredGaussian(lower=-0.5, scale=0.03)
    ),
    "three layers, N(0, 1), counts": Way(COUNTS, svi("mean_field", 1500), N(1.0), hidden=DEEP),
    "N(0, 0.01), counts": Way(COUNTS, svi("mean_field", 1500), N(0.01)),
    "point, N(0, 3), dispersed counts": Way(DISPERSED, svi("map", 6000), N(3.0), NegativeBinomial("learned")),
    "three layers, N(0, 1), labels": Way(MOONS, svi("mean_field", 1500), N(1.0), hidden=DEEP),
    "point, N(0, 10), rare classes": Way(RARE, svi("map", 6000), N(10.0)),
    "point, N(0, 10), ratings": Way(RATINGS, svi("map", 6000), N(10.0)),
    "three layers, N(0, 1), ratings": Way(RATINGS, svi("mean_field", 1500), N(1.0), hidden=DEEP),
    "NUTS without warm-up": Way(TABLE, bnn.NUTS(num_draws=6, warmup=4, num_chains=1), N(1.0), Gaussian(0.3)),
}
USUAL: dict[str, tuple[Any, Any]] = {
    "mean-field": (bnn.SVI(), "normal"),
    "Laplace": (bnn.SVI(guide="laplace"), "normal"),
    "point": (bnn.SVI(guide="map"), "normal"),
    "point, 300 steps, he": (svi("map", 300), N("he")),
    "mean-field, 2,500 steps, he": (svi("mean_field", 2500), N("he")),
}
ON = (TABLE, DIABETES, FRIEDMAN, MOONS, COUNTS, OUTLIERS, CUBIC, BY_INPUT, CENSORED, RATINGS)
WAYS = MADE_BAD | {f"{name}; {on}": Way(on, method, prior) for on in ON for name, (method, prior) in USUAL.items()}


def fitted(name: str, seed: int, folder: Path) -> tuple[Problem, bnn.Data, Any]:
    """Return the problem and the training data, and the fit, which is kept in a folder."""
    way = WAYS[name]
    problem = (_posed(POSED[way.problem]) if way.problem in POSED else PROBLEMS[way.problem])(seed)
    problem = problem._replace(hidden=way.hidden or problem.hidden, likelihood=way.likelihood or problem.likelihood)
    data = bnn.Data(problem.x, problem.y, standardize=way.standardize)
    path = folder / f"{seed} {name}"
    if not path.exists():
        bnn.fit(model_of(problem, way.prior), data, way.method, seed=seed, progress=False).save(path)
    return problem, data, bnn.load(path)


def jobs(options: Options) -> list[Row]:
    """Return the ways, seed by seed."""
    return [{"way": way, "seed": seed} for seed in range(FIRST_SEED, FIRST_SEED + options.seeds) for way in WAYS]


def run(job: Row, options: Options) -> list[Row]:
    """Fit in a way, and return how it compares with a linear model on new examples, and whether it was named."""
    problem, data, posterior = fitted(job["way"], job["seed"], options.fits)
    text, check, _ = timed(lambda: complaint(posterior, data))
    x, y = torch.tensor(problem.test_x), torch.tensor(problem.test_y)
    linear = fit_baselines(posterior.bnn.settings["likelihood"], data, problem.outputs)["linear"].predict(x)
    over = float(posterior.predict(x, num_draws=200).log_prob(y).mean()) - float(linear.log_prob(y).mean())
    times = {"seconds": round(posterior.record.seconds, 2), "seconds of the check": round(check, 2)}
    return [job | {"over linear": round(over, 4), "named": text is not None} | times | {"words": (text or "")[:60]}]


def is_bad(row: Row) -> bool:
    """Whether the fit of a row is worse than a linear model."""
    return row["over linear"] < BAD


def is_good(row: Row) -> bool:
    """Whether the fit of a row is about as good as a linear model, or better."""
    return row["over linear"] >= GOOD


def page(rows: list[Row], options: Options) -> Page:
    """Return how many fits of each kind were named, and each way."""
    more = "The difference to a linear model is a mean over seeds, in nats an example, on new data."
    lines = []
    for text, is_meant in (("bad", is_bad), ("good", is_good)):
        named = [row["named"] for row in rows if is_meant(row)]
        lines.append(f"- {sum(named)} of {len(named)} {text} fits were named.")
    checks = [row["seconds of the check"] for row in rows]
    lines += [f"- The check took {np.median(checks):.2f} s (median), {max(checks):.1f} s at most.", ""]
    cells = []
    for way in WAYS:
        if same := chosen(rows, way=way):
            mean = np.mean([row["over linear"] for row in same])
            named = f"{sum(row['named'] for row in same)} of {len(same)}"
            cells.append([way, f"{mean:.2f}", named, sum(map(is_bad, same)), sum(map(is_good, same))])
    lines += grid(["way", "over linear", "named", "bad fits", "good fits"], cells)
    return Page("Bad fits, and whether the line at their end names them", [more], lines)
