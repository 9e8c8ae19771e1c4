"""The section [data] of a spec, checked without torch."""

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn._core.tables import Task

if TYPE_CHECKING:
    from pyrobnn.datasets import Dataset

_NUM_TEST = 200


@setting
class DataSpec:
    """The data, and the part of them to train on.

    Attributes:
        name: a data set by name: a set of `pyrobnn.datasets`, or "sinusoid" or "quartic", whose test part is
            200 new noisy points in the range of the training part.
        path: a CSV, Excel or Parquet file instead, relative to the working directory.
        target: the target column of that file.
        task: "regression" or "classification", if the target column leaves it open.
        id: a column of that file that names the rows: it is not a feature, and predictions include it.
        drop: other columns of that file that are not features.
        categories: how columns of text become numbers, "onehot" or "ordinal".
        missing: "raise" refuses missing values, "impute" leaves rows without a target out, draws other values that are
            missing several times, given the other columns, and adds indicator columns.
        split: number of the train/test split.
        test: share of the rows to test on, for data without published splits. If not given, a tenth of a data set by
            name; of a file a fifth up to 1,000 rows, or more (`pyrobnn.datasets.load_table`).
        standardize: centre and scale inputs, and real-valued targets, by the training part; inputs with a natural
            scale, such as pixels, are left unchanged.
        validation: share of the training part that is held out to follow the fit, or None.
    """

    name: str | None = None
    path: str | None = None
    target: str | None = None
    task: Task | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()
    categories: Literal["onehot", "ordinal"] = "onehot"
    missing: Literal["raise", "impute"] = "raise"
    split: Annotated[int, Field(ge=0)] = 0
    test: Annotated[float, Field(gt=0, lt=1)] | None = None
    standardize: bool = True
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse data with two sources or none."""
        if (self.name is None) == (self.path is None):
            raise InputError("[data] needs a `name`, or a `path` with a `target`, not both.")
        if self.path is not None and self.target is None:
            raise InputError("[data] `path` needs `target`, the name of the target column.")
        if self.target is not None and self.target in self.drop:
            raise InputError(f"[data] `drop` names the target {self.target!r}: leave it out of `drop`.")
        if self.name is not None and (self.drop or {self.target, self.task, self.id} != {None}):
            raise InputError(
                "[data] `target`, `task`, `id` and `drop` belong to a `path`; a data set by `name` knows its own."
            )

    def load(self, implied: Task | None = None, *, all_rows: bool = False) -> "Dataset":
        """Return the data set, standardised or not as asked.

        Args:
            implied: the task of a table that does not say it, from the likelihood.
            all_rows: learn the columns of a table from all rows, not only from those of the training part.
        """
        from pyrobnn import datasets
        from pyrobnn.data.in_memory import Data

        if self.path is not None and self.target is not None:
            dataset = datasets.load_table(
                self.path,
                self.target,
                task=self.task or implied,
                id=self.id,
                drop=self.drop,
                categories=self.categories,
                missing=self.missing,
                split=self.split,
                test=self.test,
                all_rows=all_rows,
            )
        elif self.name in ("sinusoid", "quartic"):
            dataset = _toy(self.name)
        else:
            dataset = datasets.load(str(self.name))
        if self.test is not None:
            if dataset.splits:
                raise InputError(
                    f"[data] `test` draws another split, and {dataset.name} has its own: leave `test` out, and choose "
                    f"one of them by `split`, 0 to {dataset.num_splits - 1}."
                )
            dataset = dataclasses.replace(dataset, test=self.test)
        raw = dataset.data
        data = Data(
            raw.x,
            raw.y,
            standardize=self.standardize and raw.standardize,
            feature_names=raw.feature_names,
            target_name=raw.target_name,
        )
        return dataclasses.replace(dataset, data=data)


def _toy(name: str) -> "Dataset":
    import numpy as np
    import torch

    from pyrobnn import datasets
    from pyrobnn._torch.inputs import single
    from pyrobnn.data.in_memory import Data

    make = {"sinusoid": datasets.sinusoid, "quartic": datasets.quartic}[name]
    train, test = make(), make(_NUM_TEST, seed=1)
    x = torch.cat([single(part.x, "A toy") for part in (train, test)])
    data = Data(x, torch.cat([train.y, test.y]), standardize=True)
    splits = ((np.arange(len(train)), np.arange(len(train), len(data))),)
    checksum = hashlib.sha256(x.numpy().tobytes() + data.y.numpy().tobytes()).hexdigest()
    return datasets.Dataset(name, "regression", data, splits, (), "generated", "none", checksum)
