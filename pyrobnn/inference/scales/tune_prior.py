"""Prior precision and noise of a Laplace approximation, chosen by its evidence."""

import copy
import dataclasses
import math
from typing import Any, Literal, get_args

import torch
from pyro import poutine
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import gradients
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.curvature.base import Curvature, Point, conditioned_likelihood
from pyrobnn.curvature.kinds import KINDS
from pyrobnn.curvature.prior import PriorCurvature
from pyrobnn.data.loader import as_data
from pyrobnn.guides.base import built
from pyrobnn.guides.laplace import BlockGuide, Laplace
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.laplace import Result, assemble, examples, laplace_record, likelihood_curvature, log_likelihood
from pyrobnn.inference.scales.fixed_point import Hyperprior, PriorScales, groups_of, next_variance, sum_by_group
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import require_single
from pyrobnn.posterior.posterior import Posterior

Per = Literal["all", "site", "weight"]
_MOST_ROUNDS, _MOST_HALVINGS = 500, 10
_RELATIVE_TOLERANCE = 1e-7
_LARGEST_LOG_PRECISION = 25.0


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """The log evidence of log precisions of weights and tuned noise, with mode and curvature at the present noise."""

    point: Point  # the mode
    curvature: Curvature  # of the likelihood
    guide: BlockGuide  # a Gaussian to fill
    prior: PriorScales  # the scales of the posterior; they count the weights that the Gaussian covers
    squares: Tensor  # squared distance of each covered weight to the mean of its prior, else 0
    log_likelihood: float
    num_targets: float  # how many numbers the targets are, with their weights; 0 if the noise stays as it is
    precision: float  # 1 / variance of the noise
    power: int  # of the noise's precision in the curvature: 2 for squares of gradients, 1 for second derivatives

    @property
    def start(self) -> Tensor:
        """The scales of the posterior, in their mean over each group."""
        group, precision = self.prior.group, self.prior.precision
        logs = sum_by_group(group, precision.log()) / sum_by_group(group, torch.ones_like(precision))
        return torch.cat([logs, logs.new_tensor([math.log(self.precision)])]) if self.num_targets else logs

    def fill(self, logs: Tensor) -> Result:
        """Fill the guide for some scales; return the blocks' content."""
        scaled = self.curvature.scaled(self.ratio(logs) ** self.power)
        precisions = {name: value.to(self.point.bnn.like) for name, value in self.scales(logs).by_site().items()}
        result = assemble(self.point, PriorCurvature(precisions), scaled)
        result.fill(self.guide)
        return result

    def __call__(self, logs: Tensor) -> tuple[float, Tensor]:
        """Return the log evidence of some scales, and the scales that the fixed point takes next."""
        self.fill(logs)
        scales, covered = self.scales(logs), self.prior.counted
        determined = covered - scales.precision * self.point.flat(spreads(self.guide)).square().double()
        ahead = scales.fixed_point(determined, self.squares, 10 * _rounding(self.point)).log()
        if self.num_targets:
            free = self.num_targets - self.power * determined.sum()
            noise = next_variance(free.new_tensor(self._errors / self.precision), free, self.num_targets)
            ahead = torch.cat([ahead, -noise.log()[None]])
        value = float((covered * scales.precision.log() - scales.precision * self.squares).sum())
        evidence = self.log_likelihood_at(logs) + 0.5 * (value - float(self.guide.log_det()))
        return evidence, ahead.clamp(-_LARGEST_LOG_PRECISION, _LARGEST_LOG_PRECISION)

    def scales(self, logs: Tensor) -> PriorScales:
        return dataclasses.replace(self.prior, precision=logs[: len(self.squares)].exp())

    def ratio(self, logs: Tensor) -> float:
        """Return the noise's precision as a multiple of the present precision."""
        return math.exp(logs[-1]) / self.precision if self.num_targets else 1.0

    @property
    def _errors(self) -> float:
        """The sum of squared errors times the present precision of the noise."""
        return self.num_targets * (math.log(self.precision) - math.log(2 * math.pi)) - 2 * self.log_likelihood

    def log_likelihood_at(self, logs: Tensor) -> float:
        ratio = self.ratio(logs)
        return self.log_likelihood + 0.5 * self.num_targets * math.log(ratio) - 0.5 * (ratio - 1) * self._errors


def _rounding(point: Point) -> float:
    return torch.finfo(point.bnn.like.dtype).eps


def spreads(guide: BlockGuide) -> dict[str, Tensor]:
    """Return the standard deviation of each weight by site, 0 for weights that no Gaussian covers."""
    return {name: part for block in guide.gaussian_blocks() for name, part in block.split(block.spread()).items()}


@gradients()
def tune_prior(posterior: Posterior, data: Any, *, per: str = "all", noise: bool = False) -> Posterior:
    """Return a Laplace posterior with other prior precisions, and noise, around the same mode.

    The log evidence is maximised (type-II maximum likelihood) by MacKay's fixed point, alpha = gamma / sum w^2. The
    result has the priors N(loc, 1 / alpha), and the new log evidence and alpha by site in `record.laplace`.

    Args:
        posterior: of a `Laplace` guide with normal priors; it is not changed.
        data: the training data, as for `fit`.
        per: "all" for a single precision, "site" or "weight" for one of each (with "weight" most go to infinity).
        noise: whether to tune the scale of Gaussian noise too, to beta = (targets - gamma) / SSE.

    Raises:
        InputError: a mixture, another guide, structure or prior, or noise that is not a single Gaussian scale.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, guide="laplace", steps=50, seed=0, progress=False)
        >>> tuned = bnn.tune_prior(posterior, data, per="site")
        >>> tuned.record.laplace.log_evidence > posterior.record.laplace.log_evidence
        True
    """
    setting = _checked(posterior, per)
    source = make_source(as_data(data), posterior.bnn, None, seed=posterior.seed)
    source = dataclasses.replace(source, x_scaler=posterior.x_scaler, y_scaler=posterior.y_scaler)
    with seeded(posterior.seed, "curvature"), fast_pyro(), poutine.block():
        evidence = _problem(posterior, setting, source, per, noise=noise)
        return _tuned(posterior, evidence, _fixed_point(evidence), source)


