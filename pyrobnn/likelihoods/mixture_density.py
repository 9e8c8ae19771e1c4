"""The mixture density likelihood for real targets that are skewed or have several modes given the inputs."""

import math
from typing import Annotated, ClassVar

import pyro.distributions as dist
import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.nn.functional import softplus

from pyrobnn._core.settings import setting
from pyrobnn.distributions.targets import StudentT
from pyrobnn.likelihoods.base import BaseLikelihood, check_width, num_columns, registry

_SMALLEST_SCALE = 1e-3


@registry.register
@setting
class MixtureDensity(BaseLikelihood):
    """p(y | f) = sum_k softmax(a)_k N(y; m_k, s_k^2): a mixture density network (Bishop 1994), column by column.

    The network has 3 C outputs for each target column and C components: logits a, locations and scales. At outputs of
    0 the locations are normal quantiles, and the mixture has mean 0 and variance 1 in the model's units. Scales are
    softplus(output) + 0.001 in these units.

    Attributes:
        components: C, the number of components.
        df: degrees of freedom of Student-t components, above 2; None for normal components.

    Examples:
        >>> likelihood = bnn.likelihoods.MixtureDensity(components=2)
        >>> model = bnn.BNN(bnn.MLP(1, [10], 6), likelihood=likelihood)
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.5]]).quantile([0.1, 0.9]).shape
        torch.Size([2, 1])
    """

    components: Annotated[int, Field(ge=1, le=100)] = 3
    df: Annotated[float, Field(gt=2)] | None = None
    is_symmetric: ClassVar[bool] = False
    standardizes_targets: ClassVar[bool] = True
    integer_targets: ClassVar[bool] = False

    def num_outputs(self, y: Tensor) -> int:
        """Return 3 C K."""
        return 3 * self.components * num_columns(y)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse a network of the wrong width."""
        check_width(self, y, outputs)

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to mixtures."""
        return Mixtures(self.components, self.df, like, target_scale.ndim)


class Mixtures(PyroModule):
    """Mixtures whose logits, locations and scales are the network's outputs, for each target column in turn."""

    def __init__(self, components: int, df: float | None, like: Tensor, event_dim: int) -> None:
        super().__init__()
        self._components, self._df, self._event_dim = components, df, event_dim
        middles = (torch.arange(components, dtype=torch.float64) + 0.5) / components
        first = torch.special.ndtri(middles)
        self.register_buffer("first", first.to(like.device, like.dtype), persistent=False)
        variance = 1 - float(first.square().mean())
        scale = math.sqrt(variance if df is None else variance * (df - 2) / df)
        self._shift = math.log(math.expm1(scale - _SMALLEST_SCALE))

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map outputs (..., N, 3 C K) to targets of batch shape (..., N)."""
        f = f.unflatten(-1, (-1, 3, self._components))
        f = f if self._event_dim else f[..., 0, :, :]
        logits, shifts, widths = f.unbind(-2)
        loc, scale = self.first + shifts, _SMALLEST_SCALE + softplus(widths + self._shift)
        each = dist.Normal(loc, scale) if self._df is None else StudentT(self._df, loc, scale)
        return dist.MixtureSameFamily(dist.Categorical(logits=logits), each).to_event(self._event_dim)
