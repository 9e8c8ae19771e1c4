"""Texts of tables as numbers and as dates, which become days and phases; without torch."""

import re
from typing import TYPE_CHECKING, Required, TypedDict

import numpy as np

from pyrobnn._core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_ISO = "ISO8601"
_DAYS = (
    *("%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%y", "%d/%m/%y"),
    *("%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%b %d %Y", "%d %B %Y", "%B %d, %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_FORMATS = (_ISO, *(day + time for day in _DAYS for time in _TIMES))
_DATE = r".*\d.*[-./, ].*\d.*"
_TRIED = 5
"""Different texts of a column that choose the formats to try on all."""
_PHASES = {"year": ("the day of the year", 366), "week": ("the weekday", 7), "hour": ("the time of day", 1)}
"""Phases in words, and the days that dates must span for each."""


class How(TypedDict, total=False):
    """How a column is read, in JSON's types, and what an encoder has learned of it.

    Numbers from texts have their mark, `decimal`; dates their `format`, and the `start` and the `phases` that become
    columns; categories their `order`, or their `values`; numbers and dates the `range` of training, and
    whether some values `lack`.
    """

    kind: Required[str]
    decimal: str
    format: str
    start: str
    phases: list[str]
    order: list[str]
    values: list[str | None]
    range: list[float]
    lack: bool


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


def dates_of(texts: "pd.Series", known: str | None = None) -> tuple["pd.Series", str]:
    """Return texts as dates, missing where they are none, and the format that reads the most of them.

    `known` is the format in training; the international one always goes. Dates that read both as day and month and as
    month and day are refused.
    """
    import pandas as pd

    def by(form: str, texts: "pd.Series") -> "pd.Series":
        return in_utc(pd.to_datetime(texts, format=form, errors="coerce", utc=True))

    different = pd.Series(texts.dropna().unique(), dtype=object).astype(str)
    different = different[different.str.fullmatch(_DATE)]
    formats = _FORMATS if known is None else (known, _ISO)
    parsed = {form: by(form, different) for form in formats if by(form, different[:_TRIED]).notna().any()}
    if not parsed:
        return pd.Series(pd.NaT, index=texts.index, dtype="datetime64[us]"), _ISO
    best = max(parsed, key=lambda form: int(parsed[form].notna().sum()))
    whole = [dates for dates in parsed.values() if dates.notna().all()]
    rival = next((dates for dates in whole if not dates.equals(parsed[best])), None)
    if rival is not None and parsed[best].notna().all():
        first = int((rival != parsed[best]).to_numpy().argmax())
        readings = " or ".join(str(dates.iloc[first])[:10] for dates in (parsed[best], rival))
        such = f"dates such as {different.iloc[first]!r}, which can be {readings}"
        raise InputError(f"{such}: expected a day above 12 in some row; else write them as year-month-day.")
    found = dict(zip(different, parsed[best], strict=True))
    return pd.to_datetime(texts.map(lambda text: found.get(str(text), pd.NaT))), best


def in_utc(dates: "pd.Series") -> "pd.Series":
    """Return dates with a time zone in UTC, without it, to the microsecond."""
    return dates.dt.tz_convert("UTC").dt.tz_localize(None).dt.as_unit("us")


def learned_dates(dates: "pd.Series") -> tuple[str, list[str]]:
    """Return what turns dates into numbers: the first date, and the phases that vary."""
    present = dates.dropna()
    days = (present.max() - present.min()).days if len(present) else 0
    phases = [name for name, phase in _phases(present).items() if days >= _PHASES[name][1] and phase.nunique() > 1]
    return str(present.min()) if len(present) else "1970-01-01", phases


def date_columns(dates: "pd.Series", name: str, stored: How) -> dict[str, "pd.Series"]:
    """Return the columns of numbers for a column of dates, as `learned_dates` chose them."""
    import pandas as pd

    phases = _phases(dates)
    angles = (2 * np.pi * phases[phase] for phase in stored["phases"])
    days = (dates - pd.Timestamp(stored["start"])) / pd.Timedelta(days=1)
    values = [days, *(wave(angle) for angle in angles for wave in (np.sin, np.cos))]
    return dict(zip(date_names(name, stored), values, strict=True))


def date_names(name: str, stored: How) -> list[str]:
    """Return the names of the columns of `date_columns`."""
    waves = (f"{wave} of {phase}" for phase in stored["phases"] for wave in ("sin", "cos"))
    return [f"{name} ({made})" for made in ("days", *waves)]


def _phases(dates: "pd.Series") -> dict[str, "pd.Series"]:
    """Return the shares of year, week and day that have passed."""
    clock = (dates - dates.dt.normalize()).dt.total_seconds() / 86_400
    return {"year": (dates.dt.day_of_year - 1) / 365.25, "week": dates.dt.day_of_week / 7, "hour": clock}


def dates_in_words(stored: How) -> str:
    """Say how dates become numbers."""
    waves = " and ".join(_PHASES[phase][0] for phase in stored["phases"])
    return f"days since {day(stored, 0.0)}" + (f", and sine and cosine of {waves}" if waves else "")


def day(stored: How, days: float) -> str:
    """Return the date that lies that many days after the first."""
    import pandas as pd

    return str(pd.Timestamp(stored["start"]) + pd.Timedelta(days=days))[:10]
