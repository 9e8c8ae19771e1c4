"""How long a prediction waits for another thread that fits: seconds, by what that thread does.

Each method runs in a new process, with nothing compiled before, while the main thread predicts again and again.
"""

import statistics
import tempfile
import threading
import time
from typing import Any

import torch

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Row, each, in_process, plain_page, seconds_of, short

KEY = ("during",)
PAUSE = 0.05
"""Seconds between two predictions."""
METHODS: dict[str, tuple[Any, str]] = {
    "eager": (bnn.SVI(steps=3000), "eager"),
    "captured": (bnn.SVI(steps=300_000), "captured"),
    "replicates": (bnn.Ensemble(bnn.SVI(steps=500), members=10), "eager"),
    "captured replicates": (bnn.Ensemble(bnn.SVI(steps=100_000), members=10), "captured"),
    "SWAG": (bnn.SWAG(bnn.SVI(guide="map", steps=500, batch_size=32), steps=500, lr=1e-5), "eager"),
    "NUTS": (bnn.NUTS(warmup=50, num_draws=50, num_chains=2, init="net"), "eager"),
    "HMC": (bnn.HMC(warmup=50, num_draws=50, num_chains=2, init="net"), "eager"),
    "SGLD": (bnn.SGLD(step_size=1e-5, burn_in=1000, num_draws=100, num_chains=4), "eager"),
    "Laplace": (bnn.SVI(guide="laplace", steps=200), "eager"),
    "Laplace, full": (bnn.SVI(guide=bnn.guides.Laplace(structure="full"), steps=200), "eager"),
    "MarginalLikelihood": (bnn.MarginalLikelihood(bnn.SVI(guide="laplace", steps=200), rounds=2), "eager"),
    "EvidenceFramework": (bnn.EvidenceFramework(starts=2, rounds=3), "eager"),
}
"""What the other thread does, with its engine."""
OPTIONS = {"methods": list(METHODS)}
ROWS = {"Laplace": 5000, "Laplace, full": 5000, "MarginalLikelihood": 5000, "EvidenceFramework": 500}
"""Examples that it fits; 100 of others."""


def waits(during: str) -> tuple[list[float], float]:
    """Return the seconds of each prediction during a fit, and of one without."""
    (method, engine), rows = METHODS[during], ROWS.get(during, 100)
    torch.set_num_threads(1)
    x = torch.linspace(-1, 1, rows)[:, None]
    y = torch.sin(6.28 * x[:, 0]) + 0.1 * torch.randn(rows)
    model = bnn.BNN(
        bnn.MLP(1, [50], 1),
        likelihood=bnn.likelihoods.Gaussian("learned" if during == "EvidenceFramework" else 0.1),
        prior=bnn.priors.Normal(1.0),
    )
    posterior = bnn.fit(model, (x, y), bnn.SVI(steps=10), seed=0, engine="eager", progress=False)

    def predict() -> float:
        return seconds_of(lambda: posterior.predict(x[:100], num_draws=100, seed=1))

    alone = statistics.median(predict() for _ in range(20))
    arguments = {"seed": 0, "engine": engine, "progress": False}
    thread = threading.Thread(target=bnn.fit, args=(model, (x, y), method), kwargs=arguments)
    thread.start()
    found = []
    while thread.is_alive():
        found.append(predict())
        time.sleep(PAUSE)
    return found, alone


jobs = each("during", "methods")


def run(job: Row, options: Options) -> list[Row]:
    """Return a row."""
    with tempfile.TemporaryDirectory() as folder:
        found, alone = in_process(waits, job["during"], TORCHINDUCTOR_CACHE_DIR=folder)
    numbers = {"alone": alone, "median": statistics.median(found), "longest": max(found)}
    return [short(job | {"predictions": len(found)} | numbers)]


page = plain_page("How long predictions wait for a fit", "waits", "Seconds on two cores of an x86 server.", {})
