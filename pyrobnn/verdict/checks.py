"""Checks of a fit: a function from the evidence to a finding for each, and the table of those at the end of a fit."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pyrobnn._core.errors import counted
from pyrobnn._core.modes import gradients
from pyrobnn._core.remedies import Remedy, mended
from pyrobnn._torch.devices import threads_for
from pyrobnn.data.in_memory import Data
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import FitRecord
from pyrobnn.verdict.evidence import SIGNIFICANCE, Basis, Budget, Evidence
from pyrobnn.verdict.finding import WORDS, Finding, Severity, Values
from pyrobnn.verdict.remedies import first
from pyrobnn.verdict.scores import FAR_BELOW, BaselineComparison, compared

_LOST_NATS, _LOST_NATS_BEHIND = 2.0, 0.5
_SHARE_OF_CONSTANT_LOSS = 0.8
"""Nats per example that a fit must lose, fewer behind a baseline; for labels and counts, at most this share of the
constant's loss. Of 143 fits of the measure `alarms` half a nat names four more bad ones, and no other good one."""
_SHARE_FAR_OFF, _FEWEST_FAR_OFF = 0.03, 2
"""Examples 5 nats below the constant under a point that show it to be sure of what it has not seen: by points of the
measure `alarms` on seeds 300 to 302, of which all with as many were worse than a linear model."""
_TOO_MANY = 10  # real targets for each weight: on average each moves its own prediction by a tenth
_LAST_GAIN_NATS, _LAST_GAIN_ERRORS = 0.02, 3.0  # an example, that a fit may gain in its last cycle of all its steps

Check = Callable[[Evidence], Finding | Sequence[Finding] | None]  # its docstring says how it is computed


def findings(checks: Mapping[str, Check], evidence: Evidence) -> Iterator[Finding]:
    """Yield what checks find, each with a remedy: the first of its template that is open, its own, or the last."""
    for check in checks.values():
        found = check(evidence)
        for each in [found] if isinstance(found, Finding) else found or ():
            last = Remedy(each.template.otherwise) if each.template.otherwise else None
            yield dataclasses.replace(each, remedy=first(evidence, each.template.tries) or each.remedy or last)


def constant_target(evidence: Evidence) -> Finding | None:
    """All training rows have the same target, or there is only one."""
    y = evidence.train.y
    is_constant = len(y) > 1 and y.numel() and bool((y == y[:1]).all())
    return Finding("constant target" if is_constant else "one example") if is_constant or len(y) == 1 else None


def baselines(evidence: Evidence) -> Finding | None:
    """The log scores are compared with those of one distribution for all inputs, and of a linear model.

    The fit is no better than a constant if it is not shown to be better and gains at most 0.05 nats an example, or if
    it is worse. It is worse than a linear model if it has less than 80 % of its gain. At the end of a fit the level is
    1 %, in `diagnose` three standard errors. Training examples never show that a fit is good.
    """
    found = evidence.comparison
    if found is None or found.case == "few":
        return None
    if found.is_better and evidence.basis == "training":
        return beside(evidence, found, "open", "note")
    if found.case in ("behind linear", "like linear") and not evidence.hidden:
        return beside(evidence, found, found.case, "fine")  # such a network is simple, too
    return beside(evidence, found, found.case, "warning" if found.is_loss else "fine" if found.is_better else "note")


def beside(evidence: Evidence, found: BaselineComparison, name: str, severity: Severity, **facts: Any) -> Finding:
    """Return a finding with the gains of a comparison."""
    numbers: dict[str, Any] = {"rows": rows_told(evidence.basis, found.fit.df + 1)}
    if name == "impossible":
        return Finding(name, severity, found.num_lost, p=found.p, facts=numbers | facts)
    if found.linear is not None:
        numbers |= {"linear": found.linear.mean, "linear_error": found.linear.stderr}
    return Finding(name, severity, found.fit.mean, error=found.fit.stderr, p=found.p, facts=numbers | facts)


def rows_told(basis: Basis, num: int) -> str:
    """Return which examples a number rests on, in words."""
    noun, more = WORDS["rows"][basis]
    return f"{counted(num, noun)}{more}"


def memorised(evidence: Evidence) -> Finding | None:
    """New examples are 2 nats or more less likely than training examples, and a linear model predicts them as well.

    They are held out, or each training example left out of the fit. Half a nat is enough of a point where a baseline
    predicts them better, and for labels and counts 80 % of the constant's loss. A score counts as 5 nats below the
    constant's at least; of a point, three in a hundred such examples, and two, are enough. Real targets ten times as
    many as weights are skipped.
    """
    if (unseen := _unseen_scores(evidence)) is None:
        return None
    constant, train_y = evidence.baseline_scores["constant"], evidence.train_sample.y
    clipped = torch.maximum(unseen, constant - FAR_BELOW)
    rest = compared(clipped, evidence.baseline_scores, SIGNIFICANCE)
    assert rest.linear is not None  # others have no unseen scores
    is_point = len(evidence.train_prediction.draw_log_prob(train_y).unique(dim=0)) == 1
    seen = evidence.train_prediction.log_prob(train_y).double()
    seen = seen.clamp_min(float(constant.mean()) - FAR_BELOW)  # the constant has scores of the unseen rows alone
    lost = float(seen.mean() - clipped.mean())
    least = _LOST_NATS_BEHIND if is_point and rest.is_loss else _LOST_NATS
    if evidence.posterior.bnn.settings["likelihood"].integer_targets:
        least = min(least, -_SHARE_OF_CONSTANT_LOSS * float(constant.mean()))
    may_be_worse = not rest.is_better and (evidence.held_out is None or rest.is_loss)
    is_memorised = (may_be_worse and lost >= least) or (is_point and _is_far_off(unseen, constant))
    if not is_memorised:
        return None
    return Finding("memorised", value=lost, facts={"gain": rest.fit.mean, "linear": rest.linear.mean})


