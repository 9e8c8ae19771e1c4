"""The sections [data], [fit] and [predict] of a spec."""

import dataclasses
import hashlib
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field

from pyrobnn import datasets
from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import FrozenDict, Options, setting
from pyrobnn._core.tables import Task
from pyrobnn._torch.inputs import single
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets import Dataset
from pyrobnn.inference import tables as methods
from pyrobnn.inference.default_parts import PARTS
from pyrobnn.inference.training.engines import Engine

_TOYS = {"sinusoid": datasets.sinusoid, "quartic": datasets.quartic}
_NUM_TEST = 200
OF_ANY_FIT = ("seed", "device", "engine")
"""Keys of [fit] that do not belong to the method."""


@setting
class DataSpec:
    """The data, and the part of them to train on.

    Attributes:
        name: a data set by name: a set of `pyrobnn.datasets`, or "sinusoid" or "quartic", whose test part is
            200 new noisy points in the range of the training part.
        path: a CSV or Parquet file instead, relative to the working directory.
        target: the target column of that file.
        task: "regression" or "classification", if the target column leaves it open.
        id: a column of that file that names the rows: it is not a feature, and predictions include it.
        categories: how columns of text become numbers, "onehot" or "ordinal".
        missing: "raise" refuses missing values, "impute" replaces them by means and adds indicator columns.
        split: number of the train/test split.
        standardize: centre and scale inputs, and real-valued targets, by the training part; inputs with a natural
            scale, such as pixels, are left unchanged.
        validation: share of the training part that is held out to follow the fit, or None.
    """

    name: str | None = None
    path: str | None = None
    target: str | None = None
    task: Task | None = None
    id: str | None = None
    categories: Literal["onehot", "ordinal"] = "onehot"
    missing: Literal["raise", "impute"] = "raise"
    split: Annotated[int, Field(ge=0)] = 0
    standardize: bool = True
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse data with two sources or none."""
        if (self.name is None) == (self.path is None):
            raise InputError("[data] needs a `name`, or a `path` with a `target`, not both.")
        if self.path is not None and self.target is None:
            raise InputError("[data] `path` needs `target`, the name of the target column.")
        if self.name is not None and any(value is not None for value in (self.target, self.task, self.id)):
            raise InputError("[data] `target`, `task` and `id` belong to a `path`; a data set by `name` knows its own.")

    def load(self, implied: Task | None = None) -> Dataset:
        """Return the data set, standardised or not as asked.

        Args:
            implied: the task of a table that does not say it, from the likelihood.
        """
        if self.path is not None and self.target is not None:
            dataset = datasets.load_table(
                self.path,
                self.target,
                task=self.task or implied,
                id=self.id,
                categories=self.categories,
                missing=self.missing,
                split=self.split,
            )
        elif self.name in _TOYS:
            dataset = _toy(self.name)
        else:
            dataset = datasets.load(str(self.name))
        raw = dataset.data
        data = Data(
            raw.x,
            raw.y,
            standardize=self.standardize and raw.standardize,
            feature_names=raw.feature_names,
            target_name=raw.target_name,
        )
        return dataclasses.replace(dataset, data=data)


def _toy(name: str) -> Dataset:
    train, test = _TOYS[name](), _TOYS[name](_NUM_TEST, seed=1)
    x = torch.cat([single(part.x, "A toy") for part in (train, test)])
    data = Data(x, torch.cat([train.y, test.y]), standardize=True)
    splits = ((np.arange(len(train)), np.arange(len(train), len(data))),)
    checksum = hashlib.sha256(x.numpy().tobytes() + data.y.numpy().tobytes()).hexdigest()
    return Dataset(name, "regression", data, splits, (), "generated", "none", checksum)


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
        """The number of members, of an ensemble, or of Markov chains: each needs a draw."""
        return self.method.offer().copies


@setting
class PredictSpec:
    """How to predict.

    Attributes:
        num_draws: number of posterior draws.
    """

    num_draws: Annotated[int, Field(gt=0)] = 500
