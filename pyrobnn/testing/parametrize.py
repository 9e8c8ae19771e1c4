"""A pytest decorator that runs every check on every part."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

Check = Callable[[Any], None]


def parametrize_with_checks(parts: Iterable[Any], checks: Sequence[Check]) -> "pytest.MarkDecorator":
    """Return a pytest decorator for a test that takes `part` and `check`, called for every pair of them.

    Args:
        parts: settings of the same kind: priors, likelihoods or guides.
        checks: the checks of that kind, such as `PRIOR_CHECKS`.

    Examples:
        >>> from pyrobnn import priors
        >>> from pyrobnn.testing import PRIOR_CHECKS, parametrize_with_checks
        >>> @parametrize_with_checks([priors.Normal(0.5)], PRIOR_CHECKS)
        ... def test_prior(part, check):
        ...     check(part)
    """
    import pytest

    pairs = [pytest.param(part, check, id=f"{part!r}-{check.__name__}") for part in parts for check in checks]
    return pytest.mark.parametrize(("part", "check"), pairs)
