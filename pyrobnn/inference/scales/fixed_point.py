"""MacKay's fixed point: the next precisions of normal priors and the next noise, for groups of weights around a mode.

With gamma the number of weights that the data determine, the evidence is largest where alpha = gamma / sum w^2 and the
variance of the noise is the sum of squared errors / (targets - gamma) (MacKay 1992, "Bayesian Interpolation").
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyrobnn import priors
from pyrobnn._core.errors import InputError
from pyrobnn._torch.lbfgs import minimize_in_place
from pyrobnn._torch.matrices import inverse_softplus
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.linear_model import LinearModel, Solution, information, normal_draws
from pyrobnn.curvature.prior import prior_laws
from pyrobnn.distributions.support import base_of
from pyrobnn.distributions.units import Scaler
from pyrobnn.inference import limits
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.likelihoods.noise import SMALLEST_SCALE
from pyrobnn.priors.given import choices_of

_PRECISIONS = (1e-12, 1e8)
_UNDETERMINED_SHARE = 1e-8
_LEAST_SQUARES = 1e-30
_LEAST_FREE = 1e-3  # least share of the targets that is left to tell the noise by


@dataclasses.dataclass(frozen=True)
class Hyperprior:
    """The prior of scales: gamma priors of precisions, and a price for weights."""

    counts: float = 0.0  # weights that each group counts beside those that the data determine
    share: float | None = None  # their mean square, in declared variances, of at most all weights; None: it is 1
    noise_counts: float = 0.0  # targets that normal noise counts likewise, of a tenth of the variance of the targets
    penalty: float = 0.0  # nats taken off the leave-one-out score for each weight that the data determine

    @classmethod
    def of_real_targets(cls, num_data: float, num_inputs: int, counts: float | None = None) -> "Hyperprior":
        """Return the prior for real targets; without counts, fewer than six rows per input are few."""
        if counts is None:
            counts = limits.FEW_ROW_COUNTS if num_data < limits.ROWS_FOR_EACH_INPUT * num_inputs else 0.0
        return cls(counts, limits.PRIOR_SHARE, min(counts, 1.0), penalty=1.0)

    @classmethod
    def of_labels(cls, counts: float | None = None, *, is_linear: bool = False) -> "Hyperprior":
        """Return the prior for labels and counts, of which any number of rows is few."""
        share = limits.SHARE_OF_LINEAR_LABELS if is_linear else limits.PRIOR_SHARE
        return cls(limits.LABEL_COUNTS if counts is None else counts, share, penalty=1.0)


def next_variance(squares: Tensor, free: Tensor, targets: float) -> Tensor:
    """Return the next variance of the noise from the sum of squared errors and targets - gamma, of so many targets."""
    return squares / free.clamp_min(_LEAST_FREE * targets)


@dataclasses.dataclass(frozen=True, eq=False)
class PriorScales:
    """Precisions of normal priors that groups of weights share. All but `loc` is flat over the sites, (P,)."""

    loc: dict[str, Tensor]  # means, by site
    precision: Tensor  # in double precision
    group: Tensor  # the number of each weight's group
    is_held: Tensor  # whether the prior of a weight stays
    counted: Tensor  # 1 for weights that their group counts, else 0
    extra_counts: Tensor  # weights that the hyperprior counts in the group of each
    extra_squares: Tensor  # the sum of their squares
    undetermined: Tensor | None  # precisions of groups that the outputs do not depend on; None: they stay

    @classmethod
    def of(
        cls, bnn: BNN, weights: Mapping[str, Tensor], group: Tensor, hyperprior: Hyperprior, held: Collection[str]
    ) -> "PriorScales":
        """Return the scales that a model declares for some weights, under a hyperprior; sites may be held."""
        normals: dict[str, Any] = {name: base_of(law) for name, law in prior_laws(bnn, weights, {}).items()}
        for name, law in normals.items():
            if not isinstance(law, dist.Normal):
                raise InputError(
                    f"The evidence tunes the precision of normal priors, but {name!r} has {type(law).__name__}: take a "
                    "prior with latent scales, such as Hierarchical(), or compare fits on held-out data."
                )
        loc = {name: law.loc.detach().expand(weights[name].shape) for name, law in normals.items()}
        scales = [law.scale.detach().expand(weights[name].shape).reshape(-1) for name, law in normals.items()]
        precision = torch.cat(scales).double().pow(-2)
        ones, is_held = torch.ones_like(precision), [torch.full_like(mean, name in held) for name, mean in loc.items()]
        counts = squares = hyperprior.counts * ones
        if hyperprior.share is not None:
            sizes = sum_by_group(group, ones)
            counts = counts.minimum(sizes)
            squares = counts * hyperprior.share * sum_by_group(group, 1 / precision) / sizes
        return cls(loc, precision, group, _flat(is_held).bool(), ones, counts, squares, undetermined=precision)

    def fixed_point(self, determined: Tensor, squares: Tensor, rounding: float = 0.0) -> Tensor:
        """Return the next precisions, (gamma + counts) / (sum w^2 + counted squares) of each group.

        `determined` adds up to gamma, with a relative error of `rounding`; `squares` are squared distances to the means
        of the prior. Groups that the outputs do not depend on, as those of a constant input, have no next precision.
        """
        gamma, total, sizes = (sum_by_group(self.group, values) for values in (determined, squares, self.counted))
        is_determined = gamma > max(_UNDETERMINED_SHARE, rounding) * sizes
        moved = (gamma + self.extra_counts) / (total + self.extra_squares).clamp_min(_LEAST_SQUARES)
        return torch.where(is_determined, moved, self.precision if self.undetermined is None else self.undetermined)

    def updated(self, determined: Tensor, squares: Tensor) -> "PriorScales":
        """Return the scales after a step of the fixed point, within bounds."""
        return self.moved(self.fixed_point(determined, squares).clamp(*_PRECISIONS))

    def with_precisions(self, precisions: Mapping[str, Tensor]) -> "PriorScales":
        return self.moved(_flat(precisions.values()))

    def moved(self, precision: Tensor) -> "PriorScales":
        return dataclasses.replace(self, precision=torch.where(self.is_held, self.precision, precision))

    def by_site(self, values: Tensor | None = None) -> dict[str, Tensor]:
        """Return the precisions, or other numbers of each weight, (P,), by site."""
        parts = (self.precision if values is None else values).split([loc.numel() for loc in self.loc.values()])
        return {name: part.view(loc.shape) for (name, loc), part in zip(self.loc.items(), parts, strict=True)}

    def scales(self) -> dict[str, Tensor]:
        """Return the standard deviation of each weight under the prior, by site."""
        return {name: precision.rsqrt() for name, precision in self.by_site().items()}

    def deviation(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return weights less the means of their prior, flat."""
        return _flat(weights[name] - loc for name, loc in self.loc.items())

    def model(self, declared: BNN, numbers: Mapping[str, Any], target_scale: Tensor, fitted: BNN) -> BNN:
        """Return a declared model with these scales, numbers of its likelihood, and all else that is fitted."""
        like = fitted.like
        scales = {name: value.to(like) for name, value in self.scales().items()}
        prior = {name: _normal_prior(name, self.loc[name], scale) for name, scale in scales.items()}
        likelihood = dataclasses.replace(declared.settings["likelihood"], **numbers)
        left_out = {f"likelihood.{name}" for name in numbers}
        state = fitted.net.state_dict(prefix="net.") | fitted.likelihood.state_dict(prefix="likelihood.")
        state = {name: value for name, value in state.items() if name not in left_out}
        parts = {"prior": prior | _others(declared, list(scales)), "likelihood": likelihood}
        return declared.fresh(parts, device=like.device, target_scale=target_scale, state=state)


