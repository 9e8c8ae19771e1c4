"""Texts of tables as numbers, as dates and as categories; without torch."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

ISO = "ISO8601"
_DAYS = (
    *("%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%y", "%d/%m/%y"),
    *("%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%b %d %Y", "%d %B %Y", "%B %d, %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_FORMATS = (ISO, *(day + time for day in _DAYS for time in _TIMES))
_DATE = r".*\d.*[-./, ].*\d.*"
_TRIED = 5  # different texts of a column that choose the formats to try on all


class Fault(ValueError):
    """What is wrong with a column, in words that follow its name; the reader of the table puts the name before."""


def numbers_of(texts: "pd.Series", decimal: str) -> "pd.Series":
    """Return texts as numbers, float64, NaN where a text is none; thousands may be marked."""
    thousands = "." if decimal == "," else ","
    mark, group = re.escape(decimal), re.escape(thousands)
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:{group}\d{{3}})+)"
    pattern = rf"[-+]?(?:{whole}(?:{mark}\d*)?|{mark}\d+)(?:[eE][-+]?\d+)?"
    different = texts.dropna().drop_duplicates()
    plain = different.str.strip()
    kept = plain.str.fullmatch(pattern).astype(bool)
    bare = plain[kept].str.replace(thousands, "", regex=False).str.replace(decimal, ".", regex=False)
    return texts.map(dict(zip(different[kept], bare.astype(float), strict=True))).astype(np.float64)


def dates_of(texts: "pd.Series", known: str | None = None) -> tuple["pd.Series", str, bool]:
    """Return texts as dates, missing where they are none, the format that reads the most, and whether they have a zone.

    `known` is the format in training; the international one always goes. Dates that read both as day and month and as
    month and day are refused.
    """
    import pandas as pd

    def by(form: str, texts: "pd.Series") -> "pd.Series":
        return in_utc(pd.to_datetime(texts, format=form, errors="coerce", utc=True))

    different = pd.Series(texts.dropna().unique(), dtype=object).astype(str)
    different = different[different.str.fullmatch(_DATE)]
    formats = _FORMATS if known is None else (known, ISO)
    parsed = {form: by(form, different) for form in formats if by(form, different[:_TRIED]).notna().any()}
    if not parsed:
        return pd.Series(pd.NaT, index=texts.index, dtype="datetime64[us]"), ISO, False
    best = max(parsed, key=lambda form: int(parsed[form].notna().sum()))
    has_zone = different[parsed[best].notna()].str.fullmatch(r".*:.*(Z|[-+][\d:]+)").astype(bool)
    if has_zone.nunique() > 1:
        zoned, bare = (different[has_zone.index[has_zone == one]].iloc[0] for one in (True, False))
        raise Fault(f"holds dates with a time zone, as {zoned!r}, and without, as {bare!r}: write all alike.")
    whole = [dates for dates in parsed.values() if dates.notna().all()]
    rival = next((dates for dates in whole if not dates.equals(parsed[best])), None)
    if rival is not None and parsed[best].notna().all():
        first = int((rival != parsed[best]).to_numpy().argmax())
        readings = " or ".join(str(dates.iloc[first])[:10] for dates in (parsed[best], rival))
        such = f"holds dates such as {different.iloc[first]!r}, which can be {readings}"
        raise Fault(f"{such}: expected a day above 12 in some row; else write them as year-month-day.")
    found = dict(zip(different, parsed[best], strict=True))
    return pd.to_datetime(texts.map(lambda text: found.get(str(text), pd.NaT))), best, bool(has_zone.any())


def in_utc(dates: "pd.Series") -> "pd.Series":
    """Return dates with a time zone in UTC, without it, to the microsecond."""
    return dates.dt.tz_convert("UTC").dt.tz_localize(None).dt.as_unit("us")


def as_text(column: "pd.Series") -> "pd.Series":
    """Return categories as text, None where they are missing; whole numbers read as 2 and 2.0 are the same."""
    import pandas as pd

    def text(value: Any) -> str:
        is_whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
        return str(int(value) if is_whole else value)

    named = [None if gap else text(value) for value, gap in zip(column, column.isna(), strict=True)]
    return pd.Series(named, dtype=object, index=column.index, name=column.name)
