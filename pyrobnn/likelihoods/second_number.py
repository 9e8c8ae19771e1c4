"""The positive number of a likelihood beside its locations: known, learned, or an output of the network."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import softplus

from pyrobnn.likelihoods.base import OPEN, BaseLikelihood, num_columns, squeeze_single

Number = float | Literal["tuned", "learned", "heteroscedastic"]
"""A number; "learned" for a value per target column, optimised with the guide; "tuned" for a value chosen by the
evidence, as in `pyrobnn.likelihoods.noise.Scale`; "heteroscedastic" for a second output of the network."""


class WithSecondNumber(BaseLikelihood):
    """Base of settings with a location and such a number for each target column, in the field that it names."""

    second_number: ClassVar[str]

    def opened(self) -> "WithSecondNumber":
        """Return the setting with this number learned, unless it depends on the input."""
        if getattr(self, self.second_number) == "heteroscedastic":
            return self
        return dataclasses.replace(self, **{self.second_number: "learned"})  # type: ignore[type-var]

    def num_outputs(self, y: Tensor) -> int:
        """Return K, or 2 K where the number depends on the input."""
        return num_columns(y) * (2 if getattr(self, self.second_number) == "heteroscedastic" else 1)


class SecondNumber(PyroModule):
    """The module of a likelihood with a location and a positive number; other modules write `entries`.

    Args:
        name: the attribute that holds the number, unless it is an output.
        value: the number as set.
        like: a tensor with the dtype and device of the network.
        target_scale: original units per unit of the model, () or (K,).
        start: where a learned number starts, and its value at an output of 0.
        least: the limit that it stays above.
    """

    def __init__(
        self, name: str, value: Number, like: Tensor, target_scale: Tensor, *, start: float, least: float
    ) -> None:
        super().__init__()
        self._name, self._least = name, least
        self._shift = math.log(math.expm1(start - least))
        self.is_heteroscedastic = value == "heteroscedastic"
        if isinstance(value, str) and value in OPEN:
            number: Any = PyroParam(like.new_full(target_scale.shape, start), constraints.greater_than(least))
            setattr(self, name, number)
        elif not self.is_heteroscedastic:
            self.register_buffer(name, like.new_full((), float(value)))

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map outputs (..., N, K), or (..., N, 2 K), to targets of batch shape (..., N)."""
        outputs = [squeeze_single(part)[0] for part in f.chunk(self.num_kinds, -1)]
        return self.entries(*outputs).to_event(outputs[0].ndim - f.ndim + 1)

    @property
    def num_kinds(self) -> int:
        """The number of outputs for a target column."""
        return 2 if self.is_heteroscedastic else 1

    def entries(self, loc: Tensor, *others: Tensor) -> TorchDistributionMixin:
        """Return the distribution of single entries, from the first output of each and the others."""
        raise NotImplementedError

    def number(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the number, from the outputs beside the location if it depends on the input."""
        if not self.is_heteroscedastic:
            number: Tensor = getattr(self, self._name)
            return number
        return (self._least + softplus(outputs[0].double() + self._shift)).to(outputs[0].dtype)
