"""Did a fit fail outright? It has, if it predicts the data that it was trained on worse than a constant does."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyrobnn._core.remedies import Remedy
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.findings import Finding
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.remedies import STANDARDISE, Fitted, longer, open_to

FAILED = "failed"
"""Name of the finding."""
_MOST_EXAMPLES = 1000
_TIMES_WORSE = 2.0
"""Multiple of a constant's loss above which a fit has failed; a fit that was stopped early is near 1."""
_NO_BETTER = 0.98
"""The same for a fit with a learning rate far above the usual."""
_USUAL_RATE = 0.01
"""The learning rate that fits have by default; ten times as much is far above it."""


def failure_finding(posterior: Posterior | Mixture, train: Data, *, num_draws: int) -> Finding | None:
    """Return a warning if predictions of the first 1000 training data are far worse than a constant's; else None.

    Where the learning rate is ten times the usual or more, predictions that are no better than a constant's suffice.
    """
    prediction = posterior.predict(train.x[:_MOST_EXAMPLES], num_draws=num_draws)
    ratio, number = _against_constant(prediction, train.y[:_MOST_EXAMPLES])
    rate = next((_largest(table["lr"]) for table in posterior.record.methods if "lr" in table), None)
    is_fast = rate is not None and rate >= 10 * _USUAL_RATE
    if not ratio > (_NO_BETTER if is_fast else _TIMES_WORSE):
        return None
    word = "worse" if ratio > _TIMES_WORSE else "no better"
    text = f"The fit failed: it predicts its own training data {word} than a constant does ({number})."
    if rate is not None and rate > _USUAL_RATE:
        text += f" The learning rate, {rate:g}, is probably too high."
        setting = f"lr={_USUAL_RATE:g}"
        lower = Remedy(f"lower it, `{setting}`", "lower it", (f"{Fitted(posterior).section}.{setting}",))
        return Finding(FAILED, "warning", text, remedies=(lower,))
    others = () if train.standardize else (STANDARDISE,)
    return Finding(FAILED, "warning", text, remedies=(*open_to(Fitted(posterior), (longer,)), *others))


def _largest(rates: Any) -> float:
    """Return a learning rate, or the largest of several by name."""
    return float(max(rates.values()) if isinstance(rates, Mapping) else rates)


def _against_constant(prediction: Prediction, y: Tensor) -> tuple[float, str]:
    """Return a loss as a multiple of a constant's, NaN if there is none, and the loss in words.

    It is the squared error of the mean for numbers, and the negative log score for classes, where the constant has
    equal probabilities.
    """
    if prediction.is_classification:
        score = float(prediction.log_prob(y).double().mean())
        equal = -math.log(prediction.class_probs.shape[-1])
        return score / equal, f"log score {score:.2g}, where equal probabilities have {equal:.2g}"
    mean, targets = prediction.mean.double().cpu(), y.double().cpu()
    if mean.shape != targets.shape:
        return math.nan, ""
    errors, spread = (targets - mean).square().sum(), (targets - targets.mean(0)).square().sum()
    ratio = float(errors / spread) if spread > 0 else math.nan
    return ratio, f"R2 {1 - ratio:.2g}"
