"""Nested values in one file: safetensors with JSON in its header, replaced whole or not at all; nothing is executed."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import new_file

_TENSOR = "__tensor__"
MOST_TEXT = 2**25  # bytes of a header; in memory it takes many times more


def write_tree(path: Path, tree: Mapping[str, Any], *, replaces: bool = True) -> None:
    """Write tables and lists of tensors, numbers, strings and None, with a digest; an earlier file is replaced last."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_without_tensors(tree, tensors, ""))
    if len(text) > MOST_TEXT:
        raise InputError(f"{path}: numbers and text take {len(text):,} bytes, more than {MOST_TEXT:,}: keep less.")
    payload = save(tensors, metadata={"tree": text, "sha256": _seal(text, tensors)})
    with new_file(path, replaces=replaces) as work:
        work.write_bytes(payload)


def read_tree(path: Path) -> dict[str, Any]:
    """Read a file of `write_tree`, with tensors on the CPU; a damaged file, though not a forged one, is refused."""
    try:
        with path.open("rb") as start:
            if int.from_bytes(start.read(8), "little") > 2 * MOST_TEXT:
                raise ValueError("its header is too long")
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        if _seal(header["tree"], tensors) != header["sha256"]:
            raise ValueError("the checksum differs")
        return json.loads(
            header["tree"], object_hook=lambda table: tensors[table[_TENSOR]] if table.keys() == {_TENSOR} else table
        )
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}): restore it, or remove it to start anew.") from None


def _without_tensors(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = _copied(value)
        return {_TENSOR: name}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(item, tensors, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) and _TENSOR not in value:
        return {key: _without_tensors(item, tensors, f"{where}.{key}") for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    remedy = "keep text, numbers, tensors, lists of them and tables with text for keys there"
    raise InputError(f"`{where.lstrip('.')}` cannot be saved, it is {value!r}: {remedy}.")


def _copied(value: Tensor) -> Tensor:
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)  # of fresh strides, for size 1 too


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a SHA-256 of tensors in order, hexadecimal, the same on every device."""
    total = hashlib.sha256()
    for tensor in tensors:
        value = _copied(tensor)
        total.update(f"{value.dtype} {tuple(value.shape)}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy())
    return total.hexdigest()


def _seal(text: str, tensors: dict[str, Tensor]) -> str:
    """Return a digest of a whole file; the text names the tensors in order."""
    return hashlib.sha256(f"{text} {digest(tensors[name] for name in sorted(tensors))}".encode()).hexdigest()
