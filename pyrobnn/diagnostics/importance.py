"""Importance weights: the distance of q from the posterior, its correction, and the evidence."""

import dataclasses
import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.data.loader import in_memory
from pyrobnn.diagnostics.audit import Estimate, log_likelihoods, log_prior_density
from pyrobnn.guides.dropout import MaskedPoint
from pyrobnn.guides.empirical import require_density
from pyrobnn.posterior.mixture import require_single
from pyrobnn.posterior.posterior import Posterior, latent_names

_ROUNDING = 1e-4  # nats between log ratios that count as zero: a tail of rounding errors is not that of q
_RELIABLE = 0.5  # k-hat below which weights have a variance, so that errors fall with the root of the draws
_FEWEST = 30  # draws below which the tail, a fifth of them, is too short for ArviZ to fit


@dataclasses.dataclass(frozen=True, eq=False)
class ImportanceWeights:
    """Weights that turn draws from q into draws from the posterior, and their diagnostics of q; str() sums them up.

    Attributes:
        log_weights: Pareto-smoothed log weights (S,), normalised, of `draws()`.
        khat: shape of the tail of the weights; -inf if they are constant, inf if beyond the range of floats.
        ess: effective number of draws, 1 / sum of squared weights.
        log_evidence: log p(D) in the original units of the targets, of a single mirror image of a mode if q is around
            one; log p(D, points) if q holds sites at points.
        posterior: q.
        seed: the seed of the draws.
    """

    log_weights: np.ndarray
    khat: float
    ess: float
    log_evidence: Estimate
    posterior: Posterior
    seed: int

    @property
    def num_draws(self) -> int:
        """S, the number of draws."""
        return len(self.log_weights)

    @property
    def good_khat(self) -> float:
        """The k-hat below which S draws are enough, min(1 - 1 / log10 S, 0.7) (Vehtari et al. 2024)."""
        return min(1 - 1 / math.log10(self.num_draws), 0.7)

    @property
    def is_reliable(self) -> bool:
        """Whether k-hat is below `good_khat`, so that weighted means and the evidence can be trusted."""
        return self.khat < self.good_khat

    def __str__(self) -> str:
        word = "reliable" if self.khat < _RELIABLE else "of a wide error" if self.is_reliable else "not reliable"
        khat = f"k-hat of the joint weights {self.khat:.2f} ({word}: good below {self.good_khat:.2f})"
        return f"{khat}, effective draws {self.ess:.0f} of {self.num_draws}, log evidence {self.log_evidence}"

    def draws(self) -> dict[str, Tensor]:
        """Return the draws that the weights belong to, (S, *event) by site; they are made anew, not stored."""
        return self.posterior.draw(self.num_draws, seed=self.seed)

    def expectation(self, values: Tensor | np.ndarray) -> np.ndarray:
        """Return the mean under the posterior of values (S, ...), such as `predict(x, draws=draws()).draw_means`.

        Raises:
            InputError: weights that are not reliable, or not one value per draw.
        """
        if not self.is_reliable:
            said = f"k-hat is {self.khat:.2f}, not below {self.good_khat:.2f}: the guide misses much of the posterior"
            raise InputError(f"{said}. Judge it by predictions, infer fewer weights, or take a richer guide or NUTS.")
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=float)
        if array.ndim < 1 or len(array) != self.num_draws:
            raise InputError(f"`values` must have one row for each of {self.num_draws} draws, got shape {array.shape}.")
        return np.tensordot(np.exp(self.log_weights), array, 1)


