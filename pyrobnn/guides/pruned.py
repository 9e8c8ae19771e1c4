"""A trained guide with some of its weights set to zero."""

from collections.abc import Mapping
from typing import Annotated, Any

import pyro
import pyro.distributions as dist
import torch
from pydantic import BeforeValidator
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn._torch.pyro import allow_new_home
from pyrobnn.guides.base import BuiltGuide, Model, built, registry
from pyrobnn.guides.empirical import StoredDraw
from pyrobnn.guides.given import resolve
from pyrobnn.guides.mean_field import MeanField
from pyrobnn.guides.sites import latent_sites


@registry.register
@setting
class Pruned:
    """The draws of another guide with some weights at zero, as `pyrobnn.prune` makes it; newly built, it keeps all.

    Attributes:
        guide: the guide that draws.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> bnn.guides.resolve(bnn.prune(posterior, 0.5).record.guide)
        Pruned(guide=MeanField(init_loc='net', init_rho=None, noise='auto', path_derivative=False))
    """

    guide: Annotated[Any, BeforeValidator(resolve)] = MeanField()

    def build(self, model: Model, *args: Any) -> PyroModule:
        guide = self.guide.build(model, *args)
        masks = {site.name: torch.ones_like(site.start) for site in latent_sites(model, *args)}
        return PrunedGuide(guide, masks)


class PrunedGuide(BuiltGuide, PyroModule):
    """A guide whose draws are multiplied by masks of zeros and ones, buffers in the order of the sites' names."""

    def __init__(self, guide: PyroModule, masks: Mapping[str, Tensor]) -> None:
        super().__init__()
        allow_new_home(guide)
        self.guide = guide
        self.vmappable, self.linearized = built(guide).vmappable, built(guide).linearized
        self._buffer_of = {name: f"mask_{index}" for index, name in enumerate(sorted(masks))}
        for name, mask in masks.items():
            self.register_buffer(self._buffer_of[name], mask)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every site and return the values by name; log q is the density of the draw before pruning, if any."""
        with poutine.block():
            trace = poutine.trace(self.guide).get_trace(*args, **kwargs)
        nodes = {name: node for name, node in trace.nodes.items() if node["type"] == "sample"}
        stored = built(self.guide).chains() is not None
        return {
            name: pyro.sample(name, self._point(name, node, stored=stored))
            for name, node in nodes.items()
            if not node["infer"].get("is_auxiliary")
        }

    def _point(self, name: str, node: Mapping[str, Any], *, stored: bool) -> dist.Delta:
        value = self._keep(name, node["value"])
        if stored:
            return StoredDraw(value, event_dim=value.ndim)
        return dist.Delta(value, log_density=node["fn"].log_prob(node["value"]).sum(), event_dim=value.ndim)

    def pruned_sites(self) -> frozenset[str]:
        return frozenset(name for name, buffer in self._buffer_of.items() if not bool(self.get_buffer(buffer).all()))

    def fixed_sites(self) -> frozenset[str]:
        return built(self.guide).fixed_sites()

    def mean(self) -> dict[str, Tensor] | None:
        means = built(self.guide).mean()
        return means and {name: self._keep(name, value) for name, value in means.items()}

    def moments(self) -> dict[str, tuple[Tensor, Tensor]] | None:
        moments = built(self.guide).moments()
        return moments and {n: (self._keep(n, mean), self._keep(n, std)) for n, (mean, std) in moments.items()}

    def chains(self) -> dict[str, Tensor] | None:
        stored = built(self.guide).chains()
        return stored and {name: self._keep(name, value) for name, value in stored.items()}

    def picks(self, num_draws: int) -> Tensor | None:
        return built(self.guide).picks(num_draws)

    def sample_stats(self) -> dict[str, Tensor]:
        return built(self.guide).sample_stats()

    def _keep(self, name: str, value: Tensor) -> Tensor:
        return value * self.get_buffer(self._buffer_of[name])
