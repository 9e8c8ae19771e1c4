"""Whether errors depend on an input more than predictions say."""

import dataclasses
import math

import numpy as np
from torch import Tensor

from pyrobnn._core.remedies import Remedy
from pyrobnn.data.directions import Directions
from pyrobnn.data.gaussian_process import Residuals
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.findings import WEAK, Finding
from pyrobnn.verdict.remedies import (
    Fitted,
    Try,
    amounts,
    ensemble,
    heavier_tails,
    larger,
    longer,
    open_to,
    other_noise,
    spread_counts,
    tuned_prior,
    varying_noise,
)

_LEVEL = 0.0027
"""The chance of a warning for a fit that is right, over all columns: three standard errors in both tails."""
_WHERE = (
    ("where {name!r} is low", "where {name!r} is high"),
    ("where {name!r} is near its median", "where {name!r} is far from its median"),
)
_OF_SPREAD: tuple[Try, ...] = (spread_counts, varying_noise, ensemble)
_OF_BIAS: tuple[Try, ...] = (longer, larger, tuned_prior, ensemble)


def with_cause(findings: list[Finding], fit: Fitted | None, varies: float = 1.0) -> list[Finding]:
    """Return findings with noise that varies as the remedy in place of heavy tails, where errors are seen to vary.

    A mixture of narrow and wide noise has heavy tails, and other tails do not mend it. Errors are seen to vary by a
    warning, or along the training inputs. These say nothing against a log-normal: its errors vary too. Where not even a
    weak sign is seen, noise that varies is no remedy.

    Args:
        findings: the findings.
        fit: the fit, for remedies.
        varies: the p-value of the size of errors along an input, as of `input_finding`.
    """
    varying = None if fit is None else varying_noise(fit)
    if fit is None or varying is None:
        return findings
    tails = set(open_to(fit, (other_noise, heavier_tails)))
    vary = (one for one in findings if one.name in ("noise", "inputs") and one.kind == "warning")
    if not any(one.remedies[:1] == (varying,) for one in vary):
        tails -= {amounts(fit)}
        if not any(tails.intersection(one.remedies) for one in findings) or not _vary(fit):
            p_values = [varies, *(one.p_value for one in findings if one.name == "noise" and one.p_value is not None)]
            return findings if min(p_values) < WEAK else [_without(one, varying) for one in findings]
    mended = [[varying if each in tails else each for each in one.remedies] for one in findings]
    pairs = zip(findings, mended, strict=True)
    return [dataclasses.replace(one, remedies=tuple(dict.fromkeys(remedies))) for one, remedies in pairs]


def _without(finding: Finding, remedy: Remedy) -> Finding:
    return dataclasses.replace(finding, remedies=tuple(one for one in finding.remedies if one != remedy))


def _vary(fit: Fitted) -> bool:
    """Return whether the size of errors around a smooth function of the training inputs depends on one of them."""
    if fit.x is None or fit.y is None or fit.y.ndim > 1:
        return False
    return Residuals.of(Data(fit.x, fit.y), fit.posterior.seed).vary_with_inputs


def input_finding(directions: Directions, away: Tensor, fit: Fitted | None) -> tuple[Finding, float]:
    """Say along which column errors change most: their size, in units of the predicted spread, or their sign.

    Rank correlations with each column, and with the distance from its median, are compared with those of simulated
    targets by Student's t, at 0.0027 for all columns together (Bonferroni).

    Args:
        directions: the columns; at least one.
        away: ranks of targets in their predictions less 1/2, (N,) or (N, K), after which come those of R sets of
            simulated targets: (1 + R, N) or (1 + R, N, K).
        fit: the fit, for remedies.

    Returns:
        The finding, and the p-value of the size of errors, whether or not their sign is related more closely.
    """
    from scipy.stats import t as student

    value, *others = directions.related(away)
    null = np.stack(others)
    expected, error = null.mean(0), null.std(0, ddof=1) * math.sqrt(1 + 1 / len(null))
    errors = np.nan_to_num((value - expected) / error.clip(1e-9))
    at = np.unravel_index(np.abs(errors).argmax(), errors.shape)
    of_size, (is_far, column) = bool(at[0]), divmod(int(at[1]), len(directions.names))
    p_value, of_sizes = (
        min(1.0, errors.size * 2 * float(student.sf(most, len(null) - 1)))
        for most in (abs(errors[at]), np.abs(errors[1]).max())
    )
    is_up, name = bool(errors[at] > 0), directions.names[column]
    where = _WHERE[is_far][is_up or not of_size].format(name=name)
    grows, side = f"errors are larger {where}", "above" if is_up else "below"
    what = "of their size, in units of the predicted spread," if of_size else "of the targets' ranks in the predictions"
    direction = f"{'the distance from the median of ' if is_far else ''}{name!r}"
    due = f"{value[at]:z.2f}, where {expected[at]:z.2f} ± {error[at]:.2f} is expected"
    numbers = f"the rank correlation {what} with {direction} is {due}, the clearest of {errors.size}"
    if p_value >= _LEVEL:
        is_fine, end = p_value >= WEAK, f"that errors depend on an input: {numbers}."
        sign = "No clear sign" if is_fine else "A weak sign, which may be chance,"
        return Finding("inputs", "fine" if is_fine else "note", f"{sign} {end}", p_value), of_sizes
    if of_size:
        text = (
            f"{grows[0].upper()}{grows[1:]}: {numbers}. The noise is not the same everywhere, or not as the fit says."
        )
        plain, tries = f"its {grows}, more than it says", _OF_SPREAD
    else:
        text = f"Targets lie {side} the predictions {where}, more than elsewhere: {numbers}. The fit misses a trend."
        plain, tries = f"its predictions are too {'low' if is_up else 'high'} {where}", _OF_BIAS
    return Finding("inputs", "warning", text, p_value, () if fit is None else open_to(fit, tries), plain), of_sizes
