"""Bayes by Backprop on MNIST beside a plain network: accuracy, and how well doubt tells Fashion-MNIST from digits.

    uv run python benchmarks/mnist.py

784-128-10 with ReLU, RMSProp with learning rate 0.001 and decay 0.9, batch 64, on the 60,000 training images. Plain:
3000 steps to the mode under N(0, 1). Bayesian: 10,000 steps, rho from -4, scale-mixture prior with pi = 1/4, sigma1 =
e^-1, sigma2 = e^-7. Tested on the 10,000 test images of each set; the area under the ROC curve has the digits as
negatives. Seeds 0, 1 and 2 for fits and draws. Writes benchmarks/results/mnist.md.
"""

import math
from pathlib import Path

import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

import pyrobnn as bnn

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
RMSPROP = {"optimizer": {"type": "rmsprop", "alpha": 0.9}, "lr": 0.001, "batch_size": 64}
PRIORS = {
    "plain": bnn.priors.Normal(1.0),
    "Bayesian": bnn.priors.ScaleMixture(pi=0.25, sigma1=math.exp(-1), sigma2=math.exp(-7)),
}
METHODS = {
    "plain": bnn.SVI(guide="map", steps=3000, **RMSPROP),
    "Bayesian": bnn.SVI(guide=bnn.guides.MeanField(init_rho=-4.0), steps=10_000, **RMSPROP),
}
DRAWS = {"plain": (1,), "Bayesian": (10, 100)}


def auroc(at_home: torch.Tensor, away: torch.Tensor) -> float:
    """Return the probability that an image from elsewhere has the larger value."""
    return float(roc_auc_score([0] * len(at_home) + [1] * len(away), torch.cat([at_home, away])))


def measure(name: str, seed: int, train: bnn.Data, test: bnn.Data, clothes: torch.Tensor) -> list[dict[str, object]]:
    """Fit once and return a row of results for each number of draws."""
    model = bnn.BNN(bnn.MLP(784, [128], 10), prior=PRIORS[name], likelihood="categorical")
    posterior = bnn.fit(model, train, METHODS[name], seed=seed)
    rows = []
    for num_draws in DRAWS[name]:
        home, away = (posterior.predict(x, num_draws=num_draws) for x in (test.x, clothes))
        scores = bnn.score(home, test.y)
        rows.append(
            {
                "network": f"{name}, {num_draws} draws" if name != "plain" else name,
                "accuracy, %": 100 * scores["accuracy"].value,
                "NLL": -scores["log_likelihood"].value,
                "AUROC, entropy": auroc(home.entropy, away.entropy),
                "AUROC, information": auroc(home.mutual_information, away.mutual_information)
                if num_draws > 1
                else math.nan,
                "fit, s": posterior.info["seconds"],
            }
        )
        print(seed, rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure all seeds and write means and ranges."""
    train, test = bnn.datasets.load("mnist").split(0)
    clothes = bnn.datasets.load("fashion-mnist-test").data.x
    rows = [row for seed in SEEDS for name in METHODS for row in measure(name, seed, train, test, clothes)]
    groups = pd.DataFrame(rows).groupby("network", sort=False)
    mean, low, high = groups.mean(), groups.min(), groups.max()
    digits = {"accuracy, %": 2, "fit, s": 0}
    lines = [
        "# Bayes by Backprop on MNIST, 784-128-10",
        "",
        "Made by benchmarks/mnist.py, seeds 0, 1, 2: mean (smallest to largest). AUROC: Fashion-MNIST against digits.",
        "",
        f"| network | {' | '.join(mean.columns)} |",
        "|---|" + "---|" * len(mean.columns),
    ]
    for name in mean.index:
        cells = []
        for column in mean.columns:
            values = [f"{table.loc[name, column]:.{digits.get(column, 3)}f}" for table in (mean, low, high)]
            cells.append("" if values[0] == "nan" else f"{values[0]} ({values[1]} to {values[2]})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    (HERE / "results" / "mnist.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
