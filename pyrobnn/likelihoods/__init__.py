"""Likelihoods: how targets arise from the outputs of a network."""

from pyrobnn.likelihoods.base import BaseLikelihood, Likelihood, registry
from pyrobnn.likelihoods.bernoulli import Bernoulli
from pyrobnn.likelihoods.beta import Beta
from pyrobnn.likelihoods.categorical import Categorical
from pyrobnn.likelihoods.censored_gaussian import CensoredGaussian
from pyrobnn.likelihoods.counts import NegativeBinomial, Poisson
from pyrobnn.likelihoods.dense_categorical import DenseCategorical
from pyrobnn.likelihoods.gaussian import Gaussian
from pyrobnn.likelihoods.given import FromFunction, resolve
from pyrobnn.likelihoods.laplace import Laplace
from pyrobnn.likelihoods.mixture_density import MixtureDensity
from pyrobnn.likelihoods.ordinal import Ordinal
from pyrobnn.likelihoods.positive import Gamma, LogNormal
from pyrobnn.likelihoods.student_t import StudentT
from pyrobnn.likelihoods.zero_inflated import ZeroInflated

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


def __dir__() -> list[str]:
    return __all__
