"""What a report is made of."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure


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
