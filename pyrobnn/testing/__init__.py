"""Conformance checks for priors, likelihoods, guides and methods, yours too: run them in your tests with pytest."""

from pyrobnn.testing.checks import (
    GUIDE_CHECKS,
    LIKELIHOOD_CHECKS,
    METHOD_CHECKS,
    PRIOR_CHECKS,
    check_combination,
    parametrize_combinations,
    parametrize_with_checks,
)

__all__ = [
    "GUIDE_CHECKS",
    "LIKELIHOOD_CHECKS",
    "METHOD_CHECKS",
    "PRIOR_CHECKS",
    "check_combination",
    "parametrize_combinations",
    "parametrize_with_checks",
]
