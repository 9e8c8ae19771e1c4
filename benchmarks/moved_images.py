"""Images of 28 x 28 pixels, moved whenever they are seen, and the methods by which networks for them are fitted."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks.rows import Row

BATCH, MOST = 128, 2
"""Images in a batch, and the most pixels by which they are moved."""
NUM_DRAWS = 50
COLUMNS = {"accuracy": ("accuracy", 1), "NLL": ("log_likelihood", -1), "ECE": ("ece", 1)}


class Way(NamedTuple):
    """How a network is fitted.

    Attributes:
        method: without its length.
        epochs: passes over the images.
        scale: of the normal prior of all weights.
    """

    method: Any
    epochs: int
    scale: float


RATE: dict[str, Any] = {"lr": 0.006, "schedule": "one_cycle_lr"}
POINT = partial(bnn.SVI, guide="map", **RATE)
NARROW = bnn.guides.MeanField(init_rho=-5.0)
WAYS = {
    "point": Way(POINT, 15, 0.3),
    "mean-field": Way(partial(bnn.SVI, guide=NARROW, kl="analytic", **RATE | {"lr": 0.003}), 20, 0.2),
    "IVON": Way(partial(bnn.IVON, guide=NARROW), 15, 0.2),
    "dropout": Way(partial(bnn.SVI, guide=bnn.guides.Dropout(rate=0.1, per_example=True), **RATE), 15, 0.3),
    "SWAG": Way(lambda steps: bnn.SWAG(POINT(steps=steps)), 15, 0.3),
}


class Moved:
    """Epochs of images in a random order, each moved by up to some pixels up or down, left or right.

    Args:
        data: rows of 784 pixels, with labels.
        seed: of orders and moves.
    """

    def __init__(self, data: bnn.Data, seed: int) -> None:
        x: Any = data.x
        self._x, self._y = x.view(-1, 28, 28), data.y
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self._x) // BATCH

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._x), generator=self.generator)
        for rows in order.split(BATCH)[: len(self)]:
            wide = nn.functional.pad(self._x[rows], (MOST,) * 4).unfold(1, 28, 1).unfold(2, 28, 1)
            down, right = torch.randint(2 * MOST + 1, (2, BATCH), generator=self.generator)
            yield wide[torch.arange(BATCH), down, right].flatten(1), self._y[rows]


def class_probs(posterior: bnn.Posterior, x: Any) -> Tensor:
    """Return predicted probabilities: of the network itself, as mean over draws, or for Laplace by the probit link."""
    if posterior.record.laplace is not None:
        return bnn.functional(posterior, x).class_probs("probit")
    return posterior.predict(x, num_draws=NUM_DRAWS).class_probs


def scored(probs: Tensor, y: Tensor) -> Row:
    """Return the scores of probabilities, (N, 10)."""
    scores = bnn.score(bnn.Prediction(dist.Categorical(probs=probs[None])), y)
    return {column: round(sign * scores[key].value, 4) for column, (key, sign) in COLUMNS.items()}
