"""Are predictions of held-out targets what they claim to be? Tests whose null distribution the posterior itself gives.

If the posterior is right, held-out targets are one more draw from its joint predictive distribution: weights first,
then all targets with the same weights. So numbers computed from the targets are compared with those of targets
simulated in this way. Unlike a test that takes the examples as independent, this allows for the error that they share
through the weights, and holds its false-alarm rate for small training sets too.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._checks import as_targets
from pyrobnn.data import Data
from pyrobnn.diagnostics.findings import Finding
from pyrobnn.metrics.calibration import pit
from pyrobnn.prediction import Prediction

_INSIDE = 0.95
_NEGLIGIBLE = 1e-4


@dataclasses.dataclass(frozen=True)
class _Words:
    """What to say of a statistic that is too low, too high, or as it should be."""

    low: str
    high: str
    fine: str


_WORDS = {
    "bias": _Words(
        "Targets lie below the predictions: their mean rank in the predictive distribution is {value:.3f}, where 0.5 ± "
        "{error:.3f} is due. The fit is biased, or far too sure of itself: look for a shift between training and test "
        "data, or try a richer guide or an ensemble.",
        "Targets lie above the predictions: their mean rank in the predictive distribution is {value:.3f}, where 0.5 ± "
        "{error:.3f} is due. The fit is biased, or far too sure of itself: look for a shift between training and test "
        "data, or try a richer guide or an ensemble.",
        "Targets lie above and below the predictions as chance has it: mean rank {value:.3f}, where 0.5 ± "
        "{error:.3f} is due.",
    ),
    "spread": _Words(
        "The predictions are too wide: ranks of the targets spread {value:.2f} times as much as they should (1 ± "
        "{error:.2f}). The noise may be over-estimated, or the posterior too vague: train longer, or narrow the prior.",
        "The predictions are too narrow: ranks of the targets spread {value:.2f} times as much as they should (1 ± "
        "{error:.2f}). The noise may be under-estimated, or the guide too tight: learn the noise, or use an ensemble.",
        "Predictions are as wide as they should be: ranks of the targets spread {value:.2f} times as much as uniform "
        "ones, where 1 ± {error:.2f} is due.",
    ),
    "coverage": _Words(
        "The 95 % intervals hold {value:.1%} of the targets, where 95 % ± {error:.1%} are due: they are too narrow.",
        "The 95 % intervals hold {value:.1%} of the targets, where 95 % ± {error:.1%} are due: they are too wide.",
        "The 95 % intervals hold {value:.1%} of the targets, where 95 % ± {error:.1%} are due.",
    ),
    "confidence": _Words(
        "The fit is over-confident: labels are right {value:+.1%} more often than their probabilities say, where ± "
        "{error:.1%} is due. Use an ensemble or a richer guide, or a stronger prior.",
        "The fit is under-confident: labels are right {value:+.1%} more often than their probabilities say, where ± "
        "{error:.1%} is due. The posterior is too vague: train longer, narrow the prior, or tune it by the evidence.",
        "Labels are right {value:+.1%} more often than their probabilities say, where ± {error:.1%} is due.",
    ),
    "surprise": _Words(
        "Targets are less likely than the fit expects of itself: their log score is {value:.2f} nats an example, where "
        "{expected:.2f} ± {error:.2f} is due. It misses something: outliers, a shift, or the wrong likelihood.",
        "Targets are more likely than the fit expects of itself: their log score is {value:.2f} nats an example, where "
        "{expected:.2f} ± {error:.2f} is due. Its predictions are vaguer than the data call for.",
        "Targets are as likely as the fit expects of itself: {value:.2f} nats an example, where {expected:.2f} ± "
        "{error:.2f} is due.",
    ),
}
_SHOWN: dict[str, Callable[[float], float]] = {"bias": lambda away: 0.5 + away}
"""What a reader sees of a statistic, if not its value."""


def statistics_of(prediction: Prediction) -> tuple[str, ...]:
    """Return the names of the statistics that such predictions have."""
    if prediction.has_quantiles:
        return ("bias", "spread", "coverage", "surprise")
    return ("confidence", "surprise") if prediction.is_classification else ("surprise",)


def predictive_findings(prediction: Prediction, y: Any, simulated: Tensor, level: float, *, seed: int) -> list[Finding]:
    """Compare statistics of held-out targets with those of targets simulated from the fit.

    A statistic counts as wrong if Student's t of its distance from the mean of the simulated ones has a p-value below
    `level`.

    Args:
        prediction: predictions at N inputs that were held out.
        y: their targets in original units, (N,) or (N, K).
        simulated: as many targets from each of R draws of the weights that are not those of `prediction`, (R, N, ...).
        level: the p-value below which a statistic counts.
        seed: seed of ranks within counts.
    """
    from scipy.stats import t as student

    targets = as_targets(y, len(prediction))
    statistics = _statistics(prediction, seed)
    observed = statistics(targets)
    repeated = [statistics(each) for each in simulated]
    findings = []
    for name, value in observed.items():
        values = np.array([one[name] for one in repeated])
        expected, error = float(values.mean()), float(values.std(ddof=1)) * math.sqrt(1 + 1 / len(values))
        tails = student.sf(abs(value - expected) / error, len(values) - 1) if error > 0 else 0.5 * (value == expected)
        p_value = 2 * float(tails)
        if name == "coverage":
            p_value = max(p_value, _binomial(value, targets.numel()))
        words = _WORDS[name]
        template = words.fine if p_value >= level else words.high if value > expected else words.low
        text = template.format(value=_SHOWN.get(name, float)(value), error=error, expected=expected)
        findings.append(Finding(name, "fine" if p_value >= level else "warning", text, p_value))
    return findings


def _binomial(share: float, num: int) -> float:
    """Return the p-value of a coverage of independent targets, exact where intervals hold nearly all of a few."""
    from scipy.stats import binomtest

    return float(binomtest(round(share * num), num, _INSIDE).pvalue)


def _statistics(prediction: Prediction, seed: int) -> Callable[[Tensor], dict[str, float]]:
    """Return the function that computes the statistics of targets."""
    if prediction.has_quantiles:

        def own(y: Tensor) -> dict[str, float]:
            away = pit(prediction, y, seed=seed).double() - 0.5
            return {
                "bias": float(away.mean()),
                "spread": float(12 * away.square().mean()),
                "coverage": float((away.abs() <= _INSIDE / 2).double().mean()),
            }

    elif prediction.is_classification:
        label, confidence = prediction.label, prediction.class_probs.amax(-1).double().mean()

        def own(y: Tensor) -> dict[str, float]:
            return {"confidence": float((label == y).double().mean() - confidence)}

    else:

        def own(y: Tensor) -> dict[str, float]:
            return {}

    return lambda y: own(y) | {"surprise": float(prediction.log_prob(y).double().mean())}


def epistemic_finding(prediction: Prediction) -> Finding:
    """Say so if the weights' uncertainty hardly reaches the predictions."""
    epistemic, total = float(prediction.epistemic_variance.mean()), float(prediction.variance.mean())
    if epistemic > _NEGLIGIBLE * total:
        text = f"The uncertainty of the weights makes up {epistemic / total:.1%} of the predictive variance."
        return Finding("epistemic", "fine", text)
    share = f"near zero ({epistemic / total:.1e} of it)" if epistemic > 0 else "zero"
    text = (
        f"The epistemic part of the predictive variance is {share}: the posterior behaves like a single network, as a "
        "point estimate such as MAP does, and says nothing about what more data would teach."
    )
    return Finding("epistemic", "warning", text)


