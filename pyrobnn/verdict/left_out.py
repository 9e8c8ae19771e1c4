"""Whether a fit has memorised its targets, or missed what inputs tell, by scores of examples that are left out."""

import math

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.curvature.base import Point, conditioned_likelihood
from pyrobnn.curvature.linear_model import linear_model, log_scores
from pyrobnn.curvature.metric import score_columns
from pyrobnn.curvature.prior import prior_curvature
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import same_inputs
from pyrobnn.guides.base import built
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.verdict.baselines import cross_validated_scores, scores_of
from pyrobnn.verdict.comparison import Basis, Evaluation, judge
from pyrobnn.verdict.finding import Cause, Finding
from pyrobnn.verdict.remedies import OF_BAD_PREDICTIONS, OF_MISSED_FUNCTION, Fitted, open_to
from pyrobnn.verdict.residuals import errors_left_out, standardised

_PREDICTIVE_DRAWS = 100
_MOST_ENTRIES = 2**24
"""Derivatives of outputs in weights that are looked at."""
_LARGEST_MATRIX, _LARGEST_OF_A_BRIEF_LOOK = 1000, 500
_FAR_BELOW = 5.0
"""Nats below the constant at which the score of an example is cut off."""
_LOST_NATS = 2.0
_SHARE_OF_CONSTANT_LOSS = 0.8
"""Nats per example that a fit must lose; for labels and counts, at most this share of the constant's loss."""
_SIGNIFICANCE = 0.01
_TOO_MANY = 10
"""Real targets for each weight above which none are memorised: a target moves its own prediction by a tenth at most,
in the mean."""
_FEWEST_ROWS = 20
_ERROR_RATIO_TO_MISS = 1.25
_STANDARD_ERRORS_TO_MISS = 3.0
"""Multiple of the errors of the process, and standard errors of the difference, from which on a fit has missed."""
_NATS_AN_EXAMPLE_BEHIND = 0.05
_NATS_BEHIND_IN_ALL = 5.0


def memorised_targets(fit: Evaluation, left_out: Tensor | None) -> Finding | None:
    """Report a fit under which new examples are far less likely than training examples, if a linear model is as good.

    The new examples are those held out, or each training example left out of the fit; None without either. The loss is
    at least 2 nats an example; for labels and counts, 80 % of the constant's loss if that is less. So this is for noise
    that is set too small, or learned after all targets are met. A score far below counts where a Gaussian process
    without the row agrees, at no end of a column. Real targets ten times as many as weights are skipped.
    """
    posterior, train, baselines, held_out = fit.posterior, fit.train, fit.baselines, fit.held_out
    bnn = posterior.bnn
    likelihood = as_likelihood(bnn.settings["likelihood"])
    is_many = likelihood.noise is not None and train.y.numel() > _TOO_MANY * bnn.num_weights
    if "linear" not in baselines or is_many:
        return None
    rows = baselines["constant"].rows
    draws = max(_PREDICTIVE_DRAWS, len(posterior.members))
    basis: Basis = "left out"
    if held_out is not None:
        new = posterior.predict(held_out.x, num_draws=draws).log_prob(held_out.y).double().cpu()
        rivals, basis = scores_of(baselines, held_out), "held out"
    elif left_out is not None:
        new, rivals = left_out[rows], cross_validated_scores(baselines, train)
    else:
        return None
    prediction, constant = posterior.predict(train.x[rows], num_draws=draws), rivals["constant"]
    scores = torch.maximum(new, constant - _FAR_BELOW)
    is_open = basis == "left out" and likelihood.noise is not None and not torch.equal(scores, new)
    if is_open and train.y.ndim == 1 and isinstance(train.x, Tensor):
        x, y = train.x[rows].double().cpu().flatten(1), train.y[rows].double().cpu()
        ends = torch.stack([x.amin(0), x.amax(0)])
        errors = errors_left_out(standardised(x), standardised(y)) * y.std()
        scale = prediction.std.double().cpu().clamp_min(1e-9 * float(y.std()))  # censored, it may be none
        agreed = torch.distributions.Normal(0.0, scale).log_prob(errors)
        is_inside = ((x != ends[0]) & (x != ends[1]) | (ends[0] == ends[1])).all(1)
        scores = torch.where(is_inside, torch.minimum(scores, torch.maximum(new, agreed)), scores)
    lost = float(prediction.log_prob(train.y[rows]).double().mean() - scores.mean())
    is_integer = bnn.settings["likelihood"].integer_targets
    least = -_SHARE_OF_CONSTANT_LOSS * float(constant.mean()) if is_integer else _LOST_NATS
    kind = judge(scores, rivals, _SIGNIFICANCE, basis).kind
    if lost < min(_LOST_NATS, least) or kind == "fine" or (basis == "held out" and kind == "note"):
        return None
    example = "a held-out example" if basis == "held out" else "a training example left out"
    blame = "It is too sure of its classes" if prediction.is_classification else "Its intervals are too narrow"
    rest = (
        f": {example} is {lost:.1f} nats less likely than in training. {blame} on new data. Log score above a "
        f"constant's, in nats an example: fit {float((scores - constant).mean()):+.2f}, linear model "
        f"{float((rivals['linear'] - constant).mean()):+.2f}."
    )
    return _warning("memorised", "The fit has memorised its targets", rest, fit)


