"""Baselines of a fit: a constant and a linear model of the same likelihood, and a Gaussian process."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Normal

from pyrobnn._core.random import derive
from pyrobnn._torch.inputs import X, flat_rows
from pyrobnn._torch.lbfgs import minimize_in_place
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import same_inputs
from pyrobnn.distributions.units import Scaler
from pyrobnn.likelihoods.base import as_likelihood, opened, target_units, with_offset
from pyrobnn.posterior.prediction import Prediction

_FOLDS = 5
_VARIANCES = (0.01, 0.1, 1.0, 10.0, 100.0)  # of a linear model's output at a typical input: cross-validation chooses
_INTERCEPT_PRECISION = 0.1  # so that a class that never occurs keeps a probability
_WIDEST = 20_000  # inputs above which there is no linear model
_MOST_ENTRIES = 4_000_000
_FEWEST_ROWS = 500
_ROWS_FOR_A_WEIGHT = 10
_SQUARED_LENGTHS = (0.125, 0.5, 2.0, 8.0)  # of the grid of processes, times the median of squared distances
_RELATIVE_NOISES = (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # likewise: variances over that of the function
_PRECISION = 1e-7  # the relative change of the objective at which L-BFGS stops
_LARGEST_LOG, _SMALLEST_LOG_NOISE = 20.0, -7.0  # bounds on unconstrained parameters: exp(-7) is a thousandth


@dataclasses.dataclass(frozen=True, eq=False)
class Baseline:
    """A constant or a linear model, fitted to some rows (M,) of the data by penalised maximum likelihood.

    `cross_validated` has predictions for these rows, each by a fit without the fold of the row, if there are folds.
    """

    rows: Tensor
    cross_validated: Prediction
    _problem: "_Problem"
    _parameters: Tensor
    _features: Callable[[X], Tensor]
    _weights: Tensor

    def predict(self, x: X) -> Prediction:
        """Return predictions for inputs (N, *in) in original units, single distributions."""
        f = self._features(x) @ self._weights[:-1] + self._weights[-1]
        return self._problem.predict(self._parameters, f, self._problem.at_zero(x))

    @property
    def noise(self) -> Tensor:
        """The scale of the noise in original units, (1,) or (K,), of a likelihood that has one."""
        with fast_pyro(), torch.no_grad():
            self._problem.put(self._parameters)
            return (self._problem.module.scale * self._problem.scaler.scale).reshape(-1)


def shuffled_rows(data: Data) -> Tensor:
    """Return the rows (N,) of data in the order in which baselines take them."""
    return torch.randperm(len(data), generator=torch.Generator().manual_seed(derive(0, "baselines")))


def fit_baselines(
    likelihood: Any, data: Data, outputs: int, *, most_rows: int = 10_000, folds: bool = True
) -> dict[str, Baseline]:
    """Fit a constant and a linear model of a likelihood, of so many outputs of the network, to training data.

    Constants replace these outputs, or linear functions of the standardised inputs with a ridge penalty,
    which 5-fold cross-validation chooses. The parameters of the likelihood, also those that are fixed in the model,
    maximise the likelihood given cross-validated outputs. `most_rows` are drawn at random, of many inputs fewer.
    Without `folds` there is one fit with a weak penalty, and no linear model unless there are 10 rows for each weight.
    The names are "constant", and "linear" for inputs of one tensor with at most 20,000 numbers, unless targets are
    labels at positions; none for a likelihood with latents.
    """
    if len(data) < 2:
        return {}
    width, offset = data.x[0].numel(), with_offset(likelihood, data).offset
    size = max(_FEWEST_ROWS, min(most_rows, _MOST_ENTRIES // (outputs * width)))
    rows = shuffled_rows(data)[:size]
    x, y = data.x[rows].cpu(), data.y[rows].cpu()
    weights = torch.ones(len(y), dtype=torch.float64) if data.weights is None else data.weights[rows].double().cpu()

    def at_zero(values: X) -> Tensor:
        zero = torch.zeros(1, outputs, dtype=torch.float64)
        return zero if offset is None else as_likelihood(likelihood).shifted(zero, flat_rows(values)[:, [offset]].cpu())

    with fast_pyro():
        problem = _Problem.of(opened(likelihood), x, y, weights, outputs, at_zero=at_zero, folds=folds)
        if problem is None:
            return {}
        baselines = {"constant": _fit(problem, rows, lambda x: torch.zeros(len(x), 0, dtype=torch.float64), x)}
        enough = folds or len(y) >= _ROWS_FOR_A_WEIGHT * (width + 1)
        if enough and isinstance(x, Tensor) and width <= _WIDEST and not as_likelihood(likelihood).has_positions:
            baselines["linear"] = _fit(problem, rows, _directions(x), x)
    return baselines


def _directions(x: Tensor) -> Callable[[X], Tensor]:
    """Return the map to standardised inputs; of more inputs than rows to the rows' span, which has all solutions."""
    scaler, width = Scaler.fit(flat_rows(x)), x[0].numel()

    def standard(values: X) -> Tensor:
        return scaler.transform(flat_rows(values).cpu()) / math.sqrt(width)

    if width <= len(x):
        return standard
    turn = torch.linalg.svd(standard(x), full_matrices=False).Vh.T
    return lambda values: standard(values) @ turn


