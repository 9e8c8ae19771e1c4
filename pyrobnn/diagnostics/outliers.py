"""Outliers that a likelihood of heavy tails was chosen for."""

from torch import Tensor

from pyrobnn.diagnostics.findings import Finding

_BEYOND = 0.99
"""Share of the targets that an interval holds. The others are outliers if they are more than twice as many."""


def of_outliers(findings: list[Finding], away: Tensor) -> list[Finding]:
    """Return findings on a likelihood of heavy tails, with a note where some targets lie beyond even these.

    Only a mean log score that is too low becomes a note: bias, spread and coverage must be right.

    Args:
        findings: the findings on held-out targets.
        away: ranks of the targets in their predictions less 1/2, (N,) or (N, K).
    """
    num, due = int((away.abs() > _BEYOND / 2).sum()), (1 - _BEYOND) * away.numel()
    if [one.name for one in findings if one.kind == "warning"] != ["surprise"] or num <= 2 * due:
        return findings
    text = (
        f"{num} of {away.numel()} targets are outliers: beyond intervals of {_BEYOND:.0%}, where {due:.1f} are "
        "expected. The likelihood keeps them from bending the fit, and the other predictions have no clear fault. The "
        "share of variance explained says little beside outliers."
    )
    return [Finding("surprise", "note", text) if one.name == "surprise" else one for one in findings]
