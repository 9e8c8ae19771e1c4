"""Conformance checks for priors, likelihoods and guides, also for custom parts: run them in your tests with pytest."""

from pyrobnn.testing.checks import (
    GUIDE_CHECKS,
    LIKELIHOOD_CHECKS,
    PRIOR_CHECKS,
    check_combination,
    parametrize_combinations,
    parametrize_with_checks,
)

__all__ = [
    "GUIDE_CHECKS",
    "LIKELIHOOD_CHECKS",
    "PRIOR_CHECKS",
    "check_combination",
    "parametrize_combinations",
    "parametrize_with_checks",
]
