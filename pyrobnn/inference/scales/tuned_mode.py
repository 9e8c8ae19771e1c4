"""A mode, tuned together with prior precisions and noise, of data that fit into one batch."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._torch.lbfgs import descend_in_place, minimize_in_place, polish_in_place, slope_of
from pyrobnn._torch.softplus import inverse_softplus
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.linear_model import (
    first_layer,
    groups_of_inputs,
    information,
    linear_model,
    log_scores,
    normal_draws,
)
from pyrobnn.curvature.metric import log_probs, score_columns
from pyrobnn.curvature.prior import prior_laws
from pyrobnn.data.batches import Batch
from pyrobnn.inference import defaults
from pyrobnn.inference.capture.graph import recorded_slope
from pyrobnn.inference.data import Source
from pyrobnn.inference.scales.fixed_point import (
    Hyperprior,
    PriorScales,
    next_variance,
    normal_of,
    normal_prior,
    untuned,
)
from pyrobnn.inference.scales.gaussian_process import GaussianProcess, gaussian_process
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.likelihoods.noise import SMALLEST_SCALE

STEPS = 3
"""Updates of the scales in a round."""
_LEAST_NOISE = 1e-5
_MEMORY = 20
"""Pairs of steps and gradients that L-BFGS keeps."""
_SLOPE = 1e-8
"""Largest entry of the gradient of the energy at which L-BFGS stops."""
_NOISE_DRAWS = 16
_NOISE_ITERATIONS = 20
"""For numbers of a likelihood other than Gaussian noise."""


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
    held: Collection[str] = ()  # names of weights with a fixed prior
    phase: str = "search for weights and scales"  # what the bar says
    which: Sequence[int] = ()  # numbers of the starts to do; all if empty


class TunedMode:
    """A mode in progress, with its scales. They stay as they are until `begin`.

    The model is in the units of the data and in evaluation mode; its parameters are trained too, and data are all
    examples. `records` says whether the gradient is recorded and run without Python. Log evidence and leave-one-out
    score are sums over the model's targets, -infinity until `judge`; `determined` is gamma. A mode has `ended` if other
    starts were ahead after a few rounds.
    """

    def __init__(
        self,
        bnn: BNN,
        weights: dict[str, Tensor],
        data: Batch,
        search: Search,
        *,
        records: bool = True,
        threads: int = 1,
    ) -> None:
        self.hyperprior, self._records, self.threads = search.hyperprior, records, threads
        self.bnn, self.weights, (self.x, *self._targets) = bnn, weights, data
        self.y = self._targets[0].double().view(len(self.x), -1)
        self.counts = self._targets[1].double() if len(data) > 2 else torch.ones_like(self.y[:, 0])
        laws = prior_laws(bnn, weights, {})
        num_inputs = self.x.shape[1] if search.per == "input" and self.x.ndim == 2 else None
        group = groups_of_inputs(weights, weights, num_inputs).to(self.x.device)
        likelihood = as_likelihood(bnn.settings["likelihood"])
        self.varying = NoiseOutputs(weights, self.y.shape[1] if likelihood.varies_normally else 0, len(self.x))
        if search.per == "input":
            group = (2 * group + self.varying.belongs).unique(return_inverse=True)[1]
        normals = {name: normal_of(laws[name], name) for name in weights}
        self.prior = PriorScales(normals, weights, group, search.held, search.hyperprior)
        self._is_normal = likelihood.is_normal
        self.tuned_numbers, self._tuned = list[str](), list[Tensor]()
        self._learned = [p for p in bnn.parameters() if p.requires_grad]
        self._penalty = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.first_noise: float | None = None
        self.log_evidence = self.log_left_out = float("-inf")
        self.determined = 0.0
        self.ended = False

    def begin(self, noise: float) -> None:
        """Tune the scales from here: from noise in units of the targets' spread, or from precisions times it."""
        self.first_noise = noise
        self._open()
        if "scale" in self.tuned_numbers:
            scale = self._tuned[self.tuned_numbers.index("scale")]
            scale.data.copy_((noise * self._spread()).log().view(scale.shape))
        elif self.varying.columns:
            self.varying.hold(self.weights, noise * self._spread())
        else:
            self.prior.multiply(noise)

    def _open(self) -> None:
        """Tune the numbers of the likelihood by their fixed point, and not with the weights."""
        self.tuned_numbers = open_numbers(self.bnn.settings["likelihood"])
        by_name = dict(self.bnn.likelihood.named_parameters())
        self._tuned = [by_name[f"{name}_unconstrained"] for name in self.tuned_numbers]
        self._learned = [p for p in self._learned if all(p is not tuned for tuned in self._tuned)]

    def begin_at(self, process: GaussianProcess, factor: float = 1.0) -> None:
        """Tune the scales from here, beginning from those of a Gaussian process of the outputs.

        A weight of an input has a deviation of one over the length scale: a unit then bends within it.
        """
        self._open()
        if (name := first_layer(self.weights, self.x.shape[1])) is not None:
            ratio = process.lengths.reciprocal() * self.prior.by_site()[name].sqrt()[0].to(process.lengths)
            self.prior.narrow(name, ratio)
            self.weights[name] = self.weights[name] * ratio.to(self.weights[name])
        self.prior.multiply(factor)
        if self._tuned:
            self._tune_numbers(process.mean, process.variance.diag_embed())

    def gaussian_process(self, seed: int) -> GaussianProcess | None:
        """Return a Gaussian process of the outputs after a step of Fisher scoring from zero, if there is any."""
        if self.x.ndim != 2 or self.varying.columns or first_layer(self.weights, self.x.shape[1]) is None:
            return None
        point = self._point()
        f = torch.zeros_like(self.bnn.outputs(self.weights, self.x).detach())
        columns = information(point, f, *self._targets)
        (score,) = score_columns(point.likelihood, f, self._targets[0])
        steps = torch.linalg.pinv(columns @ columns.mT) @ (self.counts[:, None] * score.double())[..., None]
        return gaussian_process(self.x, steps[..., 0], self.counts, seed)

    @property
    def score(self) -> float:
        """The mean of log evidence and leave-one-out log score, after the penalty; -infinity if it ended early."""
        if self.ended:
            return float("-inf")
        return (self.log_evidence + self.log_left_out - self.hyperprior.penalty * self.determined) / 2

    def to_mode(self, iterations: int, tolerance: float, *, alike: bool = False, is_last: bool = False) -> None:
        """Move weights and learned parameters towards the mode; noise that is held stays alike until a call ends that.

        The last call goes on where rounding hides the gain.
        """
        self.varying.is_held &= alike
        leaves, penalty = self._leaves, self._penalty
        for values, current in ((leaves, self.weights), (penalty, self.prior.by_site())):
            for name, value in values.items():
                value.detach().copy_(current[name])
        run = self._slope or slope_of(lambda: self._energy(leaves), [*leaves.values(), *self._learned])

        def polite() -> Tensor:
            ONE_THREAD.let_waiting_in()
            return run()

        tensors, most = [self._flat, *self._learned], iterations + iterations // 4
        slope = self.varying.held_in(polite)
        descend_in_place(slope, tensors, maxiter=iterations, maxfun=most, maxcor=_MEMORY, ftol=tolerance, gtol=_SLOPE)
        if is_last and tolerance < torch.finfo(self.bnn.like.dtype).eps:
            polish_in_place(slope, tensors)
        self.weights = {name: value.detach().clone() for name, value in leaves.items()}

    def _energy(self, weights: dict[str, Tensor]) -> Tensor:
        """Return the negative log joint density up to a constant, ()."""
        outputs = self.bnn.outputs(weights, self.x)
        fitted = self.varying.over_locations(lambda f: log_probs(self.bnn.likelihood, f, *self._targets).sum(), outputs)
        squares = [(self._penalty[n] * (weights[n] - self.prior.loc[n]).square()).sum() for n in weights]
        return 0.5 * torch.stack(squares).sum() - fitted

    @cached_property
    def _flat(self) -> Tensor:
        return torch.cat([value.detach().reshape(-1) for value in self.weights.values()])

    @cached_property
    def _leaves(self) -> dict[str, Tensor]:
        """Views of the flat weights, so that L-BFGS moves one tensor."""
        parts = self._flat.split([value.numel() for value in self.weights.values()])
        pairs = zip(self.weights.items(), parts, strict=True)
        return {name: part.view_as(value).requires_grad_() for (name, value), part in pairs}

    @cached_property
    def _slope(self) -> Callable[[], Tensor] | None:
        """The energy and its gradient at the leaves, recorded; None where that is off, or more is learned."""
        return recorded_slope(self._energy, self._leaves) if self._records and not self._learned else None

    @property
    def engine(self) -> str:
        """How the energy ran: "captured" if it was recorded, else "eager"."""
        return "eager" if self._slope is None else "captured"

    def _deviation(self) -> Tensor:
        return torch.cat([(self.weights[n] - self.prior.loc[n]).reshape(-1) for n in self.weights]).double()

    def _point(self) -> Point:
        return Point(self.bnn, self.weights, self.bnn.likelihood, list(self.weights))

    def tune(self) -> None:
        """Move the precisions of the prior by MacKay's fixed point, and the likelihood's numbers, by it or by EM."""
        point = self._point()
        model, f = linear_model(point, self.x, *self._targets)
        deviation = self._deviation()
        for _ in range(STEPS):
            ONE_THREAD.let_waiting_in()
            solution = model.solve(self.prior.precision)
            self.prior.update(self.varying.free(solution.determined), deviation)
            if self.tuned_numbers and self._is_normal:
                scale, before = self._next_noise(f, solution.leverage()), self.noise()
                self._set_noise(scale)
                columns = model.columns / (scale / before)
            elif self.varying.columns or self.tuned_numbers:
                if self.varying.columns:
                    f = self._with_next_noise(f, solution.covariance)
                else:
                    self._tune_numbers(f.detach(), solution.covariance)
                columns = information(point, f.to(self.bnn.like), *self._targets)
            else:
                continue
            model = dataclasses.replace(model, columns=columns)

    def _set_noise(self, scale: Tensor) -> None:
        likelihood = self.bnn.likelihood
        with torch.no_grad():
            likelihood.scale = scale.to(likelihood.scale.device).view(likelihood.scale.shape).to(self.bnn.like.dtype)

    def _with_next_noise(self, f: Tensor, covariance: Tensor) -> Tensor:
        """Look at outputs whose last columns are the noise; return them with the next noise if all rows share it."""
        share = self.varying.look(f, covariance)
        if not self.varying.is_held:
            return f
        scale = self._next_noise(f[:, : self.varying.columns], self.counts[:, None] * share)
        self.varying.hold(self.weights, scale)
        return self.varying.with_scale(f, scale)

    def _next_noise(self, f: Tensor, leverage: Tensor) -> Tensor:
        """Return the next deviation of the noise of each column, (K,); its prior counts targets too."""
        count = self.hyperprior.noise_counts
        residual = (self.y - f).square() * self.counts[:, None]
        squares = residual.sum(0) + count * defaults.NOISE_SHARE * self._spread().square()
        left = (self.counts[:, None] - leverage).sum(0) + count
        scale = next_variance(squares, left, float(self.counts.sum())).sqrt().clamp_min(_LEAST_NOISE)
        if not bool(scale.isfinite().all()):
            raise FloatingPointError(f"The noise became {scale.tolist()}: look for extreme values in the data.")
        return scale

    def _tune_numbers(self, f: Tensor, covariance: Tensor) -> None:
        """Move the likelihood's numbers to the largest mean log-likelihood over draws of normal outputs."""
        draws = normal_draws(f, covariance, _NOISE_DRAWS).to(self.bnn.like)

        def loss() -> Tensor:
            return -(self.counts * self.bnn.likelihood(draws).log_prob(self._targets[0]).double()).sum() / len(draws)

        minimize_in_place(loss, self._tuned, maxiter=_NOISE_ITERATIONS)

    def _spread(self) -> Tensor:
        """Return the standard deviation of each column of targets, (K,), and 1 where it is 0."""
        share = (self.counts / self.counts.sum())[:, None]
        variance = (share * (self.y - (share * self.y).sum(0)).square()).sum(0)
        return torch.where(variance > 0, variance, 1.0).sqrt()

    def noise(self) -> Tensor:
        """Return the standard deviation of the noise of each column, (K,), in the units of the model."""
        return self.bnn.likelihood.scale.detach().double().reshape(-1)

    def judge(self) -> None:
        """Set log evidence and leave-one-out log score, which are -infinity until then."""
        point = self._point()
        model, f = linear_model(point, self.x, *self._targets)
        solution = model.solve(self.prior.precision)
        with torch.no_grad():
            log_likelihood = log_probs(point.likelihood, f.to(self.bnn.like.dtype), *self._targets).double().sum()
        deviation = self._deviation()
        evidence = log_likelihood - 0.5 * (self.prior.precision * deviation.square()).sum() - 0.5 * solution.log_det
        (column,) = score_columns(point.likelihood, f.to(self.bnn.like.dtype), self._targets[0])
        at = solution.at_mode(self.prior.precision.sqrt() * deviation, f, self.counts[:, None] * column.double())
        mean, covariance = solution.left_out(*at, share=1 / self.counts.clamp_min(1))  # weight 2: one of two copies
        noise = self.noise().expand(f.shape[1]) if self._is_normal else None
        with torch.no_grad():
            left_out = (self.counts * log_scores(point, self._targets[0], mean, covariance, noise)).sum()
        if bool(evidence.isfinite() & left_out.isfinite()):
            self.log_evidence, self.log_left_out = float(evidence), float(left_out)
            self.determined = float(solution.determined.sum())

    def widen_noise(self, other: "TunedMode", data: Batch) -> None:
        """Scale the noise of each column up to the root mean square by which another mode misses its targets."""
        x, y, *_ = data
        likelihood = self.bnn.likelihood
        with torch.no_grad():
            law = other.bnn.likelihood(other.bnn.outputs(other.weights, x))
            missed = (y - law.mean).double().square().view(len(y), -1).mean(0).sqrt()
            expected = likelihood(self.bnn.outputs(self.weights, x)).variance.double().view(len(y), -1).mean(0).sqrt()
            wider = (missed / expected).clamp_min(1).to(self.bnn.like).view(likelihood.scale.shape)
            likelihood.scale = likelihood.scale * wider

    def tuned(self, declared: BNN, source: Source) -> BNN:
        """Return the model with the tuned prior and noise, and all that was learned beside the weights."""
        like = next(iter(self.weights.values()))
        scales = {name: value.rsqrt().to(like) for name, value in self.prior.by_site().items()}
        chosen = {name: normal_prior(name, self.prior.loc[name], scale) for name, scale in scales.items()}
        likelihood = dataclasses.replace(declared.settings["likelihood"], **self.numbers(source))
        bnn = declared.with_parts(prior=chosen | untuned(declared, list(scales)), likelihood=likelihood).to(like.device)
        bnn.net.load_state_dict(self.bnn.net.state_dict())
        bnn.scale_targets(source.target_scale)  # a number for each column
        bnn.likelihood.load_state_dict(self.bnn.likelihood.state_dict(), strict=False)
        return bnn

    def numbers(self, source: Source) -> dict[str, Any]:
        """Return the tuned numbers that a likelihood takes."""
        values: dict[str, Any] = {}
        for name in self.tuned_numbers:
            value = getattr(self.bnn.likelihood, name).detach().double().reshape(-1)
            units = source.y_scaler.scale.reshape(-1).to(value.device) if name == "scale" else 1.0
            numbers = (value * units).tolist()
            if len(numbers) == 1 or name == "scale":
                values[name] = numbers[0] if len(numbers) == 1 else tuple(numbers)
        return values


