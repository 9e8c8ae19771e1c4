"""A diagnosis: findings, the verdict that they lead to, and what to try next."""

import dataclasses
from typing import Literal

from pyrobnn._core.errors import counted
from pyrobnn._core.remedies import Remedy
from pyrobnn.data.leaks import LEAK
from pyrobnn.verdict.judgement import BASELINE, Finding, Kind

Mood = Literal["good", "care", "bad"]
"""Whether a fit can be trusted, may be used with care, if at all, or not yet, as a report colours it."""
HELD_OUT = "held-out data"
"""Name of the finding that few data, or none, were held out: its value is their number."""
LINEAR = "linear model"
"""Name of the finding that a linear model is as good as the fit, or a little better."""
CLASSES = "classes"
"""Name of the finding that a class is never predicted."""
CAUSES = (
    "memorised", "missed", "length", "elbo", "chains", "divergences", BASELINE, "prior", "spread", "coverage",
    "confidence", "bias", "noise", "surprise", "epistemic", "ranking", "mean",
)  # fmt: skip
"""Names of findings that warn: causes stand before their effects, and are mended first."""
TOO_FEW = 10
"""Held-out examples, of a class where there are some, below which nothing is said of predictions for them."""
_CLEAR = 1e-3
"""The p-value from which on a warning may be chance: tests of many fits have such numbers now and then."""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings for and against a fit; str() lists it: the verdict, what to try next, then the findings.

    Attributes:
        findings: all of them, warnings first, then notes.
        false_alarm_rate: the chance that any of the tests of ELBO and calibration warns of a good fit, at most.
        num_held_out: number of held-out examples that were looked at; 0 if it is not known.
    """

    findings: tuple[Finding, ...]
    false_alarm_rate: float
    num_held_out: int = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons not to trust the fit."""
        return tuple(finding.said() for finding in self._of_kind("warning"))

    @property
    def notes(self) -> tuple[str, ...]:
        """Further findings that a reader should know."""
        return tuple(finding.said() for finding in self._of_kind("note"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings that are warnings."""
        return tuple(finding.name for finding in self._of_kind("warning"))

    @property
    def is_trusted(self) -> bool:
        """Whether the verdict is that the fit can be trusted for data like these."""
        return self.mood == "good"

    @property
    def mood(self) -> Mood:
        """Whether the fit can be trusted, may be used with care, if at all, or not yet."""
        return self._trust()[0]

    @property
    def verdict(self) -> str:
        """Whether to trust the fit, and the most important reason, in a sentence or two."""
        return " ".join([self.conclusion, *self.details])

    @property
    def conclusion(self) -> str:
        """Whether to trust the fit, and why, in a sentence, after columns that should not be inputs."""
        asked = [finding.text for finding in self.findings if finding.name == LEAK]
        return " ".join([*asked, self._trust()[1]])

    @property
    def details(self) -> tuple[str, ...]:
        """What a reader of the verdict should know besides, a sentence each."""
        notes = [finding for finding in self._of_kind("note") if self.is_trusted and finding.name == BASELINE]
        clauses = [finding.in_plain_words for finding in (*notes, *self._named(LINEAR, CLASSES))]
        return tuple(f"{clause[:1].upper()}{clause[1:]}." for clause in clauses)

    def _trust(self) -> tuple[Mood, str]:
        mood: Mood = "care"
        total, warnings = len(self.findings), self._of_kind("warning")
        notes = {finding.name: finding for finding in self._of_kind("note")}
        compared = notes.get(BASELINE)
        if warnings:
            first = next((one for one in warnings if one.name == BASELINE), warnings[0])
            warn = "1 of {} checks warns" if len(warnings) == 1 else f"{len(warnings)} of {{}} checks warn"
            clause, end = first.in_plain_words, f" ({warn.format(total)})"
            mood, begin = "bad", "Do not trust it yet"
            if all(finding.p_value is not None and finding.p_value > _CLEAR for finding in warnings):
                mood, begin = "care", "It is of little use yet" if first.name == BASELINE else "Use it with care"
                end = f", though this may be chance{end}" if len(warnings) == 1 else end
        elif HELD_OUT in notes:
            clause, end = notes[HELD_OUT].in_plain_words, ""
            begin = "Whether it can be trusted is open" if notes[HELD_OUT].value == 0 else "Use it with care"
        elif compared is not None and (compared.is_open or compared.remedies):
            clause, end = compared.in_plain_words, ""
            begin = "Whether it is of use is open" if compared.is_open else "It is of little use yet"
        else:
            on = f" on {counted(self.num_held_out, 'held-out example')}" if self.num_held_out else ""
            mood = "good"
            begin = f"{'Its probabilities' if CLASSES in notes else 'It'} can be trusted for data like these"
            clause, end = f"none of {total} checks{on} gave a reason not to", ""
        return mood, f"{begin}: {clause}{end}."

    @property
    def next_step(self) -> Remedy | None:
        """What to try first: the first remedy of the first cause; None where there is nothing to mend."""
        warnings = sorted(
            self._of_kind("warning"), key=lambda one: CAUSES.index(one.name) if one.name in CAUSES else 99
        )
        notes = sorted(self._named(HELD_OUT, BASELINE, LINEAR, CLASSES), key=lambda finding: finding.is_open)
        # columns that should not be inputs change all others
        every = (*self._named(LEAK), *warnings, *(finding for finding in notes if finding.kind == "note"))
        return next((remedy for finding in every for remedy in finding.remedies), None)

    def _of_kind(self, kind: Kind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]

    def _named(self, *names: str) -> list[Finding]:
        return [finding for name in names for finding in self.findings if finding.name == name]

    def __str__(self) -> str:
        step = [] if self.next_step is None else [f"Next: {self.next_step.said('python')}."]
        rate = f"Tests of ELBO and calibration raise a false alarm in at most {self.false_alarm_rate:.0%} of cases."
        return "\n".join([self.verdict, *step, *map(str, self.findings), rate])
