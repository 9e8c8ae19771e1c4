"""The parts of a fit in words: for `print(posterior)` and for reports."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from pyrobnn._core.settings import described, snake_case

_MEASURED = "normal priors with measured scales"


def network(net: Any) -> str:
    """Return the class of a network, with its widths and its activation if it is declared."""
    if isinstance(net, nn.Module) or not hasattr(net, "hidden"):
        return type(net).__name__
    widths = "-".join(str(width) for width in (net.in_features, *net.hidden, net.out_features))
    return f"{type(net).__name__} {widths}, {net.activation}"


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
