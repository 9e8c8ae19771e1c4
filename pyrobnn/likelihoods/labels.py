"""Likelihoods of labels, one for each example or column: categorical, Bernoulli, ordinal."""

from typing import Annotated, ClassVar, Literal

import pyro.distributions as dist
import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.likelihoods.base import (
    PAGE,
    BaseLikelihood,
    LikelihoodModule,
    check_width,
    num_columns,
    registry,
    require_whole,
    squeeze_single,
)


@registry.register
@setting
class Categorical(BaseLikelihood):
    """y ~ Categorical(softmax(f)); targets are labels 0, ..., C - 1 for C network outputs.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 3), likelihood=bnn.likelihoods.Categorical())  # an output for each class
        >>> posterior = model.fit([[-1.0], [0.0], [1.0]], [0, 1, 2], steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.5]]).class_probs.shape
        torch.Size([1, 3])
    """

    has_labels: ClassVar[bool] = True
    link: ClassVar[Literal["logits"]] = "logits"
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = True

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return CategoricalFromLogits()

    def num_outputs(self, y: Tensor) -> int:
        """Return the number of classes that the labels imply, at least 2."""
        require_whole(y, "Categorical")
        return max(2, int(y.max()) + 1)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        if y.ndim != 1:
            needed = "Categorical needs one label per example, y of shape (N,)"
            raise InputError(f"{needed}; got {tuple(y.shape)}.", page=PAGE)
        require_whole(y, "Categorical")
        if outputs < 2:
            needed = "Categorical needs a network with one output per class, at least 2"
            raise InputError(f"{needed}; got {outputs}.", page=PAGE)
        if (largest := int(y.max())) >= outputs:
            needed = f"Categorical with {outputs} network outputs needs labels from 0 to {outputs - 1}"
            remedy = "widen the last layer or renumber the labels"
            raise InputError(f"{needed}, got {largest}: {remedy}.", page=PAGE)


class CategoricalFromLogits(LikelihoodModule):
    """Class labels whose logits are the network's outputs."""

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        return dist.Categorical(logits=f)

    def fisher_columns(self, f: Tensor) -> Tensor:
        """Return columns whose outer products sum to the Fisher information diag(p) - p p^T, (C - 1, B, C).

        A label is drawn by asking for each class in turn, so its information is that of each answer, e_k - q with q the
        probabilities of the later classes given that it is one of them, times the chance that it is asked for.
        """
        last = f.flip(-1).logcumsumexp(-1).flip(-1) - f.logsumexp(-1, keepdim=True)  # log p of this class or a later
        here, later = last[:, :-1], last[:, 1:]
        sizes = (f.log_softmax(-1)[:, :-1] + later - here).div(2).exp().T[..., None]
        is_later = torch.ones(f.shape[-1], f.shape[-1], dtype=torch.bool, device=f.device).triu(1)[:-1, None]
        others = (f.log_softmax(-1) - later.T[..., None]).masked_fill(~is_later, -torch.inf).exp()
        return sizes * (torch.eye(f.shape[-1]).to(f)[:-1, None] - others)

    def fisher_diagonal(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return p, twice: the information is diag(p) - p p^T."""
        probs = f.softmax(-1)
        return probs, probs


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
        return BernoulliFromLogits()

    def num_outputs(self, y: Tensor) -> int:
        return num_columns(y)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        strange = y[(y != 0) & (y != 1)]
        if len(strange):
            remedy = "encode the two classes as 0 and 1, or use Categorical for more classes"
            got = f"values such as {float(strange[0]):g}"
            raise InputError(f"Bernoulli needs targets 0 and 1, got {got}: {remedy}.", page=PAGE)
        check_width(self, y, outputs)


class BernoulliFromLogits(PyroModule):
    """Binary targets whose log odds are the network's outputs."""

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        logits, event_dim = squeeze_single(f)
        return dist.Bernoulli(logits=logits).to_event(event_dim)


_SMALLEST_GAP = 1e-4


@registry.register
@setting
class Ordinal(BaseLikelihood):
    """P(y <= k) = sigmoid(c_k - f): cumulative logits, or proportional odds (McCullagh 1980); labels 0, ..., C - 1.

    The single network output moves an example along a scale, and the C - 1 cut points c_0 < c_1 < ... divide the scale
    into labels. They are optimised with the guide: the first directly, and the gaps between them by their logs, each
    above 1e-4. At the start all labels are equally probable for f = 0. Predictions are as in classification.

    Attributes:
        num_classes: C, the number of labels. A label may be absent from a batch, but labels beyond C - 1 are refused.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.Ordinal(num_classes=5))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0, 2, 4], steps=20, seed=0, progress=False)
        >>> posterior.predict([[1.0]]).class_probs.shape
        torch.Size([1, 5])
    """

    num_classes: Annotated[int, Field(ge=2, le=10_000)]
    has_labels: ClassVar[bool] = True
    link: ClassVar[Literal["logits"]] = "logits"
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = True

    @property
    def num_ordered(self) -> int:
        return self.num_classes

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return CumulativeLogits(self.num_classes, like)

    def num_outputs(self, y: Tensor) -> int:
        return 1

    def check_targets(self, y: Tensor, outputs: int) -> None:
        if y.ndim != 1:
            raise InputError(f"{self!r} needs one label per example, y of shape (N,); got {tuple(y.shape)}.", page=PAGE)
        require_whole(y, repr(self))
        if int(y.max()) >= self.num_classes:
            labels = ", ".join(f"{label:g}" for label in y.unique()[:10].tolist())
            fault = f"{self!r} needs labels from 0 to {self.num_classes - 1} without gaps, the targets have {labels}"
            raise InputError(f"{fault}: number them in their order, or raise `num_classes`.", page=PAGE)
        check_width(self, y, outputs)


class CumulativeLogits(PyroModule):
    """Ordered labels, with cut points that are parameters."""

    def __init__(self, num_classes: int, like: Tensor) -> None:
        super().__init__()
        cuts = torch.logit(torch.arange(1, num_classes, dtype=torch.float64) / num_classes)
        first, gaps = (value.to(like.device, like.dtype) for value in (cuts[:1], cuts.diff()))
        self.first_cut = PyroParam(first, constraints.real)
        self.gaps = PyroParam(gaps, constraints.greater_than(_SMALLEST_GAP))

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map positions (..., N, 1) to Categorical targets of batch shape (..., N).

        A label between the cut points a < b has sigmoid(b - f) - sigmoid(a - f), equal to sigmoid(b - f) sigmoid(f - a)
        (1 - exp(a - b)): a product, exact for positions far from both cut points.
        """
        gaps = self.gaps
        distance = self.first_cut + torch.cat([torch.zeros_like(self.first_cut), gaps.cumsum(-1)]) - f
        below, above = logsigmoid(distance), logsigmoid(-distance)
        between = below[..., 1:] + above[..., :-1] + (-torch.expm1(-gaps)).log()
        return dist.Categorical(logits=torch.cat([below[..., :1], between, above[..., -1:]], -1))
