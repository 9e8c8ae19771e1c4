"""Antithetic noise: the random numbers of one run of a model, and their mirror images for another."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Draw(NamedTuple):
    """Random numbers as they were asked for.

    Attributes:
        request: function and arguments, with shapes in the place of tensors.
        value: the numbers.
        in_place: whether they were written into the tensor given.
    """

    request: Any
    value: Tensor
    in_place: bool


class RecordedNoise(TorchFunctionMode):
    """Keeps the normal and uniform numbers that torch draws inside it.

    Numbers of other distributions (gamma, the masks of `torch.nn.Dropout`) are not kept: both runs draw their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._draws: list[Draw] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _MIRRORS:
            return func(*args, **kwargs)
        request, value = _request(func, args, kwargs), func(*args, **kwargs)
        self._draws.append(Draw(request, value.clone(), in_place=func in _IN_PLACE and value is args[0]))
        return value

    def mirrored(self) -> "MirroredNoise":
        """Return the mode in which the mirror images of the numbers come back, in the same order."""
        return MirroredNoise(self._draws)


class MirroredNoise(TorchFunctionMode):
    """Gives the mirror images of recorded numbers, each once, for the same requests in the same order.

    Other requests, where a run takes another path, are drawn anew.
    """

    def __init__(self, draws: list[Draw]) -> None:
        super().__init__()
        self._draws = iter(draws)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draw = next(self._draws, None) if func in _MIRRORS else None
        if draw is None or draw.request != _request(func, args, kwargs):
            return func(*args, **kwargs)
        mirror = _MIRRORS[func](draw.value, *args[1:], **kwargs)
        return args[0].copy_(mirror) if draw.in_place else mirror


def _request(func: Any, args: Any, kwargs: Any) -> Any:
    return (
        func,
        [tuple(value.shape) if isinstance(value, Tensor) else value for value in args],
        {name: value for name, value in kwargs.items() if not isinstance(value, Tensor)},
    )


def _mirror_normal(drawn: Tensor, mean: float = 0.0, *args: Any, **kwargs: Any) -> Tensor:
    return 2 * kwargs.get("mean", mean) - drawn


def _mirror_uniform(drawn: Tensor, low: float = 0.0, high: float = 1.0, **kwargs: Any) -> Tensor:
    low, high = kwargs.get("from", low), kwargs.get("to", high)
    return torch.where(drawn == low, drawn, low + high - drawn)  # the upper end is not in the interval


_IN_PLACE: dict[Any, Callable[..., Tensor]] = {Tensor.normal_: _mirror_normal, Tensor.uniform_: _mirror_uniform}
_MIRRORS: dict[Any, Callable[..., Tensor]] = _IN_PLACE | {
    torch.randn: lambda drawn, *args, **kwargs: -drawn,
    torch.randn_like: lambda drawn, *args, **kwargs: -drawn,
    torch.rand: lambda drawn, *args, **kwargs: _mirror_uniform(drawn),
    torch.rand_like: lambda drawn, *args, **kwargs: _mirror_uniform(drawn),
}
"""The functions that draw, with the mirror image of what they drew for the same arguments after the first."""
