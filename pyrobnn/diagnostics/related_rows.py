"""Columns by which rows held out have relatives in training: values in blocks, that repeat together, or in time."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from pyrobnn._core.remedies import Remedy
from pyrobnn._torch.inputs import flat_rows, single
from pyrobnn.data.in_memory import leaks
from pyrobnn.verdict.evidence import Evidence
from pyrobnn.verdict.finding import Finding, Severity

_FEWEST_ROWS, _MOST_COLUMNS = 50, 100  # of a table that is searched
_FEWEST_VALUES = 5  # of a column that may name groups
_MOST_ROWS_OF_A_SEARCH = 2000  # for columns that repeat together
_FEWEST_OF_A_PAIR, _MOST_OF_A_PAIR, _PAIRS_OF_A_VALUE = 5, 200, 2  # on average, in these columns
_ALIKE = 0.95  # rank correlation of two columns from which one is made from the other


class _Column(NamedTuple):
    """A column of a table: the inputs that it became, several for categories, and the ranks of its values (N,)."""

    name: str
    inputs: Sequence[int]
    ranks: np.ndarray
    num_values: int
    repeats: bool
    is_in_blocks: bool


def related_rows(evidence: Evidence) -> Finding | None:
    """The values of a column come in five blocks or more, repeat with those of another, or rise from row to row.

    Two columns of five values or more repeat if they have at most twice as many pairs, of 5 to 200 rows each, which is
    at most half as many as by chance, and they are not in the same order or the reverse.
    """
    columns = _columns(evidence)
    return _in_blocks(columns) or _shared(columns) or _in_time(columns, evidence)


def _columns(evidence: Evidence) -> list[_Column]:
    """Return the columns to search, of a table without groups: no leaks, and none whose held-out values are all new."""
    table = evidence.train if evidence.table is None else evidence.table
    named = evidence.columns or {name: [index] for index, name in enumerate(table.feature_names)}
    is_table = isinstance(table.x, Tensor) and table.x.ndim == 2 and 1 < len(named) <= _MOST_COLUMNS
    if not is_table or table.groups is not None or len(table) < _FEWEST_ROWS:
        return []
    x, leaking = flat_rows(table.x).cpu().numpy(), leaks(evidence.train, evidence.columns)
    columns = []
    for name, inputs in named.items():
        ranks = np.unique(x[:, inputs], axis=0, return_inverse=True)[1].reshape(-1)
        num_values, num_blocks = int(ranks.max()) + 1, 1 + np.count_nonzero(np.diff(ranks))
        repeats, is_in_blocks = num_values <= len(ranks) / 2, num_blocks == num_values >= _FEWEST_VALUES
        if name not in leaking and not (repeats and _is_new(evidence, inputs)):
            columns.append(_Column(name, inputs, ranks, num_values, repeats, is_in_blocks))
    return columns


def _is_new(evidence: Evidence, inputs: Sequence[int]) -> bool:
    """Return whether rows are held out, and share no values of some inputs with those of training."""
    if evidence.held_out is None:
        return False
    parts = [single(part.x, "A table")[:, list(inputs)] for part in (evidence.train, evidence.held_out)]
    train, held_out = (set(map(tuple, part.tolist())) for part in parts)
    return train.isdisjoint(held_out)


def _of_groups(name: str, severity: Severity, columns: Sequence[str], num: int | None = None) -> Finding:
    remedy = Remedy(f"hold out whole groups of {columns[0]!r}", (f"data.groups={columns[0]}",))
    return Finding(name, severity, num, remedy=remedy, facts={"columns": ", ".join(map(repr, columns))})


def _in_blocks(columns: Sequence[_Column]) -> Finding | None:
    column = next((column for column in columns if column.repeats and column.is_in_blocks), None)
    return None if column is None else _of_groups("blocks", "care", [column.name], column.num_values)


def _shared(columns: Sequence[_Column]) -> Finding | None:
    """Return the finding of the column that shares groups of rows with most others, and of these."""
    generator, partners = np.random.default_rng(0), dict[str, list[str]]()
    heads = {column.name: column.ranks[:_MOST_ROWS_OF_A_SEARCH] for column in columns}
    sizes = {name: len(np.unique(ranks)) for name, ranks in heads.items()}
    names = [name for name, num in sizes.items() if _FEWEST_VALUES <= num <= len(heads[name]) / _FEWEST_OF_A_PAIR]
    for name, other in itertools.combinations(names, 2):
        most_pairs = _PAIRS_OF_A_VALUE * max(sizes[name], sizes[other])
        if _repeat_together(heads[name], heads[other], most_pairs, generator):
            partners.setdefault(name, []).append(other)
            partners.setdefault(other, []).append(name)
    if not partners:
        return None
    widths = {column.name: (column.num_values, len(column.inputs)) for column in columns}
    finest = max(partners, key=lambda name: (len(partners[name]), *widths[name]))
    return _of_groups("shared", "note", [finest, *partners[finest]])


def _repeat_together(first: np.ndarray, second: np.ndarray, most_pairs: int, generator: np.random.Generator) -> bool:
    """Return whether two columns of ranks (N,) have few pairs, each of several rows, half as many as by chance."""
    base = int(second.max()) + 1
    pairs = np.unique(first * base + second)
    is_group = _FEWEST_OF_A_PAIR <= len(first) / len(pairs) <= _MOST_OF_A_PAIR
    if not is_group or len(pairs) > most_pairs or abs(np.corrcoef(pairs // base, pairs % base)[0, 1]) > _ALIKE:
        return False
    by_chance = np.unique(first * base + generator.permutation(second))
    return 2 * len(pairs) <= len(by_chance)


def _in_time(columns: Sequence[_Column], evidence: Evidence) -> Finding | None:
    parts = [part.x for part in (evidence.train, evidence.held_out) if part and isinstance(part.x, Tensor)]
    for column in reversed([column for column in columns if column.is_in_blocks and not column.repeats]):
        steps, ranges = np.diff(column.ranks), [part[:, column.inputs[0]].aminmax() for part in parts]
        is_monotone = len(column.inputs) == 1 and ((steps >= 0).all() or (steps <= 0).all())
        if is_monotone and max(low for low, _ in ranges) < min(high for _, high in ranges):  # else none is between
            return Finding("in time", "note", column.num_values, facts={"columns": repr(column.name)})
    return None
