"""How well posteriors predict examples that they have not seen: held out, in folds, or left out one by one."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.errors import InputError, progress_bar
from pyrobnn._core.random import derive, seeded
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import in_memory
from pyrobnn.data.splits import numbered, same_inputs
from pyrobnn.diagnostics.convert import to_datatree
from pyrobnn.guides.base import built
from pyrobnn.inference import SVI
from pyrobnn.inference.fit import fit_in_silence
from pyrobnn.inference.mcmc.mcmc import WalkMethod
from pyrobnn.inference.method import Run, registry
from pyrobnn.inference.several.replicates import replicates_in_silence
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.base import require_posterior
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

if TYPE_CHECKING:
    import arviz as az
    import pandas as pd

_WEIGHTS_AT_ONCE = 2**20  # that fits side by side may have together
_DRAWS_FOR_LOO = 1000
_FEWEST_DRAWS_FOR_LOO = 100


def heldout_elpd(
    posterior: Posterior | Mixture, data: Any, *, num_draws: int = 500, seed: int | None = None
) -> "az.ELPDData":
    """Return the expected log pointwise predictive density of examples that took no part in the fit, for ArviZ.

    It is sum_n log 1/S sum_s p(y_n | x_n, w_s), in the original units of the targets. Prefer it where there are data.

    Args:
        posterior: the posterior.
        data: `Data` or a pair (x, y) that the fit has not seen.
        num_draws: number of draws S.
        seed: seed of the draws; the fit's if not given.

    Raises:
        InputError: data that do not fit the model.

    Examples:
        >>> train, test = bnn.datasets.sinusoid(40).split(0.25, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, steps=20, seed=0, progress=False)
        >>> bnn.heldout_elpd(posterior, test).n_data_points
        10
    """
    import arviz as az

    data = in_memory(data)
    return _summed(az.ELPDData, _scores(posterior, data, num_draws, seed), data, num_draws, kind="held-out")


def _scores(posterior: Posterior | Mixture, data: Data, num_draws: int, seed: int | None = None) -> np.ndarray:
    return posterior.predict(data.x, num_draws=num_draws, seed=seed).log_prob(data.y).double().cpu().numpy()


def _summed(cls: Any, pointwise: np.ndarray, data: Data, num: int, *, kind: str = "", **more: Any) -> "az.ELPDData":
    """Return a result of ArviZ, of a class, with scores (N,) of the examples, and further fields."""
    import xarray as xr

    fields = {"elpd": float(pointwise.sum()), "se": math.sqrt(len(data) * pointwise.var()), "p": math.nan} | more
    fields |= {"n_samples": num, "n_data_points": len(data), "scale": "log", "warning": False, "good_k": math.nan}
    by_example = xr.DataArray(pointwise, dims=["obs_id"], coords={"obs_id": range(len(data))})
    return _mark(cls(**fields, elpd_i=by_example), data, kind)


def _mark(found: "az.ELPDData", data: Data, kind: str) -> "az.ELPDData":
    """Note in a result the targets it was computed on, and a kind that ArviZ does not have."""
    values = np.ascontiguousarray(data.y.double().cpu().numpy())
    found.elpd_i.attrs["targets"] = hashlib.sha256(values.tobytes()).hexdigest()[:8]
    if kind:
        found._kind = kind
    return found


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
    """Return exact K-fold cross-validation, for ArviZ: each example is predicted by a fit that has not seen its fold.

    It takes K + 1 fits, one of them to all data, for the effective number of parameters `p`. Fits of `SVI` to equally
    many examples run side by side.

    Args:
        model: the model.
        data: `Data` or a pair (x, y) of N examples.
        method: the method of the fits.
        folds: number of folds K, drawn at random, with classes spread evenly and equal inputs in one fold; or the fold
            of each example, (N,), labels of any kind.
        groups: the group of each example, (N,), such as its patient; those of `data` if not given. A group is in one
            fold, so that the score, with its error, is that of new groups.
        seed: seed of the folds and the fits.
        num_draws: draws for each density.
        device: as in `fit`.
        engine: as in `fit`.
        progress: show progress bars.

    Raises:
        InputError: folds that do not fit the data, or arguments that `fit` refuses.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> bnn.kfold(model, bnn.datasets.sinusoid(), bnn.SVI(steps=20), folds=3, progress=False).n_data_points
        32
    """
    import arviz as az

    data = in_memory(data)
    groups = data.groups if groups is None else groups
    group_of_row = None if groups is None else numbered(groups, len(data), "groups")
    labels = _folds(folds, group_of_row, model, data, derive(seed, "folds"))
    sets = [data[labels != fold] for fold in range(labels.max() + 1)]
    *fits, whole = fit_each(model, method, [*sets, data], seed=seed, device=device, engine=engine, progress=progress)
    elpd, seen = np.empty(len(data)), _scores(whole, data, num_draws)
    for fold, posterior in enumerate(fits):
        elpd[labels == fold] = _scores(posterior, data[labels == fold], num_draws)
    difference = float((seen - elpd).sum())
    found: az.ELPDDataLOOKFold = _summed(az.ELPDDataLOOKFold, elpd, data, num_draws, p=difference, n_folds=len(fits))
    found.p_kfold_i = found.elpd_i.copy(data=seen - elpd)
    if group_of_row is not None:
        found.se, found.elpd_i.attrs["groups"] = _error_over(group_of_row, elpd), tuple(group_of_row.tolist())
    return found


def _folds(folds: Any, groups: np.ndarray | None, model: BNN, data: Data, seed: int) -> np.ndarray:
    """Return the fold of each example, (N,), numbered from 0: as given, or drawn by scikit-learn.

    Groups stay whole, or examples of equal inputs unless they are fewer than folds; classes are spread evenly.
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    if not isinstance(folds, (int, np.integer)) or isinstance(folds, bool):
        labels = numbered(folds, len(data), "folds")
        if labels.max() < 1 or groups is not None:
            raise InputError("`folds` must be a number, or name two folds or more, which `groups` do not go with.")
        return labels
    group_of_row = same_inputs(data.x).numpy() if groups is None else groups
    _, first, group = np.unique(group_of_row, return_index=True, return_inverse=True)
    most = len(data) if groups is None else len(first)
    if not 2 <= folds <= most:
        what = "examples" if groups is None else "groups"
        raise InputError(f"`folds` must lie between 2 and the number of {what}, {most}; got {folds}.")
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


