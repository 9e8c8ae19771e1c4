"""Does the line at the end of a fit name bad fits, and only these: `uv run python -m benchmarks.alarms`.

Fits are made bad in 28 ways, and made as a user makes them in others, on small problems that a seed draws
(`benchmarks.defaults`, `benchmarks.likelihoods`; rules were made on other seeds). A fit counts as bad if its log score
on 1,000 new examples is more than 0.1 nats an example below a linear model of the same likelihood, and as good if it
is at most 0.02 below. Each fit is a row of benchmarks/results/alarms.csv, written as it ends, so that a run that was
stopped goes on; alarms.md is made from the rows. The fits are kept in a folder: to judge other rules, remove the rows
and run again.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.defaults import PROBLEMS, Problem, drawn, model_of, read
from benchmarks.likelihoods import LIKELIHOODS as DRAWN
from benchmarks.likelihoods import ROWS
from pyrobnn.likelihoods import CensoredGaussian, Gaussian, NegativeBinomial, StudentT
from pyrobnn.verdict.baselines import fit_baselines
from pyrobnn.verdict.comparison import complaint

PATH = Path(__file__).parent / "results" / "alarms.csv"
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


def _settings(guide: str, steps: int, **rest: Any) -> Any:
    return bnn.SVI(guide=guide, steps=steps, **rest)


TABLE, DIABETES, FRIEDMAN = "100 rows, 3 columns", "diabetes, 331 rows", "Friedman 1, 300 rows"
MOONS, COUNTS, OUTLIERS, CUBIC = "moons, 60 points", "counts, 200 rows", "outliers, 200 rows", "cubic, noise learned"
CENSORED, RATINGS, RARE, DISPERSED = (
    "censored, 200 rows",
    "ratings, 200 rows",
    "rare classes, 200 rows",
    "dispersed counts, 200 rows",
)
MADE_BAD: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "mean-field, N(0, 1), learned noise": (
        TABLE,
        _settings("mean_field", 3000),
        {"prior": N(1.0), "likelihood": LEARNED},
    ),
    "three layers, N(0, 1)": (
        DIABETES,
        _settings("mean_field", 1500),
        {"prior": N(1.0), "likelihood": LEARNED, "hidden": [50] * 3},
    ),
    "point, learned noise": (DIABETES, _settings("map", 8000), {"prior": N(1.0), "likelihood": LEARNED}),
    "ensemble of points": (
        DIABETES,
        bnn.Ensemble(members=2, method=_settings("map", 6000)),
        {"prior": N(1.0), "likelihood": LEARNED},
    ),
    "Laplace, noise by input": ("noise by input", _settings("laplace", 6000), {"prior": N(1.0)}),
    "point, noise by input": ("noise by input", _settings("map", 6000), {"prior": N(1.0)}),
    "point, learned Student-t": (
        OUTLIERS,
        _settings("map", 8000),
        {"prior": N(1.0), "likelihood": StudentT(scale="learned")},
    ),
    "60 steps": (FRIEDMAN, _settings("mean_field", 60, lr=1e-3), {}),
    "rate of 1": (FRIEDMAN, _settings("mean_field", 300, lr=1.0), {}),
    "point, noise ten times too small": (
        TABLE,
        _settings("map", 4000),
        {"prior": N(1.0), "likelihood": Gaussian(0.03)},
    ),
    "mean-field, noise ten times too small": (
        DIABETES,
        _settings("mean_field", 4000),
        {"prior": N(1.0), "likelihood": Gaussian(5.0)},
    ),
    "noise twenty times too large": (
        FRIEDMAN,
        _settings("mean_field", 2000),
        {"prior": N("he"), "likelihood": Gaussian(20.0)},
    ),
    "not standardised": (DIABETES, _settings("mean_field", 1000), {"standardize": False}),
    "point, N(0, 10), labels": (MOONS, _settings("map", 8000), {"prior": N(10.0)}),
    "point, N(0, 3), counts": (COUNTS, _settings("map", 8000), {"prior": N(3.0)}),
    "N(0, 0.01)": (FRIEDMAN, _settings("mean_field", 3000), {"prior": N(0.01)}),
    "SGLD that hardly moves": (
        TABLE,
        bnn.SGLD(step_size=1e-7, num_draws=50, burn_in=50, thinning=1, num_chains=1),
        {"prior": N(1.0), "likelihood": Gaussian(0.3)},
    ),
    "point, censored": (
        CENSORED,
        _settings("map", 8000),
        {"prior": N(1.0), "likelihood": CensoredGaussian(lower=-0.5, scale="learned")},
    ),
    "three layers, N(0, 1), censored": (
        CENSORED,
        _settings("mean_field", 1500),
        {"prior": N(1.0), "likelihood": CensoredGaussian(lower=-0.5, scale="learned"), "hidden": [50] * 3},
    ),
    "censored, noise ten times too small": (
        CENSORED,
        _settings("laplace", 3000),
        {"prior": N(1.0), "likelihood": CensoredGaussian(lower=-0.5, scale=0.03)},
    ),
    "three layers, N(0, 1), counts": (COUNTS, _settings("mean_field", 1500), {"prior": N(1.0), "hidden": [50] * 3}),
    "N(0, 0.01), counts": (COUNTS, _settings("mean_field", 1500), {"prior": N(0.01)}),
    "point, N(0, 3), dispersed counts": (
        DISPERSED,
        _settings("map", 6000),
        {"prior": N(3.0), "likelihood": NegativeBinomial("learned")},
    ),
    "three layers, N(0, 1), labels": (MOONS, _settings("mean_field", 1500), {"prior": N(1.0), "hidden": [50] * 3}),
    "point, N(0, 10), rare classes": (RARE, _settings("map", 6000), {"prior": N(10.0)}),
    "point, N(0, 10), ratings": (RATINGS, _settings("map", 6000), {"prior": N(10.0)}),
    "three layers, N(0, 1), ratings": (RATINGS, _settings("mean_field", 1500), {"prior": N(1.0), "hidden": [50] * 3}),
    "NUTS without warm-up": (
        TABLE,
        bnn.NUTS(num_draws=6, warmup=4, num_chains=1),
        {"prior": N(1.0), "likelihood": Gaussian(0.3)},
    ),
}
USUAL: dict[str, tuple[Any, dict[str, Any]]] = {
    "mean-field": (bnn.SVI(), {}),
    "Laplace": (bnn.SVI(guide="laplace"), {}),
    "point": (bnn.SVI(guide="map"), {}),
    "point, 300 steps, he": (_settings("map", 300), {"prior": N("he")}),
    "mean-field, 2,500 steps, he": (_settings("mean_field", 2500), {"prior": N("he")}),
}
ON = (TABLE, DIABETES, FRIEDMAN, MOONS, COUNTS, OUTLIERS, CUBIC, "noise by input", CENSORED, RATINGS)
WAYS = MADE_BAD | {
    f"{name}; {problem}": (problem, method, settings) for problem in ON for name, (method, settings) in USUAL.items()
}


def fitted(way: str, seed: int, folder: Path) -> tuple[Problem, bnn.Data, Any]:
    """Return the problem and the training data, and the fit, which is kept in a folder."""
    name, method, settings = WAYS[way]
    problem = (_posed(POSED[name]) if name in POSED else PROBLEMS[name])(seed)
    problem = problem._replace(
        hidden=settings.get("hidden", problem.hidden), likelihood=settings.get("likelihood", problem.likelihood)
    )
    model = model_of(problem, settings.get("prior", "normal"))
    data = bnn.Data(problem.x, problem.y, standardize=settings.get("standardize", True))
    path = folder / f"{seed} {way}"
    if not path.exists():
        bnn.fit(model, data, method, seed=seed, progress=False).save(path)
    return problem, data, bnn.load(path)


def outcome(way: str, seed: int, folder: Path) -> dict[str, Any]:
    """Fit in a way, and return how it compares with a linear model on new examples, and whether it was named."""
    problem, data, posterior = fitted(way, seed, folder)
    started = time.perf_counter()
    text = complaint(posterior, data)
    check = time.perf_counter() - started
    x, y = torch.tensor(problem.test_x), torch.tensor(problem.test_y)
    linear = fit_baselines(posterior.bnn, data)["linear"].predict(x)
    over = float(posterior.predict(x, num_draws=200).log_prob(y).mean()) - float(linear.log_prob(y).mean())
    times = {"seconds": round(posterior.record.seconds, 2), "seconds of the check": round(check, 2)}
    return {"over linear": round(over, 4), "named": text is not None} | times | {"words": (text or "")[:60]}


def main() -> None:
    """Run the missing jobs, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help=f"number of seeds, from {FIRST_SEED} on")
    parser.add_argument("--fits", type=Path, default=Path("runs/alarms"), help="folder of fits, which are made once")
    given = parser.parse_args()
    done = {(row["way"], row["seed"]) for row in read(PATH)}
    with warnings.catch_warnings(action="ignore"):
        for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
            for way in WAYS:
                if (way, str(seed)) not in done:
                    _append({"way": way, "seed": seed} | outcome(way, seed, given.fits))
    report()


