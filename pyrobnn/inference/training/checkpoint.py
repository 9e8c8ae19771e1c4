"""Checkpoints: the place of a fit in a file, from which the same call goes on to the same bits."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pyro import poutine

import pyrobnn
from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import check_writable, why
from pyrobnn._core.random import seeded
from pyrobnn._core.tree_files import digest, read_tree, write_tree
from pyrobnn._torch.private import tree_leaves
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.data.in_memory import Data
from pyrobnn.inference.data import Source
from pyrobnn.inference.method import Run
from pyrobnn.inference.training.state import Asked, TrainingState

FILE = "checkpoint.safetensors"
FORMAT_VERSION = 3
_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_log = logging.getLogger("pyrobnn")


class Checkpoint:
    """The file in which a fit keeps its place every so many steps, replaced whole; `finished` if the fit has ended."""

    def __init__(self, folder: Path, every: int, request: Mapping[str, str]) -> None:
        self.folder, self.every, self.finished = folder, every, False
        self._path, self._request = folder / FILE, dict(request)

    def read(self, fits: Sequence[TrainingState]) -> dict[str, Any] | None:
        """Return the state to go on from; None if there is no file yet."""
        tensors = [value for fit in fits for value in (*fit.trained.parameters(), *fit.trained.buffers())]
        densities = ", ".join(map(_log_joint, fits))  # of the start, with constants of priors
        self._request["starting values"] = f"{digest(tensors)}, log joint densities {densities}"
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
        state: dict[str, Any] = tree["state"]
        return state

    def write(self, state: dict[str, Any], *, finished: bool) -> None:
        """Replace the file; where that is not possible the fit goes on without, and the last file stays."""
        tree = {
            "format_version": FORMAT_VERSION,
            "versions": _versions(),
            "request": self._request,
            "finished": finished,
            "state": state,
        }
        try:
            write_tree(self._path, tree)
        except OSError as error:
            _log.warning(
                "The checkpoint of step %d could not be written to %s (%s): the fit goes on; free some space.",
                state["done"],
                self._path,
                why(error),
            )


def open_checkpoint(run: Run, asked: Sequence[Asked]) -> Checkpoint:
    """Return the checkpoint of a run that keeps one, in a folder that can be written to."""
    assert run.checkpoint is not None
    check_count(run.every, "every")
    folder = Path(run.checkpoint)
    check_writable(folder / FILE, "file")
    of_validation, validation = None, run.validation
    if validation is not None:
        with seeded(run.seed, "data"):
            of_validation = digest(tree_leaves(validation.tensors if isinstance(validation, Data) else validation.head))
    request = {
        "seed": run.seed,
        "method": [fit.method for fit in asked],
        "model": [fit.bnn for fit in asked],
        "engine": run.engine,
        "data": [_fingerprint(fit.source) for fit in asked],
        "validation data": of_validation,
    }
    return Checkpoint(folder, run.every, {name: _ADDRESS.sub("", str(value)) for name, value in request.items()})


def _fingerprint(source: Source) -> str:
    """Return what tells data apart, their weights included."""
    data = source.data
    if isinstance(data, Data):
        return f"{digest(tree_leaves(data.tensors))}, standardize={data.standardize}"
    batches = f"{source.batches_per_epoch(None)} batches, standardize={data.standardize}"
    return f"Loader of {source.num_data} examples, {batches}, the first {digest(tree_leaves(source.head))}"


def _log_joint(fit: TrainingState) -> str:
    """Return the log density of starting weights and an example: functions as priors are known by it."""
    was_training = fit.bnn.training
    with seeded(0), torch.no_grad(), fast_pyro(), poutine.block():
        model = poutine.condition(fit.bnn.eval(), data=fit.bnn.initial_values)
        log_joint = poutine.trace(model).get_trace(*fit.example).log_prob_sum()
    fit.bnn.train(was_training)
    return f"{float(log_joint):.6g}"


def _versions() -> dict[str, str]:
    threads = str(torch.get_num_threads())
    return {"pyrobnn": pyrobnn.__version__, "torch": str(torch.__version__), "threads": threads}
