"""The parts of a fit in words: for `print(posterior)` and for reports."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from pyrobnn._core.settings import described, snake_case

_OF_ESTIMATORS = {
    "predict_dist": "{0}.predict(x)",
    "predict_proba": "{0}.predict(x).class_probs",
    "score": "bnn.score({0}.predict(x), y)",
}
"""Methods of estimators, and what to write for them with a posterior."""
_MEASURED = "normal priors with measured scales"


def network(net: Any) -> str:
    """Return the class of a network, with its widths and its activation if it is declared."""
    if isinstance(net, nn.Module) or not hasattr(net, "hidden"):
        return type(net).__name__
    widths = "-".join(str(width) for width in (net.in_features, *net.hidden, net.out_features))
    return f"{type(net).__name__} {widths}, {net.activation}"


class NamesOfEstimators:
    """Says what to write in place of a method that estimators have, and a posterior lacks."""

    if not TYPE_CHECKING:  # a type checker would take any name

        def __getattr__(self, name: str) -> Any:
            title = type(self).__name__
            instead = _OF_ESTIMATORS.get(name, "").format(title.lower())
            hint = instead and f", which estimators have: take {instead}"
            raise AttributeError(f"{title!r} object has no attribute {name!r}{hint}", name=name, obj=self)


def kind(setting: Any) -> str:
    """Return the name of a setting in words; of parts by patterns of names, the names of all of them."""
    told = setting if isinstance(setting, str) else described(setting)
    if isinstance(told, Mapping) and "type" not in told:
        kinds = {kind(part) for part in told.values() if part is not None}
        return " and ".join(sorted(kinds - {"none"})) or "by name"
    if isinstance(told, Mapping):
        return str(told.get("name", told["type"])).replace("_", " ")
    return (told if isinstance(setting, str) else snake_case(type(setting).__name__)).replace("_", " ")


def prior(setting: Any) -> str:
    """Return the name of a prior in words."""
    name = kind(setting)
    if name == "from posterior":
        return "normal prior from an earlier fit" if described(setting) == {"type": "from_posterior"} else _MEASURED
    return _MEASURED if name == "from posterior and normal" else f"{name} prior"
