"""Length scales of inputs: the Gaussian process of largest evidence, from which open scales begin.

The kernel is squared exponential. Source: Rasmussen and Williams (2006), Gaussian Processes for Machine Learning.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Collection
from functools import cached_property

import torch
from torch import Tensor

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import seeded
from pyrobnn._torch.lbfgs import descend_in_place, polish_in_place, slope_of
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.linear_model import LinearModel, Solution, information, linear_model, log_scores
from pyrobnn.curvature.metric import log_probs, score_columns
from pyrobnn.inference.capture.graph import recorded_slope
from pyrobnn.inference.data import Source
from pyrobnn.inference.scales.fixed_point import (
    Hyperprior,
    ModeNoise,
    NoiseOutputs,
    PriorScales,
    Rows,
    first_layer,
    groups_of,
    known_noise,
    mode_noise,
)
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.nets import leftovers

_FIRST = (1.0, 2.0, 4.0)  # length scales to begin from, in deviations of the inputs: the best after a few steps goes on
_TRIAL_STEPS, _MOST_STEPS = 10, 60
_RELATIVE_TOLERANCE = 1e-8
_FIRST_NOISE = 0.5
_MOST_LOG, _LEAST_LOG_LENGTH, _LEAST_LOG_NOISE = math.log(1e3), math.log(0.05), math.log(0.01)  # of deviations
_ROWS_OF_PROCESS = 250
_GRID = 2.0**30  # to whose inverse standardised numbers are rounded, so that other units lead to the same length scales


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A Gaussian process with a length scale for each input."""

    lengths: Tensor  # in the units of the inputs, (D,)
    mean: Tensor  # of the function at the rows, in the units of the targets, (N, C)
    variance: Tensor  # of the function at the rows, (N, C)


def gaussian_process(x: Tensor, y: Tensor, weights: Tensor, seed: int) -> GaussianProcess | None:
    """Return the Gaussian process of largest evidence, or None for targets that are constant or not finite.

    Of inputs (N, D) and targets (N, C), whose columns share the length scales, each row counts with its weight, (N,).
    The seed draws the 250 rows that are looked at, if there are more. Equations 2.25, 2.26, 5.1 and 5.9.
    """
    like, x, y, weights = y, x.double().cpu(), y.double().cpu(), weights.double().cpu()
    rows = weights.nonzero()[:, 0]
    with seeded(seed, "gaussian process"):
        seen = rows[torch.randperm(len(rows))[:_ROWS_OF_PROCESS].sort().values]
    shares = weights / weights.sum()
    middle, mean_of_targets = shares @ x, shares @ y
    spread = (shares @ (x - middle).square()).sqrt()
    unit = torch.where(_vary(x[rows]), spread, 1.0)
    deviation = (shares @ (y - mean_of_targets).square()).mean().sqrt()
    if not bool(_vary(y[rows]).any() & deviation.isfinite() & unit.isfinite().all()):
        return None
    pair = (x - middle) / unit, (y - mean_of_targets) / deviation
    scaled, targets = ((values * _GRID).round() / _GRID for values in pair)
    process = _Process(scaled[seen], targets[seen], weights[seen])
    tried = [process.moved(process.first(length), _TRIAL_STEPS) for length in _FIRST]
    logs = process.moved(min(tried, key=lambda each: float(process.slope(each)[0])), _MOST_STEPS)
    mean, variance = process.function(logs, scaled)
    variance = (variance[:, None] * deviation.square()).expand(mean.shape)
    numbers = logs[:-2].exp() * unit, mean * deviation + mean_of_targets, variance
    return GaussianProcess(*(values.to(like) for values in numbers))


def _vary(columns: Tensor) -> Tensor:
    """Return which columns are not constant; the spread of equal numbers may be above 0 by rounding."""
    return columns.amax(0) > columns.amin(0)


