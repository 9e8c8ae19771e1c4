"""Measured scales in a file beside the checkpoint: a fit that goes on does not search for them again."""

import dataclasses
import hashlib
import logging
from pathlib import Path
from typing import Any

import pydantic
from torch import Tensor

from pyrobnn._core.folders import why
from pyrobnn._core.random import seeded
from pyrobnn._core.tree_files import digest, read_tree, write_tree
from pyrobnn.bnn import BNN
from pyrobnn.inference.data import Source
from pyrobnn.inference.method import Run
from pyrobnn.inference.training.checkpoint import fingerprint, without_addresses, writable
from pyrobnn.posterior.record import EvidenceRecord

_log = logging.getLogger("pyrobnn")
_RECORD = pydantic.TypeAdapter(EvidenceRecord)


@dataclasses.dataclass(frozen=True)
class Found:
    """What the search for scales has found.

    Attributes:
        scales: of the prior, by site.
        numbers: of the likelihood; None if they stay open.
        start: the state of the network to start at; None if it starts at random.
        noise: the state of the likelihood to start at, where its numbers stay open.
        record: the record of the search.
    """

    scales: dict[str, float]
    numbers: dict[str, Any] | None
    start: dict[str, Tensor] | None
    noise: dict[str, Tensor] | None
    record: EvidenceRecord


def file_for(bnn: BNN, source: Source, run: Run, *, starts_there: bool) -> Path | None:
    """Return the file of the scales of a model and data, if the run keeps checkpoints; its name tells them apart.

    Raises:
        InputError: a folder that cannot be made or written to.
    """
    if run.checkpoint is None:
        return None
    with seeded(run.seed, "kept scales"):
        start = digest(bnn.fresh().net.state_dict().values())
    request = (run.seed, run.engine, without_addresses(bnn), start, fingerprint(source), starts_there)
    name = hashlib.sha256(repr(request).encode()).hexdigest()[:16]
    return writable(Path(run.checkpoint)) / f"scales-{name}.safetensors"


def read(file: Path) -> Found | None:
    """Return what a file has; None if there is none.

    Raises:
        InputError: a damaged file.
    """
    if not file.exists():
        return None
    tree = read_tree(file)
    return Found(**(tree | {"record": _RECORD.validate_python(tree["record"])}))


def write(file: Path, found: Found) -> None:
    """Write a file, whole or not at all; where that is not possible the fit goes on without."""
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    try:
        write_tree(file, fields | {"record": dataclasses.asdict(found.record)})
    except OSError as error:
        _log.warning("The scales could not be written to %s (%s): free some space.", file, why(error))