def learned_nothing(fit: Evaluation, left_out: Tensor | None) -> Finding | None:
    """Report a Laplace approximation that predicts rows left out of it no better than a constant, or hardly.

    It may be better on its training rows, as any fit to noise is. None for other fits, whose `left_out_scores` are not
    those of the fit itself.
    """
    if left_out is None or any(member.record.laplace is None for member in fit.posterior.members):
        return None
    scores = left_out[fit.baselines["constant"].rows]
    compared = judge(scores, cross_validated_scores(fit.baselines, fit.train), _SIGNIFICANCE, "left out")
    if compared.case == "no better" or (compared.kind == "warning" and not compared.gains.is_better):
        return _warning("learned", compared.lead, compared.text.removeprefix(compared.lead), fit)
    if not compared.gains.are_slight:
        return None
    lead = "The fit predicts hardly better than a constant, which ignores the inputs, if at all"
    rest = f". More rows may show more, or columns that tell more of the target. {compared.numbers}"
    return _warning("learned", lead, rest, fit)


def _warning(name: Cause, lead: str, rest: str, fit: Evaluation) -> Finding:
    """Return a warning that begins with a clause, which is all of it in plain words."""
    tries = OF_MISSED_FUNCTION if name == "missed" else OF_BAD_PREDICTIONS
    remedies = open_to(Fitted(fit.posterior, fit.train.y, fit.train.x), tries)
    return Finding(name, "warning", f"{lead}{rest}", remedies=remedies, plain=lead)


def left_out_scores(posterior: Posterior | Mixture, train: Data, *, briefly: bool = False) -> Tensor | None:
    """Return the log score of each training example by a fit without it, (N,), from the network linearised at the mean.

    The example's term is taken out of the Laplace approximation at the guide's mean (Vehtari et al. 2016,
    sec. 3.3). This is exact at a mode of a linear network with Gaussian noise. The scores are in original units; None
    for guides without a mean, Markov chains, data with weights, and if it would cost too much, `briefly` half as much.
    """
    member_scores, largest = [], _LARGEST_OF_A_BRIEF_LOOK if briefly else _LARGEST_MATRIX
    for member in posterior.members:
        with seeded(member.seed, "left out"):
            scores = None if built(member.guide).chains() is not None else _of_member(member, train, largest)
        if scores is None:
            return None
        member_scores.append(scores)
    return torch.stack(member_scores).logsumexp(0) - math.log(len(member_scores))


