"""What to try first where an alarm may be chance."""

import dataclasses
from collections.abc import Sequence

from pyrobnn.diagnostics.findings import BASELINE, Finding
from pyrobnn.verdict.remedies import OTHER_ROWS, Fitted, varying_noise

_OF_TRAINING = ("elbo", BASELINE)
"""Names of the findings with a p-value that are not about the spread of targets held out."""


def of_chance(findings: Sequence[Finding], fit: Fitted) -> tuple[Finding, ...]:
    """Return findings with other rows held out as the first remedy of an only warning that may be chance.

    Noise that varies is a remedy of a warning where errors are seen to vary, which is a second sign.
    """
    warnings = [finding for finding in findings if finding.kind == "warning"]
    if len(warnings) != 1 or not warnings[0].is_weak or warnings[0].name in _OF_TRAINING:
        return tuple(findings)
    (alarm,) = warnings
    if varying_noise(fit) in alarm.remedies:
        return tuple(findings)
    first = dataclasses.replace(alarm, remedies=tuple(dict.fromkeys((OTHER_ROWS, *alarm.remedies))))
    return tuple(first if finding is alarm else finding for finding in findings)


def of_split(findings: Sequence[Finding], split: int) -> tuple[Finding, ...]:
    """Leave out the remedy of other rows held out where a run has them already, in a split other than the first."""
    if split == 0:
        return tuple(findings)
    return tuple(
        dataclasses.replace(finding, remedies=tuple(one for one in finding.remedies if one != OTHER_ROWS))
        for finding in findings
    )
