"""What a reader should know before trusting a run: each check returns a sentence, or nothing."""

import math
from collections.abc import Mapping

import numpy as np

from pyrobnn.diagnostics.convergence import FEWEST_DRAWS
from pyrobnn.inference.history import History
from pyrobnn.metrics import Score
from pyrobnn.prediction import Prediction
from pyrobnn.report.chains import Chains

_FEWEST_STEPS = 100
_BLOCKS = 10
_STANDARD_ERRORS = 3.0
_NEGLIGIBLE = 1e-4
_LARGEST_RHAT = 1.01
_SMALLEST_ESS = 400


def collect(
    history: History | None,
    prediction: Prediction,
    scores: Mapping[str, Score],
    num_scored: int,
    chains: Chains | None = None,
) -> tuple[str, ...]:
    """Return the warnings of a run.

    Args:
        history: the record of the fit, if there is one.
        prediction: predictions on the data that were scored.
        scores: scores by name.
        num_scored: number of examples that the scores rest on.
        chains: Markov chains, if the draws come from them.
    """
    coverage = scores.get("coverage_95")
    found = [
        None if history is None else still_moving(history.elbo),
        None if chains is None else not_converged(chains),
        None if chains is None else divergences(chains),
        no_epistemic_part(prediction),
        None if coverage is None else wrong_coverage(coverage, num_scored),
    ]
    return tuple(warning for warning in found if warning)


def still_moving(elbo: np.ndarray) -> str | None:
    """Compare the mean ELBO of the last two tenths of a fit against their noise.

    The noise is estimated from the means of ten blocks in each tenth, so that neighbouring steps may be correlated.
    """
    if len(elbo) < _FEWEST_STEPS:
        return f"The fit has only {len(elbo)} steps, too few to tell whether the ELBO has levelled off."
    size = len(elbo) // 10
    before, last = (_block_means(part) for part in (elbo[-2 * size : -size], elbo[-size:]))
    change = float(last.mean() - before.mean())
    noise = math.sqrt((before.var(ddof=1) + last.var(ddof=1)) / _BLOCKS)
    if abs(change) <= _STANDARD_ERRORS * noise:
        return None
    advice = "training longer" if change > 0 else "a lower learning rate"
    return (
        f"The ELBO was still {'rising' if change > 0 else 'falling'} at the end: between the last two tenths of the "
        f"fit its mean changed by {change:+.4g} nats, against a noise of {noise:.2g}. Consider {advice}."
    )


def _block_means(values: np.ndarray) -> np.ndarray:
    return np.array([block.mean() for block in np.array_split(values, _BLOCKS)])


def not_converged(chains: Chains) -> str | None:
    """Judge chains by R-hat and effective sample sizes of what they predict (Vehtari et al. 2021)."""
    found = chains.convergence
    if found is None:
        return (
            f"Nothing tells whether the Markov chains have converged: R-hat needs two or more of at least "
            f"{FEWEST_DRAWS} draws, here there are {chains.num_chains} of {chains.num_draws}. Raise `num_chains` or "
            "`num_draws`."
        )
    rhat, ess = float(np.max(found.rhat)), float(min(np.min(found.ess_bulk), np.min(found.ess_tail)))
    if not math.isfinite(rhat):
        return "R-hat cannot be computed: at some input the predictions of the chains never change. They are stuck."
    if rhat > _LARGEST_RHAT:
        return (
            f"The Markov chains do not agree yet in what they predict: the largest R-hat is {rhat:.3f}, above "
            f"{_LARGEST_RHAT}. Draw more, or warm up longer."
        )
    if ess < _SMALLEST_ESS:
        return (
            f"The draws of the Markov chains are worth as little as {ess:.0f} independent ones for some prediction; "
            f"{_SMALLEST_ESS} or more are enough. Draw more."
        )
    return None


def divergences(chains: Chains) -> str | None:
    """Say so if draws diverged."""
    if not chains.num_diverging:
        return None
    return (
        f"{chains.num_diverging} of {chains.num_chains * chains.num_draws} draws diverged: some region of the "
        "posterior is too narrow for the step size and not explored. Raise `target_accept`, or choose a smoother prior."
    )


def no_epistemic_part(prediction: Prediction) -> str | None:
    """Say so if the weights' uncertainty hardly reaches the predictions."""
    epistemic, total = float(prediction.epistemic_variance.mean()), float(prediction.variance.mean())
    if epistemic > _NEGLIGIBLE * total:
        return None
    share = f"near zero ({epistemic / total:.1e} of it)" if epistemic > 0 else "zero"
    return (
        f"The epistemic part of the predictive variance is {share}: the posterior behaves like a "
        "single network, as a point estimate such as MAP does, and says nothing about what more data would teach."
    )


def wrong_coverage(coverage: Score, num_scored: int) -> str | None:
    """Say so if the 95 % intervals hold a share of the targets that chance does not explain.

    The standard error is at least that of calibrated intervals, for the estimate is 0 where every target is covered.
    """
    stderr = math.sqrt(0.95 * 0.05 / num_scored)
    if math.isfinite(coverage.stderr):
        stderr = max(stderr, coverage.stderr)
    if abs(coverage.value - 0.95) <= 2 * stderr:
        return None
    meaning = "too narrow" if coverage.value < 0.95 else "too wide"
    return (
        f"The 95 % intervals hold {coverage.value:.1%} of the targets, more than 2 standard errors ({stderr:.1%} each) "
        f"away from 95 %: they are {meaning}."
    )