def _flat(values: Iterable[Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in values])


def sum_by_group(group: Tensor, values: Tensor) -> Tensor:
    """Return for each weight the sum over its group."""
    return values.new_zeros(int(group.max()) + 1).index_add(0, group, values)[group]


def first_layer(weights: Mapping[str, Tensor], num_inputs: int) -> str | None:
    """Return the name of the first matrix with a column per input, or None."""
    return next((name for name, value in weights.items() if value.ndim == 2 and value.shape[1] == num_inputs), None)


def groups_of(weights: Mapping[str, Tensor], per: str, num_inputs: int | None = None) -> Tensor:
    """Return the number of each weight's group, flat: of "all", a "site", a "weight", or an "input" if it has one."""
    first = first_layer(weights, num_inputs) if per == "input" and num_inputs is not None else None
    groups, start = list[Tensor](), 0
    for name, value in weights.items():
        group = torch.arange(value.numel()) if per == "weight" else torch.zeros(value.numel(), dtype=torch.int64)
        group = torch.arange(value.shape[1]).expand(value.shape).reshape(-1) if name == first else group
        groups.append(group + start)
        start += 0 if per == "all" else int(group.max()) + 1
    return torch.cat(groups).to(next(iter(weights.values())).device)


def _normal_prior(name: str, loc: Tensor, scale: Tensor) -> Any:
    """Return the normal prior of a site: with a number, or one for each input, if its entries share them."""
    if bool((scale == scale[:1]).all() & (loc == loc.reshape(-1)[0]).all()):
        return priors.Normal(scale=first_scales(scale), loc=float(loc.reshape(-1)[0]))
    return priors.FromPosterior({name: (loc.contiguous(), scale.contiguous())})


