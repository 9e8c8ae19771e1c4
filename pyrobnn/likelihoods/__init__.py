"""Likelihoods: how targets arise from the outputs of a network."""

from pyrobnn.likelihoods.base import BaseLikelihood, Likelihood, registry
from pyrobnn.likelihoods.bernoulli import Bernoulli
from pyrobnn.likelihoods.categorical import Categorical
from pyrobnn.likelihoods.censored_gaussian import CensoredGaussian
from pyrobnn.likelihoods.counts import NegativeBinomial, Poisson
from pyrobnn.likelihoods.dense_categorical import DenseCategorical
from pyrobnn.likelihoods.gaussian import Gaussian
from pyrobnn.likelihoods.laplace import Laplace
from pyrobnn.likelihoods.ordinal import Ordinal
from pyrobnn.likelihoods.student_t import StudentT

__all__ = [
    "BaseLikelihood",
    "Bernoulli",
    "Categorical",
    "CensoredGaussian",
    "DenseCategorical",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StudentT",
    "registry",
    "resolve",
]

resolve = registry.resolve
"""Return the likelihood that a name, a table with its `type`, or an object stands for.

Examples:
    >>> bnn.likelihoods.resolve("poisson")
    Poisson()
"""
