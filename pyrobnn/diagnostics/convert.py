"""From posteriors to an ArviZ DataTree, for the training data or for held-out data."""

import json
import warnings
from collections.abc import Hashable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

import pyrobnn
from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import Inputs, X, as_inputs
from pyrobnn.data.given import in_memory
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.groups import Arrays, Converter, draw_groups, prior_groups
from pyrobnn.diagnostics.members import as_one
from pyrobnn.diagnostics.monitored import Monitored
from pyrobnn.guides.built import built
from pyrobnn.posterior.mixture import Mixture, Posteriors, members_of
from pyrobnn.posterior.posterior import Posterior

if TYPE_CHECKING:
    import xarray

_HISTORY = ("elbo", "log_likelihood", "kl")
_HELD_OUT = ("posterior", "posterior_predictive", "log_likelihood")


def to_datatree(
    posterior: Posteriors,
    data: Data,
    *,
    x_pred: Any = None,
    num_draws: int | None = None,
    monitor: Any = "auto",
    prior: bool = True,
    seed: int | None = None,
) -> "xarray.DataTree":
    """Return draws of a posterior, and their predictions and densities at some data, as an ArviZ DataTree.

    All groups come from the same joint draws, with dimensions (chain, draw, ...). A guide is a single chain. A mixture
    has a chain of equal length for each member; Markov chains of equal number and length in all members follow each
    other. Targets and their densities are in original units. The groups are

    - posterior: the latent sites that `monitor` selects;
    - posterior_predictive: `y`, a draw of the targets for each draw of the weights (labels, for classes), and their
      mean `mu`, or the class probabilities `probs`;
    - predictions and predictions_constant_data, with `x_pred` only: the same at `x_pred`, and `x`;
    - log_likelihood: `y`, the log density of each example;
    - log_prior: `lprior`, the log prior density of all latents;
    - sample_stats: `lp`, the log joint density of data and latents; `log_q`, the log density of the guide (of the
      member, in a mixture; NaN or absent without one); and the statistics of Markov chains, such as `diverging`;
    - prior and prior_predictive: the same for draws from the prior, with the learned parameters of the fit. If they
      cannot be drawn, the attribute `prior_left_out` of the tree says why;
    - observed_data: `y`; constant_data: `x`;
    - guide_params: `<site>.loc` and `<site>.scale`, mean and standard deviation of every entry under the guide, (chain,
      *event), if every guide knows them;
    - svi: `elbo`, `log_likelihood` and `kl` at each step, if all members have as many.

    See docs/how-to/arviz.md.

    Args:
        posterior: a posterior, a mixture, a list of posteriors of the same network, or a dict whose keys name the
            chains (`<key>.0`, ... where each holds several Markov chains).
        data: inputs and targets in original units, usually the training data.
        x_pred: further inputs (M, *in) in original units at which to predict.
        num_draws: number of draws S, 500 if not given (fewer, at least 100, for more than a million weights); S // K
            from each of K members; the last S // C from each of C Markov chains, all if not given.
        monitor: "auto" for all entries, if they are at most 1000 in total, else 20 entries of each larger site, with
            their indices as labels, and `site_norm`, the Euclidean norm of every weight site. "all" for all entries. A
            list of patterns of site names, such as ["4.*", "likelihood.*"], for whole sites and norms of other weights.
        prior: have the groups prior and prior_predictive.
        seed: seed of the draws; the fit's if not given.

    Raises:
        InputError: data or inputs that do not fit the model, fewer than one draw per chain, posteriors that do not fit
            together, or a `monitor` that matches nothing.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> tree = bnn.to_datatree(posterior, data, x_pred=[[0.0], [1.5]], num_draws=100)
        >>> tree["posterior"]["0.weight"].shape, tree["predictions"]["mu"].shape
        ((1, 100, 10, 1), (1, 100, 2))
    """
    given, names = as_one(posterior)
    seed = given.seed if seed is None else seed
    data = in_memory(data)
    converter = Converter(data, _monitored(given, data, monitor, seed), x_pred)
    groups = draw_groups(given, converter, num_draws, seed)
    attrs = _attributes(given, groups["log_prior"]["lprior"].size, seed)
    root = dict(attrs)
    if prior:
        drawn, reason = prior_groups(given, converter, attrs["num_draws"], seed)
        groups |= drawn
        root |= {} if reason is None else {"prior_left_out": reason}
    if x_pred is not None:
        groups["predictions_constant_data"] = _inputs(as_inputs(x_pred, "x_pred"))
    tree = _tree(groups, converter, names, attrs, root)
    _add_fit(tree, given, converter.monitored, attrs)
    return tree