def first_scales(scale: Tensor) -> float | tuple[float, ...]:
    """Return the scales of the first unit of a site: a number, or one for each input if they differ."""
    row = scale[0] if scale.ndim > 1 else scale.reshape(-1)[:1]
    numbers = tuple(row.reshape(-1).tolist())
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _others(old: BNN, sites: list[str]) -> dict[str, Any]:
    """Return the priors of the parameters that were not tuned, by pattern."""
    names = [name for name, value in old.net.named_parameters() if value.requires_grad] + list(old.site_names)
    choices = dict(choices_of(old.settings["prior"]))
    first = {next((p for p in choices if fnmatchcase(name, p)), None) for name in names if name not in sites}
    return {pattern: choice for pattern, choice in choices.items() if pattern in first}


_LEAST_NOISE = 1e-5
_NOISE_DRAWS, _NOISE_ITERATIONS = 16, 20  # for numbers of a likelihood other than Gaussian noise


def spread(y: Tensor, weights: Tensor) -> Tensor:
    """Return the standard deviation of each column of targets (N, K), whose rows count with weights (N,)."""
    share = (weights / weights.sum())[:, None]
    return (share * (y - (share * y).sum(0)).square()).sum(0).sqrt()


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """All rows of the data, in the units of a model."""

    x: Tensor
    targets: tuple[Tensor, ...]  # as the likelihood takes them, and the weights of the rows if there are any
    unit: float | None = None  # of whole numbers, of which a density has the mass from y - 1/2 to y + 1/2

    @cached_property
    def y(self) -> Tensor:
        """The targets in double precision, (N, K)."""
        return self.targets[0].double().view(len(self.targets[0]), -1)

    @cached_property
    def counts(self) -> Tensor:
        """The weights of the rows, (N,)."""
        return self.targets[1].double() if len(self.targets) > 1 else torch.ones_like(self.y[:, 0])

    @cached_property
    def spread(self) -> Tensor:
        """The standard deviation of each column of targets, (K,), and 1 where it is 0."""
        deviation = spread(self.y, self.counts)
        return torch.where(deviation > 0, deviation, 1.0)

    @cached_property
    def most_dispersed(self) -> Tensor:
        """The largest dispersion of counts, (K,): ten times theirs around one mean, and 1: few counts set no limit."""
        mean = (self.counts @ self.y / self.counts.sum()).clamp_min(1e-12)
        return (10 * ((spread(self.y, self.counts) / mean).square() - 1 / mean)).clamp_min(1.0)

    def next_noise(self, f: Tensor, determined: Tensor, extra: float) -> Tensor:
        """Return the next deviation of normal noise around f, (K,); weights have spent `determined` targets, (K,)."""
        errors = ((self.y - f).square() * self.counts[:, None]).sum(0)
        squares = errors + extra * limits.NOISE_SHARE * self.spread.square()
        free = self.counts.sum() - determined + extra
        scale = next_variance(squares, free, float(self.counts.sum())).sqrt().clamp_min(_LEAST_NOISE)
        if not bool(scale.isfinite().all()):
            raise FloatingPointError(f"The noise became {scale.tolist()}: look for extreme values in the data.")
        return scale


