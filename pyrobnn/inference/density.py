"""The shape of the noise where nobody chose it: a few likelihoods, judged by rows that their fits have not seen."""

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.random import derive
from pyrobnn._core.tables import LEAST_AMOUNT
from pyrobnn._core.waiting import waiting
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import drawn_together, same_inputs
from pyrobnn.inference import defaults
from pyrobnn.inference.default_parts import Parts, is_skewed, make_model, parts_for, shortened
from pyrobnn.inference.fit import fit_in_silence
from pyrobnn.inference.method import Run
from pyrobnn.inference.several.ensemble import Ensemble
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.verdict.comparison import complaint

_SHAPES = (
    likelihoods.StudentT(scale="heteroscedastic", df="learned"),
    likelihoods.MixtureDensity(components=2),
    likelihoods.MixtureDensity(components=3),
)
"""Among them are wide tails, noise that depends on the input, skewness and several branches."""
_USUAL = (likelihoods.Gaussian(), likelihoods.LogNormal())
"""Defaults, rivals of each other for positive targets with a tail to the right, whose errors may be in per cent."""
_TAIL, _FEWEST_AMOUNTS = 0.5, 60
"""Skewness from which positive targets have such a tail, and the fewest rows, of which a third is held out."""
_COUNTS = (likelihoods.Poisson(), likelihoods.NegativeBinomial(dispersion="learned"))
"""For whole numbers that repeat. A density of any shape, trained on them, would pile up on these values."""
_CHANCE = NormalDist().cdf(-2)
"""That a single rival without a gain is ahead by two standard errors; for several, it is shared (Bonferroni)."""
_OF_PART = "Of a fit to two thirds of the rows:"
_LEAST_MASS = 1e-9
"""Probability of a whole number below which the difference of distribution functions has lost its digits."""
_NET, _PRIOR = nets.MLP(hidden=(50,), dtype="float64"), priors.Normal(scale="fan_in")
_QUICK = SVI(guide="map", steps=3000, batch_size=64, patience=5)
"""A point estimate of a second or less, which ends at its best validation score. ReLU units bend sooner than smooth
ones, which stay at lines for a thousand steps."""
_GUIDE = guides.Laplace(structure="kron")
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


@dataclasses.dataclass(frozen=True)
class Compared:
    """What rows held out say.

    Attributes:
        density: the likelihood that is clearly better than that of the default parts, with parts that suit it; or None.
        complaint: what is wrong with predictions of the rows held out by the parts that are taken (`complaint`), where
            they were fitted without these rows; or None.
    """

    density: Density | None = None
    complaint: str | None = None


def compare_densities(data: Data, default: Parts, run: Run) -> Compared:
    """Compare likelihoods where nobody chose one.

    Fits to two thirds of the rows are scored on the last third. A log-normal and a Gaussian are fitted by their default
    parts, in fewer rounds; the better one becomes the default. Of the other likelihoods quick point estimates are
    scored. If the best gains on the default's likelihood, both are fitted as they would be in the end: an ensemble of
    five Laplace approximations, trained for as many steps as did best, and the default parts, first in fewer rounds,
    and fully if the ensemble gains on that. A gain counts if it is above 0.02 nats a row and one standard error between
    the first two, which have as many numbers; else 2.3 and 2.4 for the best of two and three rivals (Bonferroni).

    Args:
        data: the rows to train on. Only some are looked at: standardised, targets in one column and without weights.
            Positive targets with a tail, from 60 to 2,000 rows, get both a log-normal and a Gaussian. From
            `defaults.FEWEST_ROWS_OF_DENSITY` rows on, mostly distinct targets get the likelihoods of real numbers;
            counts, which are whole numbers from 0 up that repeat, with a median below 100, get those of counts. They
            are scored by their probability, which is the mass between y - 1/2 and y + 1/2 under a density.
        default: the parts to beat.
        run: the seed, the device and the engine.
    """
    shapes = _rivals(data, default)
    if not shapes:
        return Compared()
    with waiting("comparing likelihoods on rows held out", shown=run.progress):
        return _better(data, default, shapes, dataclasses.replace(run, progress=False))


