"""Laplace approximations of a trained network on MNIST: last-layer full, Kronecker and diagonal, before and after.

A 784-400-400-10 ReLU network under the prior N(0, 1 / 10) is trained to its mode on the 60,000 training images (10
epochs of Adam, batch 128, seed 0). Then three Gaussians around it, and the 10,000 test images predicted by each (probit
link); "tuned" has the precisions of the prior, one a site, that maximise the evidence (not for the full one, where it
would take minutes).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro.distributions as dist
from torch import Tensor

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page
from benchmarks.rows import Row, grid
from benchmarks.timing import timed

KEY = ("posterior",)
OPTIONS = {"epochs": 10}
PRECISION = 10.0
COLUMNS = {"accuracy": ("accuracy", 1), "NLL": ("log_likelihood", -1), "ECE": ("ece", 1)}
SETTINGS = {
    "last layer, full": bnn.guides.Laplace(structure="full", sites="last_layer"),
    "kron": bnn.guides.Laplace(structure="kron"),
    "diag": bnn.guides.Laplace(structure="diag"),
}
TUNED = ("kron", "diag")
"""Not the full one: every step of the tuning would factorise a matrix of 4010 weights."""


def row(name: str, make: Callable[[], Any], predict: Callable[[Any], Tensor], test: bnn.Data) -> tuple[Row, Any]:
    """Return a row of results and the posterior."""
    posterior, fit, _ = timed(make)
    probs, predicting, _ = timed(lambda: predict(posterior))
    scores = bnn.score(bnn.Prediction(dist.Categorical(probs=probs[None])), test.y)
    numbers = {column: round(sign * scores[key].value, 4) for column, (key, sign) in COLUMNS.items()}
    seconds = {"fit, s": round(fit, 1), "predict 10,000, s": round(predicting, 1)}
    return {"posterior": name} | numbers | seconds, posterior


def jobs(options: Options) -> list[Row]:
    """Return a single job, since all posteriors are put around the same network."""
    return [{"posterior": ["mode", *SETTINGS, *(f"{name}, tuned" for name in TUNED)]}]


def run(job: Row, options: Options) -> list[Row]:
    """Train, approximate, predict."""
    train, test = bnn.datasets.load("mnist").split(0)
    net = bnn.MLP(784, [400, 400], 10)
    model = bnn.BNN(net, prior=bnn.priors.Normal(PRECISION**-0.5), likelihood="categorical")
    mode = bnn.fit(model, train, bnn.SVI(guide="map", epochs=options.epochs, batch_size=128, lr=1e-3), seed=0)

    def probit(posterior: Any) -> Tensor:
        return bnn.functional(posterior, test.x).class_probs("probit")

    rows = [row("mode", lambda: mode, lambda _: mode.predict(test.x, at_mean=True).class_probs, test)[0]]
    rows[0]["training, s"] = round(mode.record.seconds)
    for name, setting in SETTINGS.items():
        scores, posterior = row(name, partial(setting.around, mode.bnn, train, weights=mode.mean()), probit, test)
        rows.append(scores)
        if name in TUNED:
            tune = partial(bnn.tune_prior, posterior, train, per="site")
            rows.append(row(f"{name}, tuned", tune, probit, test)[0])
    return rows


def page(rows: list[Row], options: Options) -> Page:
    """Return the table."""
    columns = [column for column in rows[0] if column != "training, s"]
    cells = [
        [row["posterior"], *(f"{row[key]:.4f}" for key in COLUMNS), *(f"{row[key]:.1f}" for key in columns[-2:])]
        for row in rows
    ]
    trained = f"Seed 0; training to the mode took {rows[0]['training, s']} s."
    return Page("Laplace on MNIST, 784-400-400-10", [trained], grid(columns, cells))
