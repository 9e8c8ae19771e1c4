"""Distributions of targets for each draw and input, and computations on a few inputs at a time."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Scaler, row_index
from pyrobnn.distributions import support
from pyrobnn.distributions.parts import converted, in_double, take_apart
from pyrobnn.distributions.support import Components
from pyrobnn.distributions.targets import CensoredNormal

_AT_ONCE = 2**18
"""Numbers, one per draw and input, computed at a time: they stay in the cache, without fresh memory pages."""


class Rows:
    """The distributions of targets for each draw and input; indexing picks inputs.

    Args:
        distribution: of batch shape (S, N).
        scaler: the map between the units of the distribution and the original units; none if not given.
    """

    def __init__(self, distribution: TorchDistributionMixin, scaler: Scaler | None = None) -> None:
        self.distribution: Any = distribution
        self.scaler = scaler or Scaler.identity()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._base).__name__}, num_draws={self.num_draws}, num_inputs={len(self)})"

    def __len__(self) -> int:
        """Return N, the number of inputs."""
        return int(self.distribution.batch_shape[1])

    def __getitem__[R: "Rows"](self: R, rows: Any) -> R:
        """Return the prediction at some inputs: a slice, a boolean mask of length N, or row numbers in one dimension.

        Raises:
            InputError: rows of another kind or beyond N, or a distribution that does not keep the arguments of its
                constructor as attributes.
        """
        index = row_index(rows, len(self))
        return type(self)(converted(self.distribution, lambda values: values[:, index]), self.scaler)

    @property
    def by_target[R: "Rows"](self: R) -> R:
        """The prediction of labels with each target as an input: of K columns or positions, N x K inputs in order.

        Entropy, mutual information and scores are then those of single targets, not of all jointly. Reshape them, or
        pick the positions that have a label: `prediction.by_target[y.flatten() != -100]`.

        Raises:
            InputError: targets that are no labels.

        Examples:
            >>> from pyro.distributions import Bernoulli
            >>> prediction = bnn.Prediction(Bernoulli(torch.full((2, 3, 4), 0.5)).to_event(1))  # four columns
            >>> len(prediction.by_target), prediction.by_target.entropy.view(3, 4).shape
            (12, torch.Size([3, 4]))
        """
        self._require_classes("Predictions by target")
        last = 1 + len(self.distribution.event_shape)
        return type(self)(converted(self._base, lambda values: values.flatten(1, last)))

    def by_rows(self, function: Callable[..., Tensor], *rows: Tensor, dim: int = 0, width: int = 1) -> Tensor:
        """Return a function of the predictions, applied to a few inputs at a time, so that its memory is bounded.

        Args:
            function: takes a prediction at n of the inputs, and as many rows of each tensor, to a tensor.
            rows: tensors (N, ...) that go with the inputs.
            dim: the axis of its results that counts the inputs, along which they are joined.
            width: how many numbers it computes for each number of the distribution.

        Examples:
            >>> from pyro.distributions import Normal
            >>> prediction = bnn.Prediction(Normal(torch.zeros(2, 3), 1.0))  # two draws at three inputs
            >>> prediction.by_rows(lambda part: part.draw_means.amax(0))
            tensor([0., 0., 0.])
        """
        if self._parts is None or len(self) == 0:
            return function(self, *rows)
        largest = max(tensor.numel() for tensor in self._parts[0]) // len(self)
        size = max(1, _AT_ONCE // max(1, largest * width))
        if size >= len(self):
            return function(self, *rows)
        slices = [slice(start, start + size) for start in range(0, len(self), size)]
        return torch.cat([function(self[part], *(values[part] for values in rows)) for part in slices], dim)

    @functools.cached_property
    def _parts(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]] | None:
        """The tensors of the distribution and how to build it from them; None if it cannot be taken apart."""
        try:
            return take_apart(self.distribution)
        except InputError:
            return None

    @functools.cached_property
    def _unchecked(self) -> Any:
        """The distribution, without checks of values where it can be taken apart."""
        return self.distribution if self._parts is None else self._parts[1](self._parts[0])

    @property
    def is_divisible(self) -> bool:
        """Whether rows can be taken: whether the distribution keeps the arguments of its constructor as attributes."""
        return self._parts is not None

    @property
    def components(self) -> Components:
        """The distributions of single target columns in double precision, in the model's units, (S, N, K)."""
        distribution = self.distribution if self._parts is None else converted(self.distribution, in_double)
        return Components(support.base_of(distribution))

    @property
    def num_draws(self) -> int:
        """S, the number of posterior draws."""
        return int(self.distribution.batch_shape[0])

    @property
    def is_classification(self) -> bool:
        """Whether the targets are classes, so that class probabilities, entropy and mutual information exist."""
        return isinstance(self._base, (Bernoulli, Categorical))

    @property
    def is_continuous(self) -> bool:
        """Whether targets have a density everywhere: real numbers, without limits that hold probability themselves."""
        return not self._base.support.is_discrete and not isinstance(self._base, CensoredNormal)

    @property
    def has_quantiles(self) -> bool:
        """Whether the likelihood has the distribution function that quantiles and intervals rest on."""
        if self.is_classification or not support.has(self._base, "cdf"):
            return False
        return self.is_count or support.has(self._base, "icdf") or self._has_finite_variance

    @property
    def has_moments(self) -> bool:
        """Whether the mean and the variance of the likelihood's distribution are known."""
        return self._knows("mean") and self._knows("variance")

    def _knows(self, moment: str) -> bool:
        return self.is_classification or getattr(type(self._base), moment) is not getattr(Distribution, moment)

    @property
    def _has_finite_variance(self) -> bool:
        return self.has_moments and bool(self._base.variance.isfinite().all())

    def _require_classes(self, quantity: str) -> None:
        if not self.is_classification:
            raise InputError(f"{quantity} need a classification likelihood, got {type(self._base).__name__}.")

    def _require(self, moment: str) -> None:
        if not self._knows(moment):
            raise InputError(
                f"The {moment} of {type(self._base).__name__} is not known: use quantiles, or quantiles of `sample`."
            )

    @property
    def _base(self) -> Any:
        """The distribution of single target columns."""
        return support.base_of(self.distribution)

    @property
    def is_count(self) -> bool:
        """Whether targets are whole numbers, and not classes."""
        return bool(self._base.support.is_discrete) and not self.is_classification

    @property
    def _is_nonnegative(self) -> bool:
        """Whether targets are numbers from 0 up."""
        lower = torch.as_tensor(support.ends(self._base.support)[0], device=self._like.device)
        return not self.is_classification and bool((lower >= 0).all())

    @property
    def _is_positive(self) -> bool:
        """Whether targets are numbers from 0 up without an upper limit, such as counts and prices."""
        upper = torch.as_tensor(support.ends(self._base.support)[1], device=self._like.device)
        return self._is_nonnegative and bool(upper.isinf().all())

    @property
    def _is_binary(self) -> bool:
        return isinstance(self._base, Bernoulli)

    @property
    def _num_classes(self) -> int:
        return 2 if self._is_binary else int(self._base.param_shape[-1])

    @property
    def _like(self) -> Tensor:
        """A tensor of the type and device that the distribution takes for targets."""
        if isinstance(self._base, Categorical):
            return torch.empty(0, dtype=torch.int64, device=self._base.logits.device)
        if self._parts is None:
            return self._base.mean
        return next(tensor for tensor in self._parts[0] if tensor.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Where the predictions are."""
        return self._like.device
