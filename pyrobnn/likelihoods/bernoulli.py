"""The Bernoulli likelihood for binary targets."""

from typing import ClassVar, Literal

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.likelihoods.base import PAGE, BaseLikelihood, check_width, num_columns, registry, squeeze_single


@registry.register
@setting
class Bernoulli(BaseLikelihood):
    """y ~ Bernoulli(sigmoid(f)), independently for each target column; targets are 0 and 1.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.Bernoulli())
        >>> posterior = model.fit([[-1.0], [0.0], [1.0]], [0, 0, 1], steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.5]]).class_probs.shape
        torch.Size([1, 2])
    """

    has_labels: ClassVar[bool] = True
    link: ClassVar[Literal["log odds"]] = "log odds"
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = False

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps logits to Bernoulli distributions."""
        return BernoulliFromLogits()

    def num_outputs(self, y: Tensor) -> int:
        """Return K, a logit per target column."""
        return num_columns(y)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse targets other than 0 and 1, and a network of the wrong width."""
        strange = y[(y != 0) & (y != 1)]
        if len(strange):
            raise InputError(
                f"Bernoulli needs targets 0 and 1, got values such as {float(strange[0]):g}: encode the two classes as "
                "0 and 1, or use Categorical for more classes.",
                page=PAGE,
            )
        check_width(self, y, outputs)


class BernoulliFromLogits(PyroModule):
    """Binary targets whose log odds are the network's outputs."""

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map logits (..., N, K) to Bernoulli targets of batch shape (..., N)."""
        logits, event_dim = squeeze_single(f)
        return dist.Bernoulli(logits=logits).to_event(event_dim)
