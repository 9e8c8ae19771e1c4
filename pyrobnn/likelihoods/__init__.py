"""Likelihoods: how targets arise from the outputs of a network."""

from pyrobnn.likelihoods.base import Likelihood, registry
from pyrobnn.likelihoods.bernoulli import Bernoulli
from pyrobnn.likelihoods.categorical import Categorical
from pyrobnn.likelihoods.gaussian import Gaussian

__all__ = ["Bernoulli", "Categorical", "Gaussian", "Likelihood", "registry", "resolve"]

resolve = registry.resolve
