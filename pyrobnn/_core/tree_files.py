"""Nested values in one file: safetensors with JSON in its header, replaced whole or not at all; nothing is executed."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import new_file

_TENSOR = "__tensor__"


def write_tree(path: Path, tree: dict[str, Any]) -> None:
    """Write dictionaries and lists of tensors, numbers, strings and None; an earlier file is replaced at the end."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_without_tensors(tree, tensors))
    payload = save(tensors, metadata={"tree": text, "sha256": _seal(text, tensors)})
    with new_file(path) as work:
        work.write_bytes(payload)


def read_tree(path: Path) -> dict[str, Any]:
    """Read a file of `write_tree`, with tensors on the CPU; a damaged file is refused."""
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        if _seal(header["tree"], tensors) != header["sha256"]:
            raise ValueError("the checksum differs")
        tree: dict[str, Any] = _with_tensors(json.loads(header["tree"]), tensors)
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}): restore it, or remove it to start anew.") from None
    return tree


def _without_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {key: _without_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(item, tensors) for item in value]
    return value


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    return value


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a SHA-256 of tensors in order, hexadecimal."""
    total = hashlib.sha256()
    for tensor in tensors:
        value = tensor.detach().cpu().contiguous()
        total.update(f"{value.dtype} {tuple(value.shape)}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _seal(text: str, tensors: dict[str, Tensor]) -> str:
    """Return a digest of a whole file; the text names the tensors in order."""
    return hashlib.sha256(f"{text} {digest(tensors[name] for name in sorted(tensors))}".encode()).hexdigest()
