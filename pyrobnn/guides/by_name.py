"""Different guides for different sites, chosen by patterns of their names."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import field_validator
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.registry import assign
from pyrobnn._core.settings import setting, to_dict
from pyrobnn._torch.pyro import allow_new_home
from pyrobnn.guides.auto import resolve_one
from pyrobnn.guides.base import NARROW, BuiltGuide, Guide, Model, Noise, NoisePerExample, StartsNarrow
from pyrobnn.guides.built import built
from pyrobnn.guides.laplace import BlockGaussian, Laplace
from pyrobnn.guides.sites import latent_sites


@setting
class ByName:
    """A guide for each pattern of site names; the first pattern that matches wins. The parts are independent.

    Usually written as a dictionary, `{"4.*": Auto("AutoMultivariateNormal"), "*": MeanField()}`.

    Attributes:
        choices: pairs of a pattern and a guide or a guide's name.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> guide = {"2.*": "full_rank", "*": "mean_field"}
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide=guide, steps=20, seed=0, progress=False)
        >>> [type(part).__name__ for part in posterior.guide.children()]
        ['FullRankGuide', 'MeanFieldGuide']
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
        return {pattern: to_dict(guide) for pattern, guide in self.choices}

    def build(self, model: Model, *args: Any) -> PyroModule:
        names = [site.name for site in latent_sites(model, *args)]
        by_pattern = assign([pattern for pattern, _ in self.choices], names, "guide")
        parts = [guide.build(_Part(model, by_pattern[pattern]), *args) for pattern, guide in self.choices]
        return GuideByName(parts)


def narrowed(guide: Any) -> Any:
    """Return the guide with narrow scales at the start, where it leaves open where they start."""
    if isinstance(guide, ByName):
        return ByName(tuple((pattern, narrowed(guide_of_pattern)) for pattern, guide_of_pattern in guide.choices))
    if isinstance(guide, StartsNarrow) and guide.init_rho is None:
        return dataclasses.replace(guide, init_rho=NARROW)  # type: ignore[type-var]
    return guide


class _Part:
    """The model with only some of its latent sites visible."""

    def __init__(self, model: Model, names: list[str]) -> None:
        self._model = poutine.block(model, expose=names)
        starts = getattr(model, "initial_values", {})
        self.initial_values = {name: starts[name] for name in names if name in starts}
        self.net = getattr(model, "net", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)


class GuideByName(BuiltGuide, PyroModule):
    """Guides for disjoint sets of sites, run in order; it has the features shared by all of them."""

    def __init__(self, parts: list[PyroModule]) -> None:
        super().__init__()
        for index, part in enumerate(parts):
            allow_new_home(part)
            self.add_module(str(index), part)
        self.vmappable = all(built(part).vmappable for part in parts)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for part in self.children():
            values |= part(*args, **kwargs)
        return values

    def _parts(self) -> list[BuiltGuide]:
        return [built(part) for part in self.children()]

    def fixed_sites(self) -> frozenset[str]:
        return frozenset().union(*(part.fixed_sites() for part in self._parts()))

    def mean(self) -> dict[str, Tensor] | None:
        return _merged([part.mean() for part in self._parts()])

    def moments(self) -> dict[str, tuple[Tensor, Tensor]] | None:
        return _merged([part.moments() for part in self._parts()])

    def log_density(self, draws: Mapping[str, Tensor]) -> Tensor | None:
        densities = [part.log_density(draws) for part in self._parts()]
        known = [values for values in densities if values is not None]
        return torch.stack(known).sum(0) if len(known) == len(densities) else None


def _merged[T](parts: list[dict[str, T] | None]) -> dict[str, T] | None:
    known = [values for values in parts if values is not None]
    return {name: value for values in known for name, value in values.items()} if len(known) == len(parts) else None


def resolve(value: Any) -> Guide:
    """Return the guide that a name, a table, a mapping from name patterns, or an object stands for.

    Examples:
        >>> bnn.guides.resolve("full_rank")
        FullRank(init_rho=None)
        >>> bnn.guides.resolve({"type": "low_rank", "rank": 3}).rank
        3
    """
    if isinstance(value, dict) and "type" not in value:
        return ByName(choices=tuple(value.items()))
    return resolve_one(value)


def noise_of(guide: Any) -> str | dict[str, str] | None:
    """Return the noise of a guide, of each by its pattern where there are several, None without any."""
    if isinstance(guide, NoisePerExample):
        return guide.noise
    if isinstance(guide, ByName):
        return {p: part.noise for p, part in guide.choices if isinstance(part, NoisePerExample)} or None
    return None


def leaves_noise_open(guide: Any) -> bool:
    """Return whether the noise of a guide, or of a part of it, is "auto"."""
    noise = noise_of(guide)
    return noise is not None and "auto" in (noise.values() if isinstance(noise, dict) else [noise])


def with_noise_chosen(guide: Any, names: Sequence[str], choose: Callable[[Sequence[str]], Noise]) -> Any:
    """Return a guide with the noise that is chosen, for the sites which it covers, where it is "auto"."""
    if isinstance(guide, ByName):
        covered = assign([pattern for pattern, _ in guide.choices], names, "guide") if names else {}
        return ByName(tuple((p, with_noise_chosen(part, covered.get(p, []), choose)) for p, part in guide.choices))
    if isinstance(guide, NoisePerExample) and guide.noise == "auto":
        return dataclasses.replace(guide, noise=choose(names))  # type: ignore[type-var]
    return guide
