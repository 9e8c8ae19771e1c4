"""Distributions as tensors and a way to build them again, so that rows can be taken from any of them."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform, constraints

from pyrobnn._core.errors import InputError

Build = Callable[[Iterator[Tensor]], Any]
_ATTRIBUTE_OF_ARGUMENT = {"base_distribution": "base_dist", "transform": "inv"}
"""Attributes of torch's classes that have a different name in the constructor."""
_ALTERNATIVES = (("probs", "logits"), ("gate", "gate_logits"), ("covariance_matrix", "precision_matrix", "scale_tril"))
_ARGUMENTS_LEFT_OUT = ("validate_args", "cache_size")
_ABSENT = object()


def take_apart(distribution: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Return the tensors in a distribution, and a function that builds the same form from others, without checks.

    Each tensor is expanded to the batch shape of its distribution. Distributions are built by their constructors, whose
    arguments are read from attributes of the same name: `InputError` where an argument is not kept.
    """
    tensors: list[Tensor] = []
    build = _take(distribution, tensors, (), 0)
    return tensors, lambda values: build(iter(values))


def converted(distribution: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a distribution like another, without checks, with a function applied to each tensor (*batch, ...)."""
    tensors, build = take_apart(distribution)
    return build([function(tensor) for tensor in tensors])


def with_arguments(distribution: Any, **changed: Any) -> Any:
    """Return a distribution of the same form, without checks, with some arguments of its constructor changed."""
    kind: Any = type(distribution)
    unchecked = {"validate_args": False} if "validate_args" in _parameters(kind) else {}
    return kind(**(dict(_arguments(distribution)) | changed), **unchecked)


def in_double(tensor: Tensor) -> Tensor:
    """Return real numbers in double precision, and others as they are."""
    return tensor.double() if tensor.is_floating_point() else tensor


def _take(part: Any, tensors: list[Tensor], batch: tuple[int, ...], event_dim: int) -> Build:
    """Add the tensors of a part to the list, and return the function that builds it from the next tensors."""
    if isinstance(part, Tensor):
        event_dim = max(event_dim, part.ndim - len(batch))
        event_shape = part.shape[max(0, part.ndim - event_dim) :]
        tensors.append(part.expand((*batch, *[1] * (event_dim - len(event_shape)), *event_shape)))
        return next
    if isinstance(part, (list, tuple)):
        each = [_take(entry, tensors, batch, event_dim) for entry in part]
        return lambda values: [build(values) for build in each]
    if isinstance(part, Distribution):
        return _take_distribution(part, tensors)
    if isinstance(part, Transform) and not isinstance(part, torch.nn.Module):
        before = len(tensors)
        build = _build(type(part), {name: _take(value, tensors, batch, event_dim) for name, value in _arguments(part)})
        return build if len(tensors) > before else lambda _: part
    return lambda _: part


def _take_distribution(part: Any, tensors: list[Tensor]) -> Build:
    known = part.arg_constraints
    builds = {}
    for name, value in _arguments(part):
        is_known = name in known and not constraints.is_dependent(known[name])
        event_dim = known[name].event_dim if is_known else 0 if isinstance(value, Tensor) else len(part.event_shape)
        builds[name] = _take(value, tensors, part.batch_shape, event_dim)
    return _build(type(part), builds)


def _build(kind: Any, builds: dict[str, Build]) -> Build:
    unchecked = {"validate_args": False} if "validate_args" in _parameters(kind) else {}
    return lambda values: kind(**{name: build(values) for name, build in builds.items()}, **unchecked)


def _arguments(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that make a distribution or transform; of equivalent arguments, the given one."""
    names = tuple(name for name in _parameters(part.__class__) if name not in _ARGUMENTS_LEFT_OUT)
    for same in _ALTERNATIVES:
        stored = [name for name in vars(part) if name in same and vars(part)[name] is not None]
        kept = stored[0] if stored else same[-1]
        names = tuple(name for name in names if name not in same or name == kept)
    for name in names:
        value = getattr(part, _ATTRIBUTE_OF_ARGUMENT.get(name, name), _ABSENT)
        if value is _ABSENT or inspect.ismethod(value):
            text = f"Rows of predictions are made by the constructor of their distribution, and {type(part).__name__}"
            fault = f"does not keep its argument {name!r}: store it as an attribute of this name"
            raise InputError(f"{text} {fault}.", page="how-to/own-part")
        yield name, value


@functools.cache
def _parameters(kind: Any) -> tuple[str, ...]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(name for name, entry in inspect.signature(kind).parameters.items() if entry.kind in named)
