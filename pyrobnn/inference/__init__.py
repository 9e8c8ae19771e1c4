"""Inference: from a model and data to a posterior."""

from pyrobnn.inference.fit import fit, fit_svi
from pyrobnn.inference.history import History
from pyrobnn.inference.monitor import Progress
from pyrobnn.inference.svi import SVI

__all__ = ["SVI", "History", "Progress", "fit", "fit_svi"]