def _better(data: Data, default: Parts, shapes: tuple[Any, ...], run: Run) -> Compared:
    (rows,), _ = drawn_together(same_inputs(data.x), [len(data) // 3], seed=derive(run.seed, "density"))
    is_held_out = torch.zeros(len(data), dtype=torch.bool)
    is_held_out[rows] = True
    judge = _Judge(data[~is_held_out], data[is_held_out], run, by_mass=shapes is _COUNTS)
    usual_fit, density = None, None
    if (other := next((shape for shape in shapes if shape in _USUAL), None)) is not None:
        parts = parts_for("regression", likelihood=other, num_data=len(data), num_inputs=data.x[0].numel())
        usual_fit, rival = (judge.fit(each | {"method": shortened(each["method"])}) for each in (default, parts))
        gains = judge.scores(rival) - judge.scores(usual_fit)
        mean, error = _mean(gains)
        if mean > max(defaults.LEAST_GAIN_OF_DENSITY, error):
            usual_fit, default, density = rival, parts, Density(parts, mean, error)
    rivals = [shape for shape in shapes if shape not in _USUAL]
    if usual_fit is not None and not rivals:
        return judge.compared(usual_fit, density)
    usual, _ = judge.quick(default["likelihood"])
    tried = {shape: judge.quick(shape) for shape in rivals}
    best = max(rivals, key=lambda shape: float(tried[shape][0].mean().nan_to_num(-math.inf)))
    if not _is_clear(tried[best][0] - usual, len(rivals)):
        if usual_fit is None and judge.by_mass:
            usual_fit = judge.fit(default | {"method": shortened(default["method"])})
        return Compared() if usual_fit is None else judge.compared(usual_fit, density)
    parts = _ensemble_parts(best, tried[best][1])
    ensemble = judge.fit(parts)
    for method in (shortened(default["method"]), default["method"]):
        usual_fit = judge.fit(default | {"method": method})
        gains = judge.scores(ensemble) - judge.scores(usual_fit)
        if not _is_clear(gains, len(rivals)):
            return judge.compared(usual_fit, density)
    return judge.compared(ensemble, Density(parts, *_mean(gains)))


def _ensemble_parts(likelihood: Any, steps: int) -> Parts:
    """Return an ensemble of five Laplace approximations, trained for a number of steps."""
    member = dataclasses.replace(_QUICK, guide=_GUIDE, steps=steps, patience=None)
    return {
        "net": _NET,
        "prior": _PRIOR,
        "likelihood": likelihood,
        "method": Ensemble(member, members=5, anchored=True),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class _Judge:
    """Fits to two thirds of the rows, and their scores on the last third.

    Attributes:
        train: the rows to train on.
        rest: the rows held out.
        run: the seed, the device and the engine.
        by_mass: whether targets are whole numbers that repeat, to be scored by their probability.
    """

    train: Data
    rest: Data
    run: Run
    by_mass: bool

    def quick(self, likelihood: Any) -> tuple[Tensor, int]:
        """Return the log score of each row held out under a point estimate, and its best number of steps."""
        parts = {"net": _NET, "prior": _PRIOR, "likelihood": likelihood, "method": _QUICK}
        try:
            posterior = self.fit(parts, validation=self.rest)
        except FloatingPointError:
            return torch.full((len(self.rest),), -math.inf, dtype=torch.float64), 0
        best = int(np.argmax(posterior.history.validation_scores))
        return self.scores(posterior), posterior.history.validation_steps[best]

    def fit(self, parts: Parts, **options: Any) -> Any:
        """Return the fit of some parts."""
        model = make_model(parts["net"], parts["prior"], parts["likelihood"], self.train)
        return fit_in_silence(model, self.train, parts["method"], dataclasses.replace(self.run, **options))

    def compared(self, posterior: Any, density: Density | None = None) -> Compared:
        """Return what is taken, with the complaint about its fit."""
        text = complaint(posterior, self.train, self.rest)
        return Compared(density, text and f"{_OF_PART} {text}")

    def scores(self, posterior: Any) -> Tensor:
        """Return the log score of each row held out."""
        y, prediction = self.rest.y, posterior.predict(self.rest.x)
        scores: Tensor = prediction.log_prob(y).double().cpu()
        if not (self.by_mass and prediction.is_continuous):
            return scores
        below, above = (prediction.cdf(y.double() + half).flatten().double().cpu() for half in (-0.5, 0.5))
        mass = above - below
        return torch.where(mass > _LEAST_MASS, mass.log(), scores.clamp_max(math.log(_LEAST_MASS)))


def _rivals(data: Data, default: Parts) -> tuple[Any, ...]:
    """Return the likelihoods to compare with the default's; none for data that are not suited."""
    y = data.y.double()
    if y.ndim > 1 or data.weights is not None or not data.standardize:
        return ()
    is_count = bool((y >= 0).all()) and torch.equal(y, y.round()) and y.median() < LEAST_AMOUNT
    are_many, are_distinct = len(y) >= defaults.FEWEST_ROWS_OF_DENSITY, len(y.unique()) > len(y) / 2
    if is_count and not are_distinct:
        return _COUNTS if are_many else ()
    shapes = _SHAPES if are_many and are_distinct and data.y.is_floating_point() else ()
    has_rows = _FEWEST_AMOUNTS <= len(y) <= defaults.MOST_ROWS_OF_SHORT_EVIDENCE
    are_amounts = has_rows and not is_count and is_skewed(data.y, _TAIL)
    return (*(one for one in _USUAL if are_amounts and one != default["likelihood"]), *shapes)


def _is_clear(gains: Tensor, num_rivals: int) -> bool:
    """Return whether the best of several gains more than chance gives the best."""
    mean, error = _mean(gains)
    errors = NormalDist().inv_cdf(1 - _CHANCE / num_rivals)
    return mean > max(defaults.LEAST_GAIN_OF_DENSITY, errors * error)


def _mean(gains: Tensor) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return float(gains.mean()), float(gains.std()) / math.sqrt(len(gains))