class ModeNoise:
    """Noise that scales leave alone: it is known, or learned with the weights, or there is none.

    The subclasses tune it. `parameters` hold the numbers of the likelihood that are tuned. Of noise that is an output,
    `deviation` is that of the outputs of each row, and `held` says which weights stay; both are None for other noise.
    """

    parameters: Sequence[Tensor] = ()
    deviation: Tensor | None = None
    held: Tensor | None = None
    steps = 3  # updates of the scales in a round; with fewer, the mode is sought more often

    def begin(self, weights: Mapping[str, Tensor], noise: float) -> bool:
        """Begin at noise in units of the targets' spread; return whether there is such noise to tune."""
        return False

    def fit(self, f: Tensor, covariance: Tensor) -> None:
        """Move numbers to the largest mean log-likelihood over normal outputs."""

    def tune(self, point: Point, model: LinearModel, f: Tensor, solution: Solution) -> tuple[LinearModel, Tensor]:
        """Move the noise under a posterior of a linear model with outputs f; return the model and outputs then."""
        return model, f

    def release(self) -> None:
        """Let noise differ between rows, from now on."""

    def log_prob(self, likelihood: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
        """Return the log density of all targets around outputs f, (): the mean of those at f + d and f - d."""
        d = self.deviation
        return likelihood(f) if d is None else (likelihood(f + d) + likelihood(f - d)) / 2

    def free(self, values: Tensor) -> Tensor:
        """Return numbers for each weight, (P,), with 0 for weights that are held."""
        return values if self.held is None else values.masked_fill(self.held.to(values.device), 0)

    def settings(self, scaler: Scaler) -> dict[str, Any]:
        """Return the tuned numbers that a setting of a likelihood takes."""
        return {}


class TunedNumbers(ModeNoise):
    """Numbers of a likelihood that are moved by EM: to their best over the posterior of the outputs."""

    steps = 1

    def __init__(self, bnn: BNN, rows: Rows) -> None:
        self._bnn, self._rows = bnn, rows
        self.names = open_numbers(bnn.settings["likelihood"])
        by_name = dict(bnn.likelihood.named_parameters())
        self.parameters = [by_name[f"{name}_unconstrained"] for name in self.names]

    def begin(self, weights: Mapping[str, Tensor], noise: float) -> bool:
        if "scale" not in self.names:
            return False
        scale = self.parameters[self.names.index("scale")]
        scale.data.copy_((noise * self._rows.spread).log().view(scale.shape))
        return True

    def fit(self, f: Tensor, covariance: Tensor) -> None:
        draws = normal_draws(f, covariance, _NOISE_DRAWS).to(self._bnn.like)
        y, counts = self._rows.targets[0], self._rows.counts

        def loss() -> Tensor:
            return -(counts * self._bnn.likelihood(draws).log_prob(y).double()).sum() / len(draws)

        minimize_in_place(loss, self.parameters, maxiter=_NOISE_ITERATIONS)
        if "dispersion" in self.names and self._bnn.settings["likelihood"].integer_targets:
            number = self.parameters[self.names.index("dispersion")]
            number.data.clamp_(max=self._rows.most_dispersed.log().to(number).view(number.shape))

    def tune(self, point: Point, model: LinearModel, f: Tensor, solution: Solution) -> tuple[LinearModel, Tensor]:
        self.fit(f.detach(), solution.covariance)
        return _informed(model, point, f, self._rows), f

    def settings(self, scaler: Scaler) -> dict[str, Any]:
        values = {name: getattr(self._bnn.likelihood, name).detach().double().reshape(-1) for name in self.names}
        if "scale" in values:
            values["scale"] = values["scale"] * scaler.scale.reshape(-1).to(values["scale"].device)
        taken = {name: value.tolist() for name, value in values.items() if len(value) == 1 or name == "scale"}
        return {name: numbers[0] if len(numbers) == 1 else tuple(numbers) for name, numbers in taken.items()}


class TunedNormal(TunedNumbers):
    """The scales of normal noise, moved by MacKay's fixed point; their prior counts `extra` targets."""

    steps = 3

    def __init__(self, bnn: BNN, rows: Rows, extra: float) -> None:
        super().__init__(bnn, rows)
        self._extra = extra

    def tune(self, point: Point, model: LinearModel, f: Tensor, solution: Solution) -> tuple[LinearModel, Tensor]:
        likelihood, before = self._bnn.likelihood, known_noise(self._bnn)
        scale = self._rows.next_noise(f, solution.determined_by(), self._extra)
        with torch.no_grad():
            likelihood.scale = scale.to(likelihood.scale.device).view(likelihood.scale.shape).to(self._bnn.like.dtype)
        return model.with_noise(scale / before), f


class NoiseOutputs(ModeNoise):
    """Normal noise that is an output: the weights that lead to it alone, and how uncertain the locations are.

    Residuals of a mode are too small to tell the noise by. So the energy has the mean of log p(y | f) over the
    posterior of the locations, (log p(y | f + d) + log p(y | f - d)) / 2, d their deviation. Of 2 K outputs the last K
    are the noise. `belongs` says which weights lead to it alone, flat. Until `release` it is the same for all rows.
    """

    deviation: Tensor

    def __init__(self, weights: Mapping[str, Tensor], rows: Rows, extra: float) -> None:
        columns = self._columns = rows.y.shape[1]
        self._rows, self._extra = rows, extra
        self.deviation = next(iter(weights.values())).new_zeros(len(rows.y), 2 * columns)
        tall = {name: value.ndim for name, value in weights.items() if value.ndim and len(value) == 2 * columns}
        self._matrix = next((name for name in reversed(tall) if tall[name] == 2), None)
        layer = None if self._matrix is None else self._matrix.rpartition(".")[0]
        self._bias = next((name for name in tall if tall[name] == 1 and name.rpartition(".")[0] == layer), None)
        masks = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in weights.items()}
        for name in filter(None, (self._matrix, self._bias)):
            masks[name][columns:] = True
        self.belongs = torch.cat([mask.reshape(-1) for mask in masks.values()])

    def begin(self, weights: Mapping[str, Tensor], noise: float) -> bool:
        self.hold(weights, noise * self._rows.spread)
        return True

    def hold(self, weights: Mapping[str, Tensor], scale: Tensor) -> None:
        """Give all rows the noise of a deviation for each column, (K,), by the bias of a last layer if there is any."""
        if self._matrix is None or self._bias is None:
            return
        self.held = self.belongs
        weights[self._matrix][self._columns :] = 0
        weights[self._bias][self._columns :] = _output_of(scale).to(weights[self._bias])

    def release(self) -> None:
        self.held, self.steps = None, 1

    def tune(self, point: Point, model: LinearModel, f: Tensor, solution: Solution) -> tuple[LinearModel, Tensor]:
        variance = self.look(solution.covariance)
        if self.held is not None:
            loc, noise = f.chunk(2, 1)
            leverage = self._rows.counts[:, None] * variance / (softplus(noise.double()) + SMALLEST_SCALE).square()
            scale = self._rows.next_noise(loc, leverage.sum(0), self._extra)
            self.hold(point.weights, scale)
            f = torch.cat([loc, _output_of(scale).to(f).expand(len(f), -1)], 1)
        return _informed(model, point, f, self._rows), f

    def look(self, covariance: Tensor) -> Tensor:
        """Take in the covariance of the outputs of each row (N, 2 K, 2 K); return the locations' variances, (N, K)."""
        variance = covariance.diagonal(dim1=1, dim2=2)[:, : self._columns].clamp_min(0)
        self.deviation[:, : self._columns] = variance.sqrt().to(self.deviation)
        return variance


