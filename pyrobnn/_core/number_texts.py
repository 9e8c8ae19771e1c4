"""Numbers that tables hold as texts, such as 1,234.50 and 3,14, read without torch."""

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


class NumberFormat(NamedTuple):
    """The marks of decimals and of thousands, or nothing for these."""

    decimal: str = "."
    thousands: str = ""

    @property
    def in_words(self) -> str:
        """What differs from plain numbers, in words."""
        decimal = " with a decimal comma" if self.decimal == "," else ""
        return decimal + (f", without {self.thousands!r}" if self.thousands else "")


_FORMATS = (NumberFormat(), NumberFormat(".", ","), NumberFormat(","), NumberFormat(",", "."))
"""From the most to the least common where a comma is for thousands."""


def read_numbers(
    texts: "pd.Series", *, comma: bool = False, decimal: str | None = None
) -> tuple[NumberFormat, "pd.Series"]:
    """Return the format that reads the most of these texts, and the numbers, float64, NaN where a text is none.

    `comma` tells whether "1,022" has decimals where no other text tells; `decimal` is the mark of decimals, if known.
    """
    different = texts.dropna().drop_duplicates()
    plain = different.str.strip()
    formats = sorted(_FORMATS, key=lambda form: form.decimal == ".") if comma else _FORMATS
    are_read = {form: plain.str.fullmatch(_pattern(form)) for form in formats if decimal in (None, form.decimal)}
    best = max(are_read, key=lambda form: int(are_read[form].sum()))
    kept = different[are_read[best].astype(bool)]
    bare = kept.str.replace(best.thousands, "", regex=False) if best.thousands else kept
    values = bare.str.replace(best.decimal, ".", regex=False).astype(float)
    return best, texts.map(dict(zip(kept, values, strict=True))).astype(np.float64)


@functools.cache
def _pattern(form: NumberFormat) -> str:
    mark, group = re.escape(form.decimal), re.escape(form.thousands)
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:{group}\d{{3}})+)" if group else r"\d+"
    return rf"[-+]?(?:{whole}(?:{mark}\d*)?|{mark}\d+)(?:[eE][-+]?\d+)?"
