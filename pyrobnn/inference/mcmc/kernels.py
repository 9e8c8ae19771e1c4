"""Pyro's NUTS with trajectories that run recorded; adaptation of steps and masses stays Pyro's."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from pyro.infer import mcmc
from torch import Tensor

from pyrobnn.inference.mcmc.potential import Leapfrog, Potential, State

_LARGEST_CHANGE = 1000.0
"""Change of energy in nats above which a trajectory has diverged, as in Pyro."""
_LATENTS = ("z",)


class RecordedNUTS(mcmc.NUTS):
    """Pyro's NUTS with multinomial sampling of the trajectory (Betancourt 2017, appendix A).

    A doubling runs all its steps before it looks whether a part of it turned back.
    """

    potential_fn: Potential
    step_size: float
    _adapter: Any
    _divergences: list[int]
    _t: int
    _warmup_steps: int
    _mean_accept_prob: float
    _accept_cnt: int
    _root_of: Tensor | None = None

    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Do a transition from the latents of the last transition."""
        latents, potential, gradients = self._fetch_from_cache()
        place, gradient = latents["z"].detach(), gradients["z"]
        self._take_masses()
        moved, acceptance, diverged = self.move(State(place, torch.randn_like(place), gradient), potential)
        if moved is not None:
            potential, gradient = self._leapfrog.evaluate(moved)
            place = moved
        self._cache({"z": place}, potential, {"z": gradient})
        self._t += 1
        index = self._t - self._warmup_steps
        if index > 0:
            self._accept_cnt += moved is not None
            self._divergences += [index - 1] * diverged
        else:
            probability = torch.tensor(acceptance, dtype=place.dtype)
            self._adapter.step(self._t, {"z": place}, probability, {"z": gradient})
        self._mean_accept_prob += (acceptance - self._mean_accept_prob) / (index if index > 0 else self._t)
        return {"z": place}

    @property
    def _leapfrog(self) -> Leapfrog:
        assert self.potential_fn.leapfrog is not None
        return self.potential_fn.leapfrog

    def _take_masses(self) -> None:
        inverse = self._adapter.mass_matrix_adapter.inverse_mass_matrix[_LATENTS]
        if inverse is not self._root_of:
            self._leapfrog.set_root(torch.linalg.cholesky(inverse) if inverse.ndim > 1 else inverse.sqrt())
            self._root_of = inverse

    def _go(self, start: State, size: float, num_steps: int) -> tuple[State, Tensor]:
        self.potential_fn.num_evaluations += num_steps
        return self._leapfrog.move(start, size, num_steps)

    def move(self, state: State, potential: Tensor) -> tuple[Tensor | None, float, bool]:
        """Return new latents (P,) or None if unchanged, the acceptance probability, and whether it diverged."""
        before = _energy(potential, state.momentum)
        ends, total = {1: state, -1: state}, state.momentum.double()
        log_weight, accepted, num_steps = torch.zeros((), dtype=torch.float64), 0.0, 0
        moved = None
        for depth in range(self._max_tree_depth):
            direction = 1 if float(torch.rand(())) < 0.5 else -1
            ends[direction], _ = self._go(ends[direction], direction * self.step_size, 2**depth)
            places, momenta, potentials = self._leapfrog.path(2**depth)
            change = (_energy(potentials, momenta) - before).nan_to_num(math.inf, math.inf).cpu()
            accepted += float((-change).exp().clamp(max=1).sum())
            num_steps += 2**depth
            if bool((change > _LARGEST_CHANGE).any()):
                return moved, accepted / num_steps, True
            if turns_back(momenta):
                break
            log_weight_of_half = (-change).logsumexp(0)
            if float(torch.rand(())) < math.exp(min(0.0, float(log_weight_of_half - log_weight))):
                moved = places[torch.multinomial((-change - log_weight_of_half).exp(), 1)[0]].clone()
            total = total + momenta.double().sum(0)
            log_weight = torch.logaddexp(log_weight, log_weight_of_half)
            if bool(_turn(ends[-1].momentum, ends[1].momentum, total)):
                break
        return moved, accepted / num_steps, False


def turns_back(momenta: Tensor) -> bool:
    """Say whether any of the balanced subtrees of a trajectory, momenta (2^k, P), turns back on itself."""
    momenta = momenta.double()
    sums = torch.cat([torch.zeros_like(momenta[:1]), momenta.cumsum(0)])
    sizes = [2**power for power in range(1, len(momenta).bit_length())]
    return any(
        bool(_turn(momenta[::size], momenta[size - 1 :: size], sums[size::size] - sums[:-1:size]).any())
        for size in sizes
    )


def _turn(first: Tensor, last: Tensor, total: Tensor) -> Tensor:
    """Say whether going on at either end would shorten the way, from end momenta and their sum, (..., P) to (...)."""
    way = total - (first + last) / 2
    return ((first * way).sum(-1) <= 0) | ((last * way).sum(-1) <= 0)


def _energy(potential: Tensor, momentum: Tensor) -> Tensor:
    return potential.double() + 0.5 * momentum.double().square().sum(-1)
