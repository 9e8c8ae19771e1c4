"""The required settings of a saved posterior, in each version of the format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.posterior.record import EngineRecord
from pyrobnn.storage.files import SETTINGS

CUSTOM = "custom"
"""The type of a network that is the user's `torch.nn.Module`."""

Table = dict[str, Any]
Parts = Annotated[dict[Literal["net", "prior", "likelihood"], Table], Field(min_length=3)]

_MOST_MEMBERS = 10_000


@setting
class SavedHistory:
    """The record of a fit without its tensors."""

    validation_steps: list[StrictInt]
    validation_scores: list[Annotated[float, Field(allow_inf_nan=True)]]
    engine: EngineRecord


@setting
class SavedPosterior:
    """The settings of a posterior.

    `body_sha256` is the digest of a frozen body that was not saved with it. `categories` are those of donors, which are
    not saved either: the positions of the columns of each.
    """

    seed: StrictInt
    info: Table
    parts: Parts
    guide: Table
    tensors_sha256: StrictStr
    history: SavedHistory | None = None
    body_sha256: StrictStr | None = None
    categories: list[list[Annotated[StrictInt, Field(ge=0)]]] | None = None


@setting
class SavedMixture:
    """The settings of a mixture; `members` are the digests of its members, or in version 1 their number."""

    seed: StrictInt
    info: Table
    members: list[StrictStr] | Annotated[StrictInt, Field(gt=0, le=_MOST_MEMBERS)]


def parse(version: int, content: Mapping[str, Any], folder: Path) -> SavedPosterior | SavedMixture:
    """Return the settings of a folder, checked.

    Raises:
        InputError: a key too many or too few, or a value of another kind.
    """
    fields = dict(content)
    if version == 1 and "sha256" in fields:
        fields["tensors_sha256"] = fields.pop("sha256")
    try:
        return SavedMixture(**fields) if "members" in fields else SavedPosterior(**fields)
    except InputError as error:
        reason = str(error).partition(": ")[2]
        raise InputError(
            f"{folder / SETTINGS} does not fit ({reason}): restore it, or save the posterior again."
        ) from None
