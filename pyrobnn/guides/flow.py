"""The flow guide: a normal bent by inverse autoregressive transformations, for posteriors that are not normal."""

from typing import Any

import pyro
import torch
from pyro.nn import AutoRegressiveNN, PyroModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyrobnn._core.settings import Count, setting
from pyrobnn.guides.base import Model, StartsNarrow, registry
from pyrobnn.guides.joint import HALF_LOG_2PI, FlatGuide, JointPart, check_size
from pyrobnn.guides.sites import Site, latent_sites

_LARGEST_LOG_SCALE = 3.0
_START_OF_LAST_LAYERS = 0.01
"""Factor on the last layers at the start, which leaves the flow near the identity but not in a saddle."""


@registry.register
@setting
class Flow(StartsNarrow):
    """An inverse autoregressive flow over all weights jointly (Kingma et al. 2016, sec. 4).

    A draw is mu + softplus(rho) x, where x starts as standard normal noise. Every transformation scales and shifts each
    entry by the outputs of a masked network of the previous entries, every second in reversed order. D weights have
    3 D^2 parameters per transformation, so this suits small networks, and a few weights of large networks. Sites with a
    constrained support take part in unconstrained space. It starts near a mean-field normal at the network's weights.

    Attributes:
        num_transforms: number of transformations.
        init_rho: initial rho; None as for `MeanField`.

    Examples:
        >>> guide = bnn.guides.Flow(num_transforms=1)
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), guide=guide, steps=20, progress=False)
        >>> posterior.draw(100)["0.weight"].shape
        torch.Size([100, 5, 1])
    """

    num_transforms: Count = 2
    init_rho: float | None = None

    def build(self, model: Model, *args: Any) -> PyroModule:
        sites = latent_sites(model, *args)
        size = sum(site.unconstrained.numel() for site in sites)
        instead = "LowRank(), or Flow for some of the weights, such as guide={'4.*': Flow(), '*': MeanField()}"
        check_size(f"{self!r}", 3 * self.num_transforms * size**2, sites[0].start, instead)
        return FlowGuide(sites, self)


class FlowGuide(FlatGuide):
    """A flow with the flat parameters `loc` and `rho` (D,) and a masked network per transformation."""

    def __init__(self, sites: list[Site], setting: Flow) -> None:
        super().__init__(sites)
        self.rho = nn.Parameter(setting.start_rho(sites))
        count = setting.num_transforms if len(self.loc) > 1 else 0  # a single entry has none before it
        self.networks = nn.ModuleList(_network(self.loc, reverse=bool(k % 2)) for k in range(count))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        scale = softplus(self.rho)
        x = torch.randn_like(scale)
        log_density = -0.5 * x.square() - HALF_LOG_2PI - scale.log()
        for network in self.networks:
            shift, raw = network(x)
            log_scale = _LARGEST_LOG_SCALE * (raw / _LARGEST_LOG_SCALE).tanh()
            x, log_density = x * log_scale.exp() + shift, log_density - log_scale
        return {
            name: pyro.sample(name, JointPart(value, share.sum()).through(transform))
            for name, transform, value, share in self._segments(self.centre + scale * x, log_density)
        }


def _network(like: Tensor, *, reverse: bool) -> nn.Module:
    size = len(like)
    order = torch.arange(size - 1, -1, -1) if reverse else torch.arange(size)
    network = AutoRegressiveNN(size, [size], permutation=order, nonlinearity=nn.ELU())
    with torch.no_grad():
        network.layers[-1].weight.mul_(_START_OF_LAST_LAYERS)
        network.layers[-1].bias.mul_(_START_OF_LAST_LAYERS)
    return network.to(like.device, like.dtype)