def _checked(posterior: Posterior, per: str) -> Laplace:
    """Return the guide's setting; refuse posteriors and settings whose prior cannot be tuned."""
    require_single(posterior, "tune_prior")
    laplace = posterior.record.laplace
    if not built(posterior.guide).gaussian_blocks() or laplace is None:
        raise InputError(f"tune_prior takes the posterior of a Laplace guide, got {type(posterior.guide).__name__}.")
    if per not in get_args(Per):
        raise InputError(f"`per` must be one of {', '.join(get_args(Per))}; got {per!r}.")
    setting = Laplace(**{key: value for key, value in laplace.setting.items() if key != "type"})
    if setting.structure == "low_rank":
        raise InputError("tune_prior: what structure='low_rank' keeps depends on the prior: use 'kron' or 'full'.")
    if per != "all" and setting.subnetwork is not None:
        raise InputError("tune_prior: several precisions would change which weights a subnetwork has: use per='all'.")
    return setting


def _problem(posterior: Posterior, setting: Laplace, source: Source, per: str, *, noise: bool) -> Evidence:
    """Return the evidence of scales around the mode of a posterior; refuse priors and noise that cannot be tuned."""
    bnn, guide = posterior.bnn, copy.deepcopy(posterior.guide)
    values = guide.mean()
    weights = {name: values[name] for name in bnn.site_names}
    others = {name: value for name, value in values.items() if name not in weights}
    if any(name.startswith("prior.") for name in others):
        raise InputError("tune_prior: the prior's scales are latent and were inferred: there is nothing to tune.")
    deviations = spreads(guide)
    point = Point(bnn, weights, conditioned_likelihood(bnn, others), [n for n in bnn.site_names if n in deviations])
    tuned = {name: weights[name] for name in point.sites}
    prior = PriorScales.of(bnn, tuned, groups_of(tuned, per), Hyperprior(), ())
    prior = dataclasses.replace(prior, counted=(point.flat(deviations) > 0).double(), undetermined=None)
    num_targets, precision, likelihood = 0.0, 1.0, bnn.settings["likelihood"]
    if noise:
        if not as_likelihood(likelihood).is_normal or others or bnn.likelihood.scale.numel() != 1:
            said = "`noise=True` tunes a single scale of Gaussian noise, known or learned"
            raise InputError(f"{said}, not {likelihood!r}.")
        num_targets = source.total_weight * math.prod(source.head[1].shape[1:])
        precision = float(bnn.likelihood.scale.detach().reshape(())) ** -2
    data = examples(source, bnn, setting.batch_size, progress=False)
    even = PriorCurvature({name: torch.ones_like(value) for name, value in tuned.items()})
    curvature = likelihood_curvature(setting, point, even, data)
    squares = prior.deviation(tuned).square().double() * prior.counted
    fitted, power = log_likelihood(point, data, curvature), KINDS[setting.curvature].noise_power
    return Evidence(point, curvature, guide, prior, squares, fitted, num_targets, precision, power)


def _fixed_point(evidence: Evidence) -> Tensor:
    """Return the scales where MacKay's update stands still; a step that goes too far uphill is halved."""
    rounding, logs = _rounding(evidence.point), evidence.start
    value, ahead = evidence(logs)
    for _ in range(_MOST_ROUNDS):
        step, least = ahead - logs, value - 10 * rounding * abs(value)
        for _ in range(_MOST_HALVINGS):
            found, after = evidence(logs + step)
            if found >= least:
                break
            step = step / 2
        else:
            return logs
        logs, value, ahead = logs + step, found, after
        if float(step.abs().max()) < max(_RELATIVE_TOLERANCE, 100 * rounding):
            break
    return logs


def _tuned(posterior: Posterior, evidence: Evidence, logs: Tensor, source: Source) -> Posterior:
    """Return the posterior under some scales, with its new record."""
    result, laplace, scales = evidence.fill(logs), posterior.record.laplace, evidence.scales(logs)
    assert laplace is not None  # see `_checked`
    numbers = {}
    if evidence.num_targets:
        numbers["scale"] = math.exp(-0.5 * logs[-1]) * float(posterior.y_scaler.scale.reshape(-1)[0])
    bnn = scales.model(posterior.bnn, numbers, source.target_scale, posterior.bnn)
    tuned = posterior.with_fields(bnn=bnn.eval(), guide=evidence.guide)
    point, guide = dataclasses.replace(evidence.point, bnn=bnn), evidence.guide
    fitted = evidence.log_likelihood_at(logs) - source.total_weight * float(source.y_scaler.log_volume())
    updated = laplace_record(laplace.setting, point, result, guide=guide, others={}, log_likelihood=fitted)
    if int(scales.group.max()) < len(scales.loc):
        precision = {name: float(value.reshape(-1)[0]) for name, value in scales.by_site().items()}
        updated = dataclasses.replace(updated, precision=precision)
    tuned.note(laplace=updated, measured=["scale"] if evidence.num_targets else posterior.record.measured)
    return tuned