def _is_far_off(unseen: torch.Tensor, constant: torch.Tensor) -> bool:
    """Return whether enough unseen examples have scores (N,) far below those of the constant."""
    return int((unseen < constant - FAR_BELOW).sum()) >= max(_FEWEST_FAR_OFF, _SHARE_FAR_OFF * len(unseen))


def _unseen_scores(evidence: Evidence) -> torch.Tensor | None:
    """Return the scores of rows held out, or of those of training, left out; None where nothing is to be asked."""
    is_real, most = evidence.likelihood.noise is not None, _TOO_MANY * evidence.posterior.bnn.num_weights
    has_many = is_real and evidence.train.y.numel() > most
    if has_many or "linear" not in evidence.baselines or not evidence.can_judge or _is_shown_better(evidence):
        return None
    return evidence.left_out_linearised if evidence.held_out is None else evidence.scores


def _is_shown_better(evidence: Evidence) -> bool:
    """Return whether examples that the fit has not learned show that it predicts better than the baselines."""
    comparison = evidence.comparison
    return comparison is not None and comparison.is_better and evidence.basis != "training"


def learned(evidence: Evidence) -> Finding | None:
    """A Laplace approximation predicts rows left out of it no better than a constant, or by less than 0.05 nats."""
    has_modes = all(member.record.laplace is not None for member in evidence.posterior.members)
    comparison = evidence.comparison
    if not has_modes or comparison is None or evidence.held_out is not None or not evidence.budget.folds:
        return None
    if _is_shown_better(evidence) or comparison.is_loss or evidence.left_out_linearised is None:
        return None
    rest = compared(evidence.left_out_linearised, evidence.baseline_scores, SIGNIFICANCE)
    rows = rows_told("left out", len(evidence.left_out_linearised))
    if rest.case == "constant" or (rest.is_loss and not rest.fit.is_shown):
        return beside(evidence, rest, "learned", "warning", rows=rows)
    return beside(evidence, rest, "hardly", "warning", rows=rows) if rest.are_slight else None


def length(evidence: Evidence) -> Finding | None:
    """A fit of open length took `max_steps`, and its last cycle gained more than noise and what matters."""
    ended = [member.record for member in evidence.posterior.members if member.record.convergence is not None]
    if not ended:
        return None
    record = next((record for record in ended if needs_steps(record)), ended[0])
    end = record.convergence
    assert end is not None
    severity: Severity = "fine" if end.converged else "warning" if needs_steps(record) else "note"
    facts: Values = {"elbo": end.elbo, "tolerance": end.tolerance, "reason": record.stop_reason or ""}
    return Finding("length", severity, end.gain, error=end.elbo_error, facts=facts)


def needs_steps(record: FitRecord) -> bool:
    """Return whether a fit of open length was cut short, by the gain of its last cycle if there were two."""
    end = record.convergence
    if end is None or end.converged or record.stopped_by not in (None, "steps"):
        return False
    matters = max(_LAST_GAIN_NATS * (record.num_data or 0), end.tolerance)
    return end.gain is None or end.gain - _LAST_GAIN_ERRORS * (end.elbo_error or 0.0) > matters


FIT_END_CHECKS: dict[str, Check] = {
    "constant target": constant_target,
    "baselines": baselines,
    "memorised": memorised,
    "learned": learned,
    "length": length,
}
"""The checks at the end of a fit, in the order in which they are told."""


@gradients()
def complaint(posterior: Any, data: Any, validation: Any = None, *, briefly: bool | None = None) -> str | None:
    """Return a sentence on the first warning of `FIT_END_CHECKS`, without numbers: a loop shows it once.

    It uses up to 500 examples of validation or training data. `briefly` is to compare with a constant and one linear
    fit: by default where nothing was measured, and the length was given. None for data in loaders.
    """
    if not (isinstance(posterior, (Posterior, Mixture)) and isinstance(data, Data)):
        return None
    record = posterior.record
    is_brief = all(part is None for part in (record.convergence, record.choice, record.evidence))
    budget = Budget.of_fit(posterior, brief=is_brief if briefly is None else briefly)
    evidence = Evidence(posterior, data, validation, budget, posterior.seed)
    if not evidence.can_judge:
        evidence = dataclasses.replace(evidence, held_out=None)
    with threads_for(posterior.bnn.net, budget.baseline_rows):
        for finding in findings(FIT_END_CHECKS, evidence):
            if finding.severity == "warning":
                return f"{mended(f'{finding.lead}.', finding.remedy)} See docs/how-to/warnings.md."
    return None