def fit_each(model: BNN, method: Any, sets: Sequence[Data], *, seed: int, progress: bool, **more: Any) -> list[Any]:
    """Fit a method to several data sets: sets of equal size side by side if the method is SVI, the others in turn.

    Seeds derive from the number of a set, or the first of a group; further arguments are those of `Run`. No fit warns.
    """
    side_by_side = isinstance(method, SVI) and method.patience is None
    most = max(1, _WEIGHTS_AT_ONCE // model.num_weights) if side_by_side else 1
    groups: list[list[int]] = []
    for size in dict.fromkeys(map(len, sets)):
        of_size = [index for index, data in enumerate(sets) if len(data) == size]
        groups += [part.tolist() for part in np.array_split(of_size, -(-len(of_size) // most))]
    posteriors: dict[int, Any] = {}
    with progress_bar(groups, desc="fits", unit="group" if side_by_side else "fit", shown=progress) as bar:
        for first, *others in bar:
            run = Run(seed=derive(seed, f"fit {first}"), progress=progress and bool(others), **more)
            if others:
                together = [sets[index] for index in (first, *others)]
                posteriors |= zip((first, *others), replicates_in_silence(model, together, method, run), strict=True)
            else:
                posteriors[first] = fit_in_silence(model, sets[first], method, run)
    return [posteriors[index] for index in range(len(sets))]


def loo(
    posterior: Posterior | Mixture, data: Any, *, num_draws: int | None = None, seed: int | None = None
) -> "az.ELPDDataLOO":
    """Return Pareto-smoothed importance sampling leave-one-out cross-validation (Vehtari et al. 2017).

    For NUTS or HMC this estimates the exact score, of kind "loo". Draws of a guide are treated as draws from the
    posterior, of kind "LOO under q". ArviZ warns if the k-hat of an example is too large: take `kfold`.

    Args:
        posterior: the posterior.
        data: the training data, `Data` or a pair (x, y).
        num_draws: number of draws S, at least 100; 1000 if not given, or all draws of Markov chains.
        seed: seed of the draws; the fit's if not given.

    Raises:
        InputError: point masses, too few draws, or data that do not fit the model.

    Examples:
        >>> data = bnn.datasets.sinusoid(100)
        >>> model = bnn.BNN(bnn.MLP(1, [], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(4.0))
        >>> posterior = model.fit(data, guide=bnn.guides.Laplace(structure="full"), steps=50, seed=0, progress=False)
        >>> bnn.loo(posterior, data).kind
        'LOO under q'
    """
    import arviz as az

    require_posterior(posterior)
    data = in_memory(data)
    members = posterior.members
    has_chains = all(built(member.guide).chains() is not None for member in members)
    asked = _DRAWS_FOR_LOO if num_draws is None else num_draws
    tree = to_datatree(posterior, data, num_draws=num_draws if has_chains else asked, prior=False, seed=seed)
    stats = tree["sample_stats"]
    if not has_chains and ("log_q" not in stats or bool(stats["log_q"].isnull().any())):
        alike = "Leaving one out reweights draws, and the draws of a point mass such as Map are all equal"
        raise InputError(f"{alike}: use `kfold`.")
    if (num := np.unique(stats["lp"]).size) < _FEWEST_DRAWS_FOR_LOO:  # chains repeat a draw where they do not move
        raise InputError(f"`num_draws` must give {_FEWEST_DRAWS_FOR_LOO} different draws, got {num}: draw more.")
    with seeded(0, "loo"):  # ArviZ imports jax, whose import draws random numbers
        efficiency, log_p = 1.0, tree["log_likelihood"]["y"]
        if has_chains:  # of the likelihood, which mirror images share
            shared = np.exp(log_p - log_p.max(("chain", "draw"))).astype(float)
            efficiency = float(az.ess(shared, method="mean").mean()) / stats["lp"].size
        result = az.loo(tree, reff=efficiency, var_name="y", pointwise=True)
    methods = [member.record.methods for member in members]
    exact = {"from_draws"} | {name for name in registry.names if issubclass(registry.get(name), WalkMethod)}
    is_exact = all(tables and tables[0]["type"] in exact for tables in methods)
    return _mark(result, data, "" if is_exact else "LOO under q")


def _error_over(group_of_row: Any, scores: np.ndarray) -> float:
    """Return the standard error of a sum of scores (N,) that are independent between groups only."""
    sums = np.bincount(group_of_row, scores)
    return math.sqrt(len(sums) * sums.var())


def _facts(result: "az.ELPDData") -> dict[str, Any]:
    """Return what results to compare have in common, by what is wrong otherwise; None goes with anything."""
    folds = getattr(result, "n_folds", None)
    groups = result.elpd_i.attrs.get("groups", range(result.n_data_points))
    return {
        "Results of different kinds measure different things": f"{result.kind}{f' with {folds} folds' * bool(folds)}",
        "Results can be compared on the same examples in the same order only": result.elpd_i.attrs.get("targets"),
        "Results rest on different numbers of examples or groups": len(set(groups)),
    }


def compare(elpds: "Mapping[str, az.ELPDData]") -> "pd.DataFrame":
    """Rank models by their expected log pointwise predictive density, with stacking weights: `az.compare`, not rounded.

    Args:
        elpds: results of `heldout_elpd`, `loo` or `kfold` by name, all of the same kind and on the same examples.

    Returns:
        A row for each model, best first, with the columns of ArviZ; the standard error `dse` of the difference to the
        best is over groups if `kfold` had any. `az.plot_compare` takes it; see docs/how-to/compare.md.

    Raises:
        InputError: fewer than two results, other objects, or results of different kinds, folds or examples.

    Examples:
        >>> train, test = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> models = {name: bnn.BNN(bnn.MLP(1, [width], 1)) for name, width in (("small", 2), ("large", 20))}
        >>> fits = {name: model.fit(train, steps=20, seed=0, progress=False) for name, model in models.items()}
        >>> sorted(bnn.compare({name: bnn.heldout_elpd(fit, test) for name, fit in fits.items()}).index)
        ['large', 'small']
    """
    import arviz as az
    import pandas as pd
    from scipy.stats import norm

    for name, result in elpds.items():
        if not isinstance(result, az.ELPDData):
            got = f"{type(result).__name__} for {name!r}"
            raise InputError(f"`compare` takes results of heldout_elpd, loo or kfold by name, got {got}.")
    if len(elpds) < 2:
        raise InputError(f"`compare` needs two or more results, got {len(elpds)}.")
    for problem, values in pd.DataFrame([_facts(one) for one in elpds.values()], list(elpds)).items():
        if values.nunique() > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            raise InputError(f"{problem}; got {listed}. Use one function on one data set for all.")
    table = az.compare(dict(elpds), method="stacking", round_to="none")
    best, *others = (elpds[name].elpd_i for name in table.index)
    if best.attrs.get("groups"):
        errors = [_error_over(best.attrs["groups"], (other - best).values) for other in others]
        table.loc[table.index[1:], "dse"] = errors
        table.loc[table.index[1:], "p_worse"] = norm.cdf(0, table["elpd_diff"].iloc[1:], errors)
    return table
