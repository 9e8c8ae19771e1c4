"""Numbers that tables hold as texts, such as €1,234.50, 3,14 and 12 %, read without torch."""

import dataclasses
import functools
import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_MARKS = ((".", ""), (".", ","), (",", ""), (",", "."), (".", "'"), (",", "'"), (".", " "), (",", " "))
"""Marks of decimals and of thousands, from the most to the least common where a comma is for thousands."""
_CODES = "EUR|USD|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|CAD|AUD|NZD|BRL"
_CURRENCY = rf"(?:[A-Z]{{0,3}}[€$£¥₹₽₩₪₺฿₫₴₦]|{_CODES}|Fr\.|kr\.?|zł|Kč)"
_CELL = re.compile(
    rf"(?P<loss>\()?(?P<minus>[-+]?) ?(?P<before>{_CURRENCY})? ?(?P<inner>[-+]?)"
    r"(?P<number>(?:\d[\d.,' ]*|[.,]\d+)(?:[eE][-+]?\d+)?)"
    rf" ?(?P<after>[%‰]|°[CF]?|{_CURRENCY}|(?<= )[^\W\d_][^\s\d]{{0,9}})?(?(loss)\))"
)
_VARIANTS = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "’": "'", "−": "-"})


_SAMPLE = 200
"""Different texts of a column that tell whether it can hold numbers at all."""


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """How the texts of a column are numbers.

    Attributes:
        decimal: mark of decimals.
        thousands: mark of thousands, or nothing.
        signs: currencies, units or per cent beside the numbers, without repetition.
        has_bare: whether some numbers have no sign.
    """

    decimal: str
    thousands: str
    signs: tuple[str, ...] = ()
    has_bare: bool = False

    @property
    def in_words(self) -> str:
        """What differs from plain numbers, in words."""
        left_out = " and ".join(map(repr, [*self.signs, *filter(None, [self.thousands])]))
        decimal = " with a decimal comma" if self.decimal == "," else ""
        return decimal + (f", without {left_out}" if left_out else "")


def read_numbers(
    texts: "pd.Series", *, comma: bool = False, decimal: str | None = None
) -> tuple[NumberFormat, "pd.Series"]:
    """Return the format that reads all of these texts, or else the most, and the numbers, float64.

    Args:
        texts: texts, some of them missing. Where they are missing or no numbers, the result is NaN.
        comma: whether "1,022" is a number with decimals, where no other text tells.
        decimal: the mark of decimals, if it is known.
    """
    import pandas as pd

    different = texts.dropna().unique().tolist()
    sample = different[:_SAMPLE]
    plausible = [text for text in sample if _cell(text) is not None]
    if len(plausible) < len(sample) / 2 and 2 * texts.isin(plausible).sum() < texts.isin(sample).sum():
        return NumberFormat(".", ""), pd.Series(np.nan, index=texts.index)
    cells = {text: cell for text in different if (cell := _cell(text)) is not None}
    marks = sorted(_MARKS, key=lambda pair: pair[0] == ".") if comma else _MARKS
    known = [pair for pair in marks if decimal in (None, pair[0])]
    whole = (pair for pair in known if all(_is_number(cell, *pair) for cell in cells.values()))
    best = next(whole, None) or max(known, key=lambda pair: sum(_is_number(cell, *pair) for cell in cells.values()))
    read = {text: cell for text, cell in cells.items() if _is_number(cell, *best)}
    signs = {sign: None for cell in read.values() for sign in _signs(cell)}
    form = NumberFormat(*best, tuple(signs), has_bare=not all(map(_signs, read.values())))
    return form, texts.map({text: _value(cell, form) for text, cell in read.items()}).astype(np.float64)


def _cell(text: str) -> re.Match[str] | None:
    """Return the parts of a text; None where it cannot be a number."""
    return _CELL.fullmatch((text if text.isascii() else text.translate(_VARIANTS)).strip())


def _signs(cell: re.Match[str]) -> list[str]:
    return [sign for sign in (cell["before"], cell["after"]) if sign]


def _is_number(cell: re.Match[str], decimal: str, thousands: str) -> bool:
    return _pattern(decimal, thousands).fullmatch(cell["number"].strip()) is not None


@functools.cache
def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    mark, group = re.escape(decimal), re.escape(thousands)
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:{group}\d{{2,3}})*{group}\d{{3}})" if thousands else r"\d+"
    return re.compile(rf"(?:{whole}(?:{mark}\d*)?|{mark}\d+)(?:[eE][-+]?\d+)?")


def _value(cell: re.Match[str], form: NumberFormat) -> float:
    plain = cell["number"].strip()
    if form.thousands:
        plain = plain.replace(form.thousands, "")
    is_negative = bool(cell["loss"]) or "-" in (cell["minus"], cell["inner"])
    return float(plain.replace(form.decimal, ".")) * (-1.0 if is_negative else 1.0)
