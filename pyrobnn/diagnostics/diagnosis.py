"""Can a fit be trusted? `diagnose` runs all checks, and a `Diagnosis` decides on trust by the worst finding."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.modes import gradients
from pyrobnn._core.remedies import Remedy
from pyrobnn.data.loader import in_memory
from pyrobnn.diagnostics.checks import ALL_CHECKS
from pyrobnn.diagnostics.predictive_checks import PASSED
from pyrobnn.posterior.base import require_posterior
from pyrobnn.posterior.calibration import check_targets
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.verdict.checks import findings
from pyrobnn.verdict.evidence import Budget, Evidence
from pyrobnn.verdict.finding import WORDS, Finding, Severity, rank

_CLEAR = 1e-3  # p-value from which on a warning may be chance: tests of many fits have such numbers now and then


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings for and against a fit; str() lists it: the verdict, what to try next, then the findings.

    Attributes:
        findings: all of them, warnings first, then notes.
        false_alarm_rate: the chance that any of the tests of ELBO and calibration warns of a good fit, at most.
        num_held_out: number of held-out examples that were looked at; 0 if it is not known.
        num_groups: number of groups that they come from; 0 if none are known.
    """

    findings: tuple[Finding, ...]
    false_alarm_rate: float
    num_held_out: int = 0
    num_groups: int = 0

    def __repr__(self) -> str:
        return f"Diagnosis({self.conclusion!r})"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons not to trust the fit."""
        return tuple(finding.said() for finding in self.findings if finding.kind == "warning")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings that are warnings."""
        return tuple(finding.name for finding in self.findings if finding.kind == "warning")

    @property
    def worst(self) -> Finding | None:
        """The finding that decides: of the worst severity, warnings that may be chance after the others."""
        return min(self.findings, key=lambda one: (rank(one.severity), _may_be_chance(one)), default=None)

    @property
    def _severity(self) -> Severity:
        """The severity of the worst finding; a warning that may be chance counts as care."""
        worst = self.worst
        if worst is None:
            return "fine"
        return "care" if worst.severity == "warning" and _may_be_chance(worst) else worst.severity

    @property
    def mood(self) -> str:
        """Whether the fit can be trusted, "good", may be used with "care", if at all, or not yet, "bad"."""
        return str(WORDS["trust"][self._severity][0])

    @property
    def verdict(self) -> str:
        """Whether to trust the fit, and the most important reason, in a sentence or two."""
        return " ".join([self.conclusion, *self.details])

    @property
    def conclusion(self) -> str:
        """Whether to trust the fit, and why, in a sentence."""
        mood, trust = WORDS["trust"][self._severity]
        groups = f" of {counted(self.num_groups, 'group')}" if self.num_groups else ""
        rows = f" on {counted(self.num_held_out, 'held-out example')}{groups}" if self.num_held_out else ""
        checks, num = f"{len(self.findings)} checks{rows}", len(self.names)
        if mood == "good" or self.worst is None:
            # The last such words are of rows that share values: they limit trust more than those of classes before.
            trust = next((each.template.trust for each in self.findings[::-1] if each.template.trust), trust)
            but = ", and ".join(each.in_plain_words for each in self._told_besides)
            return f"{trust}: none of {checks} warns{f', but {but}' if but else ''}."
        clause = self.worst.in_plain_words
        if num:
            chance = ", though this may be chance" if num == 1 and _may_be_chance(self.worst) else ""
            clause += f"{chance} ({num} of {checks} {'warns' if num == 1 else 'warn'})"
        return f"{trust}: {clause}."

    @property
    def details(self) -> tuple[str, ...]:
        """What a reader should know besides, a sentence each; the conclusion on a fit that can be trusted says it."""
        return () if self.mood == "good" else tuple(f"{each.lead}." for each in self._told_besides)

    @property
    def _told_besides(self) -> list[Finding]:
        told = ("always", "if good") if self.mood == "good" else ("always",)
        return [each for each in self.findings if each.template.detail in told and each.kind == "note"]

    @property
    def told(self) -> tuple[Finding, ...]:
        """The findings, those of tests that found nothing in one: the statistics, and what a good fit has."""
        passed = [each.lead for each in self.findings if _passed(each)]
        summary = Finding("calibration", "fine", facts={"passed": ", ".join(passed)})
        return (*(each for each in self.findings if not _passed(each)), *[summary] * bool(passed))

    @property
    def next_step(self) -> Remedy | None:
        """What to try first: the remedy of the first cause; None where there is nothing to mend."""
        leaks = [each for each in self.findings if each.template.role == "leak"]  # they change all others
        warnings = [each for each in self.findings if each.kind == "warning"]
        causes = sorted(warnings, key=lambda each: each.template.role != "cause")
        unsure = [each for each in self.findings if each.severity in ("unjudged", "care")]
        details = [each for each in self.findings if each.template.detail == "always"]
        useless = [each for each in self.findings if each.severity == "open"]
        return next((each.remedy for each in (*leaks, *causes, *unsure, *details, *useless) if each.remedy), None)

    def __str__(self) -> str:
        step = [] if self.next_step is None else [f"Next: {self.next_step.said('python')}."]
        rate = f"Tests of ELBO and calibration raise a false alarm in at most {self.false_alarm_rate:.0%} of cases."
        return "\n".join([self.verdict, *step, *map(str, self.told), rate])


