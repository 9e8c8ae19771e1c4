"""The two files of a folder: JSON with its own digest, and tensors with their digest in the JSON.

The digests detect damage, not forgery: whoever can write the folder can make new digests.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from pyrobnn._core.errors import InputError

FORMAT_VERSION = 2
_VERSIONS = (1, 2)
SETTINGS, TENSORS, MEMBER = "posterior.json", "tensors.safetensors", "member_"
_DIGEST = "content_sha256"
_FLOAT = "$float"
_MOST_TEXT = 2**22
"""Most bytes of settings, or of the table of contents of tensors; in memory they take many times more."""
_NOT_FINITE = ("nan", "inf", "-inf")


def write_settings(settings: Mapping[str, Any], folder: Path) -> str:
    """Write settings as JSON that tells its format version and carries its digest, and return the digest."""
    content = {"format_version": FORMAT_VERSION} | _encoded(settings, "")
    digest = _digest_of(content)
    text = json.dumps({_DIGEST: digest} | content, indent=2, allow_nan=False) + "\n"
    if len(text) > _MOST_TEXT:
        raise InputError(
            f"The settings and `info` of the posterior take {len(text):,} bytes as text, more than {_MOST_TEXT:,}: "
            "keep less in `info`."
        )
    (folder / SETTINGS).write_text(text, encoding="utf-8")
    return digest


def read_settings(folder: Path) -> tuple[int, dict[str, Any], str]:
    """Return the format version, the settings and their digest ("" in version 1).

    Raises:
        InputError: no such file, a damaged file, or another format version.
    """
    text = _bytes_of(folder, SETTINGS)
    if len(text) > _MOST_TEXT:
        raise _damaged(folder)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    version = content.pop("format_version", None) if isinstance(content, dict) else None
    if type(version) is not int:
        raise _damaged(folder)
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise InputError(
            f"{folder} has format version {version}, this pyrobnn reads {known}: use the pyrobnn that wrote it."
        )
    if version == 1:
        return version, content, ""
    digest = content.pop(_DIGEST, None)
    try:
        sound = digest == _digest_of({"format_version": version} | content)
        decoded = _decoded(content)
    except (ValueError, RecursionError):
        raise _damaged(folder) from None
    if not sound:
        raise _damaged(folder)
    return version, decoded, digest


def write_tensors(tensors: Mapping[str, Tensor], folder: Path) -> str:
    """Write tensors and return the digest of the file."""
    content = safetensors.torch.save({name: _on_cpu(value) for name, value in tensors.items()})
    (folder / TENSORS).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read_tensors(folder: Path, digest: str) -> dict[str, Tensor]:
    """Return tensors on the CPU.

    Raises:
        InputError: no such file, or a file with another digest.
    """
    content = _bytes_of(folder, TENSORS)
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{folder / TENSORS} is not the file that was saved (its SHA-256 differs): restore it.")
    if int.from_bytes(content[:8], "little") > _MOST_TEXT:
        raise InputError(f"{folder / TENSORS} has too many tensors for a posterior: restore it.")
    try:
        return safetensors.torch.load(content)
    except SafetensorError:
        raise InputError(f"{folder / TENSORS} is no file of safetensors: restore it.") from None


def check_parts(folder: Path, expected: set[str]) -> None:
    """Refuse a folder with files or members that its settings do not know: they are from another posterior."""
    ours = {path.name for path in folder.iterdir() if path.name in (SETTINGS, TENSORS) or path.name.startswith(MEMBER)}
    odd = sorted(ours - expected)
    if odd:
        raise InputError(f"{folder} has {odd[0]}, which does not belong to it: restore the folder as it was saved.")


def member_name(index: int) -> str:
    """Return the name of the folder of a member of a mixture."""
    return f"{MEMBER}{index:03d}"


def _on_cpu(value: Tensor) -> Tensor:
    return value.detach().cpu().clone().contiguous()


def _bytes_of(folder: Path, name: str) -> bytes:
    path = folder / name
    if path.is_symlink():
        raise InputError(f"{path} is a link to another place: a saved posterior holds its own files. Copy the file.")
    if not path.is_file():
        raise InputError(f"{folder} is not a saved posterior, it has no {name}: pass a folder that bnn.save wrote.")
    return path.read_bytes()


def _damaged(folder: Path) -> InputError:
    return InputError(f"{folder / SETTINGS} is damaged: restore it, or save the posterior again.")


def _digest_of(content: Any) -> str:
    """Return the SHA-256 of JSON values in a form that depends on nothing but them; the order of keys matters."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _encoded(value: Any, where: str) -> Any:
    """Return a value in JSON's types, with non-finite numbers as tables.

    Raises:
        InputError: values that JSON cannot hold.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(float(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_encoded(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) and _FLOAT not in value:
        return {key: _encoded(item, f"{where}.{key}") for key, item in value.items()}
    raise InputError(
        f"`{where.lstrip('.')}` of the posterior cannot be saved, it is {value!r}: keep text, numbers, lists of them "
        "and tables with text for keys there."
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _FLOAT in value:
        return float(_NOT_FINITE[_NOT_FINITE.index(value[_FLOAT])])
    return {key: _decoded(item) for key, item in value.items()}
