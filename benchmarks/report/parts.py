"""The parts of a report."""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from statistics import mean, variance
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

Row = dict[str, Any]


def mean_cell(values: Sequence[float], digits: int) -> str:
    """Return the mean and, of several values, its standard error, as text."""
    error = f" ± {standard_error(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{error}"


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of values; 0 of a single one, where none is known."""
    # not `stdev` or `math.sqrt`, which fail where a value is not finite
    return variance(values) ** 0.5 / math.sqrt(len(values)) if len(values) > 1 else 0.0


def grouped(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """Return rows by their value of a key, or by the tuple of their values of several; in order of appearance."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(itemgetter(*keys)(row), []).append(row)
    return found


def grid(header: Sequence[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Return a table as lines of Markdown."""
    first, *rest = (f"| {' | '.join(map(str, line))} |" for line in (header, *rows))
    return [first, f"|{'---|' * len(header)}", *rest]


def save_picture(figure: "MatplotlibFigure", path: Path, dpi: int = 110) -> None:
    """Write a picture as PNG with a palette of 256 colours, a third as large as one without."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        title: a line above it.
        note: what a reader must know of how the numbers came about.
        header: names of the columns.
        rows: cells, as long as the header.
    """

    title: str
    note: str
    header: list[str]
    rows: list[list[str]] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Figure:
    """A picture.

    Attributes:
        name: its file name without ending.
        caption: what it shows.
        figure: the picture.
    """

    name: str
    caption: str
    figure: "MatplotlibFigure" = field(repr=False)
