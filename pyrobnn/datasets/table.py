"""Users' tables: files with a target column."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import counted
from pyrobnn._core.remedies import advised
from pyrobnn.data.imputed import Imputer
from pyrobnn.data.in_memory import Data, leaks
from pyrobnn.data.splits import groups_of_hashes, numbered, split_rows, strata
from pyrobnn.datasets.base import Dataset, test_share
from pyrobnn.datasets.published import sha256
from pyrobnn.tables import Reading, Table, read
from pyrobnn.tables.column_reader import teaches_nothing
from pyrobnn.tables.reading import ending

if TYPE_CHECKING:
    import pandas as pd

_LEAKS = {"copy": "gives the target away", "row number": "numbers the rows"}


def load_table(
    path: str | Path,
    target: str,
    *,
    task: str | None = None,
    id: str | None = None,
    drop: Sequence[str] = (),
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    categories: str | Sequence[str] = "onehot",
    missing: str = "raise",
    split: int = 0,
    test: float | None = None,
    groups: str | None = None,
    test_last: float | None = None,
    all_rows: bool = False,
) -> Dataset:
    """Return a file as a data set without published splits.

    All columns but the target are features, read as by `pyrobnn.tables.read`: numbers and booleans, texts such as
    "1,234.50" as numbers, dates as days since the first one and as sine and cosine of the time of year, week and day,
    other text as categories. `notes` of the result say what was assumed. A target of text, booleans or at most 10
    different integers makes a classification with the sorted values as classes, or with ordered categories in their
    order. More integers are amounts if their median is at least 100; below, `task` is required. Any other target makes
    a regression.

    Args:
        path: the file, as `pyrobnn.tables.read` takes it.
        target: name of the target column.
        task: "regression" or "classification" to override the rule above, as for counts.
        id: a column that names the rows and is not a feature.
        drop: other columns that are not features.
        sep: what separates the columns of a file of text, if its first lines do not tell.
        decimal: "," where commas mark decimals.
        encoding: of a file of text that is not UTF-8, such as "cp1252".
        categories: "onehot" or "ordinal", and columns of numbers that are categories, such as ["zip"].
        missing: "raise", or "impute" to draw missing numbers given the other columns, several times (`Dataset.split`);
            a column of 0 and 1 marks them.
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
        >>> homes.encoder.transform("homes.csv").shape  # the columns of new rows, for prediction
        (18, 3)
    """
    given: dict[str, Any] = {"target": target, "task": task, "id": id, "drop": drop, "groups": groups, "sep": sep}
    given |= {"decimal": decimal, "encoding": encoding, "categories": categories, "missing": missing}
    return dataset_of(path, Reading(**given), split=split, test=test, test_last=test_last, all_rows=all_rows)


def dataset_of(
    path: str | Path, reading: Reading, *, split: int, test: float | None, test_last: float | None, all_rows: bool
) -> Dataset:
    """Return a file as a data set, as `load_table` does with the settings of a reading as its arguments."""
    from pyrobnn.tables.encoder import Encoder

    path, groups = Path(path), reading.groups
    table = read(path, reading)
    found = table.target
    assert found is not None  # a target was named
    features = table.columns.iloc[table.rows]
    y = strata(found.values)
    labels = None if groups is None else numbered(table.frame[groups].iloc[table.rows], len(y), groups)
    together = _copies(table) if labels is None else torch.from_numpy(labels)
    copies = len(y) - len({*zip(together.tolist(), found.values.tolist(), strict=True)}) if labels is None else 0
    test = test_share(y) if test is None else test
    last = len(y) if test_last is None else len(y) - max(1, round(test_last * len(y)))
    splits = () if test_last is None else ((np.arange(last), np.arange(last, len(y))),)
    train = split_rows(together, y, test, seed=split)[0] if test_last is None else torch.arange(last)
    train = torch.arange(len(y)) if all_rows else train
    taught = features.iloc[train.numpy()]
    encoder = Encoder.learn(taught, table)
    given = encoder.matrix(features)
    imputer = Imputer(given[train.numpy()], encoder.onehot())
    has_all = not (lacks := imputer.lacking(given).any(1)).any()
    names = encoder.get_feature_names_out().tolist()
    x = imputer.copies(given, 1)[0]
    data = Data(x, found.values, standardize=True, feature_names=names, target_name=str(reading.target), groups=labels)
    whole = train[~torch.from_numpy(lacks)[train]]
    leaky = leaks(data[whole], encoder.positions()) if len(whole) else {}
    doubts = [
        f"Column {name!r} {_LEAKS[kind]}: {advised('leave it out', f'data.drop={json.dumps([name])}')}."
        for name, kind in leaky.items()
    ]
    return Dataset(
        name=path.name.removesuffix(ending(path)),
        task=found.task,
        data=data,
        splits=splits,
        class_names=found.classes,
        source=str(path),
        licence="not stated",
        checksum=sha256(path),
        reason=found.reason,
        encoder=encoder,
        notes=(*table.notes, *encoder.notes, *[f"{counted(copies, 'row')} given again: in one part"] * bool(copies)),
        described=table.described,
        doubts=(*doubts, *_doubts(taught, table)),
        groups=together,
        strata=y,
        numbers=table.rows + 1,
        test=test,
        given=None if has_all else given,
        imputer=imputer if imputer.categories or reading.missing == "impute" else None,
        is_ordered=found.is_ordered,
    )


def _doubts(columns: "pd.DataFrame", table: Table) -> list[str]:
    """Return a line for each column that never varies in these rows, and for each of numbers or dates with gaps."""
    constants, gaps = list[str](), list[str]()
    for name, schema in table.schema.items():
        column, without = columns[name], f"data.drop={json.dumps([name])}"
        if len(column) > 1 and column.nunique(dropna=False) == 1:
            value = f"{column.iloc[0]:g}" if isinstance(column.iloc[0], float) else repr(str(column.iloc[0]))
            advice = advised(", which teaches nothing: leave it out", without)
            constants.append(f"column {name!r}: {value} in all rows to train on{advice}")
        num_gaps = 0 if schema.kind == "categories" else int(column.isna().sum())
        if num_gaps > 0:
            of_rows = f"{num_gaps:,} of {counted(len(column), 'row')} to train on"
            is_often = num_gaps > len(column) / 4
            advice = advised(": leave it out if a fit without it is as good", without) if is_often else ""
            gaps.append(f"column {name!r}: missing in {of_rows}, drawn given the other columns{advice}")
    return [*constants, *gaps]


def _copies(table: Table) -> Tensor:
    """Return the group of each row with a target, (N,), which its copies share, from the cells as they were read.

    Columns that name the rows tell nothing.
    """
    import pandas as pd

    others = (name for name in table.frame if name != table.reading.target)
    compared = [name for name in others if not teaches_nothing(table.frame[name])]
    hashes = pd.util.hash_pandas_object(table.frame[compared].iloc[table.rows], index=False)
    return groups_of_hashes(torch.from_numpy(hashes.to_numpy(copy=True).view("int64")))
