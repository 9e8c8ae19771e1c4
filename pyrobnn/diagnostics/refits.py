"""Many fits of a method, each to different data."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyrobnn._core.random import derive
from pyrobnn._core.waiting import progress_bar
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.inference import SVI
from pyrobnn.inference.fit import fit_in_silence
from pyrobnn.inference.method import Run
from pyrobnn.inference.several.replicates import replicates_in_silence

_WEIGHTS_AT_ONCE = 2**20
"""Weights that fits side by side may have together."""


def fit_each(
    model: BNN, method: Any, sets: Sequence[Data], *, seed: int, progress: bool, **arguments: Any
) -> list[Any]:
    """Fit a method to several data sets: sets of equal size side by side if the method is SVI, the others in turn.

    A fit in turn is `fit` with the seed `derive(seed, f"fit {index}")`. A group side by side is `fit_replicates` with
    that seed of its first set. Posteriors come in the order of the sets; further arguments are those of `Run`. No fit
    warns, and an interrupt ends all.
    """
    posteriors: list[Any] = [None] * len(sets)
    alone = []
    for group in _groups(model, method, sets):
        if len(group) == 1:
            alone += group
            continue
        parts = [sets[index] for index in group]
        run = Run(seed=derive(seed, f"fit {group[0]}"), progress=progress, **arguments)
        posteriors_of_group = replicates_in_silence(model, parts, method, run)
        for index, posterior in zip(group, posteriors_of_group, strict=True):
            posteriors[index] = posterior
    with progress_bar(alone, desc="fits", unit="fit", shown=progress and bool(alone)) as bar:
        for index in bar:
            run = Run(seed=derive(seed, f"fit {index}"), progress=False, **arguments)
            posteriors[index] = fit_in_silence(model, sets[index], method, run)
    return posteriors


def _groups(model: BNN, method: Any, sets: Sequence[Data]) -> list[list[int]]:
    """Return the numbers of the sets that are fitted together."""
    if not isinstance(method, SVI) or method.patience is not None:
        return [[index] for index in range(len(sets))]
    most = max(1, _WEIGHTS_AT_ONCE // model.num_weights)
    groups = []
    for size in dict.fromkeys(map(len, sets)):
        members = [index for index, data in enumerate(sets) if len(data) == size]
        groups += [part.tolist() for part in np.array_split(members, -(-len(members) // most))]
    return groups
