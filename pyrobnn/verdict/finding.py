"""Findings: the result of one check in plain numbers, and what is said of it, by a template of words.toml."""

import dataclasses
import functools
import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pyrobnn._core.errors import counted
from pyrobnn._core.remedies import Remedy, Spelling, mended

Severity = Literal["warning", "unjudged", "care", "open", "note", "fine"]
SEVERITIES: tuple[Severity, ...] = ("warning", "unjudged", "care", "open", "note", "fine")
"""From the worst on."""
Facts = dict[str, int | float | str]
_MARKS = {"warning": "!", "note": "-", "fine": "+"}
MEASURES = {
    "bias": "the mean share of a predictive distribution below its target",
    "spread": "the spread of the ranks of targets in their predictions, over that of uniform ones",
    "coverage": "the share of targets inside the central 95 %",
    "confidence": "the share of right labels less the mean confidence",
    "noise": "the rank correlation of the size of errors, in units of the predicted spread, with the median",
    "surprise": "the mean log score in nats",
    "ranking": "the share of the error that is left as the least sure examples are dropped, on average",
}
"""The statistics that are compared with those of a good fit."""
_ROWS = {
    "held out": ("held-out example", ""),
    "left out": ("training example", ", each left out of the fit"),
    "training": ("training example", ", which flatter the fit"),
}


class Template(NamedTuple):
    """A clause, what follows it with the numbers of a finding, names of remedies, and advice for the page."""

    lead: str
    rest: str = "."
    tries: tuple[str, ...] = ()
    advice: str = ""


@functools.cache
def templates() -> dict[str, Template]:
    """Return the templates by their key."""
    tables = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
    return {name: Template(**table) for name, table in tables.items()}


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
        """The key of its template: the name, with the severity or the side of the value if needed."""
        side = "low" if self.value is None or self.expected is None or self.value <= self.expected else "high"
        keys = f"{self.name} {self.severity}", self.name, f"{self.name} {side}"
        return next(each for each in keys if each in templates())

    def _written(self) -> tuple[str, str]:
        template, numbers = templates()[self.key], dict[str, Any](self.facts)
        numbers |= {"value": self.value, "expected": self.expected, "error": self.error}
        if "basis" in numbers:
            noun, more = _ROWS[numbers["basis"]]
            numbers["rows"] = f"{counted(int(numbers['num']), noun)}{more}"
        lead, rest = template.lead.format_map(numbers), template.rest
        if ", linear model" in rest and "linear" not in numbers:
            rest = rest.partition(", linear model")[0] + "."
        if self.name not in MEASURES:
            return lead, f"{lead}{rest.format_map(numbers)}"
        measure = MEASURES[self.name]
        shown = "It is {value:.3g}, where {expected:.3g} ± {error:.2g} is expected.".format_map(numbers)
        if self.severity == "fine":
            lead = f"Nothing against the fit in {measure}"
            return lead, f"{lead}. {shown}"
        lead = f"A weak sign, which may be chance, that {_lowered(lead)}" if self.severity == "note" else lead
        return lead, f"{lead}, by {measure}. {shown}"

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
        return _lowered(self.lead)

    def said(self, spelling: Spelling = "python") -> str:
        """Return the text with its numbers, and what to try."""
        return mended(self.text, self.remedy, spelling)

    def __str__(self) -> str:
        return f"{_MARKS[self.kind]} {self.said()}"


def _lowered(clause: str) -> str:
    return clause[:1].lower() + clause[1:]
