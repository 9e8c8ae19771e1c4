"""Users' tables: CSV and Parquet files with a target column."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.checks import as_tensor, check_inputs
from pyrobnn._core.tables import Table, ending, read_inputs, read_table
from pyrobnn._torch.inputs import single
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets._files import sha256
from pyrobnn.datasets.base import Dataset, random_split


def load_table(
    path: str | Path,
    target: str,
    *,
    task: str | None = None,
    id: str | None = None,
    categories: str = "onehot",
    missing: str = "raise",
    split: int = 0,
) -> Dataset:
    """Return a CSV (.csv, .csv.gz) or Parquet (.parquet) file as a data set without published splits.

    All columns but the target are features: numbers and booleans unchanged, text as categories. A target of text or
    booleans makes a classification: its distinct values, sorted, become the classes 0..C-1. So does one of at most 10
    different integers. With more, they could be counts, amounts or classes, so `task` is required. Any other target
    makes a regression.

    Args:
        path: the file, with column names in the first line of a CSV.
        target: name of the target column.
        task: "regression" or "classification" to override the rule above, as for counts.
        id: a column that names the rows and is not a feature.
        categories: how text becomes numbers, "onehot" (a column of 0 and 1 for each category) or "ordinal".
        missing: "raise" refuses missing features, "impute" replaces numbers by the mean of their column, adds a column
            of 0 and 1 that marks them, and makes a category of missing text.
        split: the split whose training part gives means and categories.

    Raises:
        InputError: the file cannot be read or is empty, a column is missing, or values cannot be used; one message
            lists them for all columns, with their rows.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"size": [50.0, 90.0] * 9, "kind": ["flat", "house"] * 9, "price": [1.5, 2.9] * 9})
        >>> frame.to_csv("homes.csv", index=False)
        >>> homes = bnn.datasets.load_table("homes.csv", target="price")
        >>> homes.task, homes.data.feature_names
        ('regression', ('size', 'kind_flat', 'kind_house'))
    """
    path = Path(path)
    table = read_table(path, target, task=task, id_column=id, missing=missing)
    encoder = None if table.is_numeric and missing == "raise" else _learned(table, categories, missing, split)
    x, names = _encoded(table.inputs, encoder)
    data = Data(x, table.target.values, standardize=True, feature_names=names, target_name=target)
    return Dataset(
        path.name.removesuffix(ending(path)),
        table.target.task,
        data,
        (),
        table.target.classes,
        str(path),
        "not stated",
        sha256(path),
        table.target.reason,
        encoder,
    )


def load_features(
    path: str | Path, feature_names: Sequence[str], *, encoder: Mapping[str, Any] | None = None
) -> Tensor:
    """Return the feature columns of a CSV or Parquet file, for prediction; other columns are ignored.

    Args:
        path: the file, as for `load_table`.
        feature_names: the columns wanted, in this order: the columns of the training data.
        encoder: `Dataset.encoder` of the training data; it knows the columns of the file.

    Returns:
        Inputs of shape (N, features), float64.

    Raises:
        InputError: the file cannot be read or is empty, or a column is missing, is of another kind than before, or has
            missing values that the encoder does not replace.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"size": [50.0, 90.0] * 9, "kind": ["flat", "house"] * 9, "price": [1.5, 2.9] * 9})
        >>> frame.to_csv("homes.csv", index=False)
        >>> homes = bnn.datasets.load_table("homes.csv", target="price")
        >>> bnn.datasets.load_features("homes.csv", homes.data.feature_names, encoder=homes.encoder).shape
        torch.Size([18, 3])
    """
    if encoder is None:
        columns: Mapping[str, Any] = {name: {} for name in feature_names}
        missing = "raise"
    else:
        columns, missing = encoder["columns"], encoder["missing"]
    texts = [name for name, column in columns.items() if "values" in column]
    inputs, _ = read_inputs(Path(path), list(columns), missing=missing, texts=texts)
    x = as_tensor(_encoded(inputs, encoder)[0], "x")
    check_inputs(x)
    return x


def _learned(table: Table, categories: str, missing: str, split: int) -> dict[str, Any]:
    """Return the encoder of the training part of a split."""
    from pyrobnn._core.columns import encoder_to_dict, make_encoder

    num_rows = len(table.inputs)
    rows, _ = random_split(Data(torch.arange(num_rows)[:, None], torch.zeros(num_rows)), split)
    return encoder_to_dict(
        make_encoder(table.inputs.iloc[single(rows.x, "A split")[:, 0].numpy()], categories, missing)
    )


def _encoded(inputs: Any, encoder: Mapping[str, Any] | None) -> tuple[np.ndarray, list[str]]:
    """Return columns as a matrix of numbers, with a name for each."""
    if encoder is None:
        return inputs.to_numpy(dtype=np.float64), list(inputs.columns)
    from pyrobnn._core.columns import encoded_names, encoder_from_dict

    fitted = encoder_from_dict(encoder)
    return np.asarray(fitted.transform(inputs), dtype=np.float64), encoded_names(fitted)
