"""Files of users' tables as frames of pandas; their names are read without it, so that a mistake is named at once."""

import csv
import gzip
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrobnn._core.errors import MOST_LISTED, InputError, did_you_mean, listed

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt", ".xlsx", ".parquet")
NAMELESS = "Unnamed: "
"""Start of the name that pandas gives to a column without one, such as a saved index."""
_SEPARATORS = "\t;|,"
"""In this order: a decimal comma makes commas as regular as separators."""
_SAMPLE = 20
"""Lines that tell the separator."""
_DATA_CELL = re.compile(r"[-+(]?\W?[\d.,/:-]*\d[\d.,/:-]*\W{0,2}")
_THOUSANDS = r"\s*[-+]?[1-9]\d{0,2}(\.\d{3})*\s*|\s*0\s*"


class Dialect(NamedTuple):
    """How a file of text is written. None leaves the separator to its first lines, and is a point, and UTF-8."""

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None


def ending(path: Path) -> str:
    """Return which of `ENDINGS` a path has, or nothing."""
    return next((suffix for suffix in ENDINGS if path.name.lower().endswith(suffix)), "")


def check_names(path: Path, wanted: Sequence[str], dialect: Dialect = Dialect()) -> None:  # noqa: B008
    """Refuse a file that does not exist, is no table or lacks these columns, from its first line alone."""
    if not path.is_file():
        raise InputError(f"There is no file {path}: check the path.")
    if not ending(path):
        raise InputError(f"{path} must end in {', '.join(ENDINGS)}: save the table as CSV or Parquet.")
    require(wanted, column_names(path, dialect), path)


def require(wanted: Sequence[str], names: Sequence[str], path: Path) -> None:
    """Refuse a file without these columns."""
    absent = [name for name in dict.fromkeys(wanted) if name not in names]
    if not absent:
        return
    others = [name for name in names if name not in wanted]
    lacks = f"{path} has no column{'s' * (len(absent) > 1)} {listed(map(repr, absent))}"
    hints = "".join(dict.fromkeys(did_you_mean(name, others) for name in absent[:MOST_LISTED]))
    if not hints and looks_like_data(names):
        raise InputError(f"{lacks}, and its first row looks like data ({listed(names)}): add a line of names above it.")
    sep = " If they are one column, name the separator (--sep)." if len(names) == 1 else ""
    raise InputError(f"{lacks}.{hints} Its columns: {listed(names)}.{sep}")


def looks_like_data(names: Sequence[str]) -> bool:
    """Return whether at least half of the names are numbers or dates."""
    return 2 * sum(bool(_DATA_CELL.fullmatch(name.strip())) for name in names) >= len(names)


def column_names(path: Path, dialect: Dialect = Dialect()) -> list[str]:  # noqa: B008
    """Return the names of the columns, as `read_file` has them, from the first line or the schema alone."""
    if ending(path) == ".parquet":
        import pyarrow.parquet

        names = _read(path, lambda: pyarrow.parquet.read_schema(path).names)
        return [name for name in names if not re.fullmatch(r"__index_level_\d+__", name)]
    return [name or f"{NAMELESS}{i}" for i, name in enumerate(_first_row(path, dialect))]


def read_file(path: Path, dialect: Dialect) -> tuple["pd.DataFrame", list[str]]:
    """Return the whole file, and its columns of decimals whose points may be for thousands.

    A file without rows, or with names that files cannot hold, is refused.
    """
    import pandas as pd

    suffix = ending(path)
    if suffix == ".parquet":
        frame = _read(path, lambda: pd.read_parquet(path)).rename(columns=str).reset_index(drop=True)
        given = list(frame.columns)
    else:
        given = list(filter(None, _first_row(path, dialect)))
        frame = _read(path, lambda: _excel(path) if suffix == ".xlsx" else _csv(path, dialect))
        frame = frame.rename(columns=lambda name: str(name).strip())
    if frame.empty:
        raise InputError(f"{path} has no rows: pass a table with at least one row below the column names.")
    if twice := [name for name, count in Counter(given).items() if count > 1]:  # pandas renames them
        raise InputError(f"{path} has two columns with the name {twice[0]!r}: rename one of them.")
    if odd := [name for name in frame.columns if "\0" in name]:
        raise InputError(f"{path} has a column with a null character, {odd[0]!r}: rename it.")
    is_open = dialect.decimal is None and suffix not in (".parquet", ".xlsx")
    return frame, _open_points(frame, path, dialect) if is_open else []


