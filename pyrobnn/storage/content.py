"""The tables in the file of a posterior, checked field by field, and the tensors in them that stand for data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, StrictInt, StrictStr
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn._core.tree_files import digest, read_tree
from pyrobnn._torch.inputs import Inputs, X
from pyrobnn.bnn import BNN
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import EngineRecord

FORMAT_VERSION = 3
CUSTOM = "custom"
"""The type of a network that is the user's `torch.nn.Module`."""
WIDTH, INPUTS = "f", "x"

Table = dict[str, Any]
Tensors = dict[str, Tensor]
Parts = Annotated[dict[Literal["net", "prior", "likelihood"], Table], Field(min_length=3)]


@setting
class SavedHistory:
    """The record of a fit."""

    log_likelihood: Tensor
    kl: Tensor
    validation_steps: list[StrictInt]
    validation_scores: list[Annotated[float, Field(allow_inf_nan=True)]]
    engine: EngineRecord


@setting
class SavedPosterior:
    """A posterior.

    `example` has a row of zeros like inputs, targets and outputs, and `scalers` their units. `body_sha256` is the
    digest of a frozen body that was not saved with it. `categories` are those of donors, which are not saved either:
    the positions of the columns of each.
    """

    seed: StrictInt
    info: Table
    parts: Parts
    guide: Table
    model_state: Tensors
    guide_state: Tensors
    example: Tensors
    scalers: Tensors
    history: SavedHistory | None = None
    body_sha256: StrictStr | None = None
    categories: list[list[Annotated[StrictInt, Field(ge=0)]]] | None = None


@setting
class SavedMixture:
    """A mixture, with the tables of its members."""

    seed: StrictInt
    info: Table
    members: Annotated[list[Table], Field(min_length=1)]


def read(path: Path) -> tuple[SavedMixture | None, list[SavedPosterior]]:
    """Return the tables of a file: of the mixture, if it has one, and of the posterior or the members.

    Raises:
        InputError: no such file, a damaged file, another format version, a key too many or too few, or a value of
            another kind.
    """
    if not path.is_file():
        older = ", but a folder, as earlier versions wrote them" if path.is_dir() else ""
        raise InputError(f"{path} is not a saved posterior{older}: pass a file that bnn.save wrote.")
    content = read_tree(path)
    version = content.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version}, this pyrobnn reads {FORMAT_VERSION}: use the pyrobnn that wrote it."
        )
    try:
        mixture = SavedMixture(**content) if "members" in content else None
        return mixture, [SavedPosterior(**each) for each in ([content] if mixture is None else mixture.members)]
    except InputError as error:
        reason = str(error).partition(": ")[2]
        raise InputError(f"{path} does not fit ({reason}): restore it, or save the posterior again.") from None


def outline(posterior: Posterior) -> Tensors:
    """Return a row of zeros like inputs, targets and outputs, by their names in the file."""
    x, y = posterior.example
    parts = {f"{INPUTS}.{name}": value for name, value in x.parts.items()} if isinstance(x, Inputs) else {INPUTS: x}
    values = {**parts, "y": y, WIDTH: posterior.outputs}
    return {name: torch.zeros_like(value[:1]) for name, value in values.items()}


def inputs_of(example: Mapping[str, Tensor]) -> X:
    """Return the row of inputs of an outline."""
    if INPUTS in example:
        return example[INPUTS]
    parts = {name.removeprefix(f"{INPUTS}."): value for name, value in example.items() if name not in ("y", WIDTH)}
    return Inputs({name: parts[name] for name in sorted(parts, key=lambda name: (len(name), name))})


def frozen_tensors(bnn: BNN) -> Tensors:
    """Return the frozen tensors of a model, by their names in its state; a posterior may be saved without them."""
    state = bnn.net.state_dict()
    return {f"net.{name}": state[name] for name in bnn.frozen_names}


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors and their names."""
    names = torch.tensor(list("\n".join(sorted(tensors)).encode()), dtype=torch.uint8)
    return digest([names, *(tensors[name] for name in sorted(tensors))])