def eval_datatree(
    posterior: Posteriors,
    data: Data,
    *,
    num_draws: int | None = None,
    monitor: Any = "auto",
    seed: int | None = None,
) -> "xarray.DataTree":
    """Return draws of a posterior beside held-out data, as an ArviZ DataTree.

    ArviZ pairs posterior_predictive with observed_data, and takes weights of examples from log_likelihood. So its plots
    and scores of this tree are about the test data. The groups are posterior, posterior_predictive, log_likelihood,
    observed_data and constant_data of `to_datatree`, whose arguments and errors these are too.

    Examples:
        >>> train, test = bnn.datasets.sinusoid(40).split(0.25, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, steps=20, seed=0, progress=False)
        >>> tree = bnn.eval_datatree(posterior, test, num_draws=100)
        >>> dict(tree["posterior_predictive"]["y"].sizes)
        {'chain': 1, 'draw': 100, 'obs_id': 10}
    """
    given, names = as_one(posterior)
    seed = given.seed if seed is None else seed
    data = in_memory(data)
    converter = Converter(data, _monitored(given, data, monitor, seed))
    groups = draw_groups(given, converter, num_draws, seed)
    attrs = _attributes(given, groups["log_prior"]["lprior"].size, seed)
    return _tree({group: groups[group] for group in _HELD_OUT}, converter, names, attrs, attrs)


def _monitored(posterior: Posterior | Mixture, data: Data, monitor: Any, seed: int) -> Monitored:
    """Return the entries to keep of each site; a draw from each member checks that all are of the same kind."""
    drawn = [member.draw(1, seed=seed) for member in members_of(posterior)]
    for member, draws in zip(members_of(posterior), drawn, strict=True):
        odd = sorted(set(draws) ^ set(drawn[0]))
        if odd:
            raise InputError(f"Posteriors in one tree must have the same sites, only some have {odd[0]!r}: make two.")
        kinds = [
            each.predict(data.x[:1], draws=drawn[0]).is_classification for each in (members_of(posterior)[0], member)
        ]
        if kinds[0] != kinds[1]:
            raise InputError("Posteriors in one tree must have the same kind of targets, classes or not: make two.")
    example = {name: values[0] for name, values in drawn[0].items()}
    return Monitored(example, posterior.bnn.site_names, data.feature_names, monitor)


