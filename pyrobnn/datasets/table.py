"""Users' tables: files with a target column."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.checks import as_tensor, check_inputs
from pyrobnn._core.errors import counted
from pyrobnn.data.imputed import Imputer
from pyrobnn.data.in_memory import Data
from pyrobnn.data.leaks import leaks
from pyrobnn.data.splits import numbered, same_marks, split_rows, strata
from pyrobnn.datasets.base import Dataset, Encoding, test_share
from pyrobnn.datasets.outside import outside_most, outside_of, range_of
from pyrobnn.datasets.published import sha256
from pyrobnn.tables.cells import DATES, NUMBERS, TEXTS, expanded, learned_reading
from pyrobnn.tables.files import ending
from pyrobnn.tables.reading import Table, read_features, read_table
from pyrobnn.tables.texts import How, dates_in_words

if TYPE_CHECKING:
    import pandas as pd

    from pyrobnn.tables.encoder import Encoder


def load_table(
    path: str | Path,
    target: str,
    *,
    task: str | None = None,
    id: str | None = None,
    drop: Sequence[str] = (),
    categories: str = "onehot",
    missing: str = "raise",
    split: int = 0,
    test: float | None = None,
    groups: str | None = None,
    test_last: float | None = None,
    all_rows: bool = False,
) -> Dataset:
    """Return a file as a data set without published splits: CSV, Excel (.xlsx, if openpyxl is installed) or Parquet.

    All columns but the target are features: numbers and booleans, texts such as "1,234.50" as numbers, dates as days
    since the first one and as sine and cosine of the time of year, week and day, other text as categories. `notes` of
    the result say what was assumed. A target of text, booleans or at most 10 different integers makes a classification
    with the sorted values as classes, or with ordered categories in their order. More integers are amounts if their
    median is at least 100; below, `task` is required. Any other target makes a regression.

    Args:
        path: the file, .csv, .csv.gz, .tsv, .txt, .xlsx or .parquet, with column names in its first line.
        target: name of the target column.
        task: "regression" or "classification" to override the rule above, as for counts.
        id: a column that names the rows and is not a feature.
        drop: other columns that are not features.
        categories: how text becomes numbers, "onehot" (a column of 0 and 1 for each category) or "ordinal".
        missing: "raise" refuses missing values, "impute" leaves rows without a target out and draws missing numbers
            given the other columns, several times (`Dataset.split`); a column of 0 and 1 marks them, and missing text
            is a category.
        split: the split whose training part gives means and categories. Copies of a row stay in one part.
        test: share of the rows in the test part of a split; if not given, as `pyrobnn.datasets.base.test_share` has it.
        groups: a column whose groups of rows, such as patients, stay in one part; it is not a feature.
        test_last: share of the rows to test on in place of `test`, the last ones, for rows in the order of time.
        all_rows: take means and categories from all rows, and not only from those of the training part.

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
    left_out = [name for name in (*drop, groups) if name is not None]
    table = read_table(path, target, task=task, id_column=id, drop=left_out, missing=missing)
    features = table.features.columns.iloc[table.rows]
    y, labels = strata(table.target.values), None
    if groups is not None:
        labels = numbered(table.features.frame[groups].iloc[table.rows], len(y), groups)
    together = _copies(table) if labels is None else torch.from_numpy(labels)
    test = test_share(y) if test is None else test
    last = len(y) if test_last is None else len(y) - max(1, round(test_last * len(y)))
    splits = () if test_last is None else ((np.arange(last), np.arange(last, len(y))),)
    train = split_rows(together, y, test, seed=split)[0] if test_last is None else torch.arange(last)
    train = torch.arange(len(y)) if all_rows else train
    encoder = _learned(table, train, categories, missing)
    given = encoder_of(encoder).matrix(expanded(features, encoder["read"]))
    imputer = Imputer(given[train.numpy()], encoder_of(encoder).onehot())
    has_all = not (lacks := imputer.lacking(given).any(1)).any()
    x = imputer.copies(given, 1)[0]
    names = encoder_of(encoder).get_feature_names_out().tolist()
    whole, taught = train[~torch.from_numpy(lacks)[train]], features.iloc[train.numpy()]
    data = Data(x, table.target.values, standardize=True, feature_names=names, target_name=target, groups=labels)
    lines = (
        f"column {name!r}: read as {dates_in_words(how)}" for name, how in encoder["read"].items() if "start" in how
    )
    return Dataset(
        name=path.name.removesuffix(ending(path)),
        task=table.target.task,
        data=data,
        splits=splits,
        class_names=table.target.classes,
        source=str(path),
        licence="not stated",
        checksum=sha256(path),
        reason=table.target.reason,
        encoder=encoder,
        notes=(*table.features.notes, *lines),
        doubts=(*(leaks(data[whole]).values() if len(whole) else ()), *_constants(taught), *_gaps(taught)),
        groups=together,
        strata=y,
        numbers=table.rows + 1,
        test=test,
        given=None if has_all else given,
        imputer=imputer if imputer.categories or missing == "impute" else None,
        is_ordered=table.target.is_ordered,
    )


