"""The categorical likelihood for class labels."""

from typing import ClassVar, Literal

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.likelihoods.base import PAGE, BaseLikelihood, LikelihoodModule, registry, require_whole


@registry.register
@setting
class Categorical(BaseLikelihood):
    """y ~ Categorical(softmax(f)); targets are labels 0, ..., C - 1 for C network outputs.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 3), likelihood=bnn.likelihoods.Categorical())  # an output for each class
        >>> posterior = model.fit([[-1.0], [0.0], [1.0]], [0, 1, 2], steps=20, seed=0, progress=False)
        >>> prediction = posterior.predict([[0.5]])
        >>> prediction.class_probs.shape, prediction.mutual_information.shape
        (torch.Size([1, 3]), torch.Size([1]))
    """

    has_labels: ClassVar[bool] = True
    link: ClassVar[Literal["logits"]] = "logits"
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = True

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps logits to Categorical distributions."""
        return CategoricalFromLogits()

    def num_outputs(self, y: Tensor) -> int:
        """Return the number of classes that the labels imply, at least 2."""
        require_whole(y, "Categorical")
        return max(2, int(y.max()) + 1)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse labels that are not whole numbers below the number of outputs."""
        if y.ndim != 1:
            raise InputError(
                f"Categorical needs one label per example, y of shape (N,); got {tuple(y.shape)}.", page=PAGE
            )
        require_whole(y, "Categorical")
        if outputs < 2:
            raise InputError(
                f"Categorical needs a network with one output per class, at least 2; got {outputs}.", page=PAGE
            )
        if int(y.max()) >= outputs:
            raise InputError(
                f"Categorical with {outputs} network outputs needs labels from 0 to {outputs - 1}, got {int(y.max())}: "
                "widen the last layer or renumber the labels.",
                page=PAGE,
            )


class CategoricalFromLogits(LikelihoodModule):
    """Class labels whose logits are the network's outputs."""

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map logits (..., N, C) to Categorical targets of batch shape (..., N)."""
        return dist.Categorical(logits=f)

    def fisher_columns(self, f: Tensor) -> Tensor:
        """Return columns whose outer products sum to the Fisher information diag(p) - p p^T, (C - 1, B, C).

        A label is drawn by asking for each class in turn, so its information is that of each answer, e_k - q with q the
        probabilities of the later classes given that it is one of them, times the chance that it is asked for.

        Args:
            f: logits (B, C).
        """
        last = f.flip(-1).logcumsumexp(-1).flip(-1) - f.logsumexp(-1, keepdim=True)  # log p of this class or a later
        here, later = last[:, :-1], last[:, 1:]
        sizes = (f.log_softmax(-1)[:, :-1] + later - here).div(2).exp().T[..., None]
        is_later = torch.ones(f.shape[-1], f.shape[-1], dtype=torch.bool, device=f.device).triu(1)[:-1, None]
        others = (f.log_softmax(-1) - later.T[..., None]).masked_fill(~is_later, -torch.inf).exp()
        return sizes * (torch.eye(f.shape[-1]).to(f)[:-1, None] - others)

    def fisher_diagonal(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return p, twice: the information is diag(p) - p p^T.

        Args:
            f: logits (B, C).
        """
        probs = f.softmax(-1)
        return probs, probs
