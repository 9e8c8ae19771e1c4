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
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.softplus import inverse_softplus
from pyrobnn.bnn import BNN
from pyrobnn.curvature.hessian import largest_curvature
from pyrobnn.curvature.metric import log_probs
from pyrobnn.data.loader import Loader
from pyrobnn.guides.correlated import LowRank, LowRankGuide
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.method import BaseMethod, Offer, Run, registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.fits import own_storage, resampled
from pyrobnn.inference.training.loop import train
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.inference.training.watch import Stop
from pyrobnn.optimizers import Optimizer
from pyrobnn.posterior.posterior import Posterior

_SMALLEST_SCALE = 1e-8
_PARTS = 10
_MOST_LOOKED_AT = 1000
_STABLE = 0.1
"""Learning rate times the largest curvature of the mean loss."""
_TINY = 1e-12


@registry.register
@setting
class SWAG(BaseMethod[Posterior]):
    """Stochastic weight averaging, Gaussian (Maddox et al. 2019): a mode by SVI, then SGD at a constant rate around it.

    The weights, taken after every `every` steps of SGD, have mean m and variances v; the last R of them deviate by D
    from the running mean. Then q(w) = N(m, diag(v) / 2 + D D^T / (2 (R - 1))), a `LowRank` guide of rank R. The noise
    of mini-batches makes the path spread: with a given `lr` and batches of all data it ends in a point.

    See docs/how-to/ensembles.md.

    Attributes:
        method: the method for the mode; its guide must be "map".
        lr: learning rate of SGD on the mean loss of an example, (negative log joint density) / N, as in the paper. None
            for the rate with the path closest to the posterior (Mandt, Hoffman & Blei 2017, sec. 4.1), measured at the
            mode, at most a tenth of the inverse of the largest curvature. Mini-batches then have a tenth of the
            examples, unless the method sets `batch_size`.
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
    steps: Count = 1000
    every: Count = 20
    rank: Annotated[int, Field(gt=1)] = 20

    def __post_init__(self) -> None:
        if to_dict(self.method)["guide"] != {"type": "map"}:
            raise InputError(f"SWAG: averages points: its method needs guide='map', got {self.method.guide!r}.")
        if self.method.patience is not None:
            raise InputError("SWAG: the mode takes a fixed number of steps: leave `patience` out of the method.")
        if self.steps // self.every < self.rank:
            raise InputError(
                f"SWAG: {self.steps} steps with weights collected every {self.every} give {self.steps // self.every} "
                f"of them, fewer than the rank {self.rank}: take more steps, collect more often, or lower the rank."
            )

    def offer(self) -> Offer:
        return Offer(inner=self.method, wants_measured_scales=self.method.ends_by_itself, spreads=True)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        """Fit a posterior.

        Raises:
            FloatingPointError: the path of SGD left the mode.
        """
        posterior = self.side_by_side(bnn, data, run, replicates=1, bootstrap=False)[0]
        posterior.note(replicate=None, replicates=None)
        return posterior

    def side_by_side(self, bnn: BNN, data: Any, run: Run, *, replicates: int, bootstrap: bool) -> list[Posterior]:
        modes = self.method.side_by_side(bnn, data, run, replicates=replicates, bootstrap=bootstrap)
        sources = [make_source(data, mode.bnn, self.method.batch_size, seed=mode.seed) for mode in modes]
        if bootstrap:
            sources = [resampled(source, mode.seed) for source, mode in zip(sources, modes, strict=True)]
        paths = self._walk(modes, sources, run)
        seconds = run.seconds
        return [self._posterior(mode, path, seconds) for mode, path in zip(modes, paths, strict=True)]

    def _walk(self, modes: list[Posterior], sources: list[Source], run: Run) -> "list[_Path]":
        """Take the steps of SGD, in place, and return the weights collected from each."""
        walk, lr = self._steps_of_sgd(modes, sources)
        paths = [_Path(self.rank) for _ in modes]
        guides = [mode.guide for mode in modes]

        def collect(progress: Any) -> None:
            if progress.step % self.every == 0:
                for path, guide in zip(paths, guides, strict=True):
                    path.add(torch.cat([point.detach().reshape(-1) for point in guide.points]))

        with running(modes[0].bnn.net, sources[0].batch_size(walk.batch_size), run.seed, "swag", copies=len(modes)):
            fits = [
                TrainingState(mode.bnn, mode.guide, walk, source, mode.example, seed=derive(mode.seed, "swag batches"))
                for mode, source in zip(modes, sources, strict=True)
            ]
            try:
                train(fits, dataclasses.replace(run, callbacks=[collect]), Stop(), block=self.every)
            except FloatingPointError as error:
                raise FloatingPointError(
                    f"SWAG left the mode in its steps of SGD, with lr={lr:g}: the less noise targets have, "
                    f"the smaller the rate must be; try {lr / 10:g}. {error}"
                ) from error
        for mode in modes:
            own_storage(mode)
        return paths

    def _steps_of_sgd(self, modes: list[Posterior], sources: list[Source]) -> tuple[SVI, float]:
        """Return the settings of the steps, and their learning rate on the summed loss of all data."""
        batch_size, lr = self.method.batch_size, self.lr
        if lr is None:
            if isinstance(sources[0].data, Loader):
                size = sources[0].batch_size(None)
            else:
                size = batch_size if isinstance(batch_size, int) else max(1, sources[0].num_data // _PARTS)
                batch_size = size
            size *= self.method.accumulate
            lr = min(_rate(*parts, size, self.momentum) for parts in zip(modes, sources, strict=True))
        walk = dataclasses.replace(
            self.method,
            steps=self.steps,
            epochs=None,
            batch_size=batch_size,
            lr=lr / sources[0].total_weight,
            optimizer=Optimizer("sgd", {"momentum": self.momentum}),
            schedule=None,
            kl_warmup=0,
        )
        return walk, lr

    def _posterior(self, mode: Posterior, path: "_Path", seconds: float) -> Posterior:
        with seeded(mode.seed, "swag"), fast_pyro():
            guide = LowRank(rank=self.rank).build(mode.bnn, *mode.example).to(mode.example[0].device)
        path.write_into(guide)
        method = to_dict(self) | {"guide": to_dict(LowRank(rank=self.rank))}
        posterior = mode.with_fields(guide=guide)
        posterior.note(method=method, seconds=seconds)
        return posterior


class _Path:
    """Running moments of collected weights (D,), in float64, and the last R deviations from the running mean."""

    def __init__(self, rank: int) -> None:
        self._rank, self._count = rank, 0
        self._mean, self._square = torch.zeros(()), torch.zeros(())
        self._deviations: list[Tensor] = []

    def add(self, weights: Tensor) -> None:
        self._count += 1
        change = weights.double() - self._mean
        self._mean = self._mean + change / self._count
        self._square = self._square + change * (weights.double() - self._mean)
        self._deviations = [*self._deviations, weights.double() - self._mean][-self._rank :]

    def write_into(self, guide: LowRankGuide) -> None:
        """Give a guide the mean and the covariance diag(v) / 2 + D D^T / (2 (R - 1))."""
        scale = (self._square / self._count / 2).sqrt().clamp_min(_SMALLEST_SCALE)
        columns = torch.stack(self._deviations, 1) / math.sqrt(2 * (self._rank - 1))
        with torch.no_grad():
            guide.loc.copy_(self._mean)
            guide.rho.copy_(inverse_softplus(scale))
            guide.factor.copy_(columns / softplus(guide.rho.double())[:, None])


def _rate(mode: Posterior, source: Source, batch_size: int, momentum: float) -> float:
    """Return the learning rate on the mean loss that keeps SGD closest to the posterior, at most the stable rate.

    The closest is 2 (1 - momentum) B / N times the number of weights over the trace of the covariance of single
    examples' gradients, estimated from those of ten parts of the data.
    """
    size = min(source.num_data, _MOST_LOOKED_AT)
    x, *targets = next(source.batches(mode.bnn, size, derive(mode.seed, "swag rate")))
    names, shapes = list(mode.bnn.site_names), [mode.bnn.initial_values[name].shape for name in mode.bnn.site_names]
    place = torch.cat([mode.guide.points_by_name()[name].detach().reshape(-1) for name in names])

    def weights(z: Tensor) -> dict[str, Tensor]:
        parts = z.split([shape.numel() for shape in shapes])
        return {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}

    def slope(z: Tensor, rows: slice) -> Tensor:
        z = z.detach().requires_grad_()
        chosen = [values[rows] for values in targets]
        log_probs_ = log_probs(mode.bnn.likelihood, mode.bnn.outputs(weights(z), x[rows]), *chosen)
        return -torch.autograd.grad(log_probs_.mean(), z)[0]

    with seeded(mode.seed, "swag rate"), fast_pyro():
        steepest = largest_curvature(lambda z: slope(z, slice(None)), place[None])
        width = max(1, len(x) // _PARTS)
        parts = torch.stack(
            [slope(place, slice(start, start + width)) for start in range(0, width * _PARTS, width)][: len(x)]
        )
    trace = width * float(parts.var(0).sum()) if len(parts) > 1 else 0.0
    closest = 2 * (1 - momentum) * batch_size / source.num_data * len(place) / max(trace, _TINY)
    return min(closest, _STABLE / max(steepest, _TINY))
