"""Columns that give the target away: a copy of it, or what is written down only after it is known."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from pyrobnn.data.questions import Question

GIVEN_AWAY = "given away"
"""Name of the finding that a column alone gives the target almost exactly."""
_ALMOST = 0.9999
"""Share of the variance, of targets or of their ranks, from which on a column says almost all."""
_NEAR_ORDER = 0.99
"""The same of ranks beside a line, which a single far point would draw."""
_CHANCE = 1e-6
"""Chance that a column without a word on the target looks like this, above which nothing is said."""
_FEWEST = 10
"""Rows, and rows of each class, below which nothing is said."""
_SCREENED = 1000
"""Rows that rule most columns out, before all are looked at."""
_MOST_NUMBERS = 5_000_000
_MOST_NAMED = 3


def given_away(x: Tensor, y: Tensor, columns: Mapping[str, Sequence[int]]) -> list[Question]:
    """Ask about up to three columns of inputs that give the target almost exactly, if there are others beside them.

    For numbers a line through a column must explain 99.99 % of the variance of the targets and 99 % of that of their
    ranks, or ranks alone 99.99 %. For classes the column must tell all of them apart, as an ordered number or as a
    category. That would happen by chance with probability K! / M for K classes in order, and K^V / M for V
    categories, where M is the number of orders of the labels; above one in a million nothing is said. Ten rows, and ten
    of each class, are the least.

    Args:
        x: inputs, (N, features).
        y: real targets or labels, (N,).
        columns: the positions of the inputs that were made from each column, by its name.
    """
    if len(columns) < 2 or y.ndim != 1 or len(y) < _FEWEST or x.numel() > _MOST_NUMBERS:
        return []
    inputs, targets = x.detach().cpu().double().numpy(), y.detach().cpu().double().numpy()
    _, labels, counts = np.unique(targets, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return []
    orders = math.lgamma(len(targets) + 1) - sum(math.lgamma(count + 1) for count in counts)
    if y.is_floating_point():
        likely = orders - math.log(2) > -math.log(_CHANCE)
        found = ((name, _of_numbers(inputs, targets, places)) for name, places in columns.items() if likely)
    else:
        enough = counts.min() >= _FEWEST
        found = ((name, _of_classes(inputs, labels, places, orders)) for name, places in columns.items() if enough)
    return [_asked(name, how) for name, how in found if how][:_MOST_NAMED]


def _asked(name: str, how: str) -> Question:
    text = f"Column {name!r} alone gives the target almost exactly ({how}): is it known when you predict?"
    return Question(GIVEN_AWAY, name, text, "If not, leave it out", "what is not known when you predict")


def _of_numbers(x: np.ndarray, y: np.ndarray, places: Sequence[int]) -> str:
    """Say how one of the inputs of a column gives real targets; empty if none does."""
    few = _some(y)
    for place in places:
        if not _explained(_ranks(x[few, place]), _ranks(y[few])) > _NEAR_ORDER:
            continue
        line, order = _explained(x[:, place], y), _explained(_ranks(x[:, place]), _ranks(y))
        if not order > _NEAR_ORDER:
            continue
        if line > _ALMOST:
            return f"a line through it explains {_per_cent(line)}"
        if order > _ALMOST:
            return f"its order explains {_per_cent(order)} of that of the targets"
    return ""


def _some(rows: np.ndarray) -> slice:
    """Return about a thousand rows or more, from the first to the last."""
    return slice(None, None, max(1, len(rows) // _SCREENED))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, the mean rank of equal ones, as scipy.stats has it, which takes long to import."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place.reshape(-1)])


def _explained(x: np.ndarray, y: np.ndarray) -> float:
    """Return the squared correlation; 0 where one of them does not vary."""
    x, y = x - x.mean(), y - y.mean()
    total = float(x @ x) * float(y @ y)
    return float(x @ y) ** 2 / total if total > 0 else 0.0


def _per_cent(share: float) -> str:
    return f"{math.floor(share * 10_000 + 1e-6) / 100:.2f} %"


def _of_classes(x: np.ndarray, labels: np.ndarray, places: Sequence[int], orders: float) -> str:
    """Say how a column tells all classes apart; empty if it does not."""
    num = int(labels.max()) + 1
    least = -math.log(_CHANCE)
    if orders - math.lgamma(num + 1) > least and any(_in_order(x[:, place], labels) for place in places):
        return "each class has its own range of it"
    few = _some(labels)
    if not _is_pure(x[few][:, places], labels[few]):
        return ""
    categories = np.unique(x[:, places], axis=0)
    is_unlikely = orders - len(categories) * math.log(num) > least
    return "each class has its own values of it" if is_unlikely and _is_pure(x[:, places], labels) else ""


def _in_order(x: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether each class has a range of the numbers that no other class reaches into."""
    order = np.lexsort((labels, x))
    ordered, values = labels[order], x[order]
    changes = np.flatnonzero(ordered[1:] != ordered[:-1])
    return len(changes) == int(labels.max()) and bool((values[changes] < values[changes + 1]).all())


def _is_pure(x: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether rows of equal inputs have the same class, (N, inputs) and (N,)."""
    values, group = np.unique(x, axis=0, return_inverse=True)
    group = group.reshape(-1)
    largest, least = np.zeros(len(values), int), np.full(len(values), labels.max() + 1)
    np.maximum.at(largest, group, labels)
    np.minimum.at(least, group, labels)
    return bool((largest == least).all())
