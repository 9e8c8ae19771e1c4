"""Every likelihood by its name alone on 200 simulated rows.

Targets are drawn from the likelihood itself around a function that is not linear, so the best log score is known.
Beside the network stands the linear model of the same likelihood. Nothing is set but the likelihood, and nothing was
chosen on these seeds (100 and up).
"""

import time
from statistics import mean, median

import torch

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen, short
from benchmarks.problems import drawn
from benchmarks.rows import Row, grid
from benchmarks.targets import LIKELIHOODS, ROWS
from pyrobnn.verdict.baselines import fit_baselines

KEY = ("likelihood", "seed")
OPTIONS = {"seeds": 5}


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
        if same := chosen(rows, likelihood=name):
            scores = [f"{mean(row[column] for row in same):.2f}" for column in ("log_score", "linear", "truth")]
            ways = [way(row) for row in same]
            noise = sorted(row["noise"] for row in same if "noise" in row)
            shown = f"{median(noise):.2f} ({noise[0]:.2f} to {noise[-1]:.2f})" if noise else ""
            seconds = f"{mean(row['seconds'] for row in same):.0f}"
            cells.append([name, *scores, f"{mean(ways):.2f}", f"{min(ways):.2f}", shown, seconds])
    columns = ["likelihood", "network", "linear", "truth", "way", "least way", "noise", "seconds"]
    return Page("Every likelihood by its name alone", about, grid(columns, cells))


def way(row: Row) -> float:
    """Return the share of the way from the linear model to the truth that a fit has come."""
    return (row["log_score"] - row["linear"]) / (row["truth"] - row["linear"])