def _passed(finding: Finding) -> bool:
    """Return whether a finding is that of a test of calibration that found nothing."""
    return finding.key == PASSED


def _may_be_chance(finding: Finding) -> bool:
    """Return whether a test found it with a p-value that tests of good fits have now and then."""
    return finding.p is not None and finding.p > _CLEAR


@gradients()
def diagnose(
    posterior: Posterior | Mixture,
    train: Any,
    test: Any = None,
    *,
    num_draws: int = 500,
    false_alarm_rate: float = 0.05,
    seed: int | None = None,
    class_names: Sequence[str] = (),
) -> Diagnosis:
    """Look for reasons not to trust a fit.

    docs/how-to/warnings.md lists the checks, and what to do. A fit of fixed length by `SVI` is continued for 400 steps.

    Args:
        posterior: the fitted posterior.
        train: the training data: `Data`, a pair (x, y), or a loader, which must fit into memory.
        test: held-out data, of which 1000 examples are used, 10,000 where a class is rare, and 10 are needed, also
            outside the most frequent class. Without them a fit may be called bad, never good.
        num_draws: number of draws S for predictions.
        false_alarm_rate: largest chance that any test of ELBO and calibration warns of a good fit. Other tests need
            three standard errors.
        seed: seed of draws and simulations; the fit's if not given.
        class_names: names of the classes, for the findings.

    Raises:
        InputError: data that do not fit the model, other training data, or a rate outside (0, 1).

    Examples:
        >>> train, test = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, guide="map", steps=20, seed=0, progress=False)
        >>> print(bnn.diagnose(posterior, train, test))  # after 20 steps only
        Do not trust it yet: the fit predicts no better than a constant, which ignores the inputs...
    """
    if not 0 < false_alarm_rate < 1:
        raise InputError(f"`false_alarm_rate` must lie between 0 and 1, got {false_alarm_rate}.")
    require_posterior(posterior)
    train = in_memory(train, collect=True, weighted=True)
    test = None if test is None else in_memory(test, collect=True)
    check_targets(posterior, train.y)
    if len(train) != (num := posterior.record.num_data or len(train)):
        raise InputError(f"`train` has {len(train)} rows, the fit had {num}: pass those of the fit, others as `test`.")
    budget, seed = Budget(draws=num_draws, false_alarm_rate=false_alarm_rate), posterior.seed if seed is None else seed
    return diagnosis_of(Evidence(posterior, train, test, budget, seed, class_names))


@gradients()
def diagnosis_of(evidence: Evidence) -> Diagnosis:
    """Run all checks on evidence, whose numbers are computed as they are asked for."""
    found = sorted(findings(ALL_CHECKS, evidence), key=lambda one: rank(one.kind))
    data = evidence.held_out
    num = 0 if data is None else len(evidence.judged)
    num_groups = 0 if data is None or data.groups is None else len(data.groups[evidence.judged_rows].unique())
    return Diagnosis(tuple(found), evidence.budget.false_alarm_rate, num, num_groups)
