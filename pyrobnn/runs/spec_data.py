"""The sections [fit] and [predict] of a spec."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pyrobnn._core.settings import FrozenDict, Options, setting
from pyrobnn.inference import Ensemble
from pyrobnn.inference import tables as methods
from pyrobnn.inference.default_parts import PARTS
from pyrobnn.inference.method import Engine

OF_ANY_FIT = ("seed", "device", "engine")
"""Keys of [fit] that do not belong to the method."""


def optional(part: str) -> BeforeValidator:
    """Return the reader of a part that may be left out."""
    return BeforeValidator(lambda value: None if value is None else PARTS[part].resolve(value))


@setting
class FitSpec:
    """How to fit: a method, a seed and a device.

    In a file, the guide has the section [guide]. An inner method has a table in this section:

        [fit]
        type = "ensemble"
        members = 5
        [fit.method]
        steps = 2000

    Attributes:
        method: any registered method: svi, ensemble, swag, nuts, hmc, sgld, sghmc. Settings that a table leaves out
            have the default of the method around it: members of an ensemble are points, svi with the guide "map", if
            there is no section [guide]. None for the method of the estimators.
        settings: without a `type`, settings of svi that replace those of the estimators' method.
        seed: seed of the fit.
        device: as in `pyrobnn.fit`.
        engine: "auto", "eager" or "captured", as in `pyrobnn.fit`.
    """

    method: Annotated[Any, optional("method")] = None
    settings: Options = FrozenDict()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    device: str = "auto"
    engine: Engine = "auto"

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "FitSpec":
        """Return the section that a table stands for: the settings of the method of that `type`, and those above."""
        common = {key: value for key, value in table.items() if key in OF_ANY_FIT}
        options = {key: value for key, value in table.items() if key not in OF_ANY_FIT}
        method = methods.from_table(options, also=OF_ANY_FIT)
        return cls(method=method, **common) if "type" in options else cls(settings=options, **common)

    def as_dict(self) -> dict[str, Any]:
        """Return the table of this section."""
        method = dict(self.settings) if self.method is None else methods.to_table(self.method)
        return method | {key: getattr(self, key) for key in OF_ANY_FIT}

    @property
    def num_parts(self) -> int:
        """The number of members, of an ensemble, or of Markov chains: each needs a draw.

        Where no method is given the default may be an ensemble.
        """
        method = Ensemble() if self.method is None else self.method
        return method.offer().copies


@setting
class PredictSpec:
    """How to predict.

    Attributes:
        num_draws: number of posterior draws.
    """

    num_draws: Annotated[int, Field(gt=0)] = 500
