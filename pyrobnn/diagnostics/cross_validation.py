"""How well a posterior predicts examples that it has not seen: held out, or in folds with a fit for each."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.checks import check_unmasked
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._core.waiting import progress_bar
from pyrobnn.bnn import BNN
from pyrobnn.data.given import in_memory
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import same_inputs
from pyrobnn.diagnostics.comparison import mark
from pyrobnn.inference import SVI
from pyrobnn.inference.fit import fit_in_silence
from pyrobnn.inference.method import Run
from pyrobnn.inference.several.replicates import replicates_in_silence
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

if TYPE_CHECKING:
    import arviz as az


def heldout_elpd(
    posterior: Posterior | Mixture, data: Any, *, num_draws: int = 500, seed: int | None = None
) -> "az.ELPDData":
    """Return the expected log pointwise predictive density of examples that took no part in the fit.

    elpd = sum_n log 1/S sum_s p(y_n | x_n, w_s), in the original units of the targets: N times the mean log score that
    `score` gives. It assumes nothing about the posterior: prefer it where there are enough data.

    Args:
        posterior: the posterior.
        data: `Data` or a pair (x, y) that the fit has not seen.
        num_draws: number of draws S.
        seed: seed of the draws; the fit's if not given.

    Returns:
        ArviZ's `ELPDData` of kind "held-out"; `p` is NaN. `compare` and the plots of ArviZ take it.

    Raises:
        InputError: data that do not fit the model.

    Examples:
        >>> train, test = bnn.datasets.sinusoid(40).split(0.25, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, steps=20, seed=0, progress=False)
        >>> held_out = bnn.heldout_elpd(posterior, test)
        >>> held_out.kind, held_out.n_data_points
        ('held-out', 10)
    """
    import xarray as xr

    from pyrobnn.diagnostics.arviz_classes import HeldOut

    data = in_memory(data)
    prediction = posterior.predict(data.x, num_draws=num_draws, seed=seed)
    pointwise = prediction.log_prob(data.y).double().cpu().numpy()
    result = HeldOut(
        elpd=float(pointwise.sum()),
        se=math.sqrt(len(data) * pointwise.var()),
        p=math.nan,
        n_samples=num_draws,
        n_data_points=len(data),
        scale="log",
        warning=False,
        good_k=math.nan,
        elpd_i=xr.DataArray(pointwise, dims=["obs_id"], coords={"obs_id": range(len(data))}),
    )
    return mark(result, data)


def kfold(
    model: BNN,
    data: Any,
    method: Any,
    *,
    folds: Any = 5,
    seed: int = 0,
    num_draws: int = 500,
    device: str = "auto",
    engine: str = "auto",
    progress: bool = True,
) -> "az.ELPDDataLOOKFold":
    """Return exact K-fold cross-validation: each example is predicted by a fit that has not seen its fold.

    This scores the procedure, model and method together, and needs no draws from the exact posterior. It takes K + 1
    fits; the fit to all data serves only the effective number of parameters `p`. If the method is `SVI`, fits to
    equally many examples run side by side. Scores are in original units.

    Args:
        model: the model.
        data: `Data` or a pair (x, y) of N examples.
        method: the method of the fits.
        folds: number of folds K, drawn at random, with the classes spread evenly over them and examples of equal inputs
            in one fold; or the fold of each example, (N,), labels of any kind, as from a splitter of scikit-learn.
        seed: seed of the folds and the fits.
        num_draws: draws for each density.
        device: as in `fit`.
        engine: as in `fit`.
        progress: show progress bars.

    Returns:
        ArviZ's `ELPDDataLOOKFold`, pointwise.

    Raises:
        InputError: folds that do not fit the data, or arguments that `fit` refuses.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> found = bnn.kfold(model, bnn.datasets.sinusoid(), bnn.SVI(steps=20), folds=3, progress=False)
        >>> found.n_data_points, found.elpd_i.shape
        (32, (32,))
    """
    import arviz as az
    import xarray as xr

    data = in_memory(data)
    labels = _folds(folds, model, data, derive(seed, "folds"))
    sets = [data[labels != fold] for fold in range(labels.max() + 1)]
    *fits, whole = fit_each(model, method, [*sets, data], seed=seed, device=device, engine=engine, progress=progress)

    def scores(posterior: Posterior | Mixture, rows: Data) -> np.ndarray:
        return posterior.predict(rows.x, num_draws=num_draws).log_prob(rows.y).double().cpu().numpy()

    elpd, seen = np.empty(len(data)), scores(whole, data)
    for fold, posterior in enumerate(fits):
        elpd[labels == fold] = scores(posterior, data[labels == fold])
    coords = {"dims": ["obs_id"], "coords": {"obs_id": range(len(data))}}
    result = az.ELPDDataLOOKFold(
        elpd=float(elpd.sum()),
        se=math.sqrt(len(data) * elpd.var()),
        p=float((seen - elpd).sum()),
        n_samples=num_draws,
        n_data_points=len(data),
        scale="log",
        warning=False,
        good_k=math.nan,
        elpd_i=xr.DataArray(elpd, **coords),
        n_folds=len(fits),
        p_kfold_i=xr.DataArray(seen - elpd, **coords),
    )
    return mark(result, data)


def _folds(folds: Any, model: BNN, data: Data, seed: int) -> np.ndarray:
    """Return the fold of each example, (N,), numbered from 0: as given, or drawn by scikit-learn.

    Examples with equal inputs share a fold, else a fit would have seen examples that it is judged by, unless there are
    fewer distinct inputs than folds. Classes are spread evenly if one has at least as many members as there are folds.
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    if not isinstance(folds, (int, np.integer)) or isinstance(folds, bool):
        check_unmasked(folds, "folds")
        given = np.asarray(folds)
        if given.shape != (len(data),) or len(np.unique(given)) < 2:
            raise InputError(
                f"`folds` must be a number, or have one label for each of the {len(data)} examples and name at least "
                f"two folds, got values of shape {given.shape}."
            )
        return np.unique(given, return_inverse=True)[1]
    if not 2 <= folds <= len(data):
        raise InputError(f"`folds` must lie between 2 and the number of examples, {len(data)}; got {folds}.")
    _, first, group = np.unique(same_inputs(data.x).numpy(), return_index=True, return_inverse=True)
    if len(first) < folds:
        first = group = np.arange(len(data))
    has_classes = as_likelihood(model.settings["likelihood"]).has_labels and data.y.ndim == 1
    classes = data.y.cpu().numpy().astype(np.int64)[first] if has_classes else None
    is_even = classes is not None and np.bincount(classes).max() >= folds
    splitter = (StratifiedKFold if is_even else KFold)(n_splits=int(folds), shuffle=True, random_state=seed)
    labels = np.empty(len(first), dtype=np.int64)
    for index, (_, held_out) in enumerate(splitter.split(np.empty((len(first), 1)), classes)):
        labels[held_out] = index
    return labels[group]


_WEIGHTS_AT_ONCE = 2**20
"""Weights that fits side by side may have together."""


def fit_each(
    model: BNN, method: Any, sets: Sequence[Data], *, seed: int, progress: bool, **arguments: Any
) -> list[Any]:
    """Fit a method to several data sets: sets of equal size side by side if the method is SVI, the others in turn.

    The seed is `derive(seed, f"fit {index}")`, of a group side by side that of its first set. Further arguments are
    those of `Run`. No fit warns, and an interrupt ends all.
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
