"""Conformance checks for priors, likelihoods and guides, also for custom parts: run them in your tests with pytest."""

from pyrobnn.testing.combinations import check_combination, parametrize_combinations, parametrize_with_checks
from pyrobnn.testing.guides import GUIDE_CHECKS
from pyrobnn.testing.likelihoods import LIKELIHOOD_CHECKS
from pyrobnn.testing.priors import PRIOR_CHECKS

__all__ = [
    "GUIDE_CHECKS",
    "LIKELIHOOD_CHECKS",
    "PRIOR_CHECKS",
    "check_combination",
    "parametrize_combinations",
    "parametrize_with_checks",
]


def __dir__() -> list[str]:
    return __all__