def importance_weights(
    posterior: Posterior, data: Any, *, num_draws: int = 1000, seed: int | None = None, linearized: bool | None = None
) -> ImportanceWeights:
    """Weigh draws of a guide by p(w, D) / q(w), with Pareto-smoothed importance sampling (PSIS, Vehtari et al. 2024).

    Their k-hat is about the joint distribution of all weights, above 0.7 for all but very small networks (Yao et al.
    2018). The target is the posterior of the model that predicts: of Laplace guides the linearised network.

    Args:
        posterior: a posterior whose guide has a density.
        data: the training data, in original units.
        num_draws: number of draws S, at least 30; take 1000 or more.
        seed: seed of the draws; the fit's if not given.
        linearized: as in `Posterior.predict`.

    Raises:
        InputError: a guide without a density, a mixture, too few draws, or data that do not fit the model.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> model = bnn.BNN(bnn.MLP(1, [], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(4.0))
        >>> posterior = model.fit(data, guide=bnn.guides.Laplace(structure="full"), steps=50, seed=0, progress=False)
        >>> bnn.importance_weights(posterior, data).is_reliable  # of a linear model a Laplace approximation is exact
        True
    """
    require_single(posterior, "importance_weights")
    data = in_memory(data, weighted=True)
    if num_draws < _FEWEST:
        raise InputError(f"`num_draws` must be at least {_FEWEST} for a k-hat, got {num_draws}.")
    _require_continuous(posterior)
    seed = posterior.seed if seed is None else seed

    def log_ratios(draws: dict[str, Tensor], log_q: Tensor) -> Tensor:
        log_likelihood = log_likelihoods(posterior, data, draws, linearized=linearized).sum(1)
        return log_prior_density(posterior, draws) + log_likelihood - log_q.double()

    ratios = torch.cat(posterior.map_draws(log_ratios, num_draws, seed=seed)).cpu().numpy()
    log_weights, khat = pareto_smooth(ratios)
    ess, log_evidence = float(1 / np.exp(2 * log_weights).sum()), _log_mean(ratios, khat)
    return ImportanceWeights(log_weights, khat, ess, log_evidence, posterior, seed)


def _log_mean(log_ratios: np.ndarray, khat: float) -> Estimate:
    """Return the logarithm of the mean of ratios (S,), with an error that is wider where they have no variance.

    A sum of S values with a tail of index k > 1/2 varies by S^k. The k taken is a standard error, (1 + k) / root n of a
    fit to the largest n = 3 root S, above the estimate.
    """
    highest, tail = log_ratios.max(), min(khat, 1.0)
    scaled = np.exp(log_ratios - highest)
    error = float(scaled.std(ddof=1) / scaled.mean() / math.sqrt(len(scaled)))
    if math.isfinite(tail):
        tail += (1 + tail) / math.sqrt(3 * math.sqrt(len(scaled)))
        error *= len(scaled) ** max(0.0, tail - _RELIABLE)
    return Estimate(float(highest + math.log(scaled.mean())), error)


def pareto_smooth(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """Return Pareto-smoothed log weights (S,), normalised, and k-hat, from log p - log q of each draw (S,)."""
    import arviz_stats  # noqa: F401 - it gives xarray the accessor, without the pictures of ArviZ
    import xarray as xr

    ratios = np.asarray(log_ratios, dtype=float)
    bad = np.flatnonzero(np.isnan(ratios) | (ratios == np.inf))
    if len(bad) or not np.isfinite(ratios).any():
        where = f"draw {bad[0]} has {ratios[bad[0]]}" if len(bad) else "every draw has -inf"
        remedy = "the fit diverged, or the likelihood overflows"
        raise InputError(f"The log importance ratios must be numbers, but {where}: {remedy}.")
    shifted = ratios - ratios.max()
    if shifted.min() > -_ROUNDING:
        shifted = np.zeros_like(shifted)
    try:
        with np.errstate(over="ignore"):  # of a tail whose index is far above 1
            log_weights, khat = xr.DataArray(-shifted, dims="draw").azstats.psislw(dim="draw")
    except ValueError as error:
        if "tail values are the same" not in str(error):
            raise
        return shifted - np.log(np.exp(shifted).sum()), -math.inf
    return log_weights.values, math.inf if np.isnan(khat) else float(khat)


def _require_continuous(posterior: Posterior) -> None:
    """Refuse a guide that has no density over the weights."""
    require_density(posterior.guide)
    with seeded(posterior.seed), fast_pyro(), torch.no_grad():
        trace = posterior.trace(posterior.guide)
    drawn = {name: trace.nodes[name]["fn"] for name in latent_names(trace)}
    auxiliary = any(node["type"] == "sample" and node["infer"].get("is_auxiliary") for node in trace.nodes.values())
    for name, q in drawn.items():
        carries = isinstance(q, dist.Delta) and not auxiliary and bool((q.log_density != 0).any())
        if isinstance(q, MaskedPoint) or carries:
            said = f"The guide puts {name!r} on finitely many or pruned values, so q has no density"
            raise InputError(f"{said}: train another guide, or take the posterior before pruning.")
    if not auxiliary and all(isinstance(q, dist.Delta) for q in drawn.values()):
        raise InputError(f"{type(posterior.guide).__name__} is a point, which has no density: train another guide.")