class _Problem(NamedTuple):
    """Targets y (N,) or (N, K) in standard units, the likelihood's module, and the fold of each row for several fits.

    The module maps outputs (..., N, outputs), in float64, to distributions of targets in units of the scaler. `centre`
    and `unit` are location and spread of the targets where outputs are locations; else 0 and 1, each (outputs,).
    `least` bounds the parameters of the likelihood. `at_zero` gives the outputs of a function that is 0 at any inputs,
    which hold the offset of the likelihood, and `zero` those of these rows.
    """

    module: PyroModule
    y: Tensor
    weights: Tensor
    scaler: Scaler
    outputs: int
    centre: Tensor
    unit: Tensor
    folds: Tensor | None
    least: float
    at_zero: Callable[[X], Tensor]
    zero: Tensor

    @classmethod
    def of(
        cls, likelihood: Any, x: X, y: Tensor, weights: Tensor, outputs: int, *, at_zero: Any, folds: bool = True
    ) -> "_Problem | None":
        """Return the problem; None for a likelihood that has latents."""
        scaler = target_units(likelihood, Scaler.fit(y, targets=True))
        targets = y.long() if likelihood.integer_targets else scaler.transform(y.double())
        module = likelihood.build(torch.zeros((), dtype=torch.float64), scaler.scale.expand(y.shape[1:]))
        if any(isinstance(part, PyroModule) and part._pyro_samples for part in module.modules()):
            return None
        centre, unit = torch.zeros(outputs, dtype=torch.float64), torch.ones(outputs, dtype=torch.float64)
        least = -_LARGEST_LOG if as_likelihood(likelihood).noise is None else _SMALLEST_LOG_NOISE
        if as_likelihood(likelihood).noise:
            target_scaler = Scaler.fit(targets.reshape(len(y), -1), targets=True)
            centre[: len(target_scaler.loc)], unit[: len(target_scaler.loc)] = target_scaler.loc, target_scaler.scale
        of_rows = same_inputs(x) % min(_FOLDS, len(y)) if folds else None
        return cls(module, targets, weights, scaler, outputs, centre, unit, of_rows, least, at_zero, at_zero(x))

    @property
    def kept(self) -> Tensor:
        """How often a fit sees a row, (fits, N): all rows, and all but each fold."""
        if self.folds is None:
            return self.weights[None]
        by_fold = torch.arange(int(self.folds.max()) + 1)[:, None]
        return self.weights * torch.cat([torch.ones(1, len(self.y)), (self.folds != by_fold)])

    def loss(self, f: Tensor, weights: Tensor) -> Tensor:
        """Return the negative log likelihood of the targets, in standard units, given outputs (..., N, outputs)."""
        return -(weights * self.module(self.zero + self.centre + self.unit * f).log_prob(self.y)).sum()

    def predict(self, parameters: Tensor, f: Tensor, zero: Tensor) -> Prediction:
        """Return predictions for outputs (N, outputs) above those `at_zero` under parameters of the likelihood."""
        with fast_pyro(), torch.no_grad():
            self.put(parameters)
            return Prediction(self.module(zero + self.centre + self.unit * f[None]), self.scaler)

    def put(self, parameters: Tensor) -> None:
        """Give the likelihood parameters, on the unconstrained side."""
        torch.nn.utils.vector_to_parameters(parameters, self.module.parameters())

    @property
    def parameters(self) -> Tensor:
        """The parameters of the likelihood that the module has now, flat: those of the last fit, once there is one."""
        none = torch.zeros(0, dtype=torch.float64)
        return torch.cat([none, *(value.detach().flatten() for value in self.module.parameters())])


