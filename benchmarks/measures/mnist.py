"""Bayes by Backprop on MNIST beside a plain network: accuracy, and how well doubt tells Fashion-MNIST from digits.

784-128-10 with ReLU, RMSProp with learning rate 0.001 and decay 0.9, batch 64, on the 60,000 training images. Plain:
3000 steps to the mode under N(0, 1). Bayesian: 10,000 steps, rho from -4, scale-mixture prior with pi = 1/4, sigma1 =
e^-1, sigma2 = e^-7. Tested on the 10,000 test images of each set; the area under the ROC curve has the digits as
negatives. Seeds are of fits and draws.
"""

import math
from statistics import mean

import torch

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page
from benchmarks.rows import Row, grid, grouped

KEY = ("network",)
DIGITS = {"accuracy, %": 2, "fit, s": 0}
RMSPROP = {"optimizer": {"type": "rmsprop", "alpha": 0.9}, "lr": 0.001, "batch_size": 64}
PRIORS = {
    "plain": bnn.priors.Normal(1.0),
    "Bayesian": bnn.priors.ScaleMixture(pi=0.25, sigma1=math.exp(-1), sigma2=math.exp(-7)),
}
METHODS = {
    "plain": bnn.SVI(guide="map", steps=3000, **RMSPROP),
    "Bayesian": bnn.SVI(guide=bnn.guides.MeanField(init_rho=-4.0), steps=10_000, **RMSPROP),
}
OPTIONS = {"networks": list(PRIORS), "seeds": 3}
DRAWS = {"plain": (1,), "Bayesian": (10, 100)}


def rows_of(name: str, seed: int, train: bnn.Data, test: bnn.Data, clothes: torch.Tensor) -> list[Row]:
    """Fit once and return a row of results for each number of draws."""
    model = bnn.BNN(bnn.MLP(784, [128], 10), prior=PRIORS[name], likelihood="categorical")
    posterior = bnn.fit(model, train, METHODS[name], seed=seed)
    rows = []
    for num_draws in DRAWS[name]:
        home, away = (posterior.predict(x, num_draws=num_draws) for x in (test.x, clothes))
        scores = bnn.score(home, test.y) | bnn.score_ood(home, away)
        row = {
            "network": _label(name, num_draws),
            "accuracy, %": 100 * scores["accuracy"].value,
            "NLL": -scores["log_likelihood"].value,
            "AUROC, entropy": scores["auroc_entropy"].value,
        }
        if num_draws > 1:
            row["AUROC, information"] = scores["auroc_mutual_information"].value
        rows.append(row | {"fit, s": posterior.record.seconds})
    return rows


def jobs(options: Options) -> list[Row]:
    """Return the networks."""
    return [{"network": [_label(name, num_draws) for num_draws in DRAWS[name]]} for name in options.networks]


def _label(name: str, num_draws: int) -> str:
    return f"{name}, {num_draws} draws" if name != "plain" else name


def run(job: Row, options: Options) -> list[Row]:
    """Return the mean, the smallest and the largest value over seeds, for each number of draws."""
    train, test = bnn.datasets.load("mnist").split(0)
    clothes = bnn.datasets.load("fashion-mnist-test").data.x
    name = job["network"][0].partition(",")[0]
    every = [row for seed in range(options.seeds) for row in rows_of(name, seed, train, test, clothes)]
    rows = []
    for network, same in grouped(every, "network").items():
        columns = {column: [row[column] for row in same] for column in same[0] if column != "network"}
        spread = {column: (mean(values), min(values), max(values)) for column, values in columns.items()}
        digits = {column: [round(value, DIGITS.get(column, 3)) for value in three] for column, three in spread.items()}
        rows.append({"network": network} | digits)
    return rows


def page(rows: list[Row], options: Options) -> Page:
    """Return means and ranges."""
    columns = max(rows, key=len)
    cells = [[_cell(row.get(column, ""), column) for column in columns] for row in rows]
    about = "Mean (smallest to largest) over seeds. AUROC: Fashion-MNIST against digits."
    return Page("Bayes by Backprop on MNIST, 784-128-10", [about], grid(list(columns), cells))


def _cell(value: str | list[float], column: str) -> str:
    if isinstance(value, str):
        return value
    middle, low, high = (f"{number:.{DIGITS.get(column, 3)}f}" for number in value)
    return f"{middle} ({low} to {high})"
