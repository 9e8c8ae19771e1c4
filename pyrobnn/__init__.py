"""Bayesian neural networks on Pyro: declare a network, a prior, a likelihood and a guide; infer; audit."""

from pyrobnn import datasets, guides, likelihoods, priors
from pyrobnn._errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.data import Data
from pyrobnn.diagnostics.audit import elbo_report
from pyrobnn.inference import SVI, fit
from pyrobnn.nets import MLP
from pyrobnn.posterior import Posterior
from pyrobnn.prediction import Prediction

__all__ = [
    "BNN",
    "MLP",
    "SVI",
    "Data",
    "InputError",
    "Posterior",
    "Prediction",
    "datasets",
    "elbo_report",
    "fit",
    "guides",
    "likelihoods",
    "priors",
]
__version__ = "0.1.0"