def _open_points(frame: "pd.DataFrame", path: Path, dialect: Dialect) -> list[str]:
    """Return the columns of decimals whose texts all are such as 567 and 1.468, with three digits behind a point."""
    may = []
    for place, name in enumerate(frame.columns):
        values = frame[name].dropna().abs() if frame[name].dtype == "float64" else frame[name][:0]
        if len(values) and (values % 1).any() and ((values == 0) | (values >= 1) & (values < 1000)).all():
            may += [place] * bool((((values * 1000) % 1 + 1e-6) % 1 < 2e-6).all())
    if not may:
        return []
    texts = _csv(path, dialect, dtype=str)
    return [frame.columns[at] for at in may if texts.iloc[:, at].dropna().str.fullmatch(_THOUSANDS).all()]


def _csv(path: Path, dialect: Dialect, **options: Any) -> "pd.DataFrame":
    import pandas as pd

    sep, encoding = dialect.sep or _layout(path, dialect)[0], dialect.encoding
    given: dict[str, Any] = {"sep": sep, "encoding": encoding, "decimal": dialect.decimal or "."}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # it says that values were lost
        try:
            return pd.read_csv(path, index_col=False, skipinitialspace=True, low_memory=False, **given, **options)
        except pd.errors.ParserWarning:
            raise InputError(
                f"{path} has more values in its rows than names in its first line: give each column a name."
            ) from None
        except pd.errors.ParserError as error:
            reason = str(error).rpartition("error: ")[2].strip()
            raise InputError(f"{path} cannot be read as a table: {reason}: mend the line, or quote its text.") from None


def _excel(path: Path, **options: Any) -> "pd.DataFrame":
    import pandas as pd

    if find_spec("openpyxl") is None:
        raise InputError(f"{path} is an Excel file, which openpyxl reads: install it, or save the table as CSV.")
    return pd.read_excel(path, engine="openpyxl", **options)


def _first_row(path: Path, dialect: Dialect) -> list[str]:
    """Return the names in the first line of a file of text or of Excel, as they are."""
    if ending(path) == ".xlsx":
        frame = _read(path, lambda: _excel(path, header=None, nrows=1))
        first = [str(name) for name in frame.astype(object).where(frame.notna(), "").iloc[0]]
    else:
        first = _read(path, lambda: _layout(path, dialect)[1])
    if not first:
        raise InputError(f"{path} cannot be read as a table (it is empty): save it again as CSV or Parquet.")
    return [name.strip() for name in first]


def _layout(path: Path, dialect: Dialect) -> tuple[str, list[str]]:
    """Return the separator of a file of text, the one that splits its first lines alike, and its first line."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding=dialect.encoding or "utf-8-sig", newline="") as file:
        sample = list(islice(filter(str.strip, file), _SAMPLE))
    known = _SEPARATORS if dialect.sep is None else [dialect.sep]
    rows = {by: [row for row in csv.reader(sample, delimiter=by, skipinitialspace=True) if row] for by in known}
    widths = {by: [len(row) for row in split] for by, split in rows.items()}
    regular = [by for by in known if len(set(widths[by])) == 1 and widths[by][0] > 1]
    separator = regular[0] if regular else max(reversed(known), key=lambda by: (widths[by] or [0])[0])
    return separator, (rows[separator] or [[]])[0]


def _read[R](path: Path, read: Callable[[], R]) -> R:
    try:
        return read()
    except InputError:
        raise
    except UnicodeError as error:
        reason = f"its text is not {error.encoding.upper()}" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path}: {reason}: name its encoding, such as --encoding cp1252 or utf-16.") from None
    except (ValueError, LookupError, OSError, EOFError, TypeError, zlib.error, zipfile.BadZipFile, csv.Error) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise InputError(f"{path} cannot be read as a table ({reason}): save it again as CSV or Parquet.") from None
