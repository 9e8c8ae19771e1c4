"""Comparing models by their predictive scores, of the same kind and on the same examples."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data

if TYPE_CHECKING:
    import arviz as az
    import pandas as pd


def compare(elpds: "Mapping[str, az.ELPDData]") -> "pd.DataFrame":
    """Rank models by their expected log pointwise predictive density, with stacking weights: `az.compare`, not rounded.

    See docs/how-to/compare.md.

    Args:
        elpds: results of `heldout_elpd`, `loo` or `kfold` by name, all of the same kind and on the same examples.

    Returns:
        A row for each model, best first: `elpd`, `se`, the difference to the best `elpd_diff` with its standard error
        `dse`, stacking `weight` and ArviZ's diagnostics. `az.plot_compare` takes it.

    Raises:
        InputError: fewer than two results, other objects, or results that measure different things: different kinds,
            numbers of folds, or examples.

    Examples:
        >>> train, test = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> models = {name: bnn.BNN(bnn.MLP(1, [width], 1)) for name, width in (("small", 2), ("large", 20))}
        >>> fits = {name: model.fit(train, steps=20, seed=0, progress=False) for name, model in models.items()}
        >>> table = bnn.compare({name: bnn.heldout_elpd(fit, test) for name, fit in fits.items()})
        >>> sorted(table.index)
        ['large', 'small']
    """
    import arviz as az

    for name, result in elpds.items():
        if not isinstance(result, az.ELPDData):
            raise InputError(
                f"`compare` takes results of heldout_elpd, loo or kfold by name, got {type(result).__name__} for "
                f"{name!r}: apply one of these first."
            )
    if len(elpds) < 2:
        raise InputError(f"`compare` needs two or more results, got {len(elpds)}.")
    described = {
        "Results of different kinds measure different things": _kind,
        "Results can be compared on the same examples in the same order only": lambda one: one.elpd_i.attrs.get(
            "targets"
        ),
        "Results rest on different numbers of examples": lambda one: one.n_data_points,
    }
    for problem, describe in described.items():
        values = {name: describe(result) for name, result in elpds.items() if describe(result) is not None}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            raise InputError(f"{problem}; got {listed}. Use one function on one data set for all.")
    return az.compare(dict(elpds), method="stacking", round_to="none")


def _kind(result: "az.ELPDData") -> str:
    return f"{result.kind} with {result.n_folds} folds" if hasattr(result, "n_folds") else str(result.kind)


def mark(found: "az.ELPDData", data: Data) -> "az.ELPDData":
    """Note in a result the targets it was computed on."""
    values = np.ascontiguousarray(data.y.double().cpu().numpy())
    found.elpd_i.attrs["targets"] = hashlib.sha256(values.tobytes()).hexdigest()[:8]
    return found
