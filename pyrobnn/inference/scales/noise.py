"""The noise of a search for modes and scales: known or learned with the weights, tuned numbers, or outputs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyrobnn._torch.lbfgs import minimize_in_place
from pyrobnn._torch.softplus import inverse_softplus
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.linear_model import LinearModel, Solution, information, normal_draws
from pyrobnn.data.in_memory import Scaler
from pyrobnn.inference import limits
from pyrobnn.inference.scales.fixed_point import next_variance
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.likelihoods.noise import SMALLEST_SCALE

_LEAST_NOISE = 1e-5
_NOISE_DRAWS = 16
_NOISE_ITERATIONS = 20
"""For numbers of a likelihood other than Gaussian noise."""


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
        """Return the next deviation of normal noise around locations f, (K,); its prior counts `extra` targets.

        Of the targets of each column, so many are spent on weights, (K,).
        """
        errors = ((self.y - f).square() * self.counts[:, None]).sum(0)
        squares = errors + extra * limits.NOISE_SHARE * self.spread.square()
        free = self.counts.sum() - determined + extra
        scale = next_variance(squares, free, float(self.counts.sum())).sqrt().clamp_min(_LEAST_NOISE)
        if not bool(scale.isfinite().all()):
            raise FloatingPointError(f"The noise became {scale.tolist()}: look for extreme values in the data.")
        return scale


class ModeNoise:
    """Noise that scales leave alone: it is known, or learned with the weights, or there is none.

    The subclasses tune it. `names` are the numbers of the likelihood that are tuned, and `parameters` hold them.
    """

    names: Sequence[str] = ()
    parameters: Sequence[Tensor] = ()
    state: Sequence[Tensor] = ()  # other numbers that move in place
    is_held = False  # whether noise that is an output is the same for all rows
    steps = 3
    """Updates of the scales in a round; with fewer, the mode is sought more often."""

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
        """Return the log density of all targets around outputs f, ()."""
        return likelihood(f)

    def free(self, values: Tensor) -> Tensor:
        """Return numbers for each weight, (P,), with 0 for weights that are held."""
        return values

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
    posterior of the locations, which is (log p(y | f + d) + log p(y | f - d)) / 2 for normal noise, d the posterior
    deviation of f. Of 2 K outputs the last K are the noise. `belongs` says which weights lead to it alone, flat. Until
    `release` it is the same for all rows, so that it cannot explain what locations have yet to fit.
    """

    def __init__(self, weights: Mapping[str, Tensor], rows: Rows, extra: float) -> None:
        columns = self._columns = rows.y.shape[1]
        self.is_held, self._rows, self._extra = False, rows, extra
        self._deviation = next(iter(weights.values())).new_zeros(len(rows.y), 2 * columns)
        self.state = [self._deviation]
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
        self.is_held = True
        weights[self._matrix][self._columns :] = 0
        weights[self._bias][self._columns :] = _output_of(scale).to(weights[self._bias])

    def release(self) -> None:
        self.is_held, self.steps = False, 1

    def tune(self, point: Point, model: LinearModel, f: Tensor, solution: Solution) -> tuple[LinearModel, Tensor]:
        variance = self.look(solution.covariance)
        if self.is_held:
            loc, noise = f.chunk(2, 1)
            leverage = self._rows.counts[:, None] * variance / (softplus(noise.double()) + SMALLEST_SCALE).square()
            scale = self._rows.next_noise(loc, leverage.sum(0), self._extra)
            self.hold(point.weights, scale)
            f = torch.cat([loc, _output_of(scale).to(f).expand(len(f), -1)], 1)
        return _informed(model, point, f, self._rows), f

    def look(self, covariance: Tensor) -> Tensor:
        """Take in the covariance of the outputs of each row (N, 2 K, 2 K); return the locations' variances, (N, K)."""
        variance = covariance.diagonal(dim1=1, dim2=2)[:, : self._columns].clamp_min(0)
        self._deviation[:, : self._columns] = variance.sqrt().to(self._deviation)
        return variance

    def log_prob(self, likelihood: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
        return (likelihood(f + self._deviation) + likelihood(f - self._deviation)) / 2

    def free(self, values: Tensor) -> Tensor:
        return values.masked_fill(self.belongs.to(values.device), 0) if self.is_held else values


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
