"""The table of all checks of a fit, and those that the end of a fit does not afford."""

import dataclasses
import json
import math

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import Remedy
from pyrobnn.data.in_memory import leaks
from pyrobnn.data.splits import row_hashes, same_inputs
from pyrobnn.datasets.base import FOR_CALIBRATION
from pyrobnn.diagnostics.convergence import continued_gain, function_rhat
from pyrobnn.diagnostics.importance import importance_weights
from pyrobnn.diagnostics.monitored import MAX_WHOLE
from pyrobnn.diagnostics.predictive_checks import LEVELS, by_steps, level_of, predictive_tests, ranking_test
from pyrobnn.diagnostics.related_rows import related_rows
from pyrobnn.guides.base import built
from pyrobnn.posterior.calibration import best_factor, with_factor
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.verdict.baselines import process_scores
from pyrobnn.verdict.checks import FIT_END_CHECKS, Check, beside, rows_told
from pyrobnn.verdict.evidence import FEW, THREE_ERRORS, Evidence
from pyrobnn.verdict.finding import Finding, Severity, Values
from pyrobnn.verdict.scores import Gain

_TIMES_MORE = 4  # examples that halve an error
_MOST_HELD_OUT = 0.5  # share above which holding out more is no remedy
_RARE_SHARE = 0.2  # of the labels up to which a class is rare
_MOST_FOR_PROCESS, _FEWEST_FOR_PROCESS = 500, 20  # rows
_MISSED_NATS, _NOTED_NATS, _STANDARD_ERRORS_TO_MISS = 0.5, 0.1, 3.0  # below a Gaussian process
_LARGEST_ERROR_RATIO = 1.25  # of the squared errors of the predictive mean and of a simpler model
_EXACT = 1e-3  # error, in units of the spread of the targets, below which nothing is left to judge
_MOST_PROBES = 20  # training inputs at which chains are compared
_LARGEST_RHAT, _SMALLEST_ESS = 1.01, 400
_LARGEST_ROUGH_RHAT, _LARGEST_ERROR = 1.1, 0.1
"""Of 60 fits to labels, those within these limits score within 0.006 nats of 8,000 draws, the others within 0.022."""
_NEGLIGIBLE_SHARE = 1e-4  # of the uncertainty of the weights in the predictive variance
_FEWEST_SIMULATIONS = 200  # of targets
_KHAT_DRAWS, _MOST_FOR_KHAT = 1000, 10_000  # draws, and rows


def _is_exact(evidence: Evidence) -> bool:
    if evidence.likelihood.noise is None or not evidence.prediction.has_moments:
        return False
    errors = evidence.prediction.mean.double().cpu() - evidence.judged.y.double().cpu()
    largest = (_EXACT * evidence.train.y.double().std(0)).square().cpu()
    return bool((errors.square().mean(0) <= largest).all())


def _class_name(evidence: Evidence, label: int) -> str:
    return repr(evidence.class_names[label]) if evidence.class_names else str(label)


def use(evidence: Evidence) -> Finding | None:
    """Nothing shows a gain over a constant, nor that there is none."""
    comparison = evidence.comparison
    if comparison is None:
        has_no_baselines = evidence.can_judge and not evidence.baselines and len(evidence.train) > 1
        return Finding("not compared", "open") if has_no_baselines else None
    if comparison.case != "few":
        return None
    y, label = evidence.judged.y, min(evidence.counts, key=evidence.counts.__getitem__, default=None)
    if label is not None and evidence.counts[label] > _RARE_SHARE * len(y):
        label = None
    examples = f"{counted(_count(y, label), 'example')}{_of_what(evidence, label)}"
    few = beside(evidence, comparison, "few", "open", examples=examples)
    if evidence.held_out is None or len(y) < len(evidence.held_out):
        return few
    return dataclasses.replace(few, remedy=_more_held_out(evidence, label, _TIMES_MORE * _count(y, label)))


def _count(y: Tensor, label: int | None) -> int:
    return len(y) if label is None else int((y == label).sum())


def _of_what(evidence: Evidence, label: int | None) -> str:
    """Return the class of the examples that are few, or the number of groups that they come from, if there are any."""
    if label is None:
        groups = evidence.judged.groups
        return "" if groups is None else f" of {counted(len(groups.unique()), 'group')}"
    return f" of class {_class_name(evidence, label)}"


def _more_held_out(evidence: Evidence, label: int | None, num: int) -> Remedy:
    total = sum(_count(part.y, label) for part in (evidence.train, evidence.held_out) if part is not None)
    share = math.ceil(100 * (num + 0.5) / total) / 100
    more_groups = label is None and evidence.judged.groups is not None
    examples = "more groups" if more_groups else f"more examples{_of_what(evidence, label)}"
    if share > _MOST_HELD_OUT:
        return Remedy(f"collect {examples}")
    return Remedy(f"hold out {num} or {examples}", (f"data.test={share:g}",))