def load_features(path: str | Path, feature_names: Sequence[str], *, encoder: Encoding | None = None) -> Tensor:
    """Return the feature columns of a file, for prediction, read as in training; other columns are ignored.

    Args:
        path: the file, as for `load_table`.
        feature_names: the columns wanted, in this order: the columns of the training data.
        encoder: `Dataset.encoder` of the training data; it knows the columns of the file.

    Returns:
        Inputs of shape (N, features), float64; NaN where a number is missing.

    Raises:
        InputError: the file cannot be read, or a column is missing, of another kind than before, or has missing values.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"size": [50.0, 90.0] * 9, "kind": ["flat", "house"] * 9, "price": [1.5, 2.9] * 9})
        >>> frame.to_csv("homes.csv", index=False)
        >>> homes = bnn.datasets.load_table("homes.csv", target="price")
        >>> bnn.datasets.load_features("homes.csv", homes.data.feature_names, encoder=homes.encoder).shape
        torch.Size([18, 3])
    """
    return load_rows(path, feature_names, encoder).x


@dataclasses.dataclass(frozen=True, eq=False)
class NewRows:
    """The rows of a file for prediction: inputs (N, features) in float64, the whole table, and what was assumed.

    `outside` has for each row the columns whose value lies outside of what was learned, joined by ", "; None if the
    range of the training data is not known.
    """

    x: Tensor
    frame: "pd.DataFrame"
    outside: list[str] | None
    notes: tuple[str, ...]


def load_rows(path: str | Path, feature_names: Sequence[str], encoder: Encoding | None) -> NewRows:
    """Return what `load_features` does, and which values lie outside of the training data's range and categories."""
    unread: Encoding = {"categories": "onehot", "missing": "raise", "columns": {name: {} for name in feature_names}}
    stored = unread if encoder is None else encoder
    read: Mapping[str, How] = stored.get("read") or {
        name: {"kind": TEXTS if "values" in column else NUMBERS} for name, column in stored["columns"].items()
    }
    features = read_features(Path(path), read, missing=stored["missing"])
    columns = expanded(features.columns, read)
    x = as_tensor(encoder_of(stored).matrix(columns), "x")
    check_inputs(x.nan_to_num(nan=0.0))
    if encoder is None or "read" not in encoder:
        return NewRows(x, features.frame, None, features.notes)
    found = {name: outside_of(name, columns, how, encoder_of(encoder)) for name, how in read.items()}
    outside = [", ".join(filter(None, row)) for row in zip(*(one.marks for one in found.values()), strict=True)]
    return NewRows(x, features.frame, outside, (*features.notes, *outside_most(found)))


def _constants(columns: "pd.DataFrame") -> list[str]:
    """Return a line for each column that never varies in these rows."""
    same = [str(name) for name in columns if len(columns) > 1 and columns[name].nunique(dropna=False) == 1]
    values = {name: columns[name].iloc[0] for name in same}
    said = {name: f"{value:g}" if isinstance(value, float) else repr(str(value)) for name, value in values.items()}
    return [
        f"column {name!r}: {value} in all rows to train on, which teaches nothing: leave it out (--drop {quote(name)})"
        for name, value in said.items()
    ]


def _gaps(columns: "pd.DataFrame") -> list[str]:
    """Return a line for each column with missing values in these rows."""
    from pandas.api import types

    lines = []
    for name in map(str, columns):
        count = int(columns[name].isna().sum())
        kind = columns[name].dtype
        has_mean = types.is_numeric_dtype(kind) or types.is_datetime64_any_dtype(kind)
        filled = "drawn given the other columns" if has_mean else "taken as a category of their own"
        advice = f": leave it out if a fit without it is as good (--drop {quote(name)})"
        if count:
            where = f"missing in {count:,} of {counted(len(columns), 'row')} to train on"
            lines.append(f"column {name!r}: {where}, {filled}{advice if count > len(columns) / 4 else ''}")
    return lines


def _copies(table: Table) -> Tensor:
    """Return the group of each row with a target, (N,), which its copies share, from the cells as they were read."""
    import pandas as pd

    marks = pd.util.hash_pandas_object(table.features.frame[list(table.compared)].iloc[table.rows], index=False)
    return same_marks(torch.from_numpy(marks.to_numpy(copy=True).view(np.int64)))


def _learned(table: Table, rows: Tensor, categories: str, missing: str) -> Encoding:
    """Return the encoder that these rows teach."""
    from pyrobnn.tables.encoder import Encoder

    train = table.features.columns.iloc[table.rows[rows.numpy()]]
    read = learned_reading(train, table.features.how, categories)
    columns = expanded(train, read)
    for name, how in read.items():
        present = columns[f"{name} (days)" if how["kind"] == DATES else name].dropna()
        if how["kind"] != TEXTS and len(present):
            how["range"], how["margins"] = range_of(np.sort(present.to_numpy()))
    learned = Encoder.learn(columns, categories, missing, read=read)
    return {"categories": categories, "missing": missing, "columns": learned.columns, "read": read}


def encoder_of(stored: Encoding) -> "Encoder":
    """Return the encoder of a table, from what is stored of it."""
    from pyrobnn.tables.encoder import Encoder

    return Encoder(stored["categories"], stored["missing"], stored["columns"], stored.get("read", {}))