class NoiseOutputs:
    """The weights that lead to the noise alone, and how uncertain the locations are under which they are fitted.

    Residuals of a mode are too small to tell the noise by. So the energy has the mean of log p(y | f) over the
    posterior of the locations, which is (log p(y | f + d) + log p(y | f - d)) / 2 for normal noise, d the posterior
    deviation of f. Of 2 K outputs the last K, `columns`, are the noise; K is 0 where it is no output. `belongs` says
    which weights lead to it alone, flat. While `is_held`, it is the same for all rows, so that it cannot explain what
    locations have yet to fit.
    """

    def __init__(self, weights: Mapping[str, Tensor], columns: int, num: int) -> None:
        like = next(iter(weights.values()))
        self.columns, self.is_held = columns, False
        self._deviation = like.new_zeros(num, 2 * columns)
        wide = {name: value.ndim for name, value in weights.items() if columns and len(value) == 2 * columns}
        last = {num_axes: name for name, num_axes in wide.items() if num_axes in (1, 2)}
        self._matrix, self._bias = last.get(2), last.get(1)
        masks = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in weights.items()}
        for name in last.values():
            masks[name][columns:] = True
        self.belongs = torch.cat([mask.reshape(-1) for mask in masks.values()])

    def hold(self, weights: Mapping[str, Tensor], scale: Tensor) -> None:
        """Give all rows the noise of a deviation for each column, (K,), by the bias of a last layer if there is any."""
        if self._matrix is None or self._bias is None:
            return
        self.is_held = True
        weights[self._matrix][self.columns :] = 0
        weights[self._bias][self.columns :] = _output_of(scale).to(weights[self._bias])

    def with_scale(self, f: Tensor, scale: Tensor) -> Tensor:
        """Return outputs (N, 2 K) with noise of a standard deviation for each column, (K,)."""
        return torch.cat([f[:, : self.columns], _output_of(scale).to(f).expand(len(f), -1)], 1)

    def look(self, f: Tensor, covariance: Tensor) -> Tensor:
        """Take in outputs (N, 2 K) and their covariance; return the locations' variances over the noise's, (N, K)."""
        variance = covariance.diagonal(dim1=1, dim2=2)[:, : self.columns].clamp_min(0)
        self._deviation[:, : self.columns] = variance.sqrt().to(self._deviation)
        noise = softplus(f[:, self.columns :].double()) + SMALLEST_SCALE
        return variance / noise.square()

    def over_locations(self, log_prob: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
        """Return the mean of a log density of normal targets over the posterior of the locations around outputs f."""
        if not self.columns:
            return log_prob(f)
        return (log_prob(f + self._deviation) + log_prob(f - self._deviation)) / 2

    def free(self, values: Tensor) -> Tensor:
        """Return numbers for each weight, (P,), with 0 for those of noise that is held."""
        return values.masked_fill(self.belongs.to(values.device), 0) if self.is_held else values

    def held_in(self, slope: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function's value and gradient, which leaves held noise where it is."""

        def masked() -> Tensor:
            found, end = slope(), 1 + len(self.belongs)
            return torch.cat([found[:1], self.free(found[1:end]), found[end:]])

        return masked if self.is_held else slope


def _output_of(scale: Tensor) -> Tensor:
    """Return the output whose softplus, above the smallest scale, is a standard deviation."""
    return inverse_softplus((scale.double() - SMALLEST_SCALE).clamp_min(SMALLEST_SCALE / 10))
