"""Bayes by Backprop with the scale-mixture prior on MNIST, two hidden layers of 400, 800 and 1200 units.

Images are read from the folder that PYROBNN_DATA names or from shared/data; where they are not, images of noise of the
same shape stand in, the row says so, and has epochs a minute alone. As many epochs as fit into the time of a row.
"""

import time
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.gpu import Checks, measure_of, size
from benchmarks.measures.harness import Options
from benchmarks.rows import Row
from benchmarks.tasks.mnist_scores import UNIT

_BATCH = 128
_SECONDS = 14.0


def checks(options: Options) -> Checks:
    """Yield width by width."""
    for units in (20,) if options.rehearse else (400, 800, 1200):
        yield f"{units} units", partial(_train, options, units)


KEY, OPTIONS, jobs, run, page = measure_of("MNIST on a GPU", checks)


@cache
def _images(num_train: int, num_test: int) -> tuple[bnn.Data, bnn.Data, str]:
    """Return images to train on, images to test on, and what they are."""
    try:
        with mock.patch("pyrobnn.datasets._files.download", side_effect=ConnectionError("nothing is downloaded")):
            train, test = bnn.datasets.load("mnist").split(0)
    except ConnectionError:
        generator = torch.Generator().manual_seed(0)
        parts = [
            bnn.Data(torch.rand(n, 784, generator=generator), torch.arange(n) % 10, standardize=False)
            for n in (num_train, num_test)
        ]
        return parts[0], parts[1], "noise: MNIST is not on this machine"
    train, test = (bnn.Data(part.x / UNIT, part.y, standardize=False) for part in (train[:num_train], test[:num_test]))
    return train, test, "MNIST"


def _train(options: Options, units: int) -> Row:
    train, test, images = _images(size(options, 50_000, 1000), size(options, 10_000, 200))
    per_epoch = len(train) // _BATCH
    limit = _SECONDS if not options.rehearse else 3.0
    began: list[tuple[int, float]] = []

    def stop(progress: Any) -> bool:
        began.append((progress.step, time.perf_counter()))
        return began[-1][1] - began[0][1] > limit

    net = bnn.MLP(784, [units, units], 10)
    prior = bnn.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=float(np.exp(-6)))
    method = bnn.SVI(steps=size(options, 100_000, 200), lr=1e-3, batch_size=_BATCH)
    engine: Any = "captured" if options.device == "cuda" else "eager"
    posterior = bnn.fit(
        bnn.BNN(net, prior=prior, likelihood="categorical"),
        train,
        method,
        seed=0,
        device=options.device,
        engine=engine,
        progress=False,
        callbacks=[stop],
    )
    (first, start), (last, end) = began[0], began[-1]
    rate = 60 * (last - first) / per_epoch / max(end - start, 1e-9)
    row: Row = {"images": images, "epochs": last / per_epoch, "epochs_a_minute": rate}
    row["used"] = posterior.info["engine"]["used"]
    if images != "MNIST":
        return row
    prediction = posterior.predict(test.x, num_draws=size(options, 100, 5))
    return row | {"test_error": 100 * float((prediction.label.cpu() != test.y).double().mean())}
