"""Pictures of a fit, a prediction and a posterior; each function returns a matplotlib Figure and leaves no state."""

from pyrobnn.plots.classification import reliability
from pyrobnn.plots.one_input import fit_1d
from pyrobnn.plots.parameters import weights
from pyrobnn.plots.regression import observed_vs_predicted
from pyrobnn.plots.training import elbo

__all__ = ["elbo", "fit_1d", "observed_vs_predicted", "reliability", "weights"]