def _append(row: dict[str, Any]) -> None:
    print(row, flush=True)
    is_new = not PATH.exists()
    with PATH.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def is_bad(row: dict[str, str]) -> bool:
    """Whether the fit of a row is worse than a linear model."""
    return float(row["over linear"]) < BAD


def is_good(row: dict[str, str]) -> bool:
    """Whether the fit of a row is about as good as a linear model, or better."""
    return float(row["over linear"]) >= GOOD


def report() -> None:
    """Write the page from the rows."""
    rows = read(PATH)
    lines = [
        "# Bad fits, and whether the line at their end names them",
        "",
        "Made by `uv run python -m benchmarks.alarms`; its first lines say how. The difference to a linear model is a",
        "mean over seeds, in nats an example, on new data.",
        "",
    ]
    for text, chosen in (("bad", is_bad), ("good", is_good)):
        own = [row for row in rows if chosen(row)]
        lines.append(f"- {sum(row['named'] == 'True' for row in own)} of {len(own)} {text} fits were named.")
    checks = [float(row["seconds of the check"]) for row in rows]
    lines += [f"- The check took {np.median(checks):.2f} s (median), {max(checks):.1f} s at most.", ""]
    lines += ["| way | over linear | named | bad fits | good fits |", "|---|---|---|---|---|"]
    for way in WAYS:
        own = [row for row in rows if row["way"] == way]
        if own:
            mean = np.mean([float(row["over linear"]) for row in own])
            named = sum(row["named"] == "True" for row in own)
            lines.append(
                f"| {way} | {mean:.2f} | {named} of {len(own)} | {sum(map(is_bad, own))} | {sum(map(is_good, own))} |"
            )
    PATH.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