def missed(evidence: Evidence) -> Finding | None:
    """The log score is 0.5 nats below that of a Gaussian process, or 0.1 for a note, by three standard errors.

    On rows held out, or else on training rows, left out of the process alone. The fit has the best factor for its
    spread. Asked of one column of symmetric noise, where 20 to 500 rows have other inputs, and no baseline is better.
    """
    x, y = evidence.train_sample.x[:_MOST_FOR_PROCESS], evidence.train_sample.y.double().cpu()
    is_real = evidence.likelihood.noise is not None and evidence.likelihood.is_symmetric and y.ndim == 1
    is_asked = is_real and isinstance(x, Tensor) and evidence.train.weights is None and evidence.can_judge
    if not is_asked or evidence.has_lost:
        return None
    rows = np.unique(same_inputs(x), return_index=True)[1]  # copies would tell each other's target
    if len(rows) < _FEWEST_FOR_PROCESS or len(y[rows].unique()) < 2 or _is_exact(evidence):
        return None
    log_prob, left_out = process_scores(x[rows], y[rows])
    targets = evidence.judged.y
    factor = best_factor(evidence.prediction, targets, torch.ones(len(targets)))
    fit_scores = with_factor(evidence.prediction, factor).log_prob(targets).double().cpu()
    if evidence.held_out is None:
        gap, told = Gain.of(left_out - fit_scores[rows]), rows_told("training", len(rows))
    else:
        of_copies = torch.stack([log_prob(copy, targets.double().cpu()) for copy in evidence.copies])
        of_process = of_copies.logsumexp(0) - math.log(len(of_copies))
        gap, told = Gain.of(of_process - fit_scores), rows_told("held out", len(targets))
    if gap.mean < max(_NOTED_NATS, _STANDARD_ERRORS_TO_MISS * gap.stderr):
        return None
    severity: Severity = "warning" if gap.mean >= _MISSED_NATS else "note"
    return Finding("missed", severity, gap.mean, error=gap.stderr, facts={"rows": told})


def error(evidence: Evidence) -> Finding | None:
    """The mean squared error of the predictive mean is 1.25 times that of least squares on a line, or of a constant.

    On rows held out, or else on training rows beside cross-validated models. A log score may be good all the same.
    """
    y, line = evidence.judged.y.double().cpu(), evidence.least_squares
    if line is None or evidence.has_lost or not evidence.can_judge or not evidence.prediction.has_moments:
        return None
    on_line = line.cross_validated.mean[: len(y)]
    if evidence.held_out is not None:
        on_line = torch.stack([line.predict(x).mean for x in evidence.copies]).mean(0)
    linear = "a linear model" if line is evidence.baselines["linear"] else "an ordinary linear model"
    means = {"the fit": evidence.prediction.mean, linear: on_line, "a constant": evidence.train.y.double().mean(0)}
    errors = {name: float((mean.double().cpu() - y).square().mean()) for name, mean in means.items()}
    of_fit = errors.pop("the fit")
    rival = min(errors, key=errors.__getitem__)
    if of_fit <= _LARGEST_ERROR_RATIO * errors[rival] or _is_exact(evidence):
        return None
    facts: Values = {"rival": rival, "rows": rows_told(evidence.basis, len(y))}
    return Finding("error", "warning", math.sqrt(of_fit), math.sqrt(errors[rival]), facts=facts)


def elbo(evidence: Evidence) -> Finding | None:
    """A copy of a fit of given length is trained for up to 400 further steps: the ELBO rises beyond the tolerance.

    The level is its share of `false_alarm_rate`, by a normal approximation.
    """
    posterior = evidence.posterior
    if not by_steps(evidence) or any(member.record.convergence is not None for member in posterior.members):
        return None
    gain = continued_gain(posterior, evidence.train, derive(evidence.seed, "continuation"))
    if gain is None:
        return Finding("elbo unknown", "note")
    is_gain = gain.p_value < level_of(evidence) / gain.num_fits
    is_noisy = gain.stderr > gain.tolerance
    severity: Severity = "warning" if is_gain and not gain.has_patience else "note" if is_gain or is_noisy else "fine"
    facts: Values = {"steps": gain.steps, "rate": gain.rate, "tolerance": gain.tolerance}
    name = "elbo noisy" if is_noisy and not is_gain else "elbo"
    return Finding(name, severity, gain.mean, error=gain.stderr, p=gain.p_value, facts=facts)


