"""Files of users' tables: separator, encoding, names and cells, read without torch."""

import codecs
import csv
import dataclasses
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
from typing import TYPE_CHECKING, Any

from pyrobnn._core.errors import MOST_LISTED, InputError, did_you_mean, listed

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt", ".xlsx", ".parquet")
_SEPARATORS = "\t;|,"
"""In this order: a decimal comma makes commas as regular as separators."""
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Byte-order marks, and the encodings that they announce."""
_SAMPLE = 20
"""Lines that tell the separator."""
_MOST = 1000
"""Different texts of a column that tell whether commas mark decimals."""
_DATA_CELL = re.compile(r"[-+(]?\W?[\d.,/:-]*\d[\d.,/:-]*\W{0,2}")


@dataclasses.dataclass(frozen=True, eq=False)
class Sheet:
    """The cells of a file, as pandas reads them, and what was assumed; `first_row` is its number in messages."""

    frame: "pd.DataFrame"
    decimal_comma: bool
    notes: tuple[str, ...]
    first_row: int = 1


def ending(path: Path) -> str:
    """Return which of `ENDINGS` a path has, or nothing."""
    return next((suffix for suffix in ENDINGS if path.name.lower().endswith(suffix)), "")


def check_names(path: Path, wanted: Sequence[str]) -> None:
    """Refuse a file that does not exist, is no table or lacks these columns, from its first line alone."""
    if not path.is_file():
        raise InputError(f"There is no file {path}: check the path.")
    if not ending(path):
        raise InputError(f"{path} must end in {', '.join(ENDINGS)}: save the table as CSV or Parquet.")
    require(wanted, column_names(path), path)


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
    raise InputError(f"{lacks}.{hints} Its columns: {listed(names)}.")


def looks_like_data(names: Sequence[str]) -> bool:
    """Return whether at least half of the names are numbers or dates."""
    return 2 * sum(bool(_DATA_CELL.fullmatch(name.strip())) for name in names) >= len(names)


def column_names(path: Path) -> list[str]:
    """Return the names of the columns, as `read_sheet` has them, from the first line or the schema alone."""
    if ending(path) == ".parquet":
        import pyarrow.parquet

        names = _read(path, lambda: pyarrow.parquet.read_schema(path).names)
        return [name for name in names if not re.fullmatch(r"__index_level_\d+__", name)]
    seen: Counter[str] = Counter()
    names = []
    for i, name in enumerate(_first_row(path)):
        plain = name or f"Unnamed: {i}"
        names.append(f"{plain}.{seen[plain]}" if seen[plain] else plain)
        seen[plain] += 1
    return names


def read_sheet(path: Path) -> Sheet:
    """Return the whole file; refuse a file without rows, or with names that files cannot hold."""
    import pandas as pd

    separator = encoding = ""
    if ending(path) == ".parquet":
        frame = _read(path, lambda: pd.read_parquet(path)).rename(columns=str).reset_index(drop=True)
        given: list[str] = list(frame.columns)
    else:
        given = list(filter(None, _first_row(path)))
        if ending(path) != ".xlsx":
            separator, encoding, _ = _read(path, lambda: _layout(path))
        frame = _read(path, lambda: _csv(path, separator, encoding) if separator else _excel(path))
        frame = frame.rename(columns=lambda name: str(name).strip())
    if frame.empty:
        raise InputError(f"{path} has no rows: pass a table with at least one row below the column names.")
    twice = next((name for name, count in Counter(given).items() if count > 1), None)  # pandas renames them
    if twice is not None:
        raise InputError(f"{path} has two columns with the name {twice!r}: rename one of them.")
    odd = next((name for name in frame.columns if "\0" in name), None)
    if odd is not None:
        raise InputError(f"{path} has a column with a null character, {odd!r}: rename it.")
    notes = (f"{path}: its text is not UTF-8, and was read as Windows text (cp1252).",) if encoding == "cp1252" else ()
    has_commas = has_decimal_commas(frame)
    if has_commas and separator:
        _restore_points(frame, path, separator, encoding)
    return Sheet(frame, has_commas or separator == ";", notes)


def has_decimal_commas(frame: "pd.DataFrame") -> bool:
    """Return whether a column has numbers whose commas can only mark decimals."""
    from pandas.api.types import infer_dtype

    from pyrobnn.tables.texts import read_numbers

    texts = (frame[name].dropna() for name in frame.columns if infer_dtype(frame[name], skipna=True) == "string")
    commas = (column for column in texts if column.str.contains(",", regex=False).any())
    return any(read_numbers(column.drop_duplicates()[:_MOST])[0].decimal == "," for column in commas)


def _restore_points(frame: "pd.DataFrame", path: Path, separator: str, encoding: str) -> None:
    """Put back the text of columns like 1.022, which pandas reads as decimals: beside decimal commas they are not."""
    columns = [name for name in frame.columns if frame[name].dtype == "float64"]
    if not columns:
        return
    texts = _csv(path, separator, encoding, dtype=str).rename(columns=str.strip)[columns]
    for name in columns:
        present = texts[name].dropna()
        has_points = present.str.contains(".", regex=False).any()
        if has_points and present.str.fullmatch(r"\s*[-+]?\d{1,3}(\.\d{3})*\s*").all():
            frame[name] = texts[name]


def _csv(path: Path, separator: str, encoding: str, **options: Any) -> "pd.DataFrame":
    import pandas as pd

    given: dict[str, Any] = {"sep": separator, "encoding": encoding, "skipinitialspace": True, "low_memory": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # it says that values were lost
        try:
            return pd.read_csv(path, index_col=False, **given, **options)
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


def _first_row(path: Path) -> list[str]:
    """Return the names in the first line of a file of text or of Excel, as they are."""
    if ending(path) == ".xlsx":
        frame = _read(path, lambda: _excel(path, header=None, nrows=1))
        first = [str(name) for name in frame.astype(object).where(frame.notna(), "").iloc[0]]
    else:
        first = _read(path, lambda: _layout(path)[2])
    if not first:
        raise InputError(f"{path} cannot be read as a table (it is empty): save it again as CSV or Parquet.")
    return [name.strip() for name in first]


def _layout(path: Path) -> tuple[str, str, list[str]]:
    """Return separator, encoding and first line of a file of text."""
    encoding = _encoding(path)
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding=encoding, newline="") as file:
        sample = list(islice(filter(str.strip, file), _SAMPLE))
    rows = {by: [row for row in csv.reader(sample, delimiter=by, skipinitialspace=True) if row] for by in _SEPARATORS}
    widths = {by: [len(row) for row in split] for by, split in rows.items()}
    regular = [by for by in _SEPARATORS if len(set(widths[by])) == 1 and widths[by][0] > 1]
    separator = regular[0] if regular else max(reversed(_SEPARATORS), key=lambda by: (widths[by] or [0])[0])
    return separator, encoding, (rows[separator] or [[]])[0]


def _encoding(path: Path) -> str:
    """Return the encoding that a byte-order mark announces, or UTF-8 if the file is, or else that of Windows."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rb") as file:
        block = file.read(2**20)
        for mark, encoding in _MARKS.items():
            if block.startswith(mark):
                return encoding
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while block:
                decoder.decode(block)
                block = file.read(2**20)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8"


def _read[R](path: Path, read: Callable[[], R]) -> R:
    try:
        return read()
    except InputError:
        raise
    except (ValueError, LookupError, OSError, EOFError, zlib.error, zipfile.BadZipFile, csv.Error) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise InputError(f"{path} cannot be read as a table ({reason}): save it again as CSV or Parquet.") from None
