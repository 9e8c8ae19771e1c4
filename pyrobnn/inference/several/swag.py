"""SWAG: a Gaussian fitted to the path of stochastic gradient descent around a mode."""

import dataclasses
import math
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import Count, Positive, setting, to_dict
from pyrobnn._torch.devices import running
from pyrobnn._torch.matrices import inverse_softplus
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.hessian import largest_curvature
from pyrobnn.curvature.metric import log_probs
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import Loader
from pyrobnn.guides.correlated import LowRank, LowRankGuide
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.method import BaseMethod, Offer, Run, registry
from pyrobnn.inference.svi.svi import SVI, own_storage, resampled
from pyrobnn.inference.training.loop import train
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.inference.training.watch import Stop
from pyrobnn.optimizers import Optimizer
from pyrobnn.posterior.posterior import Posterior

_SMALLEST_SCALE = 1e-8
_WINDOW, _APART = 50, 5  # steps over which weights are averaged, and at most so many apart
_PARTS, _USUAL_BATCH = (4, 10), 100  # batches have a quarter of few examples, a tenth of many
_MOST_LOOKED_AT = 1000
_STABLE = 0.2  # learning rate times the largest curvature of the mean loss, at most


@registry.register
@setting
class SWAG(BaseMethod[Posterior]):
    """Stochastic weight averaging, Gaussian (Maddox et al. 2019): a mode by SVI, then SGD at a constant rate around it.

    Each `every` steps of SGD give the mean of the weights over the last T = 50; these have mean m and variances v, and
    the last R deviate by D from their running mean. Then q(w) = N(m, s (diag(v) / 2 + D D^T / (2 (R - 1)))), a
    `LowRank` guide. Means over T steps of independent batches have the covariance of the posterior by (N - B) / (T B),
    1 / s, if rate and momentum move the path through a mode in less (Mandt, Hoffman & Blei 2017, sec. 5). Directions
    that the data leave to the prior stay too narrow. A DataLoader must draw with replacement.

    Attributes:
        method: the method for the mode; its guide must be "map".
        lr: learning rate of SGD on the mean loss of an example, as in the paper. None for 1 - momentum, at most 0.2,
            over the largest curvature at the mode. Mini-batches then have a quarter of the examples, of more than 400
            at least 100 and a tenth, unless the method sets `batch_size`.
        momentum: momentum of SGD.
        steps: steps of SGD.
        every: steps between two collected weights.
        rank: R.

    Examples:
        >>> method = bnn.SWAG(bnn.SVI(guide="map", steps=20), steps=20, every=2, rank=5)
        >>> posterior = bnn.fit(bnn.BNN(bnn.MLP(1, [10], 1)), bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> type(posterior.guide).__name__
        'LowRankGuide'
    """

    method: SVI = SVI(guide="map")
    lr: Positive | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    steps: Count = 2500
    every: Count = 50
    rank: Annotated[int, Field(gt=1)] = 20

    def __post_init__(self) -> None:
        if to_dict(self.method)["guide"] != {"type": "map"}:
            raise InputError(f"SWAG: averages points: its method needs guide='map', got {self.method.guide!r}.")
        if self.method.patience is not None:
            raise InputError("SWAG: the mode takes a fixed number of steps: leave `patience` out of the method.")
        if self.steps // self.every < self.rank:
            found = f"{self.steps} steps with weights collected every {self.every} give {self.steps // self.every}"
            raise InputError(f"SWAG: {found} of them, fewer than the rank {self.rank}: take more steps.")

    def offer(self) -> Offer:
        return Offer(inner=self.method, wants_measured_scales=True, spreads=True)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        """Fit a posterior; a FloatingPointError tells where the path of SGD left the mode."""
        posterior = self.side_by_side(bnn, data, run, replicates=1, bootstrap=False)[0]
        posterior.note(replicate=None, replicates=None)
        return posterior

    def side_by_side(self, bnn: BNN, data: Any, run: Run, *, replicates: int, bootstrap: bool) -> list[Posterior]:
        modes = self.method.side_by_side(bnn, data, run, replicates=replicates, bootstrap=bootstrap)
        sources = [make_source(data, mode.bnn, self.method.batch_size, seed=mode.seed) for mode in modes]
        if bootstrap:
            sources = [resampled(source, mode.seed) for source, mode in zip(sources, modes, strict=True)]
        paths = self._walk(modes, [dataclasses.replace(source, independent=True) for source in sources], run)
        seconds = run.seconds
        posteriors, record = [], to_dict(self) | {"guide": to_dict(LowRank(rank=self.rank))}
        for mode, path in zip(modes, paths, strict=True):
            with seeded(mode.seed, "swag"), fast_pyro():
                guide = LowRank(rank=self.rank).build(mode.bnn, *mode.example).to(mode.example[0].device)
            path.write_into(guide)
            posteriors.append(mode.with_fields(guide=guide))
            posteriors[-1].note(method=record, seconds=seconds)
        return posteriors

    def _walk(self, modes: list[Posterior], sources: list[Source], run: Run) -> "list[_Path]":
        """Take the steps of SGD, in place, and return the weights collected from each."""
        walk, lr = self._steps_of_sgd(modes, sources)
        apart = math.gcd(self.every, _APART)
        paths = [_Path(self.rank, _WINDOW // apart, _factor(source, walk)) for source in sources]

        def collect(progress: Any) -> None:
            for path, mode in zip(paths, modes, strict=True):
                weights = torch.cat([point.detach().reshape(-1) for point in mode.guide.points])
                path.step(weights, is_kept=progress.step % self.every == 0)

        with running(modes[0].bnn.net, sources[0].batch_size(walk.batch_size), run.seed, "swag", copies=len(modes)):
            fits = [
                TrainingState(mode.bnn, mode.guide, walk, source, mode.example, seed=derive(mode.seed, "swag batches"))
                for mode, source in zip(modes, sources, strict=True)
            ]
            try:
                train(fits, dataclasses.replace(run, callbacks=[collect]), Stop(), block=apart)
            except FloatingPointError as error:
                text = f"SWAG left the mode in its steps of SGD, with lr={lr:g}: try {lr / 10:g}. {error}"
                raise FloatingPointError(text) from error
        for mode in modes:
            own_storage(mode)
        return paths

    def _steps_of_sgd(self, modes: list[Posterior], sources: list[Source]) -> tuple[SVI, float]:
        """Return the settings of the steps, and their learning rate on the summed loss of all data."""
        batch_size, lr = self.method.batch_size, self.lr
        if lr is None:
            if not isinstance(sources[0].data, Loader) and not isinstance(batch_size, int):
                quarter, tenth = (sources[0].num_data // parts for parts in _PARTS)
                batch_size = max(1, min(quarter, max(tenth, _USUAL_BATCH)))
            lr = min(_rate(*parts, self.momentum) for parts in zip(modes, sources, strict=True))
        sgd = Optimizer("sgd", {"momentum": self.momentum})
        walk = dataclasses.replace(self.method, steps=self.steps, epochs=None, batch_size=batch_size, kl_warmup=0)
        return dataclasses.replace(walk, lr=lr / sources[0].total_weight, optimizer=sgd, schedule=None), lr


class _Path:
    """Running moments, in float64, of means of weights (D,) over a window of steps, and their last R deviations."""

    def __init__(self, rank: int, width: int, factor: float) -> None:
        self._rank, self._width, self._factor = rank, width, factor
        self._count, self._window = 0, list[Tensor]()
        self._mean, self._square = torch.zeros(()), torch.zeros(())
        self._deviations: list[Tensor] = []

    def step(self, weights: Tensor, *, is_kept: bool) -> None:
        self._window = [*self._window, weights.clone()][-self._width :]
        if not is_kept:
            return
        weights = torch.stack(self._window).double().mean(0)
        self._count += 1
        change = weights - self._mean
        self._mean = self._mean + change / self._count
        self._square = self._square + change * (weights - self._mean)
        self._deviations = [*self._deviations, weights - self._mean][-self._rank :]

    def write_into(self, guide: LowRankGuide) -> None:
        """Give a guide the mean and the covariance diag(v) / 2 + D D^T / (2 (R - 1)), times the factor."""
        scale = (self._factor * self._square / self._count / 2).sqrt().clamp_min(_SMALLEST_SCALE)
        columns = torch.stack(self._deviations, 1) * math.sqrt(self._factor / (2 * (self._rank - 1)))
        with torch.no_grad():
            guide.loc.copy_(self._mean)
            guide.rho.copy_(inverse_softplus(scale))
            guide.factor.copy_(columns / softplus(guide.rho.double())[:, None])


def _factor(source: Source, walk: SVI) -> float:
    """Return the covariance of the posterior over that of means of the path; 1 where batches have no noise."""
    size = source.batch_size(walk.batch_size)
    if size >= source.num_data:
        return 1.0
    weights = source.data.weights if isinstance(source.data, Data) else None
    mean_weight = 1.0 if weights is None else float(weights.square().sum() / weights.sum())
    return _WINDOW * size / (source.num_data - size) / mean_weight


def _rate(mode: Posterior, source: Source, momentum: float) -> float:
    """Return the learning rate on the mean loss that moves fast and is stable."""
    size = min(source.num_data, _MOST_LOOKED_AT)
    x, *targets = next(source.batches(mode.bnn, size, derive(mode.seed, "swag rate")))
    total = targets[1].sum() if len(targets) > 1 else len(x)
    point = Point(mode.bnn, mode.guide.points_by_name(), mode.bnn.likelihood, list(mode.bnn.site_names))

    def slope(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        f = mode.bnn.outputs(point.by_site(z), x)
        return -torch.autograd.grad(log_probs(mode.bnn.likelihood, f, *targets).sum() / total, z)[0]

    with seeded(mode.seed, "swag rate"), fast_pyro():
        steepest = largest_curvature(slope, point.flat(point.weights)[None])
    return min(1 - momentum, _STABLE) / max(steepest, 1e-12)
