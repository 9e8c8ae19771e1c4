"""Inference: from a model and data to a posterior."""

from pyrobnn.inference.automatic import Automatic
from pyrobnn.inference.base import Method
from pyrobnn.inference.ensemble import Ensemble
from pyrobnn.inference.fit import fit
from pyrobnn.inference.history import History
from pyrobnn.inference.laplace.evidence_framework import EvidenceFramework
from pyrobnn.inference.laplace.marginal_likelihood import MarginalLikelihood
from pyrobnn.inference.mcmc.mcmc import HMC, NUTS
from pyrobnn.inference.mcmc.sgmcmc import SGHMC, SGLD
from pyrobnn.inference.monitor import Progress
from pyrobnn.inference.parallel import DataParallel
from pyrobnn.inference.replicates import fit_replicates
from pyrobnn.inference.sugar import fit_svi
from pyrobnn.inference.svi.ivon import IVON
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.swag import SWAG

__all__ = [
    "HMC",
    "IVON",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SVI",
    "SWAG",
    "Automatic",
    "DataParallel",
    "Ensemble",
    "EvidenceFramework",
    "History",
    "MarginalLikelihood",
    "Method",
    "Progress",
    "fit",
    "fit_replicates",
    "fit_svi",
]
