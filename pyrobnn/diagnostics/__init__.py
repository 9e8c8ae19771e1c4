"""Diagnostics: is the posterior what it should be?"""

from pyrobnn.diagnostics.audit import ElboReport, Estimate, SiteTerms, elbo_report
from pyrobnn.diagnostics.convergence import FunctionConvergence, function_rhat
from pyrobnn.diagnostics.convert import to_datatree

__all__ = [
    "ElboReport",
    "Estimate",
    "FunctionConvergence",
    "SiteTerms",
    "elbo_report",
    "function_rhat",
    "to_datatree",
]