def _of_member(posterior: Posterior, train: Data, largest: int) -> Tensor | None:
    mean = built(posterior.guide).mean()
    bnn, size = posterior.bnn, posterior.bnn.num_weights
    if mean is None or train.weights is not None or any(name not in mean for name in bnn.site_names):
        return None
    columns = len(train) * posterior.outputs.shape[-1]
    if columns * size > _MOST_ENTRIES or min(columns, size) > largest:
        return None
    weights = {name: mean[name] for name in bnn.site_names}
    others = {name: value for name, value in mean.items() if name not in weights}
    x = posterior.inputs(train.x)
    y = bnn.cast_targets(posterior.y_scaler.transform(train.y), bnn.like)
    point = Point(bnn, weights, conditioned_likelihood(bnn, others), list(weights))
    with fast_pyro():
        try:
            precision = point.flat(prior_curvature(bnn, weights, others, point.sites).precision).double()
            model, f = linear_model(point, x, y)
            solution = model.solve(precision)
        except (InputError, FloatingPointError):
            return None
        (column,) = score_columns(point.likelihood, f.to(bnn.like.dtype), y)
        with torch.no_grad():
            centre, covariance = solution.left_out(f, column.double())
            scores = log_scores(point, y, centre, covariance, None)
    return (scores - posterior.y_scaler.log_volume()).cpu()


def behind_mode(fit: Evaluation) -> Finding | None:
    """Report a guide that scores its training rows below what the mode it began at says of rows left out.

    The evidence framework judges its modes by this left-out score, in closed form under a Laplace approximation.
    Training rows flatter the guide, so a good one scores more. None for other methods, and for data with weights.
    """
    posterior, train = fit.posterior, fit.train
    evidence, is_laplace = posterior.record.evidence, posterior.record.laplace is not None
    is_other = is_laplace or "evidence_framework" not in Fitted(posterior).types
    if evidence is None or is_other or train.weights is not None:
        return None
    rows = _some_rows(train, fit.most_rows)
    own = posterior.predict(train.x[rows], num_draws=fit.num_draws).log_prob(train.y[rows]).double().cpu()
    of_mode, error = evidence.starts[evidence.chosen].log_left_out / len(train), float(own.std()) / math.sqrt(len(own))
    if not of_mode - float(own.mean()) > max(_NATS_AN_EXAMPLE_BEHIND, _NATS_BEHIND_IN_ALL / len(own), error):
        return None
    rest = (
        ": it predicts its own training examples worse than a Laplace approximation predicts examples left out. "
        f"The log scores of an example are {float(own.mean()):.2f} and {of_mode:.2f}."
    )
    return _warning("missed", "The guide has lost what the data say", rest, fit)


def _some_rows(train: Data, most: int) -> Tensor:
    return torch.randperm(len(train), generator=torch.Generator().manual_seed(derive(0, "missed")))[:most]


def missed_function(fit: Evaluation) -> Finding | None:
    """Report a fit whose errors on its own training rows are larger than a Gaussian process makes without the row.

    A good fit has smaller errors, whatever the noise. Rows of equal inputs, which would tell each other's target, count
    once. None for other targets than a real column, inputs that are no tensor, weights, and fewer than 20 rows.
    """
    posterior, train = fit.posterior, fit.train
    is_real = as_likelihood(posterior.bnn.settings["likelihood"]).noise is not None and train.y.ndim == 1
    if not is_real or not isinstance(train.x, Tensor) or train.weights is not None:
        return None
    rows = _some_rows(train, fit.most_rows)
    groups = same_inputs(train.x[rows]).tolist()
    rows = rows[[groups.index(group) for group in dict.fromkeys(groups)]]
    if len(rows) < _FEWEST_ROWS:
        return None
    x, y = train.x[rows].double().cpu().flatten(1), train.y[rows].double().cpu()
    errors = errors_left_out(standardised(x), standardised(y))
    rival = (errors * y.std()).abs()
    own = (y - posterior.predict(train.x[rows], num_draws=fit.num_draws).mean.double().cpu()).abs()
    apart = own - rival
    error = float(apart.std()) / math.sqrt(len(rows))
    if not (
        float(own.mean()) > _ERROR_RATIO_TO_MISS * float(rival.mean())
        and float(apart.mean()) > _STANDARD_ERRORS_TO_MISS * error
    ):
        return None
    rest = (
        ": on its own training examples its mean is further from the target than that of a Gaussian process "
        f"fitted to the others. The mean absolute errors on {len(rows)} of them are {float(own.mean()):.2g} and "
        f"{float(rival.mean()):.2g}."
    )
    return _warning("missed", "The fit has missed what the inputs say", rest, fit)
