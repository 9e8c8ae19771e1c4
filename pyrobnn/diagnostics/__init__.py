"""Diagnostics: is the posterior what it should be?"""

from pyrobnn.diagnostics.audit import ElboReport, Estimate, SiteTerms, elbo_report
from pyrobnn.diagnostics.convert import to_datatree

__all__ = ["ElboReport", "Estimate", "SiteTerms", "elbo_report", "to_datatree"]
