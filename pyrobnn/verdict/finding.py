"""Findings: the result of one check in plain numbers, and what is said of it, by a template of words.toml."""

import dataclasses
import functools
import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pyrobnn._core.remedies import Remedy, Spelling, mended

Severity = Literal["warning", "unjudged", "care", "open", "note", "fine"]  # from the worst on
Values = dict[str, int | float | str]
_NO_TEMPLATES = ("sentences", "tries", "rows", "trust", "remedies")  # tables of words.toml with words of another kind
WORDS: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
_MARKS = {"warning": "!", "note": "-", "fine": "+"}


class Template(NamedTuple):
    """What is said of a finding of some severities: a clause, and what follows it.

    `measure` is what a statistic measures, `tries` are the names of remedies in their order, `otherwise` is the last in
    words, and `advice` is for the page of warnings. Of warnings a "cause" is mended before effects, and a "leak" first.
    A verdict tells of a note as a `detail`, always or if it is good, and a good one begins with `trust`.
    """

    lead: str
    severities: tuple[Severity, ...] = ("warning",)
    rest: str = ""
    measure: str = ""
    tries: tuple[str, ...] = ()
    otherwise: str = ""
    advice: str = ""
    role: Literal["leak", "cause", "effect"] = "effect"
    detail: Literal["always", "if good", "never"] = "never"
    trust: str = ""


@functools.cache
def templates() -> dict[str, Template]:
    """Return the templates by their key."""
    named, found = WORDS["sentences"] | WORDS["tries"], {}
    for key in (key for key in WORDS if key not in _NO_TEMPLATES):
        found[key] = Template(**{field: named.get(str(text), text) for field, text in WORDS[key].items()})
    return found


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
        key: the key of its template in words.toml, if that is not the name. A key with the severity goes first.

    Examples:
        >>> bnn.diagnostics.Finding("bias", "warning", 0.6, 0.5, 0.02, p=1e-6, key="bias high").in_plain_words
        'targets lie above the predictions'
    """

    name: str
    severity: Severity = "warning"
    value: float | None = None
    expected: float | None = None
    error: float | None = None
    p: float | None = None
    remedy: Remedy | None = None
    facts: Values = dataclasses.field(default_factory=dict)
    key: str = ""

    @property
    def kind(self) -> Literal["warning", "note", "fine"]:
        """The severity in three steps: a warning, a note or fine."""
        return self.severity if self.severity in ("warning", "fine") else "note"

    @property
    def template(self) -> Template:
        """What is said of it."""
        key = self.key or self.name
        template = templates().get(f"{key} {self.severity}") or templates()[key]
        assert self.severity in template.severities, f"no words for {key!r} of the severity {self.severity!r}"
        return template

    def _filled(self, text: str) -> str:
        numbers = {"value": self.value, "expected": self.expected, "error": self.error}
        return text.format_map({"name": self.name, **numbers, **self.facts})

    @property
    def lead(self) -> str:
        """The finding as a clause."""
        return self._filled(self.template.lead)

    @property
    def text(self) -> str:
        """The finding with its numbers."""
        linear = WORDS["sentences"]["@linear model"] if "linear_error" in self.facts else ""
        return self._filled(f"{self.template.lead}{self.template.rest}{linear}.")

    @property
    def in_plain_words(self) -> str:
        """The finding as a clause that goes on in a sentence."""
        return lowered(self.lead)

    def said(self, spelling: Spelling = "python") -> str:
        """Return the text with its numbers, and what to try."""
        return mended(self.text, self.remedy, spelling)

    def __str__(self) -> str:
        return f"{_MARKS[self.kind]} {self.said()}"


def rank(severity: Severity) -> int:
    """Return the place of a severity, or of a kind, among all, from 0 for the worst on."""
    return get_args(Severity).index(severity)


def lowered(clause: str) -> str:
    """Return a clause as it goes on in a sentence."""
    return clause[:1].lower() + clause[1:]
