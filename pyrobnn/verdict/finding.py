"""Findings: the result of one check, in plain numbers."""

import dataclasses
from typing import Literal

from pyrobnn._core.remedies import Remedy, Spelling, mended
from pyrobnn.verdict import words

Severity = Literal["warning", "unjudged", "care", "open", "note", "fine"]
SEVERITIES: tuple[Severity, ...] = ("warning", "unjudged", "care", "open", "note", "fine")
"""From the worst on."""
Facts = dict[str, int | float | str]
_MARKS = {"warning": "!", "note": "-", "fine": "+"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check; str() says it.

    Attributes:
        name: the finding; docs/how-to/warnings.md lists them.
        severity: "warning" for a reason not to trust the fit. Of others a verdict takes notice, too: where nothing was
            held out ("unjudged") or too little ("care"), or the use of a fit is "open".
        value, expected, error: a number, that of a good fit, and the standard error of their difference.
        p: chance of a number as extreme if the fit is good, in both tails; None without a test.
        remedy: what to try.
        facts: further numbers and names of the sentence.

    Examples:
        >>> bnn.diagnostics.Finding("bias", "warning", 0.6, 0.5, 0.02, p=1e-6).in_plain_words
        'targets lie above the predictions'
    """

    name: str
    severity: Severity = "warning"
    value: float | None = None
    expected: float | None = None
    error: float | None = None
    p: float | None = None
    remedy: Remedy | None = None
    facts: Facts = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> Literal["warning", "note", "fine"]:
        """The severity in three steps: a warning, a note or fine."""
        return self.severity if self.severity in ("warning", "fine") else "note"

    @property
    def key(self) -> str:
        """The key of its template and of its remedies."""
        return words.key(self.name, self.severity, self.value, self.expected)

    def _written(self) -> tuple[str, str]:
        numbers = {"value": self.value, "expected": self.expected, "error": self.error, **self.facts}
        return words.written(self.name, self.severity, numbers)

    @property
    def lead(self) -> str:
        """The finding as a clause."""
        return self._written()[0]

    @property
    def text(self) -> str:
        """The finding with its numbers."""
        return self._written()[1]

    @property
    def in_plain_words(self) -> str:
        """The finding as a clause that goes on in a sentence."""
        return words.lowered(self.lead)

    def said(self, spelling: Spelling = "python") -> str:
        """Return the text with its numbers, and what to try."""
        return mended(self.text, self.remedy, spelling)

    def __str__(self) -> str:
        return f"{_MARKS[self.kind]} {self.said()}"
