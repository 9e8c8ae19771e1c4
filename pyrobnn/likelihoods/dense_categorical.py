"""The categorical likelihood of dense prediction: a label at each position of an image or a sequence."""

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._core.settings import setting
from pyrobnn.distributions.targets import LabelOrIgnored
from pyrobnn.likelihoods.base import PAGE, BaseLikelihood, LikelihoodModule, registry, require_whole

_MOST_OUTPUTS_FOR_EXACT_FISHER = 64
_FISHER_DRAWS = 16


@registry.register
@setting
class DenseCategorical(BaseLikelihood):
    """y[p] ~ Categorical(softmax(f[p])) at each position p, as in segmentation and token classification.

    Targets are labels (N, *positions), such as (N, H, W) or (N, T), with `ignore_index` where there is no label: these
    positions do not count. The network returns a logit for each class and position, with classes first, (N, C,
    *positions), as convolutions have them, or last, (N, *positions, C), as sequences have them. N counts examples, not
    positions.

    Attributes:
        classes: C.
        class_axis: "first" or "last" of the axes of an example; needed where both have C entries.
        ignore_index: the label of positions that do not count.

    Examples:
        >>> net = torch.nn.Conv2d(1, 3, 3, padding=1)  # (N, 1, H, W) to (N, 3, H, W)
        >>> model = bnn.BNN(net, likelihood=bnn.likelihoods.DenseCategorical(classes=3))
        >>> x, y = torch.randn(20, 1, 8, 6), torch.randint(0, 3, (20, 8, 6))
        >>> prediction = model.fit(x, y, steps=20, seed=0, progress=False).predict(x[:5])
        >>> prediction.class_probs.shape, prediction.label.shape
        (torch.Size([5, 8, 6, 3]), torch.Size([5, 8, 6]))
    """

    has_labels: ClassVar[bool] = True
    has_positions: ClassVar[bool] = True
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = True

    classes: Annotated[int, Field(ge=2)]
    class_axis: Literal["first", "last"] | None = None
    ignore_index: int = -100

    def __post_init__(self) -> None:
        """Refuse a label of a class as the label of positions that do not count."""
        if 0 <= self.ignore_index < self.classes:
            of_class = f"the label of one of the {self.classes} classes"
            raise InputError(f"`ignore_index` must not be {of_class}, got {self.ignore_index}.")

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return DenseCategoricalFromLogits(self.classes, target_scale.shape, self.ignore_index)

    def flat_outputs(self, f: Tensor) -> Tensor:
        """Return logits (N, C, *positions) or (N, *positions, C) as (N, positions x C), with classes last."""
        if f.ndim <= 2:
            return f
        axes = {"first": 1, "last": -1}
        axes = axes if self.class_axis is None else {self.class_axis: axes[self.class_axis]}
        fitting = [name for name, axis in axes.items() if f.shape[axis] == self.classes]
        shape = f"(N, {', '.join(map(str, f.shape[1:]))})"
        if not fitting:
            needed = f"DenseCategorical(classes={self.classes}) needs logits (N, C, *positions) or (N, *positions, C)"
            raise InputError(f"{needed}; the network returns {shape}.", page=PAGE)
        if len(fitting) > 1:
            fault = f"The first and the last axis of the logits {shape} both have {self.classes} entries"
            remedy = 'say which counts classes, DenseCategorical(..., class_axis="first") or "last"'
            raise InputError(f"{fault}: {remedy}.", page=PAGE)
        return (f.movedim(1, -1) if fitting[0] == "first" else f).flatten(1)

    def num_outputs(self, y: Tensor) -> int:
        self._require_labels(y)
        return math.prod(y.shape[1:]) * self.classes

    def check_targets(self, y: Tensor, outputs: int) -> None:
        if y.ndim < 2:
            fault = f"DenseCategorical needs labels (N, *positions), got {tuple(y.shape)}"
            raise InputError(f"{fault}: for one label per example take Categorical.", page=PAGE)
        if (needed := self.num_outputs(y)) != outputs:
            labels = f"Labels (N, {', '.join(map(str, y.shape[1:]))}) of {self.classes} classes"
            fault = f"{labels} need {needed:,} logits for each example, the network returns {outputs:,}"
            raise InputError(f"{fault}: their positions must be the same.", page=PAGE)

    def _require_labels(self, y: Tensor) -> None:
        labels = torch.where(y == self.ignore_index, 0, y)
        require_whole(labels, f"DenseCategorical, with ignore_index={self.ignore_index},")
        if (largest := int(labels.max())) >= self.classes:
            needed = f"DenseCategorical(classes={self.classes}) needs labels from 0 to {self.classes - 1}"
            raise InputError(f"{needed}, got {largest}.", page=PAGE)


class DenseCategoricalFromLogits(LikelihoodModule):
    """Labels at positions, of this shape in training, whose logits are the network's outputs."""

    def __init__(self, classes: int, positions: torch.Size, ignore_index: int) -> None:
        super().__init__()
        self._classes, self._positions, self._ignore_index = classes, positions, ignore_index

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map logits (..., N, positions x C) to labels of batch shape (..., N).

        Labels have the shape of training; those of another number of positions have one axis.
        """
        count = f.shape[-1] // self._classes
        positions = self._positions if self._positions.numel() == count and self._positions else torch.Size((count,))
        logits = f.reshape(*f.shape[:-1], *positions, self._classes)
        return LabelOrIgnored(logits=logits, ignore_index=self._ignore_index).to_event(len(positions))

    def present(self, y: Tensor) -> Tensor:
        """Return which logits belong to a label, (B, positions x C), for labels (B, *positions)."""
        return (y != self._ignore_index).flatten(1).repeat_interleave(self._classes, 1)

    def fisher_columns(self, f: Tensor) -> Tensor:
        """Return columns (K, B, outputs) whose outer products sum to the Fisher information of logits (B, outputs).

        Up to 64 outputs it is exact. With more, labels of all positions are drawn 16 times, and a column is their score
        over 4: the information is its expectation (Martens & Grosse 2015, sec. 5), other numbers for other logits.
        """
        probs = f.reshape(len(f), -1, self._classes).softmax(-1)
        if f.shape[1] <= _MOST_OUTPUTS_FOR_EXACT_FISHER:
            roots = probs.sqrt()[..., None] * (torch.eye(self._classes).to(f) - probs[..., None, :])  # (B, P, C, C)
            places = torch.eye(probs.shape[1]).to(f)
            return torch.einsum("bpkc,pq->pkbqc", roots, places).flatten(3).flatten(0, 1)
        generator = torch.Generator().manual_seed(derive(0, f"labels {float(f.double().sum())}"))
        uniform = torch.rand(_FISHER_DRAWS, *probs.shape[:2], 1, generator=generator, dtype=torch.float64).to(f)
        drawn = (uniform > probs.cumsum(-1)[..., :-1]).sum(-1)
        scores = torch.nn.functional.one_hot(drawn, self._classes).to(f) - probs
        return scores.flatten(2) / math.sqrt(_FISHER_DRAWS)
