"""How well a posterior predicts examples that it has not seen: held out, or in folds with a fit for each."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.random import derive
from pyrobnn.bnn import BNN
from pyrobnn.data.given import in_memory
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.comparison import mark
from pyrobnn.diagnostics.folds import as_folds, assign_folds, folds_of_inputs
from pyrobnn.diagnostics.refits import fit_each
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
        ArviZ's `ELPDData` of kind "held-out" with `elpd`, its standard error over examples `se`, and `elpd_i` (N,);
        `p` is NaN. `compare` and the plots of ArviZ take it.

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
    groups: Any = None,
    seed: int = 0,
    num_draws: int = 500,
    device: str = "auto",
    engine: str = "auto",
    progress: bool = True,
) -> "az.ELPDDataLOOKFold":
    """Return exact K-fold cross-validation: each example is predicted by a fit that has not seen its fold.

    This scores the procedure, model and method together, and needs no draws from the exact posterior. It takes K + 1
    fits; the fit to all data serves only the effective number of parameters `p`. If the method is `SVI`, fits to
    equally many examples run side by side. Data with `standardize` are standardised by the
    training part of each fit, and scores are in original units.

    Args:
        model: the model.
        data: `Data` or a pair (x, y) of N examples.
        method: the method of the fits.
        folds: number of folds K; or the fold of each example, (N,), labels of any kind. K folds are drawn at random,
            with the classes spread evenly over them.
        groups: labels (N,) of examples that belong together and must be held out together.
        seed: seed of the folds and the fits.
        num_draws: draws for each density.
        device: as in `fit`.
        engine: as in `fit`.
        progress: show progress bars.

    Returns:
        ArviZ's `ELPDDataLOOKFold`, pointwise.

    Raises:
        InputError: folds or groups that do not fit the data, or arguments that `fit` refuses.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> found = bnn.kfold(model, bnn.datasets.sinusoid(), bnn.SVI(steps=20), folds=3, progress=False)
        >>> found.n_data_points, found.elpd_i.shape
        (32, (32,))
    """
    import arviz as az

    from pyrobnn.diagnostics.arviz_classes import Refits, log_likelihood

    data = in_memory(data)
    folds, together = as_folds(folds, groups, len(data))
    classes, folds_seed = _classes(model, data), derive(seed, "folds")
    if isinstance(folds, int) and together is None:
        labels = folds_of_inputs(folds, data.x, classes, folds_seed)
    else:
        labels = assign_folds(folds, together, classes, folds_seed, len(data))
    sets = [data[labels != fold] for fold in range(labels.max() + 1)]
    *fits, whole = fit_each(model, method, [*sets, data], seed=seed, device=device, engine=engine, progress=progress)
    tree = az.from_dict(
        {"log_likelihood": {"y": log_likelihood(whole, data, num_draws).values}}, dims={"y": ["obs_id"]}
    )
    wrapper = Refits(data, labels, fits, num_draws)
    return mark(az.loo_kfold(tree, wrapper, var_name="y", folds=labels, pointwise=True), data)


def _classes(model: BNN, data: Data) -> np.ndarray | None:
    """Return the class of each example, or None if the targets are not single labels."""
    has_classes = as_likelihood(model.settings["likelihood"]).has_labels
    return data.y.cpu().numpy().astype(np.int64) if has_classes and data.y.ndim == 1 else None