def chains(evidence: Evidence) -> Finding | None:
    """R-hat of the predictions at 20 training inputs is above 1.01, or they have fewer than 400 effective draws.

    It is a note where R-hat is at most 1.1, and the Monte Carlo error of each mean a tenth of the standard deviation of
    the prediction. Rank-normalised split R-hat and effective sample sizes are those of Vehtari et al. (2021).
    """
    posterior, num = evidence.posterior, len(evidence.train)
    stored = None if isinstance(posterior, Mixture) else built(posterior.guide).chains()
    if stored is None:
        return None
    rows = torch.linspace(0, num - 1, min(_MOST_PROBES, num)).round().long()
    try:
        found = function_rhat(posterior, evidence.train.x[rows])
    except InputError:  # too few chains, or too short
        return Finding("chains unknown")
    known = found.rhat[~np.isnan(found.rhat)]  # a probability may be 1 in all draws
    rhat = float(known.max(initial=0) or math.nan)
    if not math.isfinite(rhat):
        return Finding("chains stuck")
    ess, off = float(min(found.ess_bulk.min(), found.ess_tail.min())), float(found.error.max())
    draws = math.prod(next(iter(stored.values())).shape[:2])
    facts: Values = {"rhat": rhat, "ess": ess, "draws": draws, "off": off}
    if rhat <= _LARGEST_RHAT and ess >= _SMALLEST_ESS:
        return Finding("chains", "fine", rhat, facts=facts)
    if rhat <= _LARGEST_ROUGH_RHAT and off <= _LARGEST_ERROR:
        return Finding("chains rough", "note", rhat, facts=facts)
    apart, short = Finding("chains apart", value=rhat, facts=facts), Finding("chains short", value=ess, facts=facts)
    return apart if rhat > _LARGEST_RHAT else short


def divergences(evidence: Evidence) -> Finding | None:
    """A trajectory of Hamiltonian dynamics lost its energy."""
    if isinstance(evidence.posterior, Mixture):
        return None
    diverging = built(evidence.posterior.guide).sample_stats().get("diverging")
    if diverging is None or not bool(diverging.any()):
        return None
    return Finding("divergences", value=int(diverging.sum()), facts={"draws": diverging.numel()})


def epistemic(evidence: Evidence) -> Finding | None:
    """The share of the weights' uncertainty in the predictive variance of some target column is at most 1e-4."""
    prediction = evidence.prediction
    dims = None if prediction.is_classification else 0  # each column by itself, classes together
    if not prediction.has_moments:
        return Finding("epistemic unknown", "note")
    total = prediction.variance.double().mean(dims)
    if prediction.has_quantiles and not bool(total.isfinite().all()):
        lower, upper = prediction.interval(0.68)
        total = ((upper - lower) / 2).square().double().mean(dims)
    shares = (prediction.epistemic_variance.double().mean(dims) / total.clamp_min(1e-300)).flatten()
    smallest = float(shares.min())
    if not math.isfinite(smallest):
        return Finding("epistemic unknown", "note")
    if smallest > _NEGLIGIBLE_SHARE:
        return Finding("epistemic", "fine", smallest)
    columns = (shares <= _NEGLIGIBLE_SHARE).nonzero().flatten().tolist()
    where = f" of target column {', '.join(map(str, columns))}" if len(columns) < len(shares) else ""
    return Finding("epistemic", value=smallest, facts={"where": where})


def mean(evidence: Evidence) -> Finding | None:
    """Less than a fifth of the draws make up the mean of counts or amounts at some input."""
    few = int(evidence.prediction.rests_on_few_draws.sum())
    return Finding("mean", value=few, facts={"num": len(evidence.prediction)}) if few else None


def ranking(evidence: Evidence) -> Finding | None:
    """The area under the sparsification curve of held-out errors is larger than that of random orders."""
    if evidence.held_out is None or not evidence.can_judge:
        return None
    test = ranking_test(evidence.prediction, evidence.judged.y, seed=evidence.seed)
    return None if test is None else test.finding("ranking", THREE_ERRORS)


def held_out(evidence: Evidence) -> Finding | None:
    """Ten examples or more are held out, of labels of each class, and twenty of real targets, of other inputs."""
    if evidence.held_out is None:
        return Finding("no held-out data", "unjudged", 0)
    known = row_hashes(evidence.train.x).unique()
    if len(known) > len(evidence.train) / 2 and bool(torch.isin(row_hashes(evidence.judged.x), known).all()):
        return Finding("seen held-out data")
    least = FEW if evidence.has_classes or len(evidence.judged) < FEW else FOR_CALIBRATION
    rarest = min(evidence.counts, key=evidence.counts.__getitem__, default=None)
    label = None if len(evidence.judged) < FEW else rarest
    num = _count(evidence.judged.y, label)
    if num >= least:
        return None
    facts: Values = {"examples": f"{counted(num, 'example')}{_of_what(evidence, label)}"}
    return Finding("few held-out data", "care", num, remedy=_more_held_out(evidence, label, least), facts=facts)