def _fit(problem: _Problem, rows: Tensor, features: Callable[[X], Tensor], x: X) -> Baseline:
    """Fit for larger and larger variances of the prior, as long as the cross-validated score rises."""
    design = features(x)
    inputs = torch.cat([design, design.new_ones(len(design), 1)], 1)
    coefficients = inputs.new_zeros(len(problem.kept), inputs.shape[1], problem.outputs)
    parameters = start = problem.parameters  # of the constant, where the linear model goes on
    best: tuple[float, Tensor, Tensor, Tensor] | None = None
    variances = _VARIANCES if problem.folds is not None else _VARIANCES[-1:]
    of_row = 0 if problem.folds is None else 1 + problem.folds
    for variance in variances if design.shape[1] else variances[:1]:
        coefficients, parameters = _train(problem, inputs, 1 / variance, coefficients, parameters)
        with torch.no_grad():
            weights_of_row = coefficients[of_row].expand(len(inputs), -1, -1)
            held_out = torch.einsum("np,npo->no", inputs, weights_of_row)
        score, fitted = _calibrate(problem, held_out, start)
        if best is not None and not score > best[0]:  # it may be NaN
            break
        best = score, coefficients[0], fitted, held_out
    assert best is not None  # there is a variance
    _, weights, fitted, held_out = best
    return Baseline(rows, problem.predict(fitted, held_out, problem.zero), problem, fitted, features, weights)


def _train(
    problem: _Problem, inputs: Tensor, precision: float, coefficients: Tensor, parameters: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the coefficients of largest penalised likelihood of all fits, and the parameters that they share."""
    kept, size = problem.kept, coefficients.numel()
    penalty = torch.full((inputs.shape[1], 1), precision, dtype=torch.float64)
    penalty[-1] = _INTERCEPT_PRECISION

    def loss(values: Tensor) -> Tensor:
        weights = values.view_as(coefficients)
        return penalty.mul(weights.square()).sum() / 2 + problem.loss(inputs @ weights, kept)

    solution = _minimize(problem, loss, coefficients.flatten(), parameters, scale=float(kept.sum()))
    return solution[:size].view_as(coefficients), solution[size:]


def _calibrate(problem: _Problem, held_out: Tensor, start: Tensor) -> tuple[float, Tensor]:
    """Return the mean log density given outputs, and the parameters of the likelihood that make it largest."""
    weights, parameters = problem.weights, start
    total = float(weights.sum())
    if len(start):
        parameters = _minimize(problem, lambda _: problem.loss(held_out, weights), start[:0], start, scale=total)
    problem.put(parameters)
    with torch.no_grad():
        return -float(problem.loss(held_out, weights)) / total, parameters


def _minimize(
    problem: _Problem, loss: Callable[[Tensor], Tensor], values: Tensor, parameters: Tensor, *, scale: float
) -> Tensor:
    """Return where a function of values and of parameters of the likelihood, which have bounds, is smallest."""
    free = values.clone().requires_grad_()
    problem.put(parameters)
    tensors = [*([free] if len(free) else []), *problem.module.parameters()]
    bounds = [(None, None)] * len(values) + [(problem.least, _LARGEST_LOG)] * len(parameters)
    minimize_in_place(lambda: loss(free) / scale, tensors, bounds=bounds, maxiter=200, ftol=_PRECISION)
    return torch.cat([free.detach(), problem.parameters])


def process_scores(x: X, y: Tensor) -> tuple[Callable[[X, Tensor], Tensor], Tensor]:
    """Return the log scores by a Gaussian process, the best of a grid: a function of new rows, and its own (N,).

    Own rows x (N, *in), with targets y (N,), are scored by the process without each.
    """
    scaler, residuals, grid = Scaler.fit(flat_rows(x).cpu()), y - y.mean(), []

    def squared_distances(new: X) -> Tensor:
        rows, own = (scaler.standard(flat_rows(inputs).cpu()) for inputs in (new, x))
        return torch.cdist(rows, own, compute_mode="donot_use_mm_for_euclid_dist").square()

    distances = squared_distances(x)
    for length in _SQUARED_LENGTHS:
        width = 2 * length * distances[distances > 0].median()
        values, vectors = torch.linalg.eigh((-distances / width).exp())
        for noise in _RELATIVE_NOISES:
            inverse = (vectors / (values.clamp_min(0) + noise)) @ vectors.T
            variance, precision = residuals @ inverse @ residuals / len(y), inverse.diagonal()
            errors = Normal(inverse @ residuals / precision, (variance / precision).sqrt())  # Rasmussen eq. 5.12
            grid.append((errors.log_prob(torch.zeros(())), width, noise, inverse, variance))
    left_out, width, noise, inverse, variance = max(grid, key=lambda process: float(process[0].mean()))

    def log_prob(new: X, targets: Tensor) -> Tensor:
        kernel = (-squared_distances(new) / width).exp()
        mean = y.mean() + kernel @ inverse @ residuals
        spread = (variance * (1 + noise - (kernel @ inverse * kernel).sum(1))).sqrt()
        return Normal(mean, spread).log_prob(targets)

    return log_prob, left_out
