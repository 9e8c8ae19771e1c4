"""The warm-up of isokinetic chains: their step size, the units of the latents, and the length."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from pyro.ops.stats import effective_sample_size
from torch import Tensor

from pyrobnn._torch.lbfgs import descend_in_place, joined
from pyrobnn.inference.mcmc.isokinetic import Walk
from pyrobnn.inference.mcmc.potential import ValueAndGradient

ERROR = 5e-4
"""Aim for the mean squared change of the energy in a step, in square nats for each latent (Robnik et al. 2023)."""
_TOO_LARGE = 0.1
"""Squared change beyond which it says nothing of other step sizes."""
_ORDER = 6
"""The squared change grows with this power of the step size."""
_LOOK, _PARTS = 10, 4
"""Steps between two changes of the step size, and parts of a warm-up."""
_MEMORY = 3
"""Weight of the latest look, in mean weights of all."""
_LENGTH = 0.4
"""The length, in steps for each independent draw (Robnik et al. 2023, sec. 5)."""
_COORDINATES = 256
"""Latents of which the autocorrelation is measured, at most."""
_SHRINKAGE, _SMALLEST = 5, 1e-3
"""Looks that count for a small variance of each latent, as in Stan's warm-up."""
_FEW, _MOST = 5, 500
"""Iterations of a descent that gain less than the latents' share of the energy in the end, and most iterations."""


def descended(start: Tensor, evaluate: ValueAndGradient) -> Tensor:
    """Return a point (P,) in the bulk of the posterior, by L-BFGS from a start (P,).

    U is about P / 2 above its minimum there, so the descent ends where a few iterations gain less. A chain of constant
    speed would need a number of steps that grows with the square of the distance, in standard deviations.
    """
    point, least = start.clone(), [math.inf]

    def slope() -> Tensor:
        value, gradient = evaluate(point)
        least[-1] = min(least[-1], float(value))
        return joined([value, gradient])

    def is_near() -> bool:
        least.append(least[-1])
        return len(least) > _FEW and least[-1 - _FEW] - least[-1] < len(point) / 2

    descend_in_place(slope, [point], after=is_near, maxiter=_MOST)
    return point


class Tuned(NamedTuple):
    """What a warm-up finds for all chains, beside the units of the latents of each: step size and length."""

    size: float
    length: float

    @property
    def num_steps(self) -> int:
        """The number of steps of the length, at least 1."""
        return max(1, round(self.length / self.size))


def warm_up(walk: Walk, num_steps: int) -> Tuned:
    """Run the warm-up.

    In four parts of equal length, chains reach the bulk of the posterior, their standard deviations become the units
    of the latents, those of the third part again, and the autocorrelation in the fourth gives the length. The step size
    follows the changes of the energy all along. Each chain has its own, until all share a size and a length in the end.

    Args:
        walk: chains at their starts.
        num_steps: number of steps, rounded up to a multiple of 40.
    """
    place, root, num_looks = walk.state.place, walk.state.root, math.ceil(num_steps / (_PARTS * _LOOK))
    length = math.sqrt(place.shape[-1])
    steps = _StepSize(torch.full_like(walk.state.potential, 0.25 * length))

    def looks(every: int = _LOOK) -> Iterator[None]:
        steps.forget()
        for _ in range(num_looks):
            walk.set(steps.size, length)
            squares = torch.zeros_like(steps.size)
            for _ in range(_LOOK // every):
                walk.run(every)
                squares += walk.state.squares
                yield
            steps.follow(squares / _LOOK)

    walk.turn_anew()
    for _ in looks():
        pass
    for _ in range(2):
        origin = place.double().clone()
        total, squares = torch.zeros_like(origin), torch.zeros_like(origin)
        for _ in looks():
            total += place - origin
            squares += (place - origin).square()
        variance = squares / num_looks - (total / num_looks).square()
        weight = num_looks / (num_looks + _SHRINKAGE)
        before = root.log().mean(1)
        root.copy_((weight * variance.clamp(min=0) + (1 - weight) * _SMALLEST).sqrt())
        steps.size = steps.size * (before - root.log().mean(1)).exp()
    chosen = torch.linspace(0, place.shape[-1] - 1, min(place.shape[-1], _COORDINATES), dtype=torch.float64).long()
    chosen = chosen.to(place.device)
    path = torch.stack([place[:, chosen] for _ in looks(every=1)], 1)
    lengths = steps.size * _steps_apart(path)
    return Tuned(steps.shared(), _LENGTH * float(lengths.mean()))


def _steps_apart(path: Tensor) -> Tensor:
    """Return the steps (C,) from an independent draw to the next, in the mean of latents, for places (C, steps, P)."""
    late = path[None, :, path.shape[1] // 4 :].double()
    independent = effective_sample_size(late, chain_dim=0, sample_dim=2)
    return (late.shape[2] / independent.clamp(min=1, max=late.shape[2])).mean(-1)


class _StepSize:
    """The step size of each chain at which the squared change of the energy has its aim, on average.

    Args:
        size: the first, (C,).

    Attributes:
        size: as it is now.
    """

    def __init__(self, size: Tensor) -> None:
        self.size = size
        self.forget()

    def forget(self) -> None:
        """Start the average anew."""
        self._mean, self._count = torch.zeros_like(self.size), torch.zeros_like(self.size)

    def follow(self, squares: Tensor) -> None:
        """Take in the mean squared change in some steps of the present size, (C,)."""
        too_large = squares > _TOO_LARGE
        self._count = torch.where(too_large, 0, self._count + 1)
        rate = (_MEMORY / (self._count + _MEMORY - 1)).clamp(max=1)
        mean = self._mean + rate * (squares / self.size**_ORDER - self._mean)
        self._mean = torch.where(too_large, 0, mean)
        aim = torch.minimum((ERROR / self._mean) ** (1 / _ORDER), 2 * self.size)
        self.size = torch.where(too_large, self.size / 2, aim)

    def shared(self) -> float:
        """Return the size at which the squared change of all chains together has its aim, the largest one at most."""
        mean = float((self._mean * self._count).sum() / self._count.sum().clamp(min=1))
        largest = float(self.size.max())
        return min(largest, (ERROR / mean) ** (1 / _ORDER)) if mean else largest