def baseline_finding(prediction: Prediction, y: Any, train: Data) -> Finding | None:
    """Compare the log score with that of a constant prediction; None where that has no plain form.

    The constant is the normal distribution with the mean and variance of the training targets, or their class
    frequencies.
    """
    targets = as_targets(y, len(prediction)).double()
    past = train.y.double()
    if prediction.is_classification and past.ndim == 1:
        counts = torch.bincount(past.long(), minlength=prediction.class_probs.shape[-1]) + 1.0
        constant = float((counts / counts.sum()).log()[targets.long()].mean())
    elif prediction.is_continuous and len(past) > 1:
        law = torch.distributions.Normal(past.mean(0), past.std(0).clamp_min(1e-12))
        constant = float(law.log_prob(targets).sum()) / len(targets)
    else:
        return None
    gain = float(prediction.log_prob(y).double().mean()) - constant
    if gain > 0:
        return Finding(
            "baseline", "fine", f"The log score is {gain:.2f} nats an example above a constant prediction's."
        )
    text = (
        f"The log score is {-gain:.2f} nats an example below that of a constant prediction, which ignores the inputs: "
        "the fit has learned nothing that it can use. The noise may have taken the place of the signal: fix its scale, "
        "narrow the prior, or train longer."
    )
    return Finding("baseline", "warning", text)
