"""Findings: what one check says of a fit, in words and numbers, and what to try."""

import dataclasses
from typing import Literal, get_args

from pyrobnn._core.remedies import Remedy, Spelling, mended

Kind = Literal["warning", "note", "fine"]
Cause = Literal[
    "memorised", "learned", "missed", "length", "elbo", "chains", "divergences", "baseline", "prior", "spread",
    "coverage", "groups", "confidence", "bias", "noise", "surprise", "epistemic", "ranking", "mean",
]  # fmt: skip
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""Names of findings that warn: causes stand before their effects, and are mended first."""
Name = Cause | Literal["leak", "held-out data", "linear model", "classes", "k-hat"]
BASELINE: Literal["baseline"] = "baseline"
"""Name of the finding that compares a fit with a constant and a linear model; it comes first."""
_MARKS = {"warning": "!", "note": "-", "fine": "+"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        name: the subject of the check.
        kind: "warning" for a reason not to trust the fit, "note" for information, "fine" otherwise.
        text: a sentence or more.
        p_value: chance of a number as extreme if the fit is good, in both tails; None without a test.
        remedies: what to try, for a reader of Python and for one at the command line.
        plain: the finding as a clause without numbers, for the verdict, where the text is longer.
        is_open: of a note on baselines, whether a gain over a constant that would be of use may be there all the same.
        value, expected, error: the number behind the text, that of a good fit, and the standard error of their
            difference; None if there is none.
    """

    name: Name
    kind: Kind
    text: str
    p_value: float | None = None
    remedies: tuple[Remedy, ...] = ()
    plain: str = ""
    is_open: bool = False
    value: float | None = None
    expected: float | None = None
    error: float | None = None

    @property
    def in_plain_words(self) -> str:
        """The finding as a clause without numbers."""
        lead = self.plain or self.text.removesuffix(".")
        return lead[:1].lower() + lead[1:]

    def said(self, spelling: Spelling = "python") -> str:
        """Return the text with its numbers, and what to try."""
        numbers = ""
        if self.value is not None and self.expected is not None:
            error = "" if self.error is None else f" ± {self.error:.2g}"
            numbers = f" It is {self.value:.3g}, where {self.expected:.3g}{error} is expected."
        return mended(f"{self.text}{numbers}", self.remedies, spelling)

    def __str__(self) -> str:
        return f"{_MARKS[self.kind]} {self.said()}"
