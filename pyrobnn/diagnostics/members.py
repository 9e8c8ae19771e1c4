"""The argument of diagnostics, a posterior, a mixture, or posteriors by name, as the members of a mixture."""

from collections.abc import Mapping
from typing import Any

from pyrobnn._core.errors import InputError
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior


def as_one(posterior: Any) -> tuple[Posterior | Mixture, list[str] | None]:
    """Return a posterior or a mixture as it is, and several posteriors as the mixture of them, with their names if any.

    Raises:
        InputError: something else, or posteriors of different networks or units.
    """
    if isinstance(posterior, (Posterior, Mixture)):
        return posterior, None
    names = [str(name) for name in posterior] if isinstance(posterior, Mapping) else None
    values = list(posterior.values()) if isinstance(posterior, Mapping) else posterior
    if isinstance(values, (list, tuple)) and values and all(isinstance(value, Posterior) for value in values):
        return Mixture(values), names
    raise InputError(
        f"`posterior` must be a posterior, a mixture, or a list or dict of posteriors, got {type(posterior).__name__}: "
        "pass the result of `fit`, of an estimator its `posterior_`; pass several mixtures one at a time."
    )
