"""Rows, which tasks and measures give, and the tables and pictures that are made of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

Row = dict[str, Any]


def grouped(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """Return rows by their value of a key, or by the tuple of their values of several; in order of appearance."""
    return grouped_by(rows, itemgetter(*keys))


def grouped_by[T](values: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Return values by their key, in order of appearance."""
    groups: dict[Any, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def distinct(rows: Iterable[Row], column: str) -> list[Any]:
    """Return the values of a column, in order of appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def grid(header: Sequence[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Return a table as lines of Markdown."""
    first, *rest = (f"| {' | '.join(map(str, line))} |" for line in (header, *rows))
    return [first, f"|{'---|' * len(header)}", *rest]


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
