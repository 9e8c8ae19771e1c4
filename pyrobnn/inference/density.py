"""The shape of the noise where nobody chose it: a few likelihoods, judged by rows that their fits have not seen."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.random import derive
from pyrobnn._core.waiting import waiting
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import drawn_together, same_inputs
from pyrobnn.inference import defaults
from pyrobnn.inference.default_parts import Parts, make_model
from pyrobnn.inference.fit import fit_in_silence
from pyrobnn.inference.method import Run
from pyrobnn.inference.scales.evidence_framework import EvidenceFramework
from pyrobnn.inference.several.ensemble import Ensemble
from pyrobnn.inference.svi.svi import SVI

_SHAPES = (
    likelihoods.StudentT(scale="heteroscedastic", df="learned"),
    likelihoods.MixtureDensity(components=2),
    likelihoods.MixtureDensity(components=3),
)
"""Among them are wide tails, noise that depends on the input, skewness and several branches."""
_NET, _PRIOR = nets.MLP(hidden=(50,), dtype="float64"), priors.Normal(scale="fan_in")
_QUICK = SVI(guide="map", steps=3000, batch_size=64, patience=5)
"""A point estimate of a second or less, which ends at its best validation score. ReLU units bend sooner than smooth
ones, which stay at lines for a thousand steps."""
_GUIDE = guides.Laplace()
"""Around five anchored modes: away from the data three times the epistemic deviation of five point estimates (1.0 to
2.1, where these have 0.3 to 0.5 and the default has 1.6 to 3.4), at a log score 0.02 lower on five made-up tables."""


@dataclasses.dataclass(frozen=True)
class Density:
    """A likelihood that predicts rows held out clearly better than the default parts do.

    Attributes:
        parts: the likelihood with a network, a prior and a method.
        gain: how much higher its mean log score is, in nats a row.
        error: the standard error of the gain over rows.
    """

    parts: Parts
    gain: float
    error: float

    @property
    def reason(self) -> str:
        """Why it was chosen, to follow the name of the likelihood in a sentence."""
        return f", {self.gain:.2f} ± {self.error:.2f} nats a row better on rows held out than the default"


def better_density(data: Data, default: Parts, run: Run) -> Density | None:
    """Return the likelihood that is clearly better than that of the default parts, with parts that suit it; or None.

    A quick point estimate of each likelihood on two thirds of the rows is scored on the last third. If the best gains
    on the default's likelihood, both are fitted to the two thirds as they would be in the end: an ensemble of five
    Laplace approximations, trained for as many steps as did best, and the default parts, first in fewer rounds, and
    fully if the ensemble gains on that. The last third decides. A gain counts if it is above 0.02 nats a row and two
    standard errors.

    Args:
        data: the rows to train on. Only some are looked at: real targets in one column, mostly distinct and without
            weights, standardised, from `defaults.FEWEST_ROWS_OF_DENSITY` rows on. A density of any shape would pile up
            on values that repeat.
        default: the parts to beat.
        run: the seed, the device and the engine.
    """
    if not _is_suited(data):
        return None
    with waiting("comparing likelihoods on rows held out", shown=run.progress):
        return _better(data, default, dataclasses.replace(run, progress=False))


def _better(data: Data, default: Parts, run: Run) -> Density | None:
    (rows,), _ = drawn_together(same_inputs(data.x), [len(data) // 3], seed=derive(run.seed, "density"))
    is_held_out = torch.zeros(len(data), dtype=torch.bool)
    is_held_out[rows] = True
    train, rest = data[~is_held_out], data[is_held_out]
    usual, _ = _quick(default["likelihood"], train, rest, run)
    tried = {shape: _quick(shape, train, rest, run) for shape in _SHAPES}
    best = max(tried, key=lambda shape: float(tried[shape][0].mean().nan_to_num(-math.inf)))
    if not _is_clear(tried[best][0] - usual):
        return None
    member = dataclasses.replace(_QUICK, guide=_GUIDE, steps=tried[best][1], patience=None)
    parts = {
        "net": _NET,
        "prior": _PRIOR,
        "likelihood": best,
        "method": Ensemble(member, members=5, anchored=True),
    }
    scores = _scores(_fit(parts, train, run), rest)
    for method in (_shortened(default["method"]), default["method"]):
        gains = scores - _scores(_fit(default | {"method": method}, train, run), rest)
        if not _is_clear(gains):
            return None
    return Density(parts, *_mean(gains))


def _shortened(method: Any) -> Any:
    """Return the default method for less than half the time; a single start would see too little."""
    shorter = {"rounds": 3, "iterations": 75} if isinstance(method, EvidenceFramework) else {"rounds": 1}
    return dataclasses.replace(method, **shorter)


def _is_suited(data: Data) -> bool:
    if len(data) < defaults.FEWEST_ROWS_OF_DENSITY or data.y.ndim > 1 or data.weights is not None:
        return False
    return data.standardize and data.y.is_floating_point() and len(data.y.unique()) > len(data) / 2


def _quick(likelihood: Any, train: Data, rest: Data, run: Run) -> tuple[Tensor, int]:
    """Return the log score of each row held out, and the best number of steps."""
    parts = {"net": _NET, "prior": _PRIOR, "likelihood": likelihood, "method": _QUICK}
    posterior = _fit(parts, train, dataclasses.replace(run, validation=rest))
    best = int(np.argmax(posterior.history.validation_scores))
    return _scores(posterior, rest), posterior.history.validation_steps[best]


def _fit(parts: Parts, train: Data, run: Run) -> Any:
    model = make_model(parts["net"], parts["prior"], parts["likelihood"], train)
    return fit_in_silence(model, train, parts["method"], run)


def _scores(posterior: Any, rest: Data) -> Tensor:
    scores: Tensor = posterior.predict(rest.x).log_prob(rest.y).double().cpu()
    return scores


def _is_clear(gains: Tensor) -> bool:
    mean, error = _mean(gains)
    return mean > max(defaults.LEAST_GAIN_OF_DENSITY, 2 * error)


def _mean(gains: Tensor) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return float(gains.mean()), float(gains.std()) / math.sqrt(len(gains))
