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


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """How the texts of a column are numbers.

    Attributes:
        decimal: mark of decimals.
        thousands: mark of thousands, or nothing.
        signs: currencies, units or per cent beside the numbers, without repetition.
    """

    decimal: str
    thousands: str
    signs: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """What differs from plain numbers, in words."""
        left_out = " and ".join(map(repr, [*self.signs, *filter(None, [self.thousands])]))
        decimal = " with a decimal comma" if self.decimal == "," else ""
        return decimal + (f", without {left_out}" if left_out else "")


def number_format(texts: "pd.Series", *, comma: bool, decimal: str | None = None) -> NumberFormat:
    """Return the format that reads the most of these texts, whole or not at all.

    Args:
        texts: texts that are not missing.
        comma: whether "1,022" is a number with decimals, where no other text tells.
        decimal: the mark of decimals, if it is known.
    """
    cells = _cells(texts)
    marks = sorted(_MARKS, key=lambda pair: pair[0] == ".") if comma else _MARKS
    known = [pair for pair in marks if decimal in (None, pair[0])]
    counts = [sum(_is_number(cell, *pair) for cell in cells.values()) for pair in known]
    best = known[int(np.argmax(counts))]
    signs = {sign: None for cell in cells.values() if _is_number(cell, *best) for sign in _signs(cell)}
    return NumberFormat(*best, tuple(signs))


def as_numbers(texts: "pd.Series", form: NumberFormat) -> "pd.Series":
    """Return texts as float64, NaN where they are missing or no numbers."""
    cells = _cells(texts.dropna())
    values = {
        text: _value(cell, form) for text, cell in cells.items() if _is_number(cell, form.decimal, form.thousands)
    }
    return texts.map(values).astype(np.float64)


def has_sign(texts: "pd.Series", sign: str) -> "pd.Series":
    """Return which texts are a number with this sign."""
    return texts.map({text: sign in _signs(cell) for text, cell in _cells(texts).items()})


def _cells(texts: "pd.Series") -> dict[str, re.Match[str] | None]:
    """Return the parts of each different text; None where it cannot be a number."""
    return {text: _CELL.fullmatch(str(text).translate(_VARIANTS).strip()) for text in texts.unique()}


def _signs(cell: re.Match[str] | None) -> list[str]:
    return [] if cell is None else [sign for sign in (cell["before"], cell["after"]) if sign]


def _is_number(cell: re.Match[str] | None, decimal: str, thousands: str) -> bool:
    return cell is not None and _pattern(decimal, thousands).fullmatch(cell["number"].strip()) is not None


@functools.cache
def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    mark, group = re.escape(decimal), re.escape(thousands)
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:{group}\d{{2,3}})*{group}\d{{3}})" if thousands else r"\d+"
    return re.compile(rf"(?:{whole}(?:{mark}\d*)?|{mark}\d+)(?:[eE][-+]?\d+)?")


def _value(cell: re.Match[str] | None, form: NumberFormat) -> float:
    assert cell is not None  # only numbers have values
    plain = cell["number"].strip()
    if form.thousands:
        plain = plain.replace(form.thousands, "")
    is_negative = bool(cell["loss"]) or "-" in (cell["minus"], cell["inner"])
    return float(plain.replace(form.decimal, ".")) * (-1.0 if is_negative else 1.0)
