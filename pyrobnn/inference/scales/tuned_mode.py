"""A mode, tuned together with prior precisions and noise, of data that fit into one batch."""

import dataclasses
import math
from collections.abc import Collection

import torch
from torch import Tensor

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.linear_model import Solution, information, linear_model, log_scores
from pyrobnn.curvature.metric import log_probs, score_columns
from pyrobnn.inference.data import Source
from pyrobnn.inference.scales.energy import Energy, moving
from pyrobnn.inference.scales.fixed_point import Hyperprior, PriorScales, first_layer, groups_of
from pyrobnn.inference.scales.gaussian_process import GaussianProcess, gaussian_process
from pyrobnn.inference.scales.noise import NoiseOutputs, Rows, known_noise, mode_noise
from pyrobnn.likelihoods.base import as_likelihood

STEPS = 3
"""Updates of the scales in a round."""
_NATS_PAST = 2.0
_NATS_A_ROW_PAST = 0.02
"""Lost since the best score, the larger of the two in two rounds in a row, after which a start ends there."""


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

    The model is in the units of the rows and in evaluation mode; its parameters are trained too. `records` says
    whether the gradient is recorded and run without Python; a recorded `energy` of another start of the same model
    serves. Scales stay as declared if the search has no rounds.
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
        group = groups_of(weights, search.per, rows.x.shape[1] if rows.x.ndim == 2 else None)
        if search.per == "input" and isinstance(self.noise, NoiseOutputs):
            group = (2 * group + self.noise.belongs).unique(return_inverse=True)[1]
        self.prior = PriorScales.of(bnn, weights, group, search.hyperprior, search.held)
        self.first_noise = first.factor if search.rounds and first.process is None and first.mode is None else None
        self.best, self._num_past = ModeScore(), 0
        if search.rounds and first.mode is not None:
            self._take(first.mode)
        elif search.rounds:
            self._begin(first)
        if energy is None or energy.recorded is None:
            energy = Energy(bnn, rows, self.noise, self.weights, records=records)
        self.energy = energy

    def _begin(self, first: FirstScales) -> None:
        process = first.process
        if process is None:
            if not self.noise.begin(self.weights, first.factor):
                self.prior = self.prior.multiplied(first.factor)
            return
        name = first_layer(self.weights, self.rows.x.shape[1])
        if name is not None:  # a weight of an input has a deviation of 1 / length scale: a unit then bends within it
            ratio = process.lengths.reciprocal() * self.prior.by_site()[name].sqrt()[0].to(process.lengths)
            self.prior = self.prior.narrowed(name, ratio)
            self.weights = self.weights | {name: self.weights[name] * ratio.to(self.weights[name])}
        self.prior = self.prior.multiplied(first.factor)
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
        self.best, self._num_past = ModeScore(), 0

    def to_mode(self, iterations: int, tolerance: float, *, is_last: bool = False) -> None:
        """Move weights and learned parameters towards the mode; the last call goes on where rounding hides the gain."""
        polishes = is_last and tolerance < torch.finfo(self.bnn.like.dtype).eps
        at = self.weights, self.prior, self.bnn, self.noise
        self.weights = self.energy.descend(*at, iterations=iterations, tolerance=tolerance, polishes=polishes)

    def tune(self) -> None:
        """Move prior and noise by MacKay's fixed point, or numbers of other likelihoods by EM, and judge the mode."""
        point = self._point()
        model, f = linear_model(point, self.rows.x, *self.rows.targets)
        solution = model.solve(self.prior.precision)
        judged = self._judged(point, f, solution)
        least = self.best.score - max(_NATS_PAST, _NATS_A_ROW_PAST * float(self.rows.counts.sum()))
        self._num_past = self._num_past + 1 if judged.score < least else 0
        if judged.score > self.best.score:
            numbers = [value.detach().clone() for value in moving(self.bnn, self.noise)]
            self.best, self._kept = judged, (self.prior, self.weights, numbers)
        squares = self.prior.deviation(self.weights).double().square()
        for step in range(self.noise.steps):
            ONE_THREAD.let_waiting_in()
            solution = model.solve(self.prior.precision) if step else solution
            self.prior = self.prior.updated(self.noise.free(solution.determined), squares)
            model, f = self.noise.tune(point, model, f, solution)

    @property
    def is_past(self) -> bool:
        """Whether two rounds in a row were well below the best score."""
        return self._num_past > 1

    def restore(self) -> None:
        """Go back to the mode of the best score, if the last round was well below it."""
        if self._num_past:
            self.prior, self.weights, values = self._kept
            for place, value in zip(moving(self.bnn, self.noise), values, strict=True):
                place.detach().copy_(value)

    def judge(self) -> ModeScore:
        """Return evidence and leave-one-out score of the mode; -infinity where they are not finite."""
        point = self._point()
        model, f = linear_model(point, self.rows.x, *self.rows.targets)
        return self._judged(point, f, model.solve(self.prior.precision))

    def _judged(self, point: Point, f: Tensor, solution: Solution) -> ModeScore:
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

    def _point(self) -> Point:
        return Point(self.bnn, self.weights, self.bnn.likelihood, list(self.weights))

    def tuned(self, declared: BNN, source: Source) -> BNN:
        """Return a declared model with the tuned prior and noise, and all that was learned beside the weights."""
        return self.prior.model(declared, self.noise.settings(source.y_scaler), source.target_scale, self.bnn)


def log_mass(deviation: Tensor, width: Tensor) -> Tensor:
    """Return the log probability of an interval of that width around a standardised number."""
    far = deviation.abs()
    above, below = ((torch.special.log_ndtr(-(far + side * width / 2))) for side in (-1, 1))
    return above + torch.log1p(-(below - above).exp())


def process_of_outputs(bnn: BNN, weights: dict[str, Tensor], rows: Rows, seed: int) -> GaussianProcess | None:
    """Return a Gaussian process of the outputs after a step of Fisher scoring from zero, if there is any."""
    varies = as_likelihood(bnn.settings["likelihood"]).varies_normally
    if rows.x.ndim != 2 or varies or first_layer(weights, rows.x.shape[1]) is None:
        return None
    point = Point(bnn, weights, bnn.likelihood, list(weights))
    f = torch.zeros_like(bnn.outputs(weights, rows.x).detach())
    columns = information(point, f, *rows.targets)
    (score,) = score_columns(point.likelihood, f, rows.targets[0])
    steps = torch.linalg.pinv(columns @ columns.mT) @ (rows.counts[:, None] * score.double())[..., None]
    return gaussian_process(rows.x, steps[..., 0], rows.counts, seed)
