"""Columns of users' tables as numbers, dates or text, with the rows that cannot be read."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.errors import InputError, counted
from pyrobnn.tables.files import Sheet
from pyrobnn.tables.texts import date_columns, dates_of, learned_dates, read_numbers, without_zone

if TYPE_CHECKING:
    import pandas as pd

How = Mapping[str, Any]
"""How a column was read, in JSON's types; `kind` is one of the following."""
NUMBERS, DATES, TEXTS = "numbers", "dates", "texts"

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
    return (
        f"rows {listed}"
        if len(numbers) <= _MOST_NAMED_ROWS
        else f"rows {listed} and {len(numbers) - _MOST_NAMED_ROWS} more"
    )


def refuse_missing(column: Any, label: str, advice: str) -> None:
    """Refuse a column with gaps."""
    gaps = column.isna()
    if gaps.any():
        raise InputError(f"{label} has {counted(int(gaps.sum()), 'missing value')}, in {rows_of(gaps)}: {advice}.")


def read_cells(
    sheet: Sheet, name: str, label: str, before: How | None, *, words: bool = False, advice: str
) -> tuple["pd.Series", dict[str, Any], str]:
    """Return a column with texts as numbers or dates where they are, how it was read, and a line about it.

    `label` is the column in messages, `before` how it was read in training, or None. `words` tells whether words among
    numbers or dates count as missing; in prediction only those without a digit. `advice` is what else to do.
    """
    import pandas as pd

    column, expected = sheet.frame[name], None if before is None else before["kind"]
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if expected == TEXTS:
        return column, {"kind": TEXTS}, ""
    if column.isna().all() and (before is not None or kind == "string"):
        column, kind = pd.Series(np.nan, index=column.index), "datetime" if expected == DATES else "empty"
    if kind in ("date", "datetime", "datetime64") and expected != NUMBERS:
        return without_zone(pd.to_datetime(column, utc=True)), {"kind": DATES}, ""
    if kind not in ("string", "mixed", "mixed-integer"):
        if expected == DATES and column.notna().any():
            raise InputError(f"{label} held dates in training, and now {column.dropna().iloc[0]}: write it alike.")
        return column, {"kind": NUMBERS}, ""
    texts = column.map(str, na_action="ignore")
    known = {*(before or {}).get("words", ()), *(_as_words(texts, before) if words else ())}
    if expected != DATES:
        form, numbers = read_numbers(texts, comma=sheet.decimal_comma, decimal=(before or {}).get("decimal"))
        strange = texts.notna() & numbers.isna()
        if expected == NUMBERS or _are_numbers(texts, numbers):
            if before is not None and numbers.isna().all() and strange.sum() > _MOST_WORDS:
                known = set(before.get("words", ()))  # another column stands here
            refuse_words(texts, strange & ~texts.isin(known), label, "numbers, but text", advice, first=sheet.first_row)
            points = texts.str.contains(form.decimal, regex=False, na=False)
            is_whole = not (numbers.isna().any() or points.any())
            stored, gaps = _as_gaps(texts, strange, sheet.first_row)
            how = {"kind": NUMBERS, "decimal": form.decimal} | stored
            in_words = form.in_words if "decimal" not in (before or {}) else ""
            line = "; ".join(filter(None, [in_words and f"read as numbers{in_words}", gaps]))
            return numbers.astype(np.int64) if is_whole else numbers, how, f"column {name!r}: {line}" if line else ""
    try:
        dates, form_of_dates = dates_of(texts, (before or {}).get("format"))
    except InputError as error:
        raise InputError(f"{label} holds {error}") from None
    strange = texts.notna() & dates.isna()
    if expected == DATES or 2 * strange.sum() < texts.notna().sum():
        refuse_words(texts, strange & ~texts.isin(known), label, "dates, but other text", advice, first=sheet.first_row)
        stored, gaps = _as_gaps(texts, strange, sheet.first_row)
        return dates, {"kind": DATES, "format": form_of_dates} | stored, f"column {name!r}: {gaps}" if gaps else ""
    return column, {"kind": TEXTS}, ""


def _are_numbers(texts: "pd.Series", numbers: "pd.Series") -> bool:
    """Return whether half of the cells are numbers, or more different numbers than categories or words there are."""
    found = numbers.nunique()
    words = texts[numbers.isna()].nunique()
    return bool(2 * numbers.notna().sum() >= texts.notna().sum()) or found > max(_MOST_NUMBERS, words)


def refuse_words(
    texts: "pd.Series", strange: "pd.Series", label: str, most: str, advice: str, *, first: int = 1
) -> None:
    """Refuse cells that are not like most of a column; `most` says what those are, and what the others are."""
    if not strange.any():
        return
    gaps, listed = int(texts.isna().sum()), " and ".join(map(repr, _by_count(texts[strange])[:_MOST_WORDS]))
    empty = f" ({gaps} more {'is' if gaps == 1 else 'are'} empty)" if gaps else ""
    kind = most.partition(",")[0]
    raise InputError(
        f"{label} holds {most} in {rows_of(strange, first)}, such as {listed}{empty}: turn it into {kind}, or {advice}."
    )


def _by_count(texts: "pd.Series") -> list[str]:
    return list(texts.value_counts().index)


def _as_words(texts: "pd.Series", before: How | None) -> list[str]:
    """Return the texts that count as missing if they are no numbers or dates."""
    return [text for text in _by_count(texts) if before is None or not any(map(str.isdigit, text))]


def _as_gaps(texts: "pd.Series", words: "pd.Series", first: int) -> tuple[dict[str, Any], str]:
    """Return what is stored of words that count as missing, if any, and a phrase on them."""
    if not words.any():
        return {}, ""
    found = _by_count(texts[words])
    listed = " and ".join(map(repr, found[:_MOST_WORDS])) + (" and others" if len(found) > _MOST_WORDS else "")
    return {"words": found}, f"{listed} in {rows_of(words, first)} counted as missing"


def learned_reading(columns: "pd.DataFrame", how: Mapping[str, How]) -> dict[str, dict[str, Any]]:
    """Return how columns are read, with what these rows teach about dates."""
    return {
        name: dict(one) | (learned_dates(columns[name]) if one["kind"] == DATES else {}) for name, one in how.items()
    }


def expanded(columns: "pd.DataFrame", read: Mapping[str, How]) -> "pd.DataFrame":
    """Return columns with those of dates as numbers."""
    import pandas as pd

    made: dict[str, pd.Series] = {}
    for name, how in read.items():
        new = date_columns(columns[name], name, how) if how["kind"] == DATES else {name: columns[name]}
        if twice := sorted(made.keys() & new.keys()):
            raise InputError(f"The table has a column {twice[0]!r}, and its dates make one of this name: rename it.")
        made |= new
    return pd.DataFrame(made)


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


def are_amounts(texts: "pd.Series") -> bool:
    """Return whether most texts begin with a digit, as numbers in an unknown form do."""
    return bool(texts.str.match(r"\W?\d").mean() > 1 / 2)


def teaches_nothing(sheet: Sheet, name: str) -> str:
    """Return why nothing can be learned from a column, in words; empty where something may be."""
    if name.startswith(NAMELESS):
        return "it has no name, as a saved index"
    column = sheet.frame[name]
    if column.isna().all():
        return "no value in any row"
    is_name = names_rows(sheet, name) and not are_amounts(column.dropna())
    return f"a text of its own in each of {len(column)} rows" if is_name else ""
