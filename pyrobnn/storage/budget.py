"""The memory for building a saved posterior: not much more than the tensors that were saved with it."""

import json
import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrobnn._core.errors import InputError
from pyrobnn._torch.private import OperationMode, private, tree_leaves, tree_map

_BYTES, _COPIES = 2**27, 5
"""Bytes that may be held at once, and more for each byte of the tensors: guides hold a few copies while they start."""
_OPERATIONS, _OPERATIONS_EACH = 4000, 200
"""Operations of torch, and more for each of the tensors."""
_TEXT, _TEXT_EACH = 2**13, 2**8
"""Characters of the settings of model and guide, and more for each of the tensors."""
_LARGEST = 16
"""Bytes of the largest number."""
_NO_LARGER = tuple(
    getattr(torch.ops.aten, name) for name in ("_is_all_true", "all", "cat", "cumsum", "logsumexp", "randn_like")
)
"""Operations whose result has no more numbers than their tensors."""
_DEPTH = 32
"""Largest depth of nested tables and lists."""


class Budget(OperationMode):
    """Refuses, in its block, operations too large for the saved tensors, before they run.

    Args:
        tensors: the saved tensors.
        folder: their folder, for the message.

    Raises:
        InputError: more memory or more operations than tensors of this size and number need.
        MissingFromTorch: this torch does not show its operations.
    """

    def __init__(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        private("TorchDispatchMode")  # without it nothing would be refused
        super().__init__()
        self._folder, self._paused = folder, False
        self._room = _BYTES + _COPIES * sum(value.nbytes for value in tensors.values())
        self._operations = _OPERATIONS + _OPERATIONS_EACH * len(tensors)
        self._text = _TEXT + _TEXT_EACH * len(tensors)
        self._held: dict[int, int] = {}

    def check(self, settings: Any) -> None:
        """Refuse settings of many more parts than there are tensors, or of parts within parts without end."""
        if len(json.dumps(settings)) > self._text or _depth(settings) > _DEPTH:
            raise self._too_much("more parts")

    @contextmanager
    def without(self, net: nn.Module) -> Iterator[None]:
        """Do not count, in the block, the operations of a network: its activations follow from its inputs."""
        hooks = [
            net.register_forward_pre_hook(lambda *_: self._pause(paused=True)),
            net.register_forward_hook(lambda *_: self._pause(paused=False), always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _pause(self, *, paused: bool) -> None:
        self._paused = paused

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        self._operations -= 1
        if self._operations < 0:
            raise self._too_much("more operations")
        left = self._room - sum(self._held.values())
        if _at_most(func, args, kwargs) > left and _planned(func, args, kwargs) > left:
            raise self._too_much("more memory")
        result = func(*args, **kwargs)
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._note(value.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._held:
            self._held[key] = storage.nbytes()
            weakref.finalize(storage, self._held.pop, key, None).atexit = False

    def _too_much(self, demand: str) -> InputError:
        return InputError(
            f"{self._folder} does not fit: its settings ask for {demand} than its tensors can fill: restore the folder."
        )


def _depth(settings: Any) -> int:
    depth, level = 0, [settings]
    while level:
        depth += 1
        inside = [value.values() if isinstance(value, Mapping) else value for value in level]
        level = [value for values in inside for value in values if isinstance(value, (Mapping, list))]
    return depth


def _at_most(func: Any, args: Any, kwargs: Any) -> float:
    """Return a quick bound on the bytes of a result: `_planned` may import the compiler of torch, for two seconds."""
    shapes = [value.shape for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    if torch.Tag.pointwise in func.tags:
        return float(_LARGEST * math.prod(np.broadcast_shapes(*shapes)))  # torch's own imports sympy
    return float(_LARGEST * sum(map(math.prod, shapes))) if func.overloadpacket in _NO_LARGER else math.inf


def _planned(func: Any, args: Any, kwargs: Any) -> int:
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