def mode_noise(bnn: BNN, weights: Mapping[str, Tensor], rows: Rows, *, extra: float, is_tuned: bool) -> ModeNoise:
    """Return the noise of a model; unless it is tuned, its numbers are known or learned with the weights."""
    likelihood = as_likelihood(bnn.settings["likelihood"])
    if likelihood.varies_normally:
        return NoiseOutputs(weights, rows, extra)
    if not is_tuned or not open_numbers(bnn.settings["likelihood"]):
        return ModeNoise()
    return TunedNormal(bnn, rows, extra) if likelihood.is_normal else TunedNumbers(bnn, rows)


def known_noise(bnn: BNN) -> Tensor:
    """Return the present deviation of normal noise of each column, (K,), in the units of the model."""
    scale: Tensor = bnn.likelihood.scale
    return scale.detach().double().reshape(-1)


def _informed(model: LinearModel, point: Point, f: Tensor, rows: Rows) -> LinearModel:
    return dataclasses.replace(model, columns=information(point, f.to(point.bnn.like), *rows.targets))


def _output_of(scale: Tensor) -> Tensor:
    """Return the output whose softplus, above the smallest scale, is a standard deviation."""
    return inverse_softplus((scale.double() - SMALLEST_SCALE).clamp_min(SMALLEST_SCALE / 10))
