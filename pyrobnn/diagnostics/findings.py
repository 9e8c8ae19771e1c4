"""Findings of a diagnosis: each a sentence, and whether it is a reason to worry."""

import dataclasses
from typing import Literal

from pyrobnn._core.counts import counted
from pyrobnn._core.remedies import Remedy, Spelling, mended

Kind = Literal["warning", "note", "fine"]
HELD_OUT = "held-out data"
"""Name of the finding that few data, or none, were held out."""
BASELINE = "baseline"
"""Name of the finding that compares a fit with a constant and a linear model; it comes first."""
_MARKS = {"warning": "!", "note": "-", "fine": "+"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        name: the subject of the check, such as "elbo" or "bias".
        kind: "warning" for a reason not to trust the fit, "note" for information, "fine" otherwise.
        text: a sentence or more, with the number behind it.
        p_value: chance of a number as extreme if the fit is good, in both tails; None without a test.
        remedies: what to try, for a reader of Python and for one at the command line.
    """

    name: str
    kind: Kind
    text: str
    p_value: float | None = None
    remedies: tuple[Remedy, ...] = ()

    def said(self, spelling: Spelling = "python") -> str:
        """Return the text and what to try."""
        return mended(self.text, self.remedies, spelling)

    def __str__(self) -> str:
        return f"{_MARKS[self.kind]} {self.said()}"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings for and against a fit; str() lists it, warnings first.

    Unless the fit predicts better than a constant and a linear model, the first line says so; beside warnings, where it
    is a note, a later one.

    Attributes:
        findings: all of them, warnings first, then notes.
        false_alarm_rate: the chance that any of the tests warns of a good fit, at most.
    """

    findings: tuple[Finding, ...]
    false_alarm_rate: float

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons not to trust the fit."""
        return tuple(finding.said() for finding in self.findings if finding.kind == "warning")

    @property
    def notes(self) -> tuple[str, ...]:
        """Further findings that a reader should know."""
        return tuple(finding.said() for finding in self.findings if finding.kind == "note")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings that are warnings."""
        return tuple(finding.name for finding in self.findings if finding.kind == "warning")

    @property
    def headlines(self) -> tuple[Finding, ...]:
        """The findings that no reader should miss: warnings, then notes on baselines and on few or no data held out."""
        notes = (BASELINE, HELD_OUT)
        told = [f for f in self.findings if f.kind == "warning" or (f.name in notes and f.kind == "note")]
        return tuple(sorted(told, key=lambda finding: (finding.kind != "warning", finding.name != BASELINE)))

    def __str__(self) -> str:
        num = len(self.warnings)
        head = "nothing speaks against this fit" if num == 0 else counted(num, "warning")
        summary = f"{head} (tests raise a false alarm in at most {self.false_alarm_rate:.0%} of cases)"
        first = [finding for finding in self.headlines[:1] if finding.name == BASELINE]
        others = [finding for finding in self.findings if finding not in first]
        return "\n".join([*map(str, first), summary, *map(str, others)])
