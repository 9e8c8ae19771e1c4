"""Prior precision and noise of a Laplace approximation, chosen by its evidence or by a validation score."""

import copy
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pyrobnn import priors
from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import gradients, under
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Curvature, Point, conditioned_likelihood
from pyrobnn.curvature.kinds import KINDS
from pyrobnn.curvature.prior import PriorCurvature, prior_laws
from pyrobnn.data.given import as_data
from pyrobnn.guides.built import built
from pyrobnn.guides.laplace import BlockGuide, Laplace
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.laplace.curve import (
    examples,
    laplace_record,
    log_likelihood,
)
from pyrobnn.inference.laplace.gaussian import Result, assemble, likelihood_curvature
from pyrobnn.inference.scales.prior_scales import next_precisions, normal_of, untuned
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import require_single
from pyrobnn.posterior.posterior import Posterior

By = Literal["evidence", "mackay", "validation"]
Per = Literal["all", "site", "weight"]
_GRID = np.logspace(-3, 3, 25)
_ROUNDS, _TOLERANCE = 500, 1e-7
_LARGEST_LOG = 25.0
_DRAWS = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """The log evidence as a function of log precisions, with the mode and the likelihood's curvature held fixed.

    Attributes:
        point: the mode.
        curvature: of the likelihood, at the present noise.
        guide: a Gaussian to fill.
        group: for each covered entry the number of its group, flat over the sites of the blocks.
        squares: squared distance of each entry to the mean of its prior, likewise.
        log_likelihood: at the present noise, in the units of the model.
        num_targets: how many numbers the targets are, with their weights, and 0 if the noise stays as it is.
        precision: 1 / variance of the noise at present, in the units of the model.
        power: of the noise's precision in the curvature: 2 for squares of gradients, 1 for second derivatives.
    """

    point: Point
    curvature: Curvature
    guide: BlockGuide
    group: Tensor
    squares: Tensor
    log_likelihood: float
    num_targets: float
    precision: float
    power: int

    def fill(self, logs: np.ndarray) -> Result:
        """Fill the guide for log precisions of groups, and of noise if it is tuned; return the blocks' content."""
        scaled = self.curvature.scaled(self.ratio(logs) ** self.power)
        result = assemble(self.point, PriorCurvature(self.precisions(logs)), scaled)
        result.fill(self.guide)
        return result

    def precisions(self, logs: np.ndarray) -> dict[str, Tensor]:
        """Return the precision of the prior of each weight, by site."""
        return self.point.by_site(torch.from_numpy(np.exp(logs[: self.num_groups])).to(self.squares)[self.group])

    def ratio(self, logs: np.ndarray) -> float:
        """Return the noise's precision as a multiple of the present precision."""
        return math.exp(logs[-1]) / self.precision if self.num_targets else 1.0

    @property
    def num_groups(self) -> int:
        """The number of groups of weights."""
        return int(self.group.max()) + 1

    def __call__(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        """Return log evidence and its gradient in the logs (MacKay 1992, "Bayesian Interpolation", eq. 4.10 on).

        With alpha the precision of n weights, d/dlog alpha = (n - alpha (sum w^2 + trace of their covariance)) / 2;
        with beta the precision of the noise, d/dlog beta = (targets - beta SSE - power gamma) / 2, gamma the number of
        well-determined weights.
        """
        self.fill(logs)
        ratio = self.ratio(logs)
        alphas = np.exp(logs[: self.num_groups])
        counts, squares, traces = (self.by_group(value) for value in self._entries())
        value = self.log_likelihood_at(ratio) - 0.5 * float(self.guide.log_det())
        value += 0.5 * float((counts * logs[: self.num_groups] - alphas * squares).sum())
        gradient = 0.5 * (counts - alphas * (squares + traces))
        if self.num_targets:
            gamma = float((counts - alphas * traces).sum())
            gradient = np.append(gradient, 0.5 * (self.num_targets - ratio * self._errors - self.power * gamma))
        return value, gradient

    def fixed_point(self, logs: np.ndarray) -> np.ndarray:
        """Return MacKay's next precisions: gamma / sum w^2, and (targets - power gamma) / SSE for the noise.

        A group that the outputs do not depend on keeps its precision.
        """
        self.fill(logs)
        present = np.exp(logs[: self.num_groups])
        counts, squares, traces = (self.by_group(value) for value in self._entries())
        gamma = np.clip(counts - present * traces, 1e-10 * counts, counts)
        rounding = 10 * torch.finfo(self.squares.dtype).eps
        groups = map(torch.from_numpy, (gamma, squares, counts, present))
        new_logs = next_precisions(*groups, rounding=rounding).log().numpy()
        if self.num_targets:
            beta = (self.num_targets - self.power * gamma.sum()) / (self.ratio(logs) * self._errors)
            new_logs = np.append(new_logs, logs[-1] + math.log(max(beta, 1e-10)))
        return np.clip(new_logs, -_LARGEST_LOG, _LARGEST_LOG)

    @property
    def _errors(self) -> float:
        """The sum of squared errors times the present precision of the noise."""
        return self.num_targets * (math.log(self.precision) - math.log(2 * math.pi)) - 2 * self.log_likelihood

    def log_likelihood_at(self, ratio: float) -> float:
        """Return the log likelihood for a multiple of the noise's precision."""
        if not self.num_targets:
            return self.log_likelihood
        return self.log_likelihood + 0.5 * self.num_targets * math.log(ratio) - 0.5 * (ratio - 1) * self._errors

    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for the entries that are Gaussian, 1, the squares, and the variances; 0 for others."""
        spreads = {name: s for block in self.guide.gaussian_blocks() for name, s in block.split(block.spread()).items()}
        variance = self.point.flat(spreads).square()
        is_covered = (variance > 0).to(variance)
        return is_covered, self.squares * is_covered, variance

    def by_group(self, values: Tensor) -> np.ndarray:
        """Return the sum of the entries' values in each group."""
        total = torch.zeros(self.num_groups, dtype=torch.float64).to(values.device)
        return total.index_add(0, self.group, values.double()).cpu().numpy()


@under(gradients)
def tune_prior(
    posterior: Posterior,
    data: Any,
    *,
    by: str = "evidence",
    per: str = "all",
    noise: bool = False,
    validation: Any = None,
) -> Posterior:
    """Return a Laplace posterior with other prior precisions, and noise, around the same mode.

    Args:
        posterior: of a `Laplace` guide with normal priors; it is not changed.
        data: the training data, as for `fit`; they are mapped to the posterior's units.
        by: "evidence" maximises the log evidence (type-II maximum likelihood); "mackay" runs MacKay's fixed point,
            alpha = gamma / sum w^2, to the same end; "validation" takes the best mean log score among 25 precisions.
            With `noise` it alternates with 25 noise scales around the present scale, until both stay.
        per: a single precision for all weights, a precision for each site, or for each weight (automatic relevance
            determination: most go to infinity).
        noise: whether to tune the scale of Gaussian noise too, to beta = (targets - gamma) / SSE.
        validation: data for "validation".

    Returns:
        A posterior of a model with the priors N(loc, 1 / alpha); `record.laplace` has the new log evidence, and
        `precision`, alpha by site, unless each weight has a precision.

    Raises:
        InputError: a mixture, another guide, a structure or prior without a number per weight as precision, a
            subnetwork with several precisions, noise that is not a single Gaussian scale, or validation data that are
            missing or not needed.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, guide="laplace", steps=50, seed=0, progress=False)
        >>> tuned = bnn.tune_prior(posterior, data, per="site")
        >>> tuned.record.laplace.log_evidence > posterior.record.laplace.log_evidence
        True
        >>> sorted(tuned.record.laplace.precision)
        ['0.bias', '0.weight', '2.bias', '2.weight']
    """
    setting, data = _checked(posterior, by, per, validation), as_data(data)
    source = dataclasses.replace(
        make_source(data, posterior.bnn, None, seed=posterior.seed),
        x_scaler=posterior.x_scaler,
        y_scaler=posterior.y_scaler,
    )
    with seeded(posterior.seed, "curvature"), fast_pyro(), poutine.block():
        evidence, start = _problem(posterior, setting, source, per, noise=noise)
        if by == "validation":
            logs = _by_validation(posterior, evidence, source, as_data(validation))
        else:
            logs = _fixed_point(evidence, start) if by == "mackay" else _maximum(evidence, start)
        return _tuned(posterior, evidence, logs, source)


def _checked(posterior: Posterior, by: str, per: str, validation: Any) -> Laplace:
    """Return the setting of the approximation; refuse settings that cannot be tuned."""
    require_single(posterior, "tune_prior")
    laplace = posterior.record.laplace
    if not built(posterior.guide).gaussian_blocks() or laplace is None:
        raise InputError(
            f"tune_prior takes the posterior of a Laplace guide, this is {type(posterior.guide).__name__}."
        )
    if by not in get_args(By) or per not in get_args(Per):
        raise InputError(
            f"`by` must be one of {', '.join(get_args(By))} and `per` one of {', '.join(get_args(Per))}; got "
            f"{by!r} and {per!r}."
        )
    if (by == "validation") != (validation is not None):
        raise InputError("Pass `validation=Data(x, y)` with by='validation', and only then.")
    if by == "validation" and per != "all":
        raise InputError("A validation score tunes a single precision: use per='all', or by='evidence'.")
    table = {key: value for key, value in laplace.setting.items() if key != "type"}
    setting = Laplace(**table)
    if setting.structure == "low_rank":
        raise InputError(
            "tune_prior: the directions of structure='low_rank' depend on the prior: use 'kron', 'diag' or 'full'."
        )
    if setting.subnetwork is not None and per != "all":
        raise InputError("tune_prior: several precisions would change which weights a subnetwork has: use per='all'.")
    return setting


def _problem(
    posterior: Posterior, setting: Laplace, source: Source, per: str, *, noise: bool
) -> tuple[Evidence, np.ndarray]:
    """Return the evidence as a function, and the present log precisions."""
    bnn, guide = posterior.bnn, copy.deepcopy(posterior.guide)
    values = guide.mean()
    weights = {name: values[name] for name in bnn.site_names}
    others = {name: value for name, value in values.items() if name not in weights}
    if any(name.startswith("prior.") for name in others):
        raise InputError("tune_prior: the prior's scales are latent and were inferred: there is nothing to tune.")
    covered = {name for block in guide.gaussian_blocks() for name in block.shapes}
    sites = [name for name in bnn.site_names if name in covered]
    laws = prior_laws(bnn, weights, others)
    normals = {name: normal_of(laws[name], name) for name in sites}
    point = Point(bnn, weights, conditioned_likelihood(bnn, others), sites)
    data = examples(source, bnn, setting.batch_size, progress=False)
    even = PriorCurvature({name: torch.ones_like(weights[name]) for name in sites})
    curvature = likelihood_curvature(setting, point, even, data)
    at_mode = log_likelihood(point, data, curvature)
    group = {
        "all": torch.zeros(point.size, dtype=torch.int64),
        "site": torch.arange(len(sites)).repeat_interleave(torch.tensor([shape.numel() for shape in point.shapes])),
        "weight": torch.arange(point.size),
    }[per].to(next(iter(weights.values())).device)
    squares = point.flat({name: (weights[name] - law.loc).square() for name, law in normals.items()})
    beta = _noise_precision(bnn, others) if noise else 1.0
    targets = source.total_weight * math.prod(source.head[1].shape[1:]) if noise else 0.0
    power = KINDS[setting.curvature].noise_power
    evidence = Evidence(point, curvature, guide, group, squares, at_mode, targets, beta, power)
    scales = {name: law.scale.expand(weights[name].shape) for name, law in normals.items()}
    flat = point.flat(scales).pow(-2).log()
    start = evidence.by_group(flat) / evidence.by_group(torch.ones_like(flat))
    return evidence, np.append(start, math.log(beta)) if noise else start


def _noise_precision(bnn: BNN, others: Mapping[str, Tensor]) -> float:
    """Return 1 / variance of the noise in the units of the model."""
    likelihood = bnn.settings["likelihood"]
    if not as_likelihood(likelihood).is_normal or others or bnn.likelihood.scale.numel() != 1:
        raise InputError(f"`noise=True` tunes a single scale of Gaussian noise, known or learned; got {likelihood!r}.")
    return float(bnn.likelihood.scale.detach().reshape(())) ** -2


def _maximum(evidence: Evidence, start: np.ndarray) -> np.ndarray:
    """Return the log precisions with the largest log evidence, from the present values or from MacKay's fixed point.

    In float32 the evidence of small precisions is rounded, and a line search that goes there does not come back.
    """
    from scipy.optimize import minimize  # a third of a second, which fits without open scales do without

    def negative(logs: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = evidence(logs)
        return -value, -gradient

    bounds = [(-_LARGEST_LOG, _LARGEST_LOG)] * len(start)
    rounding = 10 * torch.finfo(evidence.squares.dtype).eps  # a line search below it goes astray, to NaN in SciPy 1.18
    options = {"maxiter": _ROUNDS, "ftol": max(2.2e-9, rounding)}

    def end(place: np.ndarray) -> np.ndarray:
        return minimize(negative, place, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x

    first = end(start)
    try:
        fixed = _fixed_point(evidence, start)
        ends = [first, fixed, end(fixed)]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # precisions too far apart for float32
        ends = [first]
    return max(ends, key=lambda logs: np.nan_to_num(evidence(logs)[0], nan=-np.inf))


def _fixed_point(evidence: Evidence, start: np.ndarray) -> np.ndarray:
    """Repeat MacKay's update until it stands still."""
    logs = start
    for _ in range(_ROUNDS):
        new_logs = evidence.fixed_point(logs)
        if np.abs(new_logs - logs).max() < _TOLERANCE:
            break
        logs = new_logs
    return new_logs


def _by_validation(posterior: Posterior, evidence: Evidence, source: Source, validation: Any) -> np.ndarray:
    """Return the log precisions with the best mean log score: on grids around 1 and around the noise."""
    grids = [np.log(_GRID)]
    if evidence.num_targets:
        grids.append(np.log(evidence.precision * _GRID))

    def logs(place: tuple[int, ...]) -> np.ndarray:
        return np.array([grid[index] for grid, index in zip(grids, place, strict=True)])

    @functools.cache
    def score(place: tuple[int, ...]) -> float:
        tuned = _tuned(posterior, evidence, logs(place), source)
        mean: float = validation.mean_over(lambda x, y: tuned.predict(x, num_draws=_DRAWS).log_prob(y))
        return mean

    best, last = (len(_GRID) // 2,) * len(grids), None
    while best != last:
        last = best
        for axis in range(len(grids)):
            line = [(*best[:axis], index, *best[axis + 1 :]) for index in range(len(_GRID))]
            best = max(line, key=score)
    return logs(best)


def _tuned(posterior: Posterior, evidence: Evidence, logs: np.ndarray, source: Source) -> Posterior:
    """Return the posterior of the model with the tuned prior and noise."""
    result = evidence.fill(logs)
    tuned = Posterior(
        _with_prior(posterior, evidence, logs),
        evidence.guide,
        example=posterior.example,
        x_scaler=posterior.x_scaler,
        y_scaler=posterior.y_scaler,
        seed=posterior.seed,
        history=posterior.history,
        outputs=posterior.outputs,
    )
    at_mode = evidence.log_likelihood_at(evidence.ratio(logs)) - source.total_weight * float(
        source.y_scaler.log_volume()
    )
    point = dataclasses.replace(evidence.point, bnn=tuned.bnn)
    laplace = posterior.record.laplace
    assert laplace is not None  # see `_checked`
    updated = laplace_record(laplace.setting, point, result, guide=evidence.guide, others={}, log_likelihood=at_mode)
    if evidence.num_groups <= len(evidence.point.sites):
        alphas = np.exp(np.broadcast_to(logs[: evidence.num_groups], len(evidence.point.sites)))
        updated = dataclasses.replace(updated, precision=dict(zip(evidence.point.sites, alphas.tolist(), strict=True)))
    measured = ["scale"] if evidence.num_targets else posterior.record.measured
    tuned.record = dataclasses.replace(posterior.record, laplace=updated, measured=measured)
    return tuned


def _with_prior(posterior: Posterior, evidence: Evidence, logs: np.ndarray) -> BNN:
    """Return the model with normal priors of the tuned precisions, and the tuned noise."""
    old = posterior.bnn
    likelihood = old.settings["likelihood"]
    if evidence.num_targets:
        scale = math.exp(-0.5 * logs[-1]) * float(posterior.y_scaler.scale.reshape(-1)[0])
        likelihood = dataclasses.replace(likelihood, scale=scale)
    bnn = old.with_parts(prior=_prior(old, evidence, logs), likelihood=likelihood).to(posterior.example[0].device)
    bnn.scale_targets(posterior.y_scaler.scale.expand(posterior.example[1].shape[1:]))
    bnn.net.load_state_dict(old.net.state_dict())
    if not evidence.num_targets:
        bnn.likelihood.load_state_dict(old.likelihood.state_dict())
    return bnn


def _prior(old: BNN, evidence: Evidence, logs: np.ndarray) -> Any:
    sites, weights, alphas = evidence.point.sites, evidence.point.weights, evidence.precisions(logs)
    laws = {name: normal_of(law, name) for name, law in prior_laws(old, {n: weights[n] for n in sites}, {}).items()}
    if evidence.num_groups > len(sites) or any(laws[name].loc.unique().numel() > 1 for name in sites):
        moments = {name: (laws[name].loc.expand(alpha.shape), alpha.rsqrt()) for name, alpha in alphas.items()}
        chosen: dict[str, Any] = dict.fromkeys(sites, priors.FromPosterior(moments))
    else:
        chosen = {
            name: priors.Normal(scale=float(alpha.reshape(-1)[0]) ** -0.5, loc=float(laws[name].loc.reshape(-1)[0]))
            for name, alpha in alphas.items()
        }
    return chosen | untuned(old, sites)
