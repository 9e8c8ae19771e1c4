"""Sparse linear regression under shrinkage priors."""

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, each
from benchmarks.rows import Row, grid
from pyrobnn import priors

TITLE = (
    "Sparse linear regression under shrinkage priors: which of the inputs matter, and what that is worth in new data."
)
ABOUT = """\
20 of 200 inputs matter, with weights of size 1 to 2 and either sign; noise 1, known; 150 examples to train on and 2000
to test on; mean-field guides. Means and standard errors over 10 data sets, whose fits run side by side as replicates.
"Useful found" counts the useful inputs among the 20 of the largest posterior means. The test log-likelihood is that of
one example; under the true weights it is -1.42."""
KEY = ("prior",)
NUM_INPUTS, NUM_USEFUL, NUM_TRAIN, NUM_TEST, NUM_SETS = 200, 20, 150, 2000, 10
STEPS = 5000
GLOBAL = NUM_USEFUL / (NUM_INPUTS - NUM_USEFUL) / math.sqrt(NUM_TRAIN)
"""The scale that Piironen & Vehtari (2017) advise for this number of useful inputs and noise 1."""
PRIORS: dict[str, Any] = {
    "Normal(1)": priors.Normal(1.0),
    "Hierarchical()": priors.Hierarchical(),
    "Laplace(0.3)": priors.Laplace(0.3),
    "StudentT(3, 0.1)": priors.StudentT(3.0, 0.1),
    "SpikeAndSlab(0.1)": priors.SpikeAndSlab(inclusion=0.1),
    "ARD()": priors.ARD(),
    "Horseshoe()": priors.Horseshoe(),
    "RegularizedHorseshoe()": priors.RegularizedHorseshoe(),
    f"RegularizedHorseshoe({GLOBAL:.3f})": priors.RegularizedHorseshoe(GLOBAL),
}
OPTIONS = {"priors": list(PRIORS)}
SCORES = ("test log-likelihood", "RMSE of useful weights", "RMSE of useless weights", "useful found")


def make_data(seed: int) -> tuple[bnn.Data, bnn.Data, torch.Tensor]:
    """Return training data, test data and the weights that made them."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.zeros(NUM_INPUTS)
    signs = torch.where(torch.rand(NUM_USEFUL, generator=generator) < 0.5, -1.0, 1.0)
    weights[:NUM_USEFUL] = signs * (1 + torch.rand(NUM_USEFUL, generator=generator))
    x = torch.randn(NUM_TRAIN + NUM_TEST, NUM_INPUTS, generator=generator)
    data = bnn.Data(x, x @ weights + torch.randn(len(x), generator=generator))
    return data[:NUM_TRAIN], data[NUM_TRAIN:], weights


def fits(prior: Any) -> tuple[list[tuple[float, ...]], torch.Tensor]:
    """Return the scores of the fits to all data sets, and the posterior means of the weights for the first."""
    sets = [make_data(seed) for seed in range(NUM_SETS)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = bnn.BNN(nn.Linear(NUM_INPUTS, 1, bias=False), prior=prior, likelihood=bnn.likelihoods.Gaussian(1.0))
    method = bnn.SVI(steps=STEPS, lr=0.03, schedule={"type": "exponential_lr", "gamma": 1e-2 ** (1 / STEPS)})
    posteriors = bnn.fit_replicates(model, [train for train, _, _ in sets], method, seed=0, progress=False)
    pairs = zip(posteriors, sets, strict=True)
    return [score(posterior, test, weights) for posterior, (_, test, weights) in pairs], _means(posteriors[0])


def score(posterior: bnn.Posterior, test: bnn.Data, weights: torch.Tensor) -> tuple[float, ...]:
    """Return the scores of a fit."""
    means = _means(posterior)
    largest = means.abs().argsort(descending=True)[:NUM_USEFUL]
    errors = (means - weights).square()
    return (
        float(posterior.predict(test.x, num_draws=500).log_prob(test.y).mean()),
        float(errors[:NUM_USEFUL].mean().sqrt()),
        float(errors[NUM_USEFUL:].mean().sqrt()),
        float((largest < NUM_USEFUL).sum()),
    )


def _means(posterior: bnn.Posterior) -> torch.Tensor:
    return posterior.mean()["weight"][0]


jobs = each("prior", "priors")


def run(job: Row, options: Options) -> list[Row]:
    """Fit a prior to all data sets; return means and standard errors of scores, and the weights of the first fit."""
    scores, first = fits(PRIORS[job["prior"]])
    values = torch.tensor(scores, dtype=torch.float64)
    pairs = zip(values.mean(0).tolist(), (values.std(0) / math.sqrt(len(values))).tolist(), strict=True)
    columns = {
        name: [float(f"{mean:.3g}"), float(f"{error:.1g}")] for name, (mean, error) in zip(SCORES, pairs, strict=True)
    }
    return [job | columns | {"weights": [round(value, 3) for value in first.tolist()]}]


def page(rows: list[Row], options: Options) -> Page:
    """Return the table, and a picture of the posterior means of the first data set under each prior."""
    means = {row["prior"]: row["weights"] for row in rows}
    cells = [[row["prior"], *("{:.3g} ± {:.1g}".format(*row[score]) for score in SCORES)] for row in rows]
    lines = [*grid(["prior", *SCORES], cells), "", "![Posterior means of the weights by prior](horseshoe.png)"]
    return Page(TITLE, [ABOUT], lines, {"": picture(means, make_data(0)[2])})


def picture(means: dict[str, list[float]], weights: torch.Tensor) -> Figure:
    """Return a picture of the posterior means of a data set under each prior, beside the true weights."""
    figure = Figure(figsize=(8, 1.2 * len(means)))
    axes = figure.subplots(len(means), 1, sharex=True, sharey=True)
    for axis, (name, values) in zip(axes, means.items(), strict=True):
        axis.vlines(range(NUM_INPUTS), 0, values, color="0.35", linewidth=1)
        axis.plot(range(NUM_USEFUL), weights[:NUM_USEFUL], "_", color="black", markersize=5)
        axis.set_title(name, loc="right", fontsize=8, pad=-8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(f"input; the first {NUM_USEFUL} matter, their weights are the dashes")
    figure.supylabel("posterior mean of the weight", fontsize=9)
    figure.tight_layout(h_pad=0.2)
    return figure
