"""Classes of ArviZ with additions of pyrobnn; imported inside functions, since ArviZ takes seconds to import."""

from collections.abc import Sequence
from typing import Any

import arviz as az
import numpy as np
import xarray as xr

from pyrobnn.data.in_memory import Data
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior


class HeldOut(az.ELPDData):
    """Expected log pointwise predictive density on held-out data; there is no effective number of parameters."""

    @property
    def kind(self) -> str:
        """Name of the estimator; `az.compare` keeps results apart by it."""
        return "held-out"


class LooUnderQ(az.ELPDDataLOO):
    """PSIS-LOO of the draws of an approximate posterior, taken as if they came from the posterior itself."""

    @property
    def kind(self) -> str:
        """Name of the estimator; `az.compare` keeps results apart by it."""
        return "LOO under q"


class Refits(az.SamplingWrapper):
    """A model for `az.loo_kfold`, answered from a fit for each fold; `labels` (N,) number the folds."""

    def __init__(self, data: Data, labels: np.ndarray, fits: Sequence[Posterior | Mixture], num_draws: int) -> None:
        super().__init__(model=None)
        self._data, self._labels, self._fits, self._num_draws = data, labels, fits, num_draws

    def sel_observations(self, idx: np.ndarray) -> tuple[int, Data]:
        """Return the number of the fold with these examples, and the examples."""
        return int(self._labels[idx[0]]), self._data[idx]

    def sample(self, fold: int) -> Posterior | Mixture:
        """Return the posterior that has not seen a fold."""
        return self._fits[fold]

    def get_inference_data(self, posterior: Posterior | Mixture) -> Posterior | Mixture:
        """Return the posterior itself, which `log_likelihood__i` takes."""
        return posterior

    def log_likelihood__i(self, held_out: Data, posterior: Posterior | Mixture) -> xr.DataArray:
        """Return the log density of each held-out example under each draw."""
        return log_likelihood(posterior, held_out, self._num_draws)


def log_likelihood(posterior: Posterior | Mixture, data: Data, num_draws: int, seed: int | None = None) -> xr.DataArray:
    """Return log p(y_n | x_n, w_s) in original units and double precision, with dimensions (chain, draw, obs_id)."""
    prediction: Any = posterior.predict(data.x, num_draws=num_draws, seed=seed)
    values = prediction.draw_log_prob(data.y).double().cpu().numpy()
    return xr.DataArray(values[None], dims=["chain", "draw", "obs_id"], coords={"obs_id": range(len(data))}, name="y")
