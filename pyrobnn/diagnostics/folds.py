"""Which examples of a data set are held out together."""

from typing import Any

import numpy as np
from torch import Tensor

from pyrobnn._core.checks import check_unmasked
from pyrobnn._core.errors import InputError
from pyrobnn.data.splits import same_inputs


def as_folds(folds: Any, groups: Any, num_rows: int) -> tuple[int | np.ndarray, np.ndarray | None]:
    """Return the number of folds or the fold of each example, and the group of each example, checked."""
    if isinstance(folds, (int, np.integer)) and not isinstance(folds, bool):
        together = None if groups is None else _labels(groups, "groups", num_rows)
        units, noun = (num_rows, "examples") if together is None else (int(together.max()) + 1, "groups")
        if not 2 <= folds <= units:
            raise InputError(f"`folds` must lie between 2 and the number of {noun}, {units}; got {folds}.")
        return int(folds), together
    if groups is not None:
        raise InputError("`groups` go with a number of folds; got the fold of each example too: leave one of them out.")
    labels = _labels(folds, "folds", num_rows)
    if labels.max() < 1:
        raise InputError("`folds` must name at least two folds, got the same label for every example.")
    return labels, None


def _labels(values: Any, name: str, num_rows: int) -> np.ndarray:
    """Return labels of any kind as numbers from 0 up."""
    check_unmasked(values, name)
    array = np.asarray(values)
    if array.shape != (num_rows,):
        raise InputError(
            f"`{name}` must have one label for each of the {num_rows} examples, got values of shape {array.shape}."
        )
    return np.unique(array, return_inverse=True)[1]


def assign_folds(
    folds: int | np.ndarray, groups: np.ndarray | None, classes: np.ndarray | None, seed: int, num_rows: int
) -> np.ndarray:
    """Return the fold of each example, (N,), numbered from 0.

    Folds are drawn at random. Groups stay together, and classes are spread evenly if a class has at least as many
    members as there are folds.
    """
    if not isinstance(folds, int):
        return folds
    from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

    options = {"n_splits": folds, "shuffle": True, "random_state": seed}
    if groups is not None:
        splitter = GroupKFold(**options)
    elif classes is not None and np.bincount(classes).max() >= folds:
        splitter = StratifiedKFold(**options)
    else:
        splitter = KFold(**options)
    labels = np.empty(num_rows, dtype=np.int64)
    for index, (_, held_out) in enumerate(splitter.split(np.empty((num_rows, 1)), classes, groups)):
        labels[held_out] = index
    return labels


def folds_of_inputs(folds: int, x: Tensor, classes: np.ndarray | None, seed: int) -> np.ndarray:
    """Return the fold of each example, (N,), likewise; examples with equal inputs share a fold.

    Otherwise a fit would have seen examples that it is judged by. They are split if there are fewer distinct inputs
    than folds.
    """
    _, first, group = np.unique(same_inputs(x).numpy(), return_index=True, return_inverse=True)
    if len(first) < folds:
        return assign_folds(folds, None, classes, seed, len(x))
    first_classes = None if classes is None else classes[first]
    return assign_folds(folds, None, first_classes, seed, len(first))[group]
