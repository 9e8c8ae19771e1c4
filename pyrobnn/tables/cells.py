"""Columns of users' tables as numbers, dates or text, with the rows that cannot be read."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyrobnn._core.errors import InputError, counted, listed
from pyrobnn.tables.files import Sheet
from pyrobnn.tables.texts import How, date_columns, dates_of, in_utc, learned_dates, one_zone, read_numbers

if TYPE_CHECKING:
    import pandas as pd

NUMBERS, DATES, TEXTS = "numbers", "dates", "texts"
"""Kinds of columns."""
MARK = "missingindicator_"
"""Start of the name of a column of 0 and 1 that marks where a number is missing."""
NAMELESS = "Unnamed: "
"""Start of the name that pandas gives to a column without one, such as a saved index."""
MOST_CATEGORIES = 20
"""Different texts that a column may always hold; more must come back in every second row, else they are names."""
_MOST_NUMBERS = 20
"""Different numbers that a column of categories may hold."""
_MOST_NAMED_ROWS = 5
_MOST_WORDS = 3
"""Texts that a message names."""


def with_marks(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of each column by its name, with the column that marks where it is missing."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        of = name.removeprefix(MARK)
        found.setdefault(of if of in found else name, []).append(place)
    return found


def input_name(made: str, column: str) -> str:
    """Return the name of an input, made from a column, in words: "'area' is missing" or "heating: gas"."""
    if made == f"{MARK}{column}":
        return f"{column!r} is missing"
    return f"{column}: {category_name(made, column)}" if made.startswith((f"{column}_", f"{column}=")) else made


def category_name(made: str, column: str) -> str:
    """Return the category that an input of 0 and 1, made from a column, stands for."""
    name = made.removeprefix(column).strip("=_ ")
    return "missing" if name == "None" else name


def rows_of(chosen: Any, first: int = 1) -> str:
    """Return which rows a mask has, counted from 1 below the names of the columns, or from another number."""
    numbers = [str(first + i) for i in np.flatnonzero(np.asarray(chosen, dtype=bool))]
    if len(numbers) == 1:
        return f"row {numbers[0]}"
    listed = ", ".join(numbers[:_MOST_NAMED_ROWS])
    more = len(numbers) - _MOST_NAMED_ROWS
    return f"rows {listed} and {more} more" if more > 0 else f"rows {listed}"


def refuse_missing(column: Any, label: str, advice: str) -> None:
    """Refuse a column with gaps."""
    gaps = column.isna()
    if gaps.any():
        raise InputError(f"{label} has {counted(int(gaps.sum()), 'missing value')}, in {rows_of(gaps)}: {advice}.")


class Read(NamedTuple):
    """A column with texts as numbers or dates where they are, how it was read, and a line about it, if any."""

    column: "pd.Series"
    how: How
    line: str


def read_cells(
    sheet: Sheet, name: str, label: str, before: How | None, *, words: bool = False, advice: str
) -> Read:  # fmt: skip
    """Return a column as numbers, dates or text.

    `label` is the column in messages, `before` how it was read in training, or None. `words` tells whether words among
    numbers or dates count as missing; in prediction only those without a digit. `advice` is what else to do.
    """
    import pandas as pd

    column, expected = sheet.frame[name], None if before is None else before["kind"]
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if expected == TEXTS:
        return Read(column, {"kind": TEXTS}, "")
    if column.isna().all() and (before is not None or kind == "string"):
        column, kind = pd.Series(np.nan, index=column.index), "datetime" if expected == DATES else "empty"
    if kind in ("date", "datetime", "datetime64") and expected != NUMBERS:
        zone = one_zone(column if column.dtype == object else column.dropna()[:1], before, label)
        return Read(in_utc(pd.to_datetime(column, utc=True)), {"kind": DATES, "zone": zone}, "")
    if kind not in ("string", "mixed", "mixed-integer"):
        if expected == DATES and column.notna().any():
            raise InputError(f"{label} held dates in training, and now {column.dropna().iloc[0]}: write it alike.")
        return Read(column, {"kind": NUMBERS}, "")
    texts = column.map(str, na_action="ignore")
    read = None if expected == DATES else _read_numbers(texts, before, comma=sheet.decimal_comma)
    read = _read_dates(texts, before, label) if read is None else read
    if read is None:
        return Read(column, {"kind": TEXTS}, "")
    strange = texts.notna() & read.column.isna()
    known = set() if before is None else set(before.get("words", ()))
    is_other = before is not None and expected == NUMBERS and read.column.isna().all() and strange.sum() > _MOST_WORDS
    if words and not is_other:
        known.update(text for text in texts.dropna() if before is None or not any(map(str.isdigit, text)))
    most = "numbers, but text" if read.how["kind"] == NUMBERS else "dates, but other text"
    refuse_words(texts, strange & ~texts.isin(known), label, most, advice, first=sheet.first_row)
    line = read.line
    if strange.any():
        read.how["words"] = found = list(texts[strange].value_counts().index)
        shown = " and ".join(map(repr, found[:_MOST_WORDS])) + (" and others" if len(found) > _MOST_WORDS else "")
        gaps = f"{shown} in {rows_of(strange, sheet.first_row)} counted as missing"
        line = f"{line}; {gaps}" if line else gaps
    return read._replace(line=f"column {name!r}: {line}" if line else "")


def _read_numbers(texts: "pd.Series", before: How | None, *, comma: bool) -> Read | None:
    """Return texts as numbers, NaN where they are none; None for a new column of categories or words."""
    decimal = None if before is None else before.get("decimal")
    form, numbers = read_numbers(texts, comma=comma, decimal=decimal)
    are_most = 2 * numbers.notna().sum() >= texts.notna().sum()
    if before is None and not are_most and numbers.nunique() <= max(_MOST_NUMBERS, texts[numbers.isna()].nunique()):
        return None
    is_whole = not (numbers.isna().any() or texts.str.contains(form.decimal, regex=False, na=False).any())
    line = f"read as numbers{form.in_words}" if form.in_words and decimal is None else ""
    return Read(numbers.astype(np.int64) if is_whole else numbers, {"kind": NUMBERS, "decimal": form.decimal}, line)


def _read_dates(texts: "pd.Series", before: How | None, label: str) -> Read | None:
    """Return texts as dates, missing where they are none; None where less than half of a new column are dates."""
    try:
        dates, form = dates_of(texts, None if before is None else before.get("format"))
    except InputError as error:
        raise InputError(f"{label} holds {error}") from None
    if before is None and 2 * (texts.notna() & dates.isna()).sum() >= texts.notna().sum():
        return None
    zone = one_zone(texts[dates.notna()], before, label)
    return Read(dates, {"kind": DATES, "format": form, "zone": zone}, "")


def refuse_words(
    texts: "pd.Series", strange: "pd.Series", label: str, most: str, advice: str, *, first: int = 1
) -> None:
    """Refuse cells that are not like most of a column; `most` says what those are, and what the others are."""
    if not strange.any():
        return
    gaps, listed = int(texts.isna().sum()), " and ".join(map(repr, texts[strange].value_counts().index[:_MOST_WORDS]))
    empty = f" ({gaps} more {'is' if gaps == 1 else 'are'} empty)" if gaps else ""
    kind = most.partition(",")[0]
    raise InputError(
        f"{label} holds {most} in {rows_of(strange, first)}, such as {listed}{empty}: turn it into {kind}, or {advice}."
    )


def learned_reading(columns: "pd.DataFrame", how: Mapping[str, How], categories: str) -> dict[str, How]:
    """Return how columns are read, with what these rows teach about dates; only numbers of categories have an order."""
    read = {name: one.copy() for name, one in how.items()}
    for name, one in read.items():
        if one["kind"] == DATES:
            one["start"], one["phases"] = learned_dates(columns[name])
        elif categories != "ordinal":
            one.pop("order", None)
    return read


def order_of(values: Any) -> list[Any] | None:
    """Return the categories of an ordered categorical, or of a frame of one, from first to last; None for others."""
    values = values.to_pandas() if hasattr(values, "to_pandas") else values
    kind: Any = getattr(values.iloc[:, 0] if hasattr(values, "columns") else values, "dtype", None)
    return [*kind.categories] if getattr(kind, "ordered", False) else None


def require_order(labels: Sequence[Any], num: int | None, *, is_ordered: bool) -> None:
    """Refuse labels for a likelihood of `num` ordered ones: texts without an order, and others than there are."""
    if num is not None and not is_ordered and len(labels) > 2 and isinstance(labels[0], str):
        raise InputError(
            f"Ordered labels need an order, and texts such as {labels[0]!r} and {labels[1]!r} have none: pass ordered "
            "categories, pd.Categorical(y, [first, ..., last], ordered=True), or the numbers 0, 1, ..."
        )
    if num not in (None, len(labels)):
        raise InputError(
            f"The likelihood has {num} ordered labels, got {len(labels)}: set `num_classes` to their number."
        )


def expanded(columns: "pd.DataFrame", read: Mapping[str, How]) -> "pd.DataFrame":
    """Return columns with those of dates, and of ordered categories, as numbers."""
    import pandas as pd

    made: dict[str, pd.Series] = {}
    for name, how in read.items():
        column = _places(columns[name], name, how["order"]) if "order" in how else columns[name]
        new = date_columns(column, name, how) if how["kind"] == DATES else {name: column}
        if twice := sorted(made.keys() & new.keys()):
            raise InputError(f"The table has a column {twice[0]!r}, and its dates make one of this name: rename it.")
        made |= new
    return pd.DataFrame(made)


def _places(column: "pd.Series", name: str, order: Sequence[Any]) -> "pd.Series":
    """Return the places of values in their order, NaN where they are missing."""
    places = column.map({value: float(place) for place, value in enumerate(order)}).astype(np.float64)
    odd = column[column.notna() & places.isna()]
    if len(odd):
        raise InputError(f"Column {name!r} holds {odd.iloc[0]!r}, and its order is {listed(order, ' < ')}: use those.")
    return places


def names_rows(sheet: Sheet, name: str) -> bool:
    """Return whether a column has a name for each row: all different, and neither numbers nor dates."""
    import pandas as pd

    column = sheet.frame[name]
    if name.startswith(NAMELESS):
        return True
    if not column.is_unique or pd.api.types.infer_dtype(column) != "string":
        return False
    try:
        return read_cells(sheet, name, name, None, words=True, advice="")[1]["kind"] == TEXTS
    except InputError:  # not one kind of cells
        return False


def require_repeated(column: "pd.Series", name: str, others: str) -> None:
    """Refuse text that is no category: nearly different in each row, such as names; `others` are more remedies."""
    present = column.dropna()
    count = present.nunique()
    if count > MOST_CATEGORIES and count > len(present) / 2:
        raise InputError(
            f"Column {name!r} holds {count} different texts in {len(column)} rows, such as {present.iloc[0]!r}, which "
            f"are no categories: turn it into numbers (such as 12.5 or 1,234.50, without a unit) or dates, {others}."
        )


def teaches_nothing(sheet: Sheet, name: str) -> str:
    """Return why nothing can be learned from a column, in words; empty where something may be."""
    if name.startswith(NAMELESS):
        return "it has no name, as a saved index"
    column = sheet.frame[name]
    if column.isna().all():
        return "no value in any row"
    are_names = names_rows(sheet, name) and column.dropna().str.match(r"\W?\d").mean() <= 1 / 2  # else amounts
    return f"a text of its own in each of {len(column)} rows" if are_names else ""
