"""Have Markov chains converged? They are compared by their predictions."""

import dataclasses
from typing import Any

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn.guides.base import built
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

_FEWEST_DRAWS = 4
_TAILS = (0.05, 0.95)


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionConvergence:
    """R-hat and effective sample sizes of function values; str() shows the worst of each.

    Attributes:
        rhat: rank-normalised split R-hat (Vehtari et al. 2021), (N, K) or (N,): above 1.01 chains do not agree yet.
        ess_bulk: effective number of independent draws for means, the same shape; 400 or more are enough.
        ess_tail: the same for 5 % and 95 % quantiles.
        error: Monte Carlo error of the predicted mean, in standard deviations of the prediction.
    """

    rhat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    error: np.ndarray

    def __str__(self) -> str:
        sizes = f"{np.min(self.ess_bulk):.0f} (bulk) and {np.min(self.ess_tail):.0f} (tail)"
        rhat = f"largest R-hat {np.max(self.rhat):.3f}"
        return f"{rhat}, smallest effective sample size {sizes}, over {self.rhat.size} function values"


def function_rhat(posterior: Posterior | Mixture, x: Any) -> FunctionConvergence:
    """Compare chains by their predicted means at some inputs, as weights may be in mirror images of a mode.

    Args:
        posterior: the result of Markov chains, as of `NUTS` or `MCLMC`: two or more of at least 4 draws.
        x: probe inputs (N, *in) in original units; a dozen, inside and outside the data, are enough.

    Raises:
        InputError: a mixture, a posterior without chains, or with too few or too short chains.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.HMC(step_size=0.01, trajectory_length=0.05, num_draws=10, warmup=5, num_chains=2)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
        >>> bnn.function_rhat(posterior, [[0.0], [0.25], [1.0]]).rhat.shape
        (3,)
    """
    import arviz as az

    if isinstance(posterior, Mixture):
        raise InputError(f"R-hat compares the Markov chains of one fit, got a mixture of {len(posterior)}.")
    chains = built(posterior.guide).chains()
    if chains is None:
        raise InputError(f"R-hat compares Markov chains, and the guide {type(posterior.guide).__name__} has none.")
    num_chains, num_draws = next(iter(chains.values())).shape[:2]
    if num_chains < 2 or num_draws < _FEWEST_DRAWS:
        got = f"got {num_chains} of {num_draws}: set `num_chains` and `num_draws`"
        raise InputError(f"R-hat needs two or more chains of at least {_FEWEST_DRAWS} draws, {got}.")
    prediction = posterior.predict(x, draws={name: values.flatten(0, 1) for name, values in chains.items()})
    means = prediction.draw_means.double().cpu().numpy()
    values = means.reshape(num_chains, num_draws, *means.shape[1:])
    with np.errstate(divide="ignore", invalid="ignore"):  # of values that never change
        rhat, bulk = np.asarray(az.rhat(values)), np.asarray(az.ess(values, method="bulk"))
        tail = np.asarray(az.ess(values, method="tail", prob=_TAILS))
    variance = means.var(0)
    total = variance + prediction.aleatoric_variance.double().cpu().numpy() if prediction.has_moments else variance
    share = np.divide(variance, total, out=np.zeros_like(variance), where=total > 0)
    error = np.sqrt(np.where(np.isfinite(total), share, 1.0) / bulk)
    return FunctionConvergence(rhat, bulk, tail, error)
