"""The captured step: model, guide, ELBO, gradient and update recorded once as one graph, compiled, and run alone."""

from pyrobnn.inference.capture.errors import NotCapturable
from pyrobnn.inference.capture.objective import Objective

__all__ = ["NotCapturable", "Objective"]
