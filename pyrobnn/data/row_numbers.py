"""Columns that number the rows of a table."""

from collections.abc import Mapping, Sequence

from torch import Tensor


def row_numbers(x: Tensor, columns: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the columns of whole numbers that grow by one from each row to the next, if there are others beside them.

    Args:
        x: the inputs of all rows in the order of the file, (N, features).
        columns: the positions of the inputs that were made from each column, by its name.
    """
    if len(columns) < 2 or len(x) < 2:
        return []
    single = {name: x[:, places[0]] for name, places in columns.items() if len(places) == 1}
    return [
        name
        for name, values in single.items()
        if bool(values[0] == values[0].round()) and bool((values.diff() == 1).all())
    ]