def _tree(
    groups: Arrays, converter: Converter, names: list[str] | None, attrs: dict[str, Any], root: dict[str, Any]
) -> "xarray.DataTree":
    """Return a tree of arrays, with the data, named dimensions and attributes."""
    import arviz_base as az  # arviz itself would load its plots and statistics, too

    data, monitored = converter.data, converter.monitored
    data_groups = {"observed_data": {"y": data.y.cpu().numpy()}, "constant_data": _inputs(data.x)}
    coords = monitored.coords | {"feature": list(data.feature_names)}
    if names is not None:
        coords["chain"] = _chain_names(names, len(groups["log_likelihood"]["y"]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer")  # many members, few draws
        return az.from_dict(
            groups | data_groups,
            dims=monitored.dims | _data_dims(data, groups, "obs_id"),
            coords=coords,
            pred_dims=_data_dims(data, groups, "pred_id"),
            pred_coords=coords,
            attrs=dict.fromkeys([*groups, *data_groups], attrs) | {"/": root},
        )


def _chain_names(names: list[str], num_chains: int) -> list[str]:
    each = num_chains // len(names)
    return names if each == 1 else [f"{name}.{index}" for name in names for index in range(each)]


def _add_fit(
    tree: "xarray.DataTree", posterior: Posterior | Mixture, monitored: Monitored, attrs: dict[str, Any]
) -> None:
    """Add the records of the fit, and the variational parameters, with a chain for each member."""
    import arviz_base as az
    import xarray as xr

    members = members_of(posterior)
    chains = {"chain": tree["posterior"]["chain"].values} if tree["posterior"].sizes["chain"] == len(members) else {}
    record = _fit_record(posterior)
    if record:
        made = az.dict_to_dataset(record, attrs=attrs, sample_dims=["chain", "step"], coords=chains)
        tree["svi"] = xr.DataTree(made)
    params, dims = _guide_params(posterior, monitored)
    if params:
        coords = monitored.coords | chains
        made = az.dict_to_dataset(params, attrs=attrs, sample_dims=["chain"], dims=dims, coords=coords)
        tree["guide_params"] = xr.DataTree(made)


def _fit_record(posterior: Posterior | Mixture) -> dict[str, np.ndarray]:
    """Return the terms of the ELBO at each step, (chain, step); none if a fit has no record or they differ in length.

    A mixture has a chain for each member.
    """
    records = [member.history for member in members_of(posterior)]
    lengths = {0 if record is None else len(record) for record in records}
    if lengths == {0} or len(lengths) > 1:
        return {}
    return {name: np.stack([getattr(record, name) for record in records]) for name in _HISTORY}


def _guide_params(
    posterior: Posterior | Mixture, monitored: Monitored
) -> tuple[dict[str, np.ndarray], dict[Hashable, Sequence[Hashable]]]:
    """Return mean and standard deviation of every site under each guide, (chain, *event), and their dimensions."""
    by_member = [built(member.guide).moments() for member in members_of(posterior)]
    moments = [of_guide for of_guide in by_member if of_guide is not None]
    if len(moments) < len(by_member):
        return {}, {}
    params: dict[str, np.ndarray] = {}
    dims: dict[Hashable, Sequence[Hashable]] = {}
    for name in moments[0]:
        for index, kind in enumerate(("loc", "scale")):
            values = np.stack([of_guide[name][index].detach().cpu().numpy() for of_guide in moments])
            fits = len(monitored.site_dims[name]) == values.ndim - 1
            params[f"{name}.{kind}"] = values
            dims[f"{name}.{kind}"] = (
                monitored.site_dims[name] if fits else [f"{name}.{kind}.dim_{i}" for i in range(values.ndim - 1)]
            )
    return params, dims


def _inputs(x: X) -> dict[str, np.ndarray]:
    """Return the inputs by name: "x", or "x.name" for each of several tensors."""
    parts = {f"x.{name}": part for name, part in x.parts.items()} if isinstance(x, Inputs) else {"x": x}
    return {name: part.cpu().numpy() for name, part in parts.items()}


def _data_dims(data: Data, groups: Arrays, rows: str) -> dict[str, list[str]]:
    columns = ["target"] if data.y.ndim == 2 else []
    probs = groups["posterior_predictive"].get("probs", np.empty(0))
    classes = ["class"] if probs.ndim == 4 and not columns else []
    return {
        **{name: [rows] for name in _inputs(data.x)},
        **({"x": [rows, "feature"]} if data.x.ndim == 2 else {}),
        "y": [rows, *columns],
        "mu": [rows, *columns],
        "probs": [rows, *columns, *classes],
    }


def _attributes(posterior: Posterior | Mixture, num_draws: int, seed: int) -> dict[str, Any]:
    members = members_of(posterior)
    method = posterior.record.method
    methods = [method] if method is not None else _unlike([member.record.method for member in members])
    return {
        "creation_library": "pyrobnn",
        "creation_library_version": pyrobnn.__version__,
        "inference_library": "pyro",
        "inference_library_version": version("pyro-ppl"),
        "inference_method": ", ".join(_unlike([_method_name(method) for method in methods])),
        "guide": ", ".join(_unlike([type(member.guide).__name__ for member in members])),
        "method": json.dumps(methods[0] if len(methods) == 1 else methods),
        "num_draws": num_draws,
        "seed": seed,
    }


def _unlike(values: list[Any]) -> list[Any]:
    """Return the values that differ, in their order."""
    return [value for index, value in enumerate(values) if value not in values[:index]]


def _method_name(method: Any) -> str:
    return str(method["type"]).upper() if isinstance(method, dict) else "SVI"
