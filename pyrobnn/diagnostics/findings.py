"""Findings of a diagnosis: each a sentence, and whether it is a reason to worry."""

import dataclasses
import math
from typing import Literal

from pyrobnn._core.counts import counted
from pyrobnn._core.remedies import Remedy, Spelling, mended
from pyrobnn.data.leaks import LEAK
from pyrobnn.verdict.judgement import NOTHING_FOUND

Kind = Literal["warning", "note", "fine"]
HELD_OUT = "held-out data"
"""Name of the finding that few data, or none, were held out."""
NOTHING_HELD_OUT = "no data were held out"
FEW_ROWS = "few rows"
"""Name of the finding that the rows held out are too few to see intervals that are too narrow."""
BASELINE = "baseline"
"""Name of the finding that compares a fit with a constant and a linear model; it comes first."""
LINEAR = "linear model"
"""Name of the finding that a linear model is as good as the fit, or a little better."""
CLASSES = "classes"
"""Name of the finding that a class is never predicted."""
PLAIN = {
    "failed": "it fails on the data that it was trained on",
    "memorised": "it has memorised its training targets",
    "missed": "it has missed what the inputs say",
    "length": "training was cut short",
    "elbo": "training has not converged",
    "chains": "the Markov chains do not agree",
    "divergences": "draws of the Markov chains diverged",
    BASELINE: "a simpler model predicts as well or better",
    "prior": "layers have learned nothing",
    "spread": "its predictions are too wide or too narrow",
    "coverage": "its predictive intervals hold too many or too few targets",
    "confidence": "its confidence is wrong",
    "bias": "its predictions are biased",
    "noise": "its errors depend on the prediction more than it says",
    "inputs": "its errors depend on an input more than it says",
    "surprise": "targets are not as likely as it says",
    "epistemic": "its uncertainty about the weights does not reach the predictions",
    "ranking": "its errors are largest where it is surest",
    "mean": "a few draws make up its predictive means",
}
"""A warning in plain words, by the name of its finding; causes stand before their effects, and are mended first."""
_TRUST = "can be trusted for data like these"
_DISTRUST = "Do not trust it yet"
_CLEAR = 1e-3
"""The p-value from which on a warning may be chance: tests of many fits have such numbers now and then."""
WEAK = 0.05
"""The p-value below which a statistic is not called fine, though it may be no reason to warn."""
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
        plain: the finding as a clause, for the verdict; of a warning that of its name if it is empty.
        is_open: of a note on baselines, whether a gain over a constant that would be of use may be there all the same.
    """

    name: str
    kind: Kind
    text: str
    p_value: float | None = None
    remedies: tuple[Remedy, ...] = ()
    plain: str = ""
    is_open: bool = False

    @property
    def is_weak(self) -> bool:
        """Whether its p-value is one that tests of many fits have now and then; None is not."""
        return self.p_value is not None and self.p_value > _CLEAR

    @property
    def in_plain_words(self) -> str:
        """The finding as a clause without numbers."""
        return self.plain or PLAIN.get(self.name, f"its check of {self.name} failed")

    def said(self, spelling: Spelling = "python") -> str:
        """Return the text and what to try."""
        return mended(self.text, self.remedies, spelling)

    def __str__(self) -> str:
        return f"{_MARKS[self.kind]} {self.said()}"


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
    def is_trusted(self) -> bool:
        """Whether the verdict is that the fit can be trusted for data like these."""
        return not self.warnings and f" {_TRUST}" in self._trust()

    @property
    def mood(self) -> Literal["good", "care", "bad"]:
        """Whether the fit can be trusted, may be used with care, if at all, or not yet, as a report colours it."""
        if self.is_trusted:
            return "good"
        return "bad" if self._trust().startswith(_DISTRUST) else "care"

    @property
    def headlines(self) -> tuple[Finding, ...]:
        """The findings that no reader should miss: warnings, then notes on baselines and on few or no data held out."""
        simpler = (BASELINE, LINEAR)
        names = (*simpler, HELD_OUT)
        told = [f for f in self.findings if f.kind == "warning" or (f.name in names and f.kind == "note")]
        return tuple(sorted(told, key=lambda finding: (finding.kind != "warning", finding.name not in simpler)))

    @property
    def verdict(self) -> str:
        """Whether to trust the fit, and the most important reason, in a sentence or two."""
        return " ".join([self.conclusion, *self.details])

    @property
    def conclusion(self) -> str:
        """Whether to trust the fit, and why, in a sentence, after columns that should not be inputs."""
        asked = [finding.text for finding in self.findings if finding.name == LEAK]
        return " ".join([*asked, self._trust()])

    @property
    def details(self) -> tuple[str, ...]:
        """What a reader of the verdict should know besides, a sentence each."""
        names = (BASELINE, FEW_ROWS) if self.is_trusted else ()
        notes = [f for name in names for f in self._of_kind("note") if f.name == name]
        told = [f for name in (LINEAR, CLASSES) for f in self.findings if f.name == name]
        return tuple(_sentence(finding.in_plain_words) for finding in (*notes, *told))

    def _trust(self) -> str:
        total, warnings = len(self.findings), self._of_kind("warning")
        if warnings:
            warn = "1 of {} checks warns" if len(warnings) == 1 else f"{len(warnings)} of {{}} checks warn"
            reason, said = self.headlines[0].in_plain_words, warn.format(total)
            if all(finding.is_weak for finding in warnings):
                chance = ", though this may be chance" if len(warnings) == 1 else ""
                begin = "It is of little use yet" if reason.startswith(NOTHING_FOUND) else "Use it with care"
                return f"{begin}: {reason}{chance} ({said})."
            return f"{_DISTRUST}: {reason} ({said})."
        notes = {finding.name: finding for finding in self._of_kind("note")}
        if HELD_OUT in notes and notes[HELD_OUT].plain == NOTHING_HELD_OUT:
            return f"Whether it can be trusted is open: {NOTHING_HELD_OUT}."
        if HELD_OUT in notes:
            return f"Use it with care: {notes[HELD_OUT].in_plain_words}."
        compared = notes.get(BASELINE)
        if compared is not None and (compared.is_open or compared.remedies):
            begin = "Whether it is of use is open" if compared.is_open else "It is of little use yet"
            return f"{begin}: {compared.in_plain_words}."
        on = f" on {counted(self.num_held_out, 'held-out example')}" if self.num_held_out else ""
        what = "Its probabilities" if CLASSES in notes else "It"
        return f"{what} {_TRUST}: none of {total} checks{on} gave a reason not to."

    @property
    def next_step(self) -> Remedy | None:
        """What to try first: the first remedy of the first cause; None where there is nothing to mend."""
        order, first = [*PLAIN], (HELD_OUT, BASELINE)
        warnings = sorted(
            self._of_kind("warning"), key=lambda f: order.index(f.name) if f.name in order else len(order)
        )
        notes = [finding for finding in self._of_kind("note") if finding.name in (*first, LINEAR, CLASSES)]
        # a limit for a class is there before more examples are, and is that of the model that stays
        notes.sort(key=lambda finding: (finding.is_open, finding.name not in first, finding.name != LINEAR))
        asked = [finding for finding in self.findings if finding.name == LEAK]  # they change all others
        open_to = (remedy for finding in (*asked, *warnings, *notes) for remedy in finding.remedies)
        return next(open_to, None)

    def _of_kind(self, kind: Kind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]

    def __str__(self) -> str:
        step = [] if self.next_step is None else [f"Next: {self.next_step.said('python')}."]
        rate = f"Tests of ELBO and calibration raise a false alarm in at most {self.false_alarm_rate:.0%} of cases."
        return "\n".join([self.verdict, *step, *map(str, self.findings), rate])


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


TOO_FEW = 10
"""Held-out examples, of a class where there are some, below which nothing is said of predictions for them."""
_SHARE, _LEVEL, _CLOSE = 0.95, 0.05, 0.1
_MOST_HELD_OUT = 0.5
"""Share of the examples above which holding out more is no remedy."""


def of_few_rows(num: int) -> list[Finding]:
    """Say how many targets intervals of 95 % may miss without a sign, where that is more than 10 % of them too many.

    This is the lower bound of 95 % confidence for their coverage where as many targets are inside as should be. Source:
    Clopper and Pearson (1934), The use of confidence or fiducial limits illustrated in the case of the binomial.

    Args:
        num: number of rows held out.
    """
    from scipy.special import betaincinv

    inside = round(_SHARE * num)
    least = float(betaincinv(inside, num - inside + 1, _LEVEL))
    if least > _SHARE - _CLOSE:
        return []
    rows = counted(num, "example")
    plain = f"{rows} held out cannot tell whether intervals of 95 % hold 95 or {100 * least:.0f} % of new targets"
    return [Finding(FEW_ROWS, "note", f"{plain[:1].upper()}{plain[1:]}: more would.", plain=plain)]


def more_rows(total: int, of: str, least: int) -> Remedy:
    """Return what gives at least so many of a number of examples to the part held out."""
    share = math.ceil(100 * (least + 0.5) / total) / 100
    words = f"hold out {least} or more {of}"
    return Remedy(words, words, (f"data.test={share:g}",)) if share <= _MOST_HELD_OUT else Remedy(f"collect more {of}")
