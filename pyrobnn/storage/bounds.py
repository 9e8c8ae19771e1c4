"""Bounds on the cost of building a guide from a file, whose settings may ask for more than its tensors fill."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._torch.private import OperationMode, private, tree_leaves, tree_map

_BYTES, _COPIES = 2**28, 40
"""Bytes that may be made in all, and more for each byte of the tensors: guides make a few dozen copies at most."""
_OPERATIONS, _OPERATIONS_EACH = 4000, 200
"""Operations of torch, and more for each of the tensors."""
_TEXT, _TEXT_EACH, _DEPTH = 2**13, 2**8, 32
"""Characters of the settings of model and guide, more for each of the tensors, and the depth of tables in them."""
_LARGEST_NUMBER = 16
_NO_LARGER = tuple(
    getattr(torch.ops.aten, name) for name in ("_is_all_true", "all", "cat", "cumsum", "logsumexp", "randn_like")
)
"""Operations whose result has no more numbers than their tensors."""


class Bounds(OperationMode):
    """Refuses, in its block, operations too large for the saved tensors, before they run."""

    def __init__(self, tensors: Iterable[Tensor], settings: Any, path: Path) -> None:
        private("TorchDispatchMode")  # without it nothing would be refused
        super().__init__()
        sizes = [value.nbytes for value in tensors]
        self._path, self._room = path, _BYTES + _COPIES * sum(sizes)
        self._operations = _OPERATIONS + _OPERATIONS_EACH * len(sizes)
        depth, level = 0, [settings]
        while level and depth <= _DEPTH:
            depth += 1
            inside = [value.values() if isinstance(value, Mapping) else value for value in level]
            level = [value for values in inside for value in values if isinstance(value, (Mapping, list))]
        if depth > _DEPTH or len(json.dumps(settings)) > _TEXT + _TEXT_EACH * len(sizes):
            raise self._too_much("more parts")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._operations -= 1
        if self._operations < 0:
            raise self._too_much("more operations")
        if at_most(func, args, kwargs) > self._room and planned(func, args, kwargs) > self._room:
            raise self._too_much("more memory")
        result = func(*args, **kwargs)
        if not (func.is_view or func._schema.is_mutable):
            self._room -= sum(value.nbytes for value in tree_leaves(result) if isinstance(value, Tensor))
        return result

    def _too_much(self, demand: str) -> InputError:
        return InputError(
            f"{self._path} does not fit: its settings ask for {demand} than its tensors can fill: restore the file."
        )


def at_most(func: Any, args: Any, kwargs: Any) -> float:
    """Return a quick bound on the bytes of a result: `planned` may import the compiler of torch, for two seconds."""
    shapes = [value.shape for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    if torch.Tag.pointwise in func.tags:
        return float(_LARGEST_NUMBER * math.prod(np.broadcast_shapes(*shapes)))  # torch's own imports sympy
    return float(_LARGEST_NUMBER * sum(map(math.prod, shapes))) if func.overloadpacket in _NO_LARGER else math.inf


def planned(func: Any, args: Any, kwargs: Any) -> int:
    """Return the bytes that an operation is about to allocate, by running it on tensors without storage."""
    if func.is_view or func._schema.is_mutable:
        return 0
    try:
        results = func(*tree_map(_without_storage, args), **tree_map(_without_storage, kwargs))
    except (NotImplementedError, RuntimeError):  # its result depends on values, and is no larger than their tensor
        return 0
    return sum(value.nbytes for value in tree_leaves(results) if isinstance(value, Tensor))


def _without_storage(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value
