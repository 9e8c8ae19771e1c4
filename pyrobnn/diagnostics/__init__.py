"""Diagnostics: checks of posteriors and their predictions."""

from pyrobnn.diagnostics.audit import ElboReport, Estimate, SiteTerms, elbo_report
from pyrobnn.diagnostics.convergence import FunctionConvergence, function_rhat
from pyrobnn.diagnostics.convert import eval_datatree, to_datatree
from pyrobnn.diagnostics.cross_validation import compare, heldout_elpd, kfold, loo
from pyrobnn.diagnostics.diagnosis import Diagnosis, diagnose
from pyrobnn.diagnostics.importance import ImportanceWeights, importance_weights
from pyrobnn.diagnostics.simulation import VsbcReport, vsbc
from pyrobnn.verdict.finding import Finding

__all__ = [
    "Diagnosis",
    "ElboReport",
    "Estimate",
    "Finding",
    "FunctionConvergence",
    "ImportanceWeights",
    "SiteTerms",
    "VsbcReport",
    "compare",
    "diagnose",
    "elbo_report",
    "eval_datatree",
    "function_rhat",
    "heldout_elpd",
    "importance_weights",
    "kfold",
    "loo",
    "to_datatree",
    "vsbc",
]
__dir__ = __all__.copy
