"""The table of all checks of a fit, and those that the end of a fit does not afford."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import Remedy
from pyrobnn._torch.inputs import X, flat_rows, single
from pyrobnn.data.in_memory import leaks
from pyrobnn.data.splits import same_inputs
from pyrobnn.datasets.base import FOR_CALIBRATION
from pyrobnn.diagnostics.chains import function_rhat
from pyrobnn.diagnostics.continuation import continued_gain
from pyrobnn.diagnostics.convert import MAX_WHOLE
from pyrobnn.diagnostics.importance import importance_weights
from pyrobnn.diagnostics.predictive_checks import LEVELS, by_steps, level_of, predictive_tests, ranking_test
from pyrobnn.distributions.units import Scaler
from pyrobnn.guides.base import built
from pyrobnn.posterior.calibration import best_factor, with_factor
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.verdict import checks as cheap
from pyrobnn.verdict.checks import Check, beside, rows_told
from pyrobnn.verdict.evidence import FEW, THREE_ERRORS, Evidence
from pyrobnn.verdict.finding import Finding, Severity, Values
from pyrobnn.verdict.scores import Gain

_TIMES_MORE = 4  # examples that halve an error
_MOST_HELD_OUT = 0.5  # share above which holding out more is no remedy
_RARE_SHARE = 0.2  # of the labels up to which a class is rare
_MOST_PROBES = 20  # training inputs at which chains are compared
_LARGEST_RHAT, _SMALLEST_ESS = 1.01, 400
_LARGEST_ROUGH_RHAT, _LARGEST_ERROR = 1.1, 0.1
"""Of 60 fits to labels, those within these limits score within 0.006 nats of 8,000 draws, the others within 0.022."""
_LARGEST_ERROR_RATIO = 1.25
_MISSED_NATS, _NOTED_NATS, _STANDARD_ERRORS_TO_MISS = 0.5, 0.1, 3.0  # below a Gaussian process
_EXACT = 1e-3  # error, in units of the spread of the targets, below which nothing is left to judge
_MOST_FOR_PROCESS, _FEWEST_FOR_PROCESS = 500, 20
_SQUARED_LENGTHS, _RELATIVE_NOISES = (0.125, 0.5, 2.0, 8.0), (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # of the grid
_NEGLIGIBLE_P = 1e-4
_FEWEST_SIMULATIONS = 200
_KHAT_DRAWS, _MOST_FOR_KHAT = 1000, 10_000
_FEWEST_ROWS, _FEWEST_GROUPS, _FEWEST_ROWS_OF_A_GROUP, _MOST_ROWS_OF_A_GROUP = 50, 5, 5, 200
_TIMES_MORE_PAIRS, _MOST_ROWS_OF_A_SEARCH = 2, 2000
_MOST_COLUMNS = 100  # of a table, above which it is not searched for columns that go together
_ALIKE = 0.95  # rank correlation of two columns from which one is made from the other


def _is_exact(evidence: Evidence) -> bool:
    if evidence.likelihood.noise is None or not evidence.prediction.has_moments:
        return False
    off = (evidence.prediction.mean.double().cpu() - evidence.judged.y.double().cpu()).square().mean(0)
    return bool((off <= (_EXACT * evidence.train.y.double().std(0)).square().cpu()).all())


def _class_name(evidence: Evidence, label: int) -> str:
    return repr(evidence.class_names[label]) if evidence.class_names else str(label)


def use(evidence: Evidence) -> Finding | None:
    """Nothing shows a gain over a constant, nor that there is none."""
    comparison = evidence.comparison
    if comparison is None:
        alone = evidence.can_judge and not evidence.baselines and len(evidence.train) > 1
        return Finding("not compared", "open") if alone else None
    if comparison.case != "few":
        return None
    y, rare = evidence.judged.y, _rarest(evidence)
    rare = None if rare is None or evidence.counts[rare] > _RARE_SHARE * len(y) else rare
    few, all_rows = beside(evidence, comparison, "few", "open", examples=_counted(evidence, y, rare)), evidence.held_out
    if all_rows is None or len(y) < len(all_rows):
        return few
    return dataclasses.replace(few, remedy=_more_held_out(evidence, rare, _TIMES_MORE * _count(y, rare)))


def _rarest(evidence: Evidence) -> int | None:
    return min(evidence.counts, key=evidence.counts.__getitem__, default=None)


def _count(y: Tensor, label: int | None) -> int:
    return len(y) if label is None else int((y == label).sum())


def _counted(evidence: Evidence, y: Tensor, label: int | None) -> str:
    return f"{counted(_count(y, label), 'example')}{_of_class(evidence, label)}"


def _of_class(evidence: Evidence, label: int | None) -> str:
    return "" if label is None else f" of class {_class_name(evidence, label)}"


def _more_held_out(evidence: Evidence, label: int | None, num: int) -> Remedy:
    total = sum(_count(part.y, label) for part in (evidence.train, evidence.held_out) if part is not None)
    share, of = math.ceil(100 * (num + 0.5) / total) / 100, _of_class(evidence, label)
    if share > _MOST_HELD_OUT:
        return Remedy(f"collect more examples{of}")
    return Remedy(f"hold out {num} or more examples{of}", (f"data.test={share:g}",))


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
    places = np.unique(same_inputs(x), return_index=True)[1]  # copies would tell each other's target
    if len(places) < _FEWEST_FOR_PROCESS or len(y[places].unique()) < 2 or _is_exact(evidence):
        return None
    score, rival = gaussian_process(x[places], y[places])
    if evidence.held_out is not None:
        y = evidence.judged.y.double().cpu()
        of_copies = torch.stack([score(each, y) for each in evidence.copies])
        rival = of_copies.logsumexp(0) - math.log(len(of_copies))
    factor = best_factor(evidence.prediction, evidence.judged.y, torch.ones(len(y)))
    own = with_factor(evidence.prediction, factor).log_prob(evidence.judged.y).double().cpu()
    gap = Gain.of(rival - (own[places] if evidence.held_out is None else own))
    if gap.mean < max(_NOTED_NATS, _STANDARD_ERRORS_TO_MISS * gap.stderr):
        return None
    facts: Values = {"rows": rows_told("training" if evidence.held_out is None else "held out", gap.df + 1)}
    return Finding("missed", "warning" if gap.mean >= _MISSED_NATS else "note", gap.mean, error=gap.stderr, facts=facts)


def gaussian_process(x: X, y: Tensor) -> tuple[Callable[[X, Tensor], Tensor], Tensor]:
    """Return the log scores of new rows under the best process of a grid, a function, and of its own (N,), left out."""
    scaler, off, found = Scaler.fit(flat_rows(x).cpu()), y - y.mean(), []

    def squared(new: X) -> Tensor:
        pair = [scaler.standard(flat_rows(each).cpu()) for each in (new, x)]
        return torch.cdist(pair[0], pair[1], compute_mode="donot_use_mm_for_euclid_dist").square()

    distances = squared(x)
    for width in (2 * length * distances[distances > 0].median() for length in _SQUARED_LENGTHS):
        values, vectors = torch.linalg.eigh((-distances / width).exp())
        for noise in _RELATIVE_NOISES:
            inverse = (vectors / (values.clamp_min(0) + noise)) @ vectors.T
            variance, precision = off @ inverse @ off / len(off), inverse.diagonal()  # Rasmussen (2006), eq. 5.12
            scores = Normal(inverse @ off / precision, (variance / precision).sqrt()).log_prob(torch.zeros(()))
            found.append((scores, inverse, width, noise, variance))
    scores, inverse, width, noise, variance = max(found, key=lambda each: float(each[0].mean()))

    def score(new: X, targets: Tensor) -> Tensor:
        near = (-squared(new) / width).exp()
        spread = (variance * (1 + noise - (near @ inverse * near).sum(1))).sqrt()
        return Normal(y.mean() + near @ inverse @ off, spread).log_prob(targets)

    return score, scores


def error(evidence: Evidence) -> Finding | None:
    """The mean squared error of the predictive mean is 1.25 times that of least squares on a line, or of a constant.

    On rows held out, or else on training rows beside cross-validated models. A log score may be good all the same.
    """
    y, ordinary = evidence.judged.y.double().cpu(), evidence.least_squares
    if ordinary is None or evidence.has_lost or not evidence.can_judge or not evidence.prediction.has_moments:
        return None
    line = ordinary.cross_validated.mean[: len(y)]
    if evidence.held_out is not None:
        line = torch.stack([ordinary.predict(x).mean for x in evidence.copies]).mean(0)
    constant = evidence.train.y.double().mean(0).expand_as(y)
    means = (evidence.prediction.mean, line, constant)
    own, *others = [(each.double().cpu() - y).square().mean().item() for each in means]
    if own <= _LARGEST_ERROR_RATIO * min(others) or _is_exact(evidence):
        return None
    rival = "a constant" if others[1] < others[0] else "a linear model"
    facts: Values = {"rival": rival, "rows": rows_told(evidence.basis, len(y))}
    return Finding("error", "warning", math.sqrt(own), math.sqrt(min(others)), facts=facts)


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
        each = function_rhat(posterior, evidence.train.x[rows])
    except InputError:  # too few chains, or too short
        return Finding("chains unknown")
    draws = math.prod(next(iter(stored.values())).shape[:2])
    known = each.rhat[~np.isnan(each.rhat)]  # a probability may be 1 in all draws
    rhat, ess = float(known.max(initial=0) or math.nan), float(min(each.ess_bulk.min(), each.ess_tail.min()))
    if not math.isfinite(rhat):
        return Finding("chains stuck")
    facts: Values = {"rhat": rhat, "ess": ess, "draws": draws, "off": float(each.error.max())}
    if rhat <= _LARGEST_RHAT and ess >= _SMALLEST_ESS:
        return Finding("chains", "fine", rhat, facts=facts)
    if rhat <= _LARGEST_ROUGH_RHAT and float(each.error.max()) <= _LARGEST_ERROR:
        return Finding("chains rough", "note", rhat, facts=facts)
    apart = Finding("chains apart", value=rhat, facts=facts)
    return apart if rhat > _LARGEST_RHAT else Finding("chains short", value=ess, facts=facts)


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
    share, few = float(shares.min()), (shares <= _NEGLIGIBLE_P).nonzero().flatten().tolist()
    if not math.isfinite(share):
        return Finding("epistemic unknown", "note")
    if share > _NEGLIGIBLE_P:
        return Finding("epistemic", "fine", share)
    where = f" of target column {', '.join(map(str, few))}" if 0 < len(few) < len(shares) else ""
    return Finding("epistemic", value=share, facts={"where": where})


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
    """Ten examples or more are held out, of labels of each class, and twenty of real targets."""
    if evidence.held_out is None:
        return Finding("no held-out data", "unjudged", 0)
    least = FEW if evidence.has_classes or len(evidence.judged) < FEW else FOR_CALIBRATION
    label = None if len(evidence.judged) < FEW else _rarest(evidence)
    if (num := _count(evidence.judged.y, label)) >= least:
        return None
    facts: Values = {"examples": _counted(evidence, evidence.judged.y, label)}
    return Finding("few held-out data", "care", num, remedy=_more_held_out(evidence, label, least), facts=facts)


def classes(evidence: Evidence) -> Finding | None:
    """A class of the held-out examples is the most probable for none of them.

    The threshold for a rare one is its share in training; none if no example of the class is above it.
    """
    if not evidence.has_classes:
        return None
    prediction, y, train_y = evidence.prediction, evidence.judged.y, evidence.train.y
    predicted = set(prediction.label.unique().tolist())
    shares = {int(label): float((train_y == label).double().mean()) for label in y.unique()}
    never = {label: share for label, share in shares.items() if label not in predicted}
    if not never:
        return None
    num, remedy = sum(int((y == label).sum()) for label in never), None
    rarest = min(never, key=never.__getitem__)
    limit, is_rarest = f"{never[rarest]:.2g}", y.cpu() == rarest
    said = prediction.class_probs[:, rarest].cpu() > float(limit)
    if 0 < never[rarest] <= _RARE_SHARE and (right := int((said & is_rarest).sum())):
        name = _class_name(evidence, rarest)
        column = f"prob_{evidence.class_names[rarest]}" if evidence.class_names else "its probability"
        price = f"which finds {right} of {int(is_rarest.sum())} among {int(said.sum())}"
        call = f"`prediction.class_probs[:, {rarest}] > {limit}`"
        remedy = Remedy(f"say {name} where {column} is above {limit}, {price}", python=call)
    names = ", ".join(_class_name(evidence, label) for label in never)
    return Finding("classes", "note", num, remedy=remedy, facts={"missed": names, "num": len(y)})


def leak(evidence: Evidence) -> Finding | None:
    """A line through a column explains 99.99 % of the target, it tells the class in all rows, or rows are numbered."""
    leaking = leaks(evidence.train, evidence.columns)
    if not leaking:
        return None
    kind = next(iter(leaking.values()))
    columns = [name for name, reason in leaking.items() if reason == kind]
    listed = ", ".join(map(repr, columns))
    settings = (f"data.drop={json.dumps([*evidence.dropped, *columns])}",)
    return Finding(kind, "care", remedy=Remedy(f"leave out {listed}", settings), facts={"columns": listed})


def blocks(evidence: Evidence) -> Finding | None:
    """The values of a column come in five blocks or more, repeat with those of another, or rise from row to row.

    Two columns of five values or more repeat if they have at most twice as many pairs, of 5 to 200 rows each, which is
    at most half as many as by chance, and they are not in the same order or the reverse.
    """
    table = evidence.train if evidence.table is None else evidence.table
    named = evidence.columns or {name: [at] for at, name in enumerate(table.feature_names)}
    is_table = isinstance(table.x, Tensor) and table.x.ndim == 2 and 1 < len(named) <= _MOST_COLUMNS
    if not is_table or table.groups is not None or len(table) < _FEWEST_ROWS:
        return None
    x, codes, in_time = flat_rows(table.x).cpu().numpy(), dict[str, np.ndarray](), None
    leaking = leaks(evidence.train, evidence.columns)
    for column, places in named.items():
        values = np.unique(x[:, places], axis=0, return_inverse=True)[1].reshape(-1)  # categories have several columns
        num, changes = int(values.max()) + 1, np.diff(values)[np.diff(values) != 0]
        repeats = num <= len(table) / 2
        if column in leaking or (repeats and not _meet(evidence, places)):
            continue
        codes[column] = values
        if len(changes) + 1 != num or num < _FEWEST_GROUPS:
            continue
        if repeats:
            return _in_groups("blocks", "care", [column], num)
        if len(places) == 1 and ((changes > 0).all() or (changes < 0).all()):
            parts = [part.x for part in (evidence.train, evidence.held_out) if part and isinstance(part.x, Tensor)]
            ends = [part[:, places[0]].aminmax() for part in parts]
            if max(low for low, _ in ends) < min(high for _, high in ends):  # else held-out rows are not between others
                in_time = Finding("in time", "note", num, facts={"columns": repr(column)})
    shared = together(codes)
    if not shared:
        return in_time
    column = max(shared, key=lambda name: (len(shared[name]), codes[name].max(), len(named[name])))
    return _in_groups("shared", "note", [column, *shared[column]])


def _in_groups(name: str, severity: Severity, columns: Sequence[str], num: int | None = None) -> Finding:
    remedy = Remedy(f"hold out whole groups of {columns[0]!r}", (f"data.groups={columns[0]}",))
    return Finding(name, severity, num, remedy=remedy, facts={"columns": ", ".join(map(repr, columns))})


def _meet(evidence: Evidence, places: Sequence[int]) -> bool:
    """Return whether rows held out, if any, have values of some columns that rows of training have."""
    if evidence.held_out is None:
        return True
    both = [single(part.x, "A table")[:, list(places)] for part in (evidence.train, evidence.held_out)]
    return not set(map(tuple, both[0].tolist())).isdisjoint(map(tuple, both[1].tolist()))


def together(codes: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    """Return by column, as ranks (N,), the others that repeat with it, and are not in its order or the reverse."""
    found, generator = dict[str, list[str]](), np.random.default_rng(0)
    some = {name: values[:_MOST_ROWS_OF_A_SEARCH] for name, values in codes.items()}
    sizes = {name: len(np.unique(values)) for name, values in some.items()}
    few = [name for name, size in sizes.items() if _FEWEST_GROUPS <= size <= len(some[name]) / _FEWEST_ROWS_OF_A_GROUP]
    for name, other in itertools.combinations(few, 2):
        a, b = some[name], some[other]
        width, most = int(b.max()) + 1, _TIMES_MORE_PAIRS * max(sizes[name], sizes[other])
        pairs = np.unique(a * width + b)
        is_group = _FEWEST_ROWS_OF_A_GROUP <= len(a) / len(pairs) <= _MOST_ROWS_OF_A_GROUP
        if not is_group or len(pairs) > most or abs(np.corrcoef(pairs // width, pairs % width)[0, 1]) > _ALIKE:
            continue
        if 2 * len(pairs) <= len(np.unique(a * width + generator.permutation(b))):  # which chance would make
            found.setdefault(name, []).append(other)
            found.setdefault(other, []).append(name)
    return found


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


CHECKS: dict[str, Check] = {
    "leak": leak,
    "held-out data": held_out,
    **cheap.CHECKS,
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
    "blocks": blocks,
    "k-hat": khat,
}
"""All checks, in the order in which they are told."""
