"""Private names of torch, which may change: no other file uses them. Tested with torch 2.15.

Importing the package needs none of them. If a name is gone, steps run eagerly, recurrent layers and attention as plain
operations, and `load` refuses, since it cannot check its bound; other uses raise `MissingFromTorch`.
"""

import functools
import linecache
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch

TRIED = "2.15"
PLACES = {
    "source_loader": "torch.fx.graph_module:_loader",
    "WeakTensorKeyDictionary": "torch.utils.weak:WeakTensorKeyDictionary",
    "peek_interpreter_stack": "torch._C._functorch:peek_interpreter_stack",
    "TorchDispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",
    "standard_gamma": "torch:_standard_gamma",
    "weight_norm": "torch:_weight_norm",
    "tree_flatten": "torch.utils._pytree:tree_flatten",
    "tree_unflatten": "torch.utils._pytree:tree_unflatten",
    "tree_leaves": "torch.utils._pytree:tree_leaves",
    "tree_map": "torch.utils._pytree:tree_map",
    "register_pytree_node": "torch.utils._pytree:register_pytree_node",
}


class MissingFromTorch(ImportError):
    """This version of torch lacks a private name."""


@functools.cache
def private(name: str) -> Any:
    """Return a private name of torch, a key of `PLACES`; some take a second to import.

    Raises:
        MissingFromTorch: torch has it no more.
    """
    module, _, attribute = PLACES[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError):
        lacks = f"torch {torch.__version__} has no {module}.{attribute}"
        raise MissingFromTorch(f"{lacks}, which torch {TRIED} has: use that.") from None


@contextmanager
def sources_forgotten() -> Iterator[None]:
    """Let `torch.fx` forget the source of code that it generates in the block, which it keeps for tracebacks."""
    kept = private("source_loader").eval_cache
    before = set(kept)
    try:
        yield
    finally:
        for name in {*kept} - before:
            kept.pop(name, None)
            linecache.cache.pop(name, None)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested containers."""
    leaves: list[Any] = private("tree_leaves")(tree)
    return leaves


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return nested containers with a function applied to their leaves."""
    return private("tree_map")(function, tree, *others)


def is_weight_norm(function: Any) -> bool:
    """Return whether a function of torch is the function that weight normalisation calls."""
    try:
        return function is private("weight_norm")
    except MissingFromTorch:
        return False


def written(value: torch.Tensor) -> tuple[int, int]:
    """Return a mark that changes when a tensor is written to in place, or its `data` replaced."""
    return value._version, value.data_ptr()


def inside_transformation() -> bool:
    """Return whether a transformation of `torch.func` runs."""
    try:
        return private("peek_interpreter_stack")() is not None
    except MissingFromTorch:
        return True


def _operation_mode() -> Any:
    try:
        mode = private("TorchDispatchMode")
    except MissingFromTorch:
        return ExitStack  # which sees nothing

    class OperationMode(mode):  # type: ignore[misc, valid-type]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch imports its compiler, in two seconds, to keep it away from the mode

    return OperationMode


OperationMode: Any = _operation_mode()
"""Base of modes that see single operations of torch as they run, in `__torch_dispatch__`."""
