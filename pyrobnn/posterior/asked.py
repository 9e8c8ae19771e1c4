"""Functions that ask for a model, a posterior or a prediction: anything else is refused in words."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyrobnn._core.errors import InputError, shown
from pyrobnn._core.keywords import explained
from pyrobnn.bnn import BNN
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.posterior.record import AbstractPosterior

_POSTERIOR = (AbstractPosterior, "a posterior", "pass what `fit` returned, of an estimator its `posterior_`")
_PREDICTION = (Prediction, "a prediction", "pass what `predict` returned, of an estimator its `predict_dist`")
_MODEL = (BNN, "a model", "wrap the network, bnn.BNN(network), which gives it a prior and a likelihood")
_ASKED: dict[Any, tuple[type, str, str]] = {
    Posterior: _POSTERIOR,
    Posterior | Mixture: _POSTERIOR,
    Prediction: _PREDICTION,
    BNN: _MODEL,
}


def refuses_others[**P, R](call: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse other things, such as an estimator, where it asks for a model, posterior or prediction.

    Keywords that it lacks get a suggestion, as by `explained`.
    """
    parameters = inspect.signature(call).parameters
    asked = {name: _ASKED[entry.annotation] for name, entry in parameters.items() if entry.annotation in _ASKED}

    @explained()
    @functools.wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        given = dict(zip(parameters, args, strict=False)) | kwargs
        for name, what in asked.items():
            if name in given:
                _require_order(name, given, what, call.__name__, asked)
                _require(given[name], what, call.__name__)
        return call(*args, **kwargs)

    return wrapped


def require_posterior(value: Any, name: str) -> None:
    """Refuse what is no posterior where a function, named for the message, takes one."""
    _require(value, _POSTERIOR, name)


def require_model(value: Any, name: str) -> None:
    """Refuse what is no model, such as a network, likewise."""
    _require(value, _MODEL, name)


def _require_order(name: str, given: Mapping[str, Any], what: tuple[type, str, str], call: str, asked: Any) -> None:
    """Refuse two arguments that stand in each other's place."""
    kind, words, _ = what
    other = next((key for key, value in given.items() if key not in asked and isinstance(value, kind)), None)
    if other is not None and not isinstance(given[name], kind):
        raise InputError(f"`{call}` got {words} as `{other}`, and {shown(given[name])} as `{name}`: swap the two.")


def _require(value: Any, asked: tuple[type, str, str], name: str) -> None:
    kind, words, advice = asked
    if not isinstance(value, kind):
        raise InputError(f"`{name}` takes {words}, got {shown(value)}: {advice}.")
