"""Inference: from a model and data to a posterior."""

from pyrobnn.inference import defaults
from pyrobnn.inference.fit import fit, fit_svi
from pyrobnn.inference.mcmc.mclmc import MCLMC
from pyrobnn.inference.mcmc.mcmc import HMC, NUTS, LogDensity, Sampler
from pyrobnn.inference.mcmc.sgmcmc import SGHMC, SGLD
from pyrobnn.inference.method import BaseMethod, Method, Offer, Progress, Run, SideBySide
from pyrobnn.inference.scales.evidence_framework import EvidenceFramework
from pyrobnn.inference.several.ensemble import MILE, Ensemble
from pyrobnn.inference.several.replicates import fit_replicates
from pyrobnn.inference.several.swag import SWAG
from pyrobnn.inference.svi.svi import IVON, SVI
from pyrobnn.posterior.record import History

__all__ = [
    "HMC",
    "IVON",
    "MCLMC",
    "MILE",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SVI",
    "SWAG",
    "BaseMethod",
    "Ensemble",
    "EvidenceFramework",
    "History",
    "LogDensity",
    "Method",
    "Offer",
    "Progress",
    "Run",
    "Sampler",
    "SideBySide",
    "defaults",
    "fit",
    "fit_replicates",
    "fit_svi",
]
__dir__ = __all__.copy
