"""A likelihood without a setting: a function from outputs to a distribution of PyTorch or Pyro."""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution

from pyrobnn._core.errors import InputError
from pyrobnn.distributions.support import base_of, log_prob
from pyrobnn.likelihoods.base import PAGE, BaseLikelihood, Likelihood, registry

_NUM_ROWS = 3
_MOST_OUTPUTS = 100


@dataclasses.dataclass(frozen=True)
class FromFunction(BaseLikelihood):
    """A likelihood made by a function, such as `lambda f: dist.Gumbel(f[..., 0], 1.0)`.

    A plain function given as `likelihood=` becomes one. Whole-number targets are recognised by the distribution. It
    cannot be saved: for that, register a class of settings.

    Attributes:
        function: maps outputs (..., N, outputs) to a distribution of batch shape (..., N).
        outputs: the number of outputs that it takes; if None, the least with which it runs and fits the targets.
        standardizes_targets: whether real targets are centred and scaled with `standardize=True`: only if no number in
            the function has their units.

    Examples:
        >>> import pyro.distributions as dist
        >>> model = bnn.BNN(bnn.MLP(1, [5], 2), likelihood=lambda f: dist.Gumbel(f[..., 0], f[..., 1].exp()))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0.3, 0.1, 0.7], steps=20, seed=0, progress=False)
        >>> posterior.predict([[1.0]]).quantile(0.9).shape
        torch.Size([1])
    """

    function: Callable[[Tensor], Any]
    outputs: int | None = None
    standardizes_targets: bool = False

    def as_dict(self) -> dict[str, Any]:
        raise InputError(
            f"{self!r} cannot be written to a file, since it is no setting: write a class of settings with `build`, "
            "and register it in pyrobnn.likelihoods.registry.",
            page="how-to/own-part",
        )

    @functools.cached_property
    def integer_targets(self) -> bool:
        """Whether the distribution is of whole numbers."""
        widths = range(1, _MOST_OUTPUTS + 1) if self.outputs is None else [self.outputs]
        laws = (self._law(width) for width in widths)
        first = next((law for law in laws if isinstance(law, Distribution)), None)
        return first is not None and bool(base_of(first).support.is_discrete)

    def num_outputs(self, y: Tensor) -> int:
        """Return the number that was given, or the least, up to 100, with which the function fits the targets."""
        if self.outputs is not None:
            return self.outputs
        expected = ((_NUM_ROWS,), tuple(y.shape[1:]))
        for width in range(1, _MOST_OUTPUTS + 1):
            law = self._law(width)
            if isinstance(law, Distribution) and (tuple(law.batch_shape), tuple(law.event_shape)) == expected:
                return width
        raise InputError(
            f"The function given as a likelihood gives no distribution for targets of shape {tuple(y.shape)} with 1 to "
            f"{_MOST_OUTPUTS} outputs. With one output it gives {self._law(1)!r}.",
            page=PAGE,
        )

    def check_targets(self, y: Tensor, outputs: int) -> None:
        law = self._law(outputs)
        shapes = (tuple(law.batch_shape), tuple(law.event_shape)) if isinstance(law, Distribution) else None
        if shapes != ((_NUM_ROWS,), tuple(y.shape[1:])) or self.outputs not in (None, outputs):
            raise InputError(
                f"The function given as a likelihood must map outputs (N, {outputs}) to a distribution of batch shape "
                f"(N,) and event shape {tuple(y.shape[1:])}, which targets {tuple(y.shape)} have; for N = {_NUM_ROWS} "
                f"it gives {law!r}.",
                page=PAGE,
            )
        many = _pyro(self.function(torch.zeros(len(y), outputs, dtype=torch.float64)))
        scores = log_prob(many, y if self.integer_targets else y.double())
        if bool((scores == -torch.inf).any()):
            value = y[(scores == -torch.inf).nonzero()[0, 0]].tolist()
            raise InputError(f"Targets such as {value} are impossible under {type(base_of(many)).__name__}.", page=PAGE)

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return Function(self.function)

    def _law(self, width: int) -> Any:
        """Return the distribution for a few rows of zeros, or what the function raises."""
        try:
            return self.function(torch.zeros(_NUM_ROWS, width, dtype=torch.float64))
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            return error


class Function(PyroModule):
    """The module of `FromFunction`."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        return _pyro(self._function(f))


def _pyro(distribution: Any) -> Any:
    """Return a distribution of PyTorch as one of Pyro."""
    if isinstance(distribution, TorchDistributionMixin):
        return distribution
    new = copy.copy(distribution)
    kind: Any = type(distribution)
    new.__class__ = _with_mixin(kind)
    return new


@functools.cache
def _with_mixin(kind: Any) -> type:
    return type(kind.__name__, (kind, TorchDistributionMixin), {})


def resolve(likelihood: Any) -> Any:
    """Return the likelihood that a name, a table with its `type`, a function, or an object stands for.

    Examples:
        >>> bnn.likelihoods.resolve("poisson")
        Poisson()
    """
    if callable(likelihood) and not isinstance(likelihood, (type, Likelihood)):
        return FromFunction(likelihood)
    return registry.resolve(likelihood)