def classes(evidence: Evidence) -> Finding | None:
    """A class of the held-out examples is the most probable for none of them.

    The threshold for a rare one is its share in training; none if no example of the class is above it.
    """
    if not evidence.has_classes:
        return None
    y, train_y = evidence.judged.y, evidence.train.y
    predicted = set(evidence.prediction.label.unique().tolist())
    shares = {int(label): float((train_y == label).double().mean()) for label in y.unique()}
    never = {label: share for label, share in shares.items() if label not in predicted}
    if not never:
        return None
    num = sum(int((y == label).sum()) for label in never)
    remedy = _lower_threshold(evidence, *min(never.items(), key=lambda item: item[1]))
    names = ", ".join(_class_name(evidence, label) for label in never)
    return Finding("classes", "note", num, remedy=remedy, facts={"missed": names, "num": len(y)})


def _lower_threshold(evidence: Evidence, label: int, share: float) -> Remedy | None:
    """Return the remedy for a rare class, a threshold at its share; None if none of its examples is above it."""
    limit = f"{share:.2g}"
    is_above = evidence.prediction.class_probs[:, label].cpu() > float(limit)
    is_label = evidence.judged.y.cpu() == label
    num_found = int((is_above & is_label).sum())
    if not 0 < share <= _RARE_SHARE or not num_found:
        return None
    column = f"prob_{evidence.class_names[label]}" if evidence.class_names else "its probability"
    price = f"which finds {num_found} of {int(is_label.sum())} among {int(is_above.sum())}"
    words = f"say {_class_name(evidence, label)} where {column} is above {limit}, {price}"
    return Remedy(words, python=f"`prediction.class_probs[:, {label}] > {limit}`")


def leak(evidence: Evidence) -> Finding | None:
    """A line through a column explains 99.99 % of the target, it tells the class in all rows, or rows are numbered."""
    leaking = leaks(evidence.train, evidence.columns)
    if not leaking:
        return None
    kind = next(iter(leaking.values()))
    columns = [name for name, reason in leaking.items() if reason == kind]
    listed, dropped = ", ".join(map(repr, columns)), json.dumps([*evidence.dropped, *columns])
    remedy = Remedy(f"leave out {listed}", (f"data.drop={dropped}",))
    return Finding(kind, "care", remedy=remedy, facts={"columns": listed})


def khat(evidence: Evidence) -> Finding | None:
    """Pareto-smoothed importance weights of 1,000 draws of a guide, up to 1,000 weights and 10,000 rows."""
    fit = evidence.posterior
    if isinstance(fit, Mixture) or fit.bnn.num_weights > MAX_WHOLE or len(evidence.train) > _MOST_FOR_KHAT:
        return None
    try:
        weights = importance_weights(fit, evidence.train, num_draws=_KHAT_DRAWS)
    except InputError:  # no density
        return None
    return Finding("k-hat", "fine" if weights.is_reliable else "note", weights.khat, weights.good_khat)


def calibration(evidence: Evidence) -> list[Finding]:
    """Held-out targets are compared with 200 or more that the fit simulates, by Student's t."""
    if evidence.held_out is None or not evidence.can_judge or _is_exact(evidence):
        return []
    seed, level = derive(evidence.seed, "simulated targets"), level_of(evidence)
    enough = math.ceil(2.1 / level)  # the smallest p-value of a rank among R, 2 / (R + 1), is then below the level
    num = max(_FEWEST_SIMULATIONS, len(evidence.posterior.members), enough)
    simulated = evidence.predict_judged(num_draws=num, seed=seed).sample(seed=seed)
    tests = predictive_tests(evidence.prediction, evidence.judged.y, simulated, seed=evidence.seed)
    return [test.finding(name, LEVELS.get(name, level)) for name, test in tests.items()]


ALL_CHECKS: dict[str, Check] = {
    "leak": leak,
    "held-out data": held_out,
    **FIT_END_CHECKS,
    "use": use,
    "missed": missed,
    "error": error,
    "elbo": elbo,
    "chains": chains,
    "divergences": divergences,
    "epistemic": epistemic,
    "mean": mean,
    "calibration": calibration,
    "ranking": ranking,
    "classes": classes,
    "blocks": related_rows,
    "k-hat": khat,
}
"""All checks, those at the end of a fit among them, in the order in which they are told."""
