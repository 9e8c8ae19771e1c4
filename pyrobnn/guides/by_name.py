"""Different guides for different sites, chosen by patterns of their names."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import field_validator
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.globs import assign
from pyrobnn._core.settings import setting, to_dict
from pyrobnn._torch.pyro import allow_new_home
from pyrobnn.guides.auto import resolve_one
from pyrobnn.guides.base import Guide, Model
from pyrobnn.guides.laplace import BlockGaussian, Laplace
from pyrobnn.guides.sites import latent_sites


@setting
class ByName:
    """A guide for each pattern of site names; the first pattern that matches wins. The parts are independent.

    Usually written as a dictionary, `{"4.*": Auto("AutoMultivariateNormal"), "*": MeanField()}`.

    Attributes:
        choices: pairs of a pattern and a guide or a guide's name.
    """

    choices: tuple[tuple[str, Any], ...]

    @field_validator("choices", mode="before")
    @classmethod
    def _resolve(cls, choices: Any) -> Any:
        pairs = choices.items() if isinstance(choices, Mapping) else choices
        resolved = tuple((pattern, resolve_one(guide)) for pattern, guide in pairs)
        if any(isinstance(guide, (Laplace, BlockGaussian)) for _, guide in resolved):
            raise InputError(
                "A Laplace guide has a second phase over the whole model and cannot be one of several guides by name: "
                "use Laplace(sites=...), which leaves the other weights at the mode."
            )
        return resolved

    def as_dict(self) -> dict[str, Any]:
        """Return the mapping from pattern to guide."""
        return {pattern: to_dict(guide) for pattern, guide in self.choices}

    def build(self, model: Model, *args: Any) -> PyroModule:
        """Return the guide made of one part for each pattern."""
        names = [site.name for site in latent_sites(model, *args)]
        by_pattern = assign([pattern for pattern, _ in self.choices], names, "guide")
        parts = [guide.build(_Part(model, by_pattern[pattern]), *args) for pattern, guide in self.choices]
        return GuideByName(parts)


class _Part:
    """The model with only some of its latent sites visible."""

    def __init__(self, model: Model, names: list[str]) -> None:
        self._model = poutine.block(model, expose=names)
        starts = getattr(model, "initial_values", {})
        self.initial_values = {name: starts[name] for name in names if name in starts}
        self.net = getattr(model, "net", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)


class GuideByName(PyroModule):
    """Guides for disjoint sets of sites, run one after the other.

    It has `mean()`, and `moments()`, if all its parts have them.
    """

    def __init__(self, parts: list[PyroModule]) -> None:
        super().__init__()
        for index, part in enumerate(parts):
            allow_new_home(part)
            self.add_module(str(index), part)
        self.vmappable = all(getattr(part, "vmappable", False) for part in parts)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every site and return the values by name."""
        values: dict[str, Tensor] = {}
        for part in self.children():
            values |= part(*args, **kwargs)
        return values

    @property
    def mean(self) -> Callable[[], dict[str, Tensor]]:
        """The function that returns the mean of each site by name; absent if a part has none."""
        return self._merged("mean")

    @property
    def moments(self) -> Callable[[], dict[str, tuple[Tensor, Tensor]]]:
        """The function that returns mean and standard deviation by site name, as the parts do; absent if one cannot."""
        return self._merged("moments")

    def _merged(self, method: str) -> Callable[[], dict[str, Any]]:
        methods = [getattr(part, method) for part in self.children()]  # AttributeError: this guide lacks it too
        return lambda: {name: value for values in methods for name, value in values().items()}


def resolve(value: Any) -> Guide:
    """Return the guide that a name, a table, a mapping from name patterns, or an object stands for."""
    if isinstance(value, dict) and "type" not in value:
        return ByName(choices=tuple(value.items()))
    return resolve_one(value)
