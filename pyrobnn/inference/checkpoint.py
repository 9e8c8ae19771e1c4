"""Checkpoints: the place of a fit in a file, from which the same call goes on to the same bits."""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pyrobnn
from pyrobnn._errors import InputError
from pyrobnn._tree_files import read_tree, write_tree
from pyrobnn.inference.eager import Eager

FILE = "checkpoint.safetensors"
FORMAT_VERSION = 1
_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_log = logging.getLogger("pyrobnn")


class Checkpoint:
    """The file in which a fit keeps its place, replaced whole at every so many steps.

    Args:
        folder: where the file is.
        every: steps between two checkpoints.
        request: what makes the fit what it is, in words by name; a checkpoint of another request is refused.

    Attributes:
        every: as given.
        finished: whether the file found is that of a fit that ended.
    """

    def __init__(self, folder: Path, every: int, request: Mapping[str, str]) -> None:
        self.every, self.finished = every, False
        self._path, self._request = folder / FILE, dict(request)

    def read(self, fits: Sequence[Eager]) -> dict[str, Any] | None:
        """Return the state to go on from, or None if there is none yet.

        Raises:
            InputError: a damaged file, or one of another fit.
        """
        self._request["starting values"] = _digest_of_start(fits)
        if not self._path.exists():
            return None
        tree = read_tree(self._path)
        if tree.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"{self._path} has format version {tree.get('format_version')}, this pyrobnn reads {FORMAT_VERSION}: "
                "finish the fit with the pyrobnn that began it, or remove the file to start anew."
            )
        for name, value in self._request.items():
            if tree["request"].get(name) != value:
                raise InputError(
                    f"{self._path} is of another fit, the {name} differ: there {tree['request'].get(name)}, here "
                    f"{value}. Choose another folder, or remove the file to start anew."
                )
        if tree["versions"] != _versions():
            _log.warning(
                "%s was written by %s, this is %s: bits may differ.", self._path, tree["versions"], _versions()
            )
        self.finished = tree["finished"]
        _log.info("goes on from step %d, kept in %s", tree["state"]["done"], self._path)
        blocks = tree["state"]["monitor"]["recorder"]["blocks"]
        tree["state"]["monitor"]["recorder"]["blocks"] = [block.numpy() for block in blocks]
        state: dict[str, Any] = tree["state"]
        return state

    def write(self, state: dict[str, Any], *, finished: bool) -> None:
        """Replace the file; where that is not possible the fit goes on without, and the last file stays."""
        recorder = state["monitor"]["recorder"]
        terms = torch.cat([torch.from_numpy(block) for block in recorder["blocks"]])
        monitor = state["monitor"] | {"recorder": recorder | {"blocks": [terms]}}
        tree = {
            "format_version": FORMAT_VERSION,
            "versions": _versions(),
            "request": self._request,
            "finished": finished,
            "state": state | {"monitor": monitor},
        }
        try:
            write_tree(self._path, tree)
        except OSError as error:
            _log.warning(
                "The checkpoint of step %d could not be written to %s (%s): the fit goes on; free some space.",
                state["done"],
                self._path,
                error.strerror,
            )


def open_checkpoint(folder: str | Path, every: int, request: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint of a request, in a folder that can be written to.

    Raises:
        InputError: a number of steps below 1, or a folder that cannot be made or written to.
    """
    if not isinstance(every, int) or every < 1:
        raise InputError(f"`every` must be a number of steps, at least 1, got {every!r}.")
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"`checkpoint`: cannot write to {path} ({error.strerror}): choose another folder.") from None
    return Checkpoint(path, every, {name: _ADDRESS.sub("", str(value)) for name, value in request.items()})


def digest(tensors: Sequence[Tensor]) -> str:
    """Return a SHA-256 of tensors, hexadecimal."""
    total = hashlib.sha256()
    for tensor in tensors:
        value = tensor.detach().cpu().contiguous()
        total.update(f"{value.dtype} {tuple(value.shape)}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _digest_of_start(fits: Sequence[Eager]) -> str:
    return digest([value for fit in fits for value in fit.trained.state_dict().values()])


def _versions() -> dict[str, str]:
    return {"pyrobnn": pyrobnn.__version__, "torch": str(torch.__version__)}
