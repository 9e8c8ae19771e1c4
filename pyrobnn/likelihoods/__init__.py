"""Likelihoods: how targets arise from the outputs of a network."""

from pyrobnn.likelihoods.base import BaseLikelihood, FromFunction, Likelihood, LikelihoodModule, registry, resolve
from pyrobnn.likelihoods.bounded import Beta, Gamma, LogNormal
from pyrobnn.likelihoods.counts import NegativeBinomial, Poisson, ZeroInflated
from pyrobnn.likelihoods.dense_categorical import DenseCategorical
from pyrobnn.likelihoods.labels import Bernoulli, Categorical, Ordinal
from pyrobnn.likelihoods.real import CensoredGaussian, Gaussian, Laplace, MixtureDensity, StudentT

__all__ = [
    "BaseLikelihood",
    "Bernoulli",
    "Beta",
    "Categorical",
    "CensoredGaussian",
    "DenseCategorical",
    "FromFunction",
    "Gamma",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "LikelihoodModule",
    "LogNormal",
    "MixtureDensity",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StudentT",
    "ZeroInflated",
    "registry",
    "resolve",
]
__dir__ = __all__.copy
