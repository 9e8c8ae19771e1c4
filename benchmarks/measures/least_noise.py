"""Whether noise="auto" and kl="auto" choose well: how much the gradient varies for the time that a step takes.

Each guide is first fitted with a shared draw and the KL from draws. Then the variance of each entry of the gradient of
the negative ELBO is taken over 48 steps, each with another mini-batch, and added up over the means and over the
parameters of the scales. The times of captured steps are medians over rounds in which the estimators take turns, on
one thread. The gain is the gain in variance divided by the gain in time.
"""

import dataclasses
import statistics
import time
from functools import partial
from typing import Any

import torch
from sklearn.datasets import make_friedman1
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks.captured_fits import begin, captured, running
from benchmarks.measures.harness import Options, Page
from benchmarks.rows import Row, grid
from benchmarks.timing import by_turns
from benchmarks.variance import variance
from pyrobnn.inference.svi.objective import make_elbo

KEY = ("model", "noise", "KL")
NUMBERS = ("loc", "rho", "ms", "slower", "gain loc", "gain rho")
OPTIONS = {"problems": {"nargs": "*", "help": "parts of the names of models; all by default", "default": [""]}}
DRAWS, ROUNDS = 48, 9
KINDS = (("shared", "mc"), ("shared", None), ("flipout", None), ("local", None))
"""Noise and KL; None for the closed form, or quadrature where there is none."""
Kind = tuple[str, str]


@dataclasses.dataclass
class Setup:
    """A model with data.

    Attributes:
        name: network, data and batch.
        data: training data.
        model: the network with its parts.
        batch_size: examples in a mini-batch, or None for all.
        steps: steps of the fit before the gradients are looked at.
        lr: its learning rate.
        kl: the KL without draws.
        timed: steps between two looks at the clock.
    """

    name: str
    data: bnn.Data
    model: bnn.BNN
    batch_size: int | None
    steps: int
    lr: float
    kl: str
    timed: int

    def method(self, noise: Any, kl: Any, **settings: Any) -> bnn.SVI:
        """Return the method for an estimator."""
        guide = bnn.guides.MeanField(noise=noise)
        return bnn.SVI(guide=guide, kl=kl, lr=self.lr, batch_size=self.batch_size, **settings)

    def rows(self) -> int:
        """Return the number of examples in a step."""
        return self.batch_size or len(self.data)


def setups() -> list[Setup]:
    """Return a table as small as yacht, MNIST with a perceptron under two priors, and two convolutional networks."""
    x, y = make_friedman1(308, n_features=6, noise=0.5, random_state=0)
    table, images = bnn.Data(x, y, standardize=True), bnn.datasets.load("mnist").split(0)[0]
    torch.manual_seed(0)
    small = bnn.BNN(bnn.MLP(6, [50], 1), prior=bnn.priors.Normal(0.3), likelihood=bnn.likelihoods.Gaussian("learned"))
    stem = [nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2)]
    mixed = nn.Sequential(*stem, nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    pure = nn.Sequential(*stem, nn.ReLU(), nn.Conv2d(16, 10, 4), nn.Flatten())
    dense = bnn.MLP(784, [400, 400], 10)
    mixture = bnn.priors.ScaleMixture(0.25, 1.0, 0.0025)
    mnist: list[tuple[str, Any, Any, str, int, int]] = [
        ("784-400-400-10, normal prior", dense, bnn.priors.Normal(1.0), "analytic", 600, 5),
        ("784-400-400-10, scale mixture", dense, mixture, "quadrature", 600, 5),
        ("two convolutions and a linear layer", mixed, bnn.priors.Normal(1.0), "analytic", 1000, 10),
        ("three convolutions", pure, bnn.priors.Normal(1.0), "analytic", 1000, 10),
    ]
    return [
        Setup("6-50-1, 308 rows, all in the batch", table, small, None, 3000, 0.01, "analytic", 200),
        Setup("6-50-1, 308 rows, batch 32", table, small, 32, 3000, 0.01, "analytic", 200),
        *(
            Setup(f"MNIST, {name}, batch 128", images, bnn.BNN(net, prior=prior, likelihood="categorical"), *rest)
            for name, net, prior, kl, steps, timed in mnist
            for rest in [(128, steps, 1e-3, kl, timed)]
        ),
    ]


def variances_of(setup: Setup, kind: Kind, trained: dict[str, Tensor]) -> list[float]:
    """Return the variance of the gradient by the means and by the parameters of the scales."""
    posterior, fit = begin(setup.model, setup.data, setup.method(*kind, steps=1))
    guide, elbo = posterior.guide, make_elbo(kind[1], 1)
    guide.load_state_dict(trained)

    def gradient() -> Tensor:
        loss = elbo.differentiable_loss(fit.bnn, guide, *next(fit.batches), num_data=fit.num_data)
        return torch.stack(torch.autograd.grad(loss, [guide.loc, guide.rho]))

    return variance(gradient, DRAWS).sum(1).tolist()


def times(setup: Setup, kinds: list[Kind]) -> dict[Kind, float]:
    """Return the milliseconds of a captured step of each estimator, by turns."""
    works = {}
    for kind in kinds:
        fit = captured(setup.model, setup.data, setup.method(*kind, steps=100_000))
        works[kind] = partial(fit.advance, setup.timed)
    seconds = by_turns(works, ROUNDS, clock=time.perf_counter)
    return {kind: 1e3 * statistics.median(spent) / setup.timed for kind, spent in seconds.items()}


def jobs(options: Options) -> list[Row]:
    """Return the models."""
    return [
        {"model": setup.name, "noise": [noise for noise, kl in KINDS if kl is None], "KL": setup.kl}
        for setup in setups()
        if any(part in setup.name for part in options.problems)
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each estimator on a model."""
    torch.set_num_threads(1)
    setup = next(setup for setup in setups() if setup.name == job["model"])
    kinds = [(noise, kl or setup.kl) for noise, kl in KINDS]
    method = setup.method("shared", "mc", steps=setup.steps)
    trained = bnn.fit(setup.model, setup.data, method, seed=0, progress=False).guide.state_dict()
    with running(setup.model, setup.rows(), 0, "least noise"):
        chosen = begin(setup.model, setup.data, setup.method("auto", "auto"))[1].method
        variances = {kind: variances_of(setup, kind, trained) for kind in kinds}
        milliseconds = times(setup, kinds)
    rows = []
    for kind in kinds:
        slower = milliseconds[kind] / milliseconds[kinds[0]]
        ratios = [shared / estimate for shared, estimate in zip(variances[kinds[0]], variances[kind], strict=True)]
        numbers = [*ratios, milliseconds[kind], slower, *(ratio / slower for ratio in ratios)]
        row = job | {"noise": kind[0], "KL": kind[1], "chosen": kind == (chosen.guide.noise, chosen.kl)}
        rows.append(row | {name: float(f"{value:.3g}") for name, value in zip(NUMBERS, numbers, strict=True)})
    return rows


def page(rows: list[Row], options: Options) -> Page:
    """Return the table."""
    about = [
        f"Variance of the gradient over {DRAWS} steps (seed 1): that with a shared draw and the KL from draws",
        "divided by that of the estimator, by the means (loc) and by the parameters of the scales (rho);",
        "milliseconds of a captured step on one thread, and how many times slower than the first; the gain in variance",
        "for the time.",
    ]
    cells = [
        [*(row[key] for key in KEY), "auto" * row["chosen"], *(f"{row[name]:.3g}" for name in NUMBERS)] for row in rows
    ]
    header = [*KEY, "chosen", *NUMBERS]
    return Page("Least noise", about, grid(header, cells))
