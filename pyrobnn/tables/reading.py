"""Files as frames; names of columns without pandas, so that a mistake is named at once."""

import csv
import gzip
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrobnn._core.errors import MOST_LISTED, InputError, did_you_mean, listed
from pyrobnn._core.remedies import advised
from pyrobnn.tables.schema import Reading

if TYPE_CHECKING:
    import pandas as pd

LEAST_AMOUNT = 100  # median from which whole numbers that are not negative are amounts, not counts or classes
ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt", ".xlsx", ".parquet")
NAMELESS = "Unnamed: "  # so begins the name that pandas gives to a column without one, such as a saved index
_SEPARATORS = "\t;|,"  # in this order: a decimal comma makes commas as regular as separators
_SAMPLE = 20  # lines that tell the separator
_THOUSANDS = r"\s*([-+]?[1-9]\d{0,2}(\.\d{3})*|0)\s*"
_DAMAGED = (zlib.error, zipfile.BadZipFile, csv.Error)
_UNREADABLE = (ValueError, LookupError, OSError, EOFError, TypeError, ImportError, Warning, *_DAMAGED)


def ending(path: Path) -> str:
    """Return which of `ENDINGS` a path has, or nothing."""
    return next((suffix for suffix in ENDINGS if path.name.lower().endswith(suffix)), "")


def check_names(path: Path, wanted: Sequence[str], reading: Reading) -> None:
    """Refuse a file that does not exist, is no table or lacks these columns, from its first line alone."""
    if not path.is_file():
        raise InputError(f"There is no file {path}: check the path.")
    if not ending(path):
        raise InputError(f"{path} must end in {', '.join(ENDINGS)}: save the table as CSV or Parquet.")
    names = column_names(path, reading)
    if len(set(names)) < len(names):  # pandas renames them
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} has two columns with the name {twice!r}: rename one of them.")
    absent = [name for name in dict.fromkeys(wanted) if name not in names]
    if absent:
        others = [name for name in names if name not in wanted]
        hints = "".join(dict.fromkeys(did_you_mean(name, others) for name in absent[:MOST_LISTED]))
        sep = f" If they are one column, {advised('name the separator', 'data.sep=;')}." if len(names) == 1 else ""
        lacks = f"{path} has no column{'s' * (len(absent) > 1)} {listed(map(repr, absent))}"
        raise InputError(f"{lacks}.{hints} The columns of its first line: {listed(names)}.{sep}")


def column_names(path: Path, reading: Reading) -> list[str]:
    """Return the names of the columns from the first line or the schema alone."""
    if ending(path) == ".parquet":
        import pyarrow.parquet

        names = _readable(path, lambda: pyarrow.parquet.read_schema(path).names)
        return [name for name in names if not re.fullmatch(r"__index_level_\d+__", name)]
    if ending(path) == ".xlsx":
        import pandas as pd

        frame = _readable(path, lambda: pd.read_excel(path, header=None, nrows=1))
        first = [str(name) for name in frame.astype(object).where(frame.notna(), "").iloc[0]]
    else:
        first = _readable(path, lambda: _layout(path, reading)[1])
    if not first:
        raise InputError(f"{path} cannot be read as a table (it is empty): save it again as CSV or Parquet.")
    return [name.strip() or f"{NAMELESS}{i}" for i, name in enumerate(first)]


def read_file(path: Path, reading: Reading) -> "pd.DataFrame":
    """Return a whole file that has rows and sound names, with text where points may mark thousands."""
    import pandas as pd

    suffix = ending(path)
    if suffix == ".parquet":
        frame = _readable(path, lambda: pd.read_parquet(path)).reset_index(drop=True)
    else:
        frame = _readable(path, lambda: pd.read_excel(path) if suffix == ".xlsx" else _csv(path, reading))
    frame = frame.rename(columns=lambda name: str(name).strip())
    if frame.empty:
        raise InputError(f"{path} has no rows: pass a table with at least one row below the column names.")
    if odd := [name for name in frame.columns if "\0" in name]:
        raise InputError(f"{path} has a column with a null character, {odd[0]!r}: rename it.")
    if reading.decimal is None and suffix not in (".parquet", ".xlsx"):
        at = [i for i, kind in enumerate(frame.dtypes) if kind == "float64" and (frame.iloc[:, i] % 1 > 0).any()]
        for rows in (1000, None):  # the first leave few columns to read again
            texts = _csv(path, reading, dtype=str, nrows=rows) if at else frame
            at = [i for i in at if texts.iloc[:, i].dropna().str.fullmatch(_THOUSANDS).all()]
        for i in at:
            frame.isetitem(i, texts.iloc[:, i].array)
    return frame


def _csv(path: Path, reading: Reading, **options: Any) -> "pd.DataFrame":
    import pandas as pd

    options |= {"sep": _layout(path, reading)[0], "encoding": reading.encoding, "decimal": reading.decimal or "."}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # it says that values were lost
        return pd.read_csv(path, index_col=False, skipinitialspace=True, low_memory=False, **options)


def _layout(path: Path, reading: Reading) -> tuple[str, list[str]]:
    """Return the separator of a file of text, the one that splits its first lines alike, and its first line."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding=reading.encoding or "utf-8-sig", newline="") as file:
        sample = list(islice(filter(str.strip, file), _SAMPLE))
    known = _SEPARATORS if reading.sep is None else [reading.sep]
    rows = {by: [row for row in csv.reader(sample, delimiter=by, skipinitialspace=True) if row] for by in known}
    widths = {by: [len(row) for row in split] or [0] for by, split in rows.items()}
    regular = [by for by in known if len(set(widths[by])) == 1 and widths[by][0] > 1]
    separator = regular[0] if regular else max(reversed(known), key=lambda by: widths[by][0])
    return separator, (rows[separator] or [[]])[0]


def _readable[R](path: Path, read: Callable[[], R]) -> R:
    """Return what `read` reads from a file, or refuse the file in words."""
    try:
        return read()
    except UnicodeError as error:
        named = advised("name another", "data.encoding=cp1252")
        raise InputError(f"{path} is not text of this encoding ({error}): {named}.") from None
    except _UNREADABLE as error:
        why = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise InputError(f"{path} cannot be read as a table ({why}): mend it, or save it as CSV or Parquet.") from None
