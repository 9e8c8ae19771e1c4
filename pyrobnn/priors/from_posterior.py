"""Yesterday's posterior as today's prior: variational continual learning."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyrobnn._core.errors import InputError
from pyrobnn.priors.base import registry


@registry.register
@dataclasses.dataclass(frozen=True, eq=False)
class FromPosterior:
    """Independent normals with the means and standard deviations of a posterior (Nguyen et al. 2018, VCL).

    `pyrobnn.update_prior` makes it. The numbers are tensors: a saved posterior keeps them, a spec file cannot.

    Attributes:
        moments: a mapping from the name of each parameter to its mean and standard deviation, tensors of its shape.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> prior = bnn.update_prior(posterior).settings["prior"]
        >>> mean, std = prior.moments["0.weight"]
        >>> torch.equal(mean, posterior.mean()["0.weight"])
        True
    """

    moments: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse values other than a mapping to pairs of tensors."""
        moments = {} if self.moments is None else self.moments
        pairs = moments.values() if isinstance(moments, Mapping) else [None]
        if not all(isinstance(pair, tuple) and all(isinstance(value, Tensor) for value in pair) for pair in pairs):
            raise InputError(
                "FromPosterior: `moments` must be pairs of tensors, mean and standard deviation, by parameter name: "
                "let pyrobnn.update_prior make it. A spec file cannot hold it."
            )
        for name, (mean, std) in moments.items():
            if not bool(mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
                raise InputError(
                    f"FromPosterior: the means of {name!r} must be finite, and its standard deviations positive, too."
                )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FromPosterior) or (self.moments or {}).keys() != (other.moments or {}).keys():
            return False
        pairs = ((self.moments[name], other.moments[name]) for name in self.moments or {})
        return all(torch.equal(a, b) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self.moments or ()))

    def as_dict(self) -> dict[str, str]:
        return {"type": "from_posterior"}

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        """Return the module that holds the moments; without any, N(0, 1), to be filled by loading."""
        moments = self.moments or {name: (value * 0, value * 0 + 1) for name, value in values.items()}
        for name, value in values.items():
            shape = tuple(moments[name][0].shape) if name in moments else "nothing"
            if shape != tuple(value.shape):
                raise InputError(f"FromPosterior: {name!r} has shape {tuple(value.shape)}, the posterior has {shape}.")
        return PosteriorPrior({name: moments[name] for name in values})


def kept_moments(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the moments that the priors of a model keep of an earlier posterior, by parameter name."""
    parts = (module.moments() for module in model.modules() if isinstance(module, PosteriorPrior))
    return {name: pair for part in parts for name, pair in part.items()}


class PosteriorPrior(PyroModule):
    """The module of `FromPosterior`: means and standard deviations as buffers."""

    def __init__(self, moments: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._index = {name: index for index, name in enumerate(moments)}
        for index, (loc, scale) in enumerate(moments.values()):
            self.register_buffer(f"loc_{index}", loc.clone())
            self.register_buffer(f"scale_{index}", scale.clone())

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return mean and standard deviation by parameter name."""
        return {name: self._pair(name) for name in self._index}

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        index = self._index[name]
        return self.get_buffer(f"loc_{index}"), self.get_buffer(f"scale_{index}")

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        return dist.Normal(*self._pair(name)).to_event(value.ndim)