@dataclasses.dataclass(frozen=True, eq=False)
class _Process:
    """Standardised inputs (N, D), targets (N, C), weights (N,); logs are of lengths, deviation and noise, (D + 2,)."""

    x: Tensor
    y: Tensor
    weights: Tensor

    def first(self, length: float) -> Tensor:
        lengths = torch.full((self.x.shape[1],), math.log(length), dtype=torch.float64)
        return torch.cat([lengths, torch.tensor([0.0, math.log(_FIRST_NOISE)], dtype=torch.float64)])

    def moved(self, logs: Tensor, steps: int) -> Tensor:
        logs = logs.clone()
        least = [_LEAST_LOG_LENGTH] * (len(logs) - 2) + [-_MOST_LOG, _LEAST_LOG_NOISE]
        bounds = [(bound, _MOST_LOG) for bound in least]
        descend_in_place(lambda: self.slope(logs), [logs], bounds=bounds, maxiter=steps, ftol=_RELATIVE_TOLERANCE)
        return logs

    def _kernel(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scaled inputs, the covariance of the function and that of the targets."""
        x = self.x / logs[:-2].exp()
        kernel = (2 * logs[-2] - torch.cdist(x, x).square() / 2).exp()
        return x, kernel, kernel + (2 * logs[-1]).exp() * self.weights.reciprocal().diag()

    def slope(self, logs: Tensor) -> Tensor:
        """Return the negative log evidence without its constant, and its gradient."""
        x, kernel, total = self._kernel(logs)
        root, failed = torch.linalg.cholesky_ex(total)
        if bool(failed):
            return torch.cat([torch.full((1,), torch.inf), torch.zeros(len(logs))]).double()
        solved, columns = torch.cholesky_solve(self.y, root), self.y.shape[1]
        copies = columns * (self.weights - 1).sum()
        value = 0.5 * (self.y * solved).sum() + columns * root.diagonal().log().sum() + copies * logs[-1]
        change = 0.5 * (columns * torch.cholesky_inverse(root) - solved @ solved.T)
        of_kernel = change * kernel
        lengths = 2 * (of_kernel.sum(1) @ x.square() - (x * (of_kernel @ x)).sum(0))
        deviation = 2 * of_kernel.sum()
        noise = 2 * (2 * logs[-1]).exp() * (change.diagonal() / self.weights).sum() + copies
        return torch.cat([value[None], lengths, deviation[None], noise[None]])

    def function(self, logs: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of the function at inputs, (N, C), and its variance there, (N,)."""
        seen, _, total = self._kernel(logs)
        between = (2 * logs[-2] - torch.cdist(x / logs[:-2].exp(), seen).square() / 2).exp()
        solved = torch.linalg.solve(total, torch.cat([self.y, between.T], 1))
        columns = self.y.shape[1]
        explained = (between * solved[:, columns:].T).sum(1)
        return between @ solved[:, :columns], ((2 * logs[-2]).exp() - explained).clamp_min(0)


_MEMORY = 20  # pairs of steps and gradients that L-BFGS keeps
_SLOPE = 1e-8  # largest entry of the gradient of the energy at which L-BFGS stops


def moving(bnn: BNN, noise: ModeNoise) -> list[Tensor]:
    """Return the tensors of a start, beside its weights, that its rounds may change in place."""
    return [*bnn.parameters(), *bnn.buffers(), *([] if noise.deviation is None else [noise.deviation])]


class Energy:
    """The negative log joint density of weights and learned parameters, up to a constant.

    Weights are views of one vector, which L-BFGS moves. The gradient is recorded and run without Python if `records`
    and nothing but weights is learned: then it has its own copy of the model, and takes any start of it.
    """

    def __init__(self, bnn: BNN, rows: Rows, noise: ModeNoise, weights: dict[str, Tensor], *, records: bool) -> None:
        tuned = {id(parameter) for parameter in noise.parameters}
        self._learned = [p for p in bnn.parameters() if p.requires_grad and id(p) not in tuned]
        self._records = records and not self._learned and not bnn.moving
        if self._records:
            bnn, noise = copy.deepcopy((bnn, noise), leftovers(bnn) | {id(rows): rows})
        self._bnn, self._rows, self._noise, self._moving = bnn, rows, noise, moving(bnn, noise)
        self._flat = torch.cat([value.detach().reshape(-1) for value in weights.values()])
        parts = self._flat.split([value.numel() for value in weights.values()])
        pairs = zip(weights.items(), parts, strict=True)
        self.places = {name: part.view_as(value).requires_grad_() for (name, value), part in pairs}
        self._loc = {name: torch.zeros_like(value) for name, value in weights.items()}
        self._precision = {name: torch.zeros_like(value) for name, value in weights.items()}

    def __call__(self, weights: dict[str, Tensor]) -> Tensor:
        """Return the energy under the prior of the last descent, ()."""
        outputs = self._bnn.outputs(weights, self._rows.x)
        likelihood = self._bnn.likelihood
        fitted = self._noise.log_prob(lambda f: log_probs(likelihood, f, *self._rows.targets).sum(), outputs)
        squares = [(self._precision[n] * (weights[n] - self._loc[n]).square()).sum() for n in weights]
        return 0.5 * torch.stack(squares).sum() - fitted

    @cached_property
    def recorded(self) -> Callable[[], Tensor] | None:
        """The energy and its gradient at `places`; None where that is not recorded."""
        return recorded_slope(self, self.places) if self._records else None

    def descend(self, start: "TunedMode", iterations: int, tolerance: float, *, polishes: bool) -> dict[str, Tensor]:
        """Return weights of a start closer to its mode; learned parameters move in place, held weights stay."""
        prior, noise = start.prior, start.noise
        named = ((self.places, start.weights), (self._loc, prior.loc), (self._precision, prior.by_site()))
        pairs = [(place, values[name]) for places, values in named for name, place in places.items()]
        for place, value in [*pairs, *zip(self._moving, moving(start.bnn, noise), strict=True)]:
            place.detach().copy_(value.detach())
        run = self.recorded or slope_of(lambda: self(self.places), [*self.places.values(), *self._learned])

        def slope() -> Tensor:
            ONE_THREAD.let_waiting_in()
            if noise.held is None:
                return run()
            value, ours, learned = run().tensor_split([1, 1 + len(self._flat)])
            return torch.cat([value, noise.free(ours), learned])

        tensors, most = [self._flat, *self._learned], iterations + iterations // 4
        descend_in_place(slope, tensors, maxiter=iterations, maxfun=most, maxcor=_MEMORY, ftol=tolerance, gtol=_SLOPE)
        if polishes:
            polish_in_place(slope, tensors)
        return {name: value.detach().clone() for name, value in self.places.items()}


STEPS = 3  # updates of the scales in a round
_NATS_PAST, _NATS_A_ROW_PAST = 2.0, 0.02  # lost since the best score, in two rounds after which a start ends there


@dataclasses.dataclass(frozen=True)
class Search:
    """Settings of the search for modes and scales."""

    starts: int = 1  # differ in initial weights and scales
    rounds: int = 0  # of each start; with 0 the scales stay fixed
    iterations: int = 100  # of L-BFGS in a round
    per: str = "site"  # groups of weights, or "input"
    hyperprior: Hyperprior = dataclasses.field(default_factory=Hyperprior)
    tolerance: float = 1e-7  # relative change of the energy at which L-BFGS stops in a round
    last_tolerance: float = 1e-12  # and at the end
    are_counts: bool = False  # whether densities are compared with probabilities of whole numbers
    held: Collection[str] = ()  # names of weights with a fixed prior
    phase: str = "search for weights and scales"  # what the bar says


@dataclasses.dataclass(frozen=True, eq=False)
class FirstScales:
    """Where the scales of a start begin."""

    factor: float = 1.0  # of precisions; without a process the noise, in units of the targets' spread, if it is tuned
    process: GaussianProcess | None = None  # whose length scales and noise are the first
    mode: "TunedMode | None" = None  # of a model that is like, whose weights and precisions are the first


@dataclasses.dataclass(frozen=True)
class ModeScore:
    """A mode and its scales, judged: sums over the targets, in the units of the model."""

    log_evidence: float = -math.inf
    log_left_out: float = -math.inf  # the leave-one-out log score
    determined: float = 0.0  # the number of weights that the data determine
    score: float = -math.inf  # the mean of evidence and left-out score, after the penalty
    of_rows: Tensor | None = None  # the left-out score of each row, (N,)


class TunedMode:
    """Weights, prior and noise of a start, which move in turns: `to_mode`, then `tune`.

    The model is in the units of the rows and in evaluation mode; its parameters are trained too. A recorded `energy` of
    another start of the same model serves. Scales stay as declared if the search has no rounds.
    """

    def __init__(
        self,
        bnn: BNN,
        weights: dict[str, Tensor],
        rows: Rows,
        search: Search,
        *,
        first: FirstScales = FirstScales(),
        records: bool = True,
        threads: int = 1,
        energy: Energy | None = None,
    ) -> None:
        self.bnn, self.weights, self.rows, self.threads = bnn, weights, rows, threads
        self._penalty, extra = search.hyperprior.penalty, search.hyperprior.noise_counts
        self.noise = mode_noise(bnn, weights, rows, extra=extra, is_tuned=search.rounds > 0)
        group = groups_of(weights, search.per, rows.x.shape[1] - bnn.has_offset if rows.x.ndim == 2 else None)
        if search.per == "input" and isinstance(self.noise, NoiseOutputs):
            group = (2 * group + self.noise.belongs).unique(return_inverse=True)[1]
        self.prior = PriorScales.of(bnn, weights, group, search.hyperprior, search.held)
        self.first_noise = first.factor if search.rounds and first.process is None and first.mode is None else None
        self.best, self.num_past = ModeScore(), 0  # rounds in a row that were well below the best score
        if search.rounds:
            self._begin(first) if first.mode is None else self._take(first.mode)
        if energy is None or energy.recorded is None:
            energy = Energy(bnn, rows, self.noise, self.weights, records=records)
        self.energy = energy

    def _begin(self, first: FirstScales) -> None:
        """Take the first scales, from a Gaussian process of the outputs if there is one."""
        process = first.process
        if process is None:
            if not self.noise.begin(self.weights, first.factor):
                self.prior = self.prior.moved(first.factor * self.prior.precision)
            return
        name = first_layer(self.weights, self.rows.x.shape[1])
        if name is not None:  # a weight of an input has a deviation of 1 / length scale: a unit then bends within it
            ratio = process.lengths.reciprocal() * self.prior.by_site()[name].sqrt()[0].to(process.lengths)
            precisions = self.prior.by_site()
            precisions[name] = precisions[name] / ratio.to(self.prior.precision).square()
            self.prior = self.prior.with_precisions(precisions)
            self.weights = self.weights | {name: self.weights[name] * ratio.to(self.weights[name])}
        self.prior = self.prior.moved(first.factor * self.prior.precision)
        self.noise.fit(process.mean, process.variance.diag_embed())

    def _take(self, other: "TunedMode") -> None:
        """Begin at the mode of a model whose outputs are the first outputs of this one."""
        precisions = self.prior.by_site()
        for name, value in other.weights.items():
            self.weights[name][: len(value)] = value
            precisions[name] = precisions[name].clone()
            precisions[name][: len(value)] = other.prior.by_site()[name]
        self.prior = self.prior.with_precisions(precisions)
        f = self.bnn.outputs(self.weights, self.rows.x).detach().double()[:, : self.rows.y.shape[1]]
        missed = (self.rows.counts @ (self.rows.y - f).square() / self.rows.counts.sum()).sqrt()
        self.noise.begin(self.weights, float((missed / self.rows.spread).mean()))
        self.tune()
        self.noise.release()
        self.best, self.num_past = ModeScore(), 0

    def to_mode(self, iterations: int, tolerance: float, *, is_last: bool = False) -> None:
        """Move weights and learned parameters towards the mode; the last call goes on where rounding hides the gain."""
        polishes = is_last and tolerance < torch.finfo(self.bnn.like.dtype).eps
        self.weights = self.energy.descend(self, iterations, tolerance, polishes=polishes)

    def tune(self) -> None:
        """Move prior and noise by MacKay's fixed point, or numbers of other likelihoods by EM, and judge the mode."""
        judged, point, model, f, solution = self._solved()
        least = self.best.score - max(_NATS_PAST, _NATS_A_ROW_PAST * float(self.rows.counts.sum()))
        self.num_past = self.num_past + 1 if judged.score < least else 0
        if judged.score > self.best.score:
            numbers = [value.detach().clone() for value in moving(self.bnn, self.noise)]
            self.best, self._kept = judged, (self.prior, self.weights, numbers)
        squares = self.prior.deviation(self.weights).double().square()
        for step in range(self.noise.steps):
            ONE_THREAD.let_waiting_in()
            solution = model.solve(self.prior.precision) if step else solution
            self.prior = self.prior.updated(self.noise.free(solution.determined), squares)
            model, f = self.noise.tune(point, model, f, solution)

    def restore(self) -> None:
        """Go back to the mode of the best score, if the last round was well below it."""
        if self.num_past:
            self.prior, self.weights, values = self._kept
            for place, value in zip(moving(self.bnn, self.noise), values, strict=True):
                place.detach().copy_(value)

    def judge(self) -> ModeScore:
        """Return evidence and leave-one-out score of the mode; -infinity where they are not finite."""
        return self._solved()[0]

    def _solved(self) -> tuple[ModeScore, Point, LinearModel, Tensor, Solution]:
        """Return the score of the mode, its linear model with outputs f there, and the posterior of that."""
        point = Point(self.bnn, self.weights, self.bnn.likelihood, list(self.weights))
        model, f = linear_model(point, self.rows.x, *self.rows.targets)
        solution = model.solve(self.prior.precision)
        return self._judged(point, f, solution), point, model, f, solution

    def _judged(self, point: Point, f: Tensor, solution: Solution) -> ModeScore:
        """Return the score of a mode with outputs f, under the posterior of its linear model."""
        counts, (y, *_) = self.rows.counts, self.rows.targets
        at_precision, deviation = f.to(self.bnn.like.dtype), self.prior.deviation(self.weights).double()
        with torch.no_grad():
            log_likelihood = log_probs(point.likelihood, at_precision, *self.rows.targets).double().sum()
        evidence = log_likelihood - 0.5 * (self.prior.precision * deviation.square()).sum() - 0.5 * solution.log_det
        (column,) = score_columns(point.likelihood, at_precision, y)
        at = solution.at_mode(self.prior.precision.sqrt() * deviation, f, counts[:, None] * column.double())
        mean, covariance = solution.left_out(*at, share=1 / counts.clamp_min(1))  # weight 2: one of two copies
        is_normal = as_likelihood(self.bnn.settings["likelihood"]).is_normal
        noise = known_noise(self.bnn).expand(f.shape[1]) if is_normal else None
        with torch.no_grad():
            of_rows = log_scores(point, y, mean, covariance, noise)
        if self.rows.unit is not None and noise is not None:
            spread = (covariance.diagonal(dim1=1, dim2=2) + noise.square()).sqrt()
            of_mass = log_mass((self.rows.y - mean) / spread, self.rows.unit / spread)[:, 0] - math.log(self.rows.unit)
            evidence, of_rows = evidence + counts @ (of_mass - of_rows), of_mass
        left_out = (counts * of_rows).sum()
        if not bool(evidence.isfinite() & left_out.isfinite()):
            return ModeScore()
        determined = float(solution.determined.sum())
        score = (float(evidence) + float(left_out) - self._penalty * determined) / 2
        return ModeScore(float(evidence), float(left_out), determined, score, of_rows)

    def deviations(self) -> dict[str, Tensor]:
        """Return the deviation of each weight under the posterior given all others, by site."""
        return self.prior.by_site((self.prior.precision + self._information()).rsqrt())

    def spent(self) -> float:
        """Return the number of targets that the weights would spend if they were independent, at least `determined`."""
        information = self._information()
        return float((information / (information + self.prior.precision)).sum())

    def _information(self) -> Tensor:
        with fast_pyro():  # in Pyro's store the numbers of another model have the same names
            return self._solved()[2].precision

    def tuned(self, declared: BNN, source: Source) -> BNN:
        """Return a declared model with the tuned prior and noise, and all that was learned beside the weights."""
        return self.prior.model(declared, self.noise.settings(source.y_scaler), source.target_scale, self.bnn)


def log_mass(deviation: Tensor, width: Tensor) -> Tensor:
    """Return the log probability of an interval of that width around a standardised number."""
    far = deviation.abs()
    above, below = ((torch.special.log_ndtr(-(far + side * width / 2))) for side in (-1, 1))
    return above + torch.log1p(-(below - above).exp())


def output_process(bnn: BNN, weights: dict[str, Tensor], rows: Rows, seed: int) -> GaussianProcess | None:
    """Return a Gaussian process of the outputs after a step of Fisher scoring from zero, if there is any."""
    varies = as_likelihood(bnn.settings["likelihood"]).varies_normally
    if rows.x.ndim != 2 or varies or bnn.has_offset or first_layer(weights, rows.x.shape[1]) is None:
        return None
    point = Point(bnn, weights, bnn.likelihood, list(weights))
    f = torch.zeros_like(bnn.outputs(weights, rows.x).detach())
    columns = information(point, f, *rows.targets)
    (score,) = score_columns(point.likelihood, f, rows.targets[0])
    steps = torch.linalg.pinv(columns @ columns.mT) @ (rows.counts[:, None] * score.double())[..., None]
    return gaussian_process(rows.x, steps[..., 0], rows.counts, seed)
