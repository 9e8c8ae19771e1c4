"""The spline flow likelihood for real targets with a density of any shape given the inputs."""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.nn.functional import softplus

from pyrobnn._core.settings import setting
from pyrobnn.distributions.spline import SplineNormal
from pyrobnn.likelihoods.base import BaseLikelihood, check_width, num_columns, registry

_SMALLEST_SCALE = 1e-3
_SHIFT = math.log(math.expm1(1 - _SMALLEST_SCALE))


@registry.register
@setting
class SplineFlow(BaseLikelihood):
    """y = loc + scale g(u), u ~ N(0, 1), with g a monotone spline; all are outputs of the network, column by column.

    The spline is rational-quadratic with B bins between -3 and 3, and linear beyond (Durkan et al. 2019, "Neural Spline
    Flows"). A column has 3 B + 1 outputs: location, scale, B widths, B heights and B - 1 slopes. Outputs of 0 stand
    for N(0, 1) in the model's units. The scale is softplus(output) + 0.001 in these units.

    Attributes:
        bins: B, the number of bins.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 13), likelihood=bnn.likelihoods.SplineFlow(bins=4))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.5]]).quantile([0.1, 0.9]).shape
        torch.Size([2, 1])
    """

    bins: Annotated[int, Field(ge=2, le=100)] = 8
    is_symmetric: ClassVar[bool] = False
    standardizes_targets: ClassVar[bool] = True
    integer_targets: ClassVar[bool] = False

    def num_outputs(self, y: Tensor) -> int:
        """Return (3 B + 1) K."""
        return (3 * self.bins + 1) * num_columns(y)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse a network of the wrong width."""
        check_width(self, y, outputs)

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to distributions."""
        return SplineNormals(self.bins, target_scale.ndim)


class SplineNormals(PyroModule):
    """Normal variables seen through splines, which are the network's outputs for each target column in turn."""

    def __init__(self, bins: int, event_dim: int) -> None:
        super().__init__()
        self._bins, self._event_dim = bins, event_dim

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map outputs (..., N, (3 B + 1) K) to targets of batch shape (..., N)."""
        f = f.unflatten(-1, (-1, 3 * self._bins + 1))
        f = f if self._event_dim else f[..., 0, :]
        loc, width, *splines = torch.split(f, [1, 1, self._bins, self._bins, self._bins - 1], -1)
        scale = (_SMALLEST_SCALE + softplus(width[..., 0].double() + _SHIFT)).to(f.dtype)
        return SplineNormal(loc[..., 0], scale, *splines).to_event(self._event_dim)
