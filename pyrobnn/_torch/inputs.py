"""Inputs of a network: a tensor, or several that it takes together."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.checks import as_tensor, check_finite, check_inputs, is_several
from pyrobnn._core.errors import InputError, listed
from pyrobnn._torch.private import private


class Inputs:
    """Tensors (N, ...) that a network takes together, by keyword, or by "0", "1", ... for positions, as one value.

    It stands where a tensor of inputs stands: it has rows, a length and a device, and goes through `vmap`, autograd and
    recorded steps as its tensors do.
    """

    ndim = 0
    """It is no table, and no array."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        _register()
        self.parts: dict[str, Any] = dict(parts)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, in order."""
        return list(self.parts.values())

    @property
    def arguments(self) -> tuple[Any, dict[str, Any]]:
        """The positional and the keyword arguments of the network."""
        is_tuple = all(name.isdigit() for name in self.parts)
        return (tuple(self.parts.values()), {}) if is_tuple else ((), self.parts)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next(iter(self.parts.values())).device

    def map(self, function: Callable[[Tensor], Tensor]) -> "Inputs":
        """Return what a function makes of each tensor."""
        return Inputs({name: function(value) for name, value in self.parts.items()})

    def __len__(self) -> int:
        """Return N."""
        return len(next(iter(self.parts.values())))

    def __getitem__(self, rows: Any) -> "Inputs":
        """Return some rows, or a single one without its axis."""
        return self.map(lambda value: value[rows])

    def __iter__(self) -> "Iterator[Inputs]":
        """Return each row without its axis."""
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"Inputs({shape_of(self)})"

    def split(self, num_rows: int) -> "list[Inputs]":
        """Return the rows in parts of at most that many."""
        return [self[start : start + num_rows] for start in range(0, len(self), num_rows)]

    def clone(self) -> "Inputs":
        """Return a copy."""
        return self.map(Tensor.clone)

    def detach(self) -> "Inputs":
        """Return the same numbers outside of autograd."""
        return self.map(Tensor.detach)

    def cpu(self) -> "Inputs":
        """Return the tensors on the CPU."""
        return self.map(Tensor.cpu)

    def to(self, device: Any) -> "Inputs":
        """Return the tensors on a device."""
        return self.map(lambda value: value.to(device))

    def new_empty(self, *size: int) -> Tensor:
        """Return a tensor without values on the same device."""
        return torch.empty(size, device=self.device)

    def numel(self) -> int:
        """Return how many numbers there are."""
        return sum(value.numel() for value in self.tensors)


X = Tensor | Inputs
"""Inputs of a network."""


@functools.cache
def _register() -> None:
    """Have `vmap` and other functions of torch look inside."""
    private("register_pytree_node")(
        Inputs,
        lambda x: ([*x.parts.values()], tuple(x.parts)),
        lambda values, names: Inputs(dict(zip(names, values, strict=True))),
    )


def as_inputs(value: Any, name: str = "x", *, row: tuple[int, ...] | None = None) -> X:
    """Return inputs as a tensor (N, *in); a mapping, or a tuple of arrays, of tensors (N, ...) as `Inputs`.

    `name` and the shape of a `row` are for messages.

    Raises:
        InputError: not numeric, not finite, empty, of the wrong rank, or of unequal lengths.
    """
    if isinstance(value, Inputs):
        return value
    if not is_several(value):
        x = as_tensor(value, name)
        check_inputs(x, name, row)
        return x
    given = value.items() if isinstance(value, Mapping) else enumerate(value)
    parts = {str(key): as_tensor(part, f"{name}[{key!r}]") for key, part in given}
    for key, part in parts.items():
        if part.ndim == 0 or part.numel() == 0:
            raise InputError(f"`{name}[{key!r}]` must have a row for each example, got shape {tuple(part.shape)}.")
        check_finite(part, f"{name}[{key!r}]")
    lengths = {key: len(part) for key, part in parts.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(f"The tensors of `{name}` must have one row for each example, got lengths {lengths}.")
    return Inputs(parts)


def join_rows(parts: Sequence[X]) -> X:
    """Return the rows of several inputs as one; rows that differ in shape are refused."""
    shapes = list(dict.fromkeys(shape_of(part[0]) for part in parts))
    if len(shapes) > 1:
        fault = f"Examples of batches differ in shape, {shapes[0]} and {shapes[1]}, and are needed together"
        raise InputError(f"{fault}: pad all to one length, or pass a part of them as Data.")
    if isinstance(parts[0], Inputs):
        return Inputs({name: torch.cat([part.parts[name] for part in parts]) for name in parts[0].parts})  # type: ignore[union-attr]
    return torch.cat(list(parts))  # type: ignore[arg-type]


def tensors_of(x: X) -> list[Tensor]:
    """Return the tensors of inputs."""
    return x.tensors if isinstance(x, Inputs) else [x]


def single(x: X, what: str) -> Tensor:
    """Return inputs of a single tensor, which `what` needs, in words; several are refused."""
    if isinstance(x, Inputs):
        raise InputError(f"{what} takes inputs of a single tensor, got several: {shape_of(x)}.")
    return x


def is_number(x: X) -> bool:
    """Return whether each input is a single number."""
    return isinstance(x, Tensor) and x.shape[1:].numel() == 1


def shape_of(x: X) -> str:
    """Return the shape of inputs in words."""
    if isinstance(x, Inputs):
        return listed(f"{name} {tuple(value.shape)}" for name, value in x.parts.items())
    return str(tuple(x.shape))


def flat_rows(x: X) -> Tensor:
    """Return the numbers of each row, (N, width) in float64."""
    parts: Sequence[Tensor] = tensors_of(x)
    return torch.cat([part.double().reshape(len(part), -1) for part in parts], 1)
