"""Diagnostics: is the posterior what it should be?"""

from pyrobnn.diagnostics.audit import ElboReport, Estimate, SiteTerms, elbo_report

__all__ = ["ElboReport", "Estimate", "SiteTerms", "elbo_report"]
