"""Inference: from a model and data to a posterior."""

from pyrobnn.inference.fit import fit
from pyrobnn.inference.history import History
from pyrobnn.inference.monitor import Progress
from pyrobnn.inference.replicates import fit_replicates
from pyrobnn.inference.sugar import fit_svi
from pyrobnn.inference.svi import SVI

__all__ = ["SVI", "History", "Progress", "fit", "fit_replicates", "fit_svi"]
