"""From posteriors to an ArviZ DataTree, for the training data or for held-out data."""

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

import pyrobnn
from pyrobnn._core.errors import InputError, listed
from pyrobnn._core.random import derive, seeded
from pyrobnn._torch.inputs import Inputs, X, as_inputs
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.vectorize import draws_at_once
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import in_memory
from pyrobnn.guides.base import built
from pyrobnn.inference.around import PriorGuide
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior, latent_values
from pyrobnn.posterior.prediction import Prediction

if TYPE_CHECKING:
    import xarray

Arrays = dict[str, dict[str, np.ndarray]]
"""Variables by group, (draw, ...) or (chain, draw, ...)."""
MAX_WHOLE, _SMALL = 1000, 20
"""Entries of all sites together up to which all are kept, and of a site that is kept anyway."""
NORM = "site_norm"  # the Euclidean norm of each weight site, per draw, if not every weight is kept
_DEFAULT_DRAWS, _FEWEST_DRAWS, _MOST_DRAWN_NUMBERS = 500, 100, 2**29
"""Default number of draws, and its least value where that many draws would be more numbers than the last."""
_FEWEST_PRIOR_DRAWS, _MOST_PRIOR_NUMBERS = 50, 2**27
"""Fewest draws from the prior of a large network, and most floats for as many draws as from the posterior."""
_TYPES: dict[str, type] = {"diverging": bool, "n_steps": int, "tree_depth": int}  # in ArviZ, of no real numbers
_NOISE = "likelihood.scale"  # a site in the units of the targets
_HELD_OUT = ("posterior", "posterior_predictive", "log_likelihood", "observed_data", "constant_data")


def to_datatree(
    posterior: Posterior | Mixture,
    data: Data,
    *,
    x_pred: Any = None,
    num_draws: int | None = None,
    monitor: Any = "auto",
    prior: bool = True,
    seed: int | None = None,
    coords: Mapping[str, Any] = {},
    dims: Mapping[str, Sequence[str]] = {},
) -> "xarray.DataTree":
    """Return draws of a posterior, and their predictions and densities at some data, as an ArviZ DataTree.

    All groups, which docs/how-to/arviz.md lists, come from the same joint draws, with dimensions (chain, draw, ...). A
    guide is a chain, and a mixture has one for each member; Markov chains of equal number and length follow each other.
    Targets, their densities and `likelihood.scale` are in original units. Left out are `log_q` of sample_stats where a
    member lacks it, and prior and prior_predictive where the attribute `prior_left_out` of the tree says why.

    Args:
        posterior: a posterior or a mixture.
        data: inputs and targets in original units, usually the training data.
        x_pred: further inputs (M, *in) in original units at which to predict.
        num_draws: number of draws S, 500 if not given (fewer for more than a million weights), an equal share from each
            member; of Markov chains the last, all if not given.
        monitor: "auto" for all sites, of more than 1000 entries those of at most 20 entries; "all"; or patterns of site
            names, such as ["4.*", "likelihood.*"]. If some are left out, `site_norm` has the norms of all weight sites.
        prior: have the groups prior and prior_predictive.
        seed: seed of the draws; the fit's if not given.
        coords: labels of dimensions, such as {"obs_id": names of rows, "target": names of columns}, as in ArviZ.
        dims: names of the dimensions of variables, in place of those given here.

    Raises:
        InputError: data, inputs or posteriors that do not fit together, too few draws, or a `monitor` of no site.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> tree = bnn.to_datatree(posterior, data, x_pred=[[0.0], [1.5]], num_draws=100)
        >>> tree["posterior"]["0.weight"].shape, tree["predictions"]["mu"].shape
        ((1, 100, 10, 1), (1, 100, 2))
    """
    import arviz_base as az  # arviz itself would load its plots and statistics, too

    if not isinstance(posterior, (Posterior, Mixture)):
        said = f"`posterior` must be a posterior or a mixture, got {type(posterior).__name__}: pass the result of `fit`"
        raise InputError(f"{said}, of an estimator its `posterior_`, and of several fits `bnn.Mixture(fits)`.")
    seed, data = posterior.seed if seed is None else seed, in_memory(data)
    monitored = _monitored(_example(posterior, data, seed), posterior.bnn.site_names, data.feature_names, monitor)
    converter = _Converter(data, monitored, x_pred)
    groups = _draw_groups(posterior, converter, num_draws, seed)
    attrs = _attributes(posterior, groups["log_prior"]["lprior"].size, seed)
    drawn, reason = _prior_groups(posterior, converter, attrs["num_draws"], seed) if prior else ({}, {})
    groups |= drawn | {"observed_data": {"y": data.y.cpu().numpy()}, "constant_data": _inputs(data.x)}
    if x_pred is not None:
        groups["predictions_constant_data"] = _inputs(as_inputs(x_pred, "x_pred"))
    labels = monitored.coords | {"feature": list(data.feature_names)} | dict(coords)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer")  # many members, few draws
        return az.from_dict(
            groups,
            dims=monitored.dims | _data_dims(data, groups, "obs_id") | dict(dims),
            coords=labels,
            pred_dims=_data_dims(data, groups, "pred_id") | dict(dims),
            pred_coords=labels,
            attrs=dict.fromkeys(groups, attrs) | {"/": attrs | reason},
        )


def eval_datatree(
    posterior: Posterior | Mixture,
    data: Data,
    *,
    num_draws: int | None = None,
    monitor: Any = "auto",
    seed: int | None = None,
    **labels: Any,
) -> "xarray.DataTree":
    """Return draws of a posterior beside held-out data, as an ArviZ DataTree.

    Plots and scores of ArviZ are then about the test data. The groups are posterior, posterior_predictive,
    log_likelihood, observed_data and constant_data of `to_datatree`, whose arguments and errors these are too.

    Examples:
        >>> train, test = bnn.datasets.sinusoid(40).split(0.25, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, steps=20, seed=0, progress=False)
        >>> dict(bnn.eval_datatree(posterior, test, num_draws=100)["posterior_predictive"]["y"].sizes)
        {'chain': 1, 'draw': 100, 'obs_id': 10}
    """
    tree = to_datatree(posterior, data, num_draws=num_draws, monitor=monitor, prior=False, seed=seed, **labels)
    for group in set(tree.children) - set(_HELD_OUT):
        del tree[group]
    return tree


def _example(posterior: Posterior | Mixture, data: Data, seed: int) -> dict[str, Tensor]:
    """Return a draw (*event) of each site; refuse members whose sites or kinds of targets differ."""
    first, *others = [member.draw(1, seed=seed) for member in posterior.members]
    if odd := sorted(set().union(*(draws.keys() ^ first.keys() for draws in others))):
        raise InputError(f"Posteriors in one tree must have the same sites, only some have {odd[0]!r}: make two.")
    if len({member.predict(data.x[:1], draws=first).is_classification for member in posterior.members}) > 1:
        raise InputError("Posteriors in one tree must have the same kind of targets, classes or not: make two.")
    return {name: values[0] for name, values in first.items()}


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
    members, method = posterior.members, posterior.record.method
    methods = [method] if method is not None else [member.record.method for member in members]
    kinds = dict.fromkeys(str(method["type"]).upper() if isinstance(method, dict) else "SVI" for method in methods)
    tables = list(dict.fromkeys(map(json.dumps, methods)))
    return {
        "creation_library": "pyrobnn",
        "creation_library_version": pyrobnn.__version__,
        "inference_library": "pyro",
        "inference_library_version": version("pyro-ppl"),
        "inference_method": ", ".join(kinds),
        "guide": ", ".join(dict.fromkeys(type(member.guide).__name__ for member in members)),
        "method": tables[0] if len(tables) == 1 else f"[{', '.join(tables)}]",
        "num_draws": num_draws,
        "seed": seed,
    }


@dataclasses.dataclass(frozen=True, eq=False)
class _Converter:
    """Conversion of blocks of draws, with predictions for the data, and for inputs `x_pred` (M, *in) if given."""

    data: Data
    monitored: "Monitored"
    x_pred: Any = None

    def convert(self, member: Posterior, draws: dict[str, Tensor], seed: int) -> Arrays:
        """Return the groups of a block of draws (B, *event), the draws on the leading axis."""
        prediction = member.predict(self.data.x, draws=draws)
        log_likelihood, log_prior = prediction.draw_log_prob(self.data.y), log_prior_density(member, draws)
        tensors = {
            "posterior_predictive": self.predictive(prediction, seed),
            "log_likelihood": {"y": log_likelihood},
            "log_prior": {"lprior": log_prior},
            "sample_stats": {"lp": log_prior + log_likelihood.double().sum(1)},
        }
        if self.x_pred is not None:
            elsewhere = member.predict(self.x_pred, draws=draws)
            tensors["predictions"] = self.predictive(elsewhere, derive(seed, "predictions"))
        return {"posterior": self.monitored.select(draws, member)} | _numpy(tensors)

    def predictive(self, prediction: Prediction, seed: int) -> dict[str, Tensor]:
        """Return targets drawn for each draw of the weights, and their means or probabilities."""
        y = prediction.sample(seed=seed)
        if prediction.is_classification:
            return {"y": y.to(self.data.y.dtype), "probs": prediction.draw_means}
        return {"y": y, "mu": prediction.draw_means}


def _numpy(tensors: dict[str, dict[str, Tensor]]) -> Arrays:
    return {group: {name: v.cpu().numpy() for name, v in variables.items()} for group, variables in tensors.items()}


def _draw_groups(posterior: Posterior | Mixture, converter: _Converter, num_draws: int | None, seed: int) -> Arrays:
    """Return the groups of draws from the posterior, (chain, draw, ...), by member; of alike Markov chains the last."""
    parts = posterior.members
    kinds = {(_lengths(part), tuple(built(part.guide).sample_stats())) for part in parts}
    num_chains, length = kinds.pop()[0] if len(kinds) == 1 else (0, 0)
    least = max(1, num_chains) * len(parts)
    if num_draws is None:
        affordable = max(_FEWEST_DRAWS, _MOST_DRAWN_NUMBERS // max(1, posterior.bnn.num_weights))
        num_draws = length * least if num_chains else min(_DEFAULT_DRAWS, affordable)
    if num_draws < least:
        part = "chain" if num_chains else "member"
        raise InputError(f"`num_draws` must be at least {least}, one for each {part}, got {num_draws}.")
    convert, most = (_from_chains, length) if num_chains else (_from_guide, num_draws)
    each = min(most, num_draws // least)
    groups = _joined([convert(part, key, converter, each) for part, _, key in posterior.shares(len(parts), seed=seed)])
    if np.isnan(groups["sample_stats"].get("log_q", np.zeros(1))).all():
        del groups["sample_stats"]["log_q"]
    return groups


def _prior_groups(
    posterior: Posterior | Mixture, converter: _Converter, num_draws: int, seed: int
) -> tuple[Arrays, dict[str, str]]:
    """Return `prior` and `prior_predictive`, a chain for each member, and the attribute that says what is left out."""
    shares = posterior.shares(len(posterior.members), seed=seed)
    affordable = max(_FEWEST_PRIOR_DRAWS, _MOST_PRIOR_NUMBERS // max(1, posterior.bnn.num_weights))
    each = max(1, min(num_draws, affordable) // len(shares))
    try:
        groups = _joined([_from_prior(part, key, converter, each) for part, _, key in shares])
    except NotImplementedError as error:
        return {}, {"prior_left_out": f"the prior cannot be drawn from: {error or type(error).__name__}"}
    reason = "predictions under draws from the prior overflow, so prior_predictive is left out"
    return groups, {} if "prior_predictive" in groups else {"prior_left_out": reason}


def _lengths(member: Posterior) -> tuple[int, int]:
    """Return the number of stored Markov chains and of the draws of each, 0 without any."""
    stored = next(iter((built(member.guide).chains() or {}).values()), None)
    return (0, 0) if stored is None else (stored.shape[0], stored.shape[1])


def _from_chains(member: Posterior, seed: int, converter: _Converter, kept: int) -> Arrays:
    """Return the groups of the last draws of each chain, (chain, draw, ...), in their order."""
    guide, num_chains = built(member.guide), _lengths(member)[0]
    draws = {name: values[:, -kept:].flatten(0, 1) for name, values in (guide.chains() or {}).items()}
    size = draws_at_once(member.bnn.num_weights, member.bnn.like.device)
    with fast_pyro(), torch.no_grad():
        blocks = [
            converter.convert(member, {name: values[start : start + size] for name, values in draws.items()}, key)
            for key, start in enumerate(range(0, num_chains * kept, size), seed)
        ]
    groups = _chained(blocks, num_chains)
    groups["sample_stats"] |= {
        name: values[:, -kept:].cpu().numpy().astype(_TYPES.get(name, float))
        for name, values in guide.sample_stats().items()
    }
    return groups


def _from_guide(member: Posterior, seed: int, converter: _Converter, num_draws: int) -> Arrays:
    """Return the groups of independent draws, (1, draw, ...), with NaN for the log density where there is none."""
    noise_seeds = count(seed)

    def convert(draws: dict[str, Tensor], log_q: Tensor | None = None) -> Arrays:
        arrays = converter.convert(member, draws, next(noise_seeds))
        stats = arrays["sample_stats"]
        stats["log_q"] = np.zeros_like(stats["lp"]) if log_q is None else log_q.double().cpu().numpy()
        return arrays

    if _lengths(member) == (0, 0):
        blocks = member.map_draws(convert, num_draws, seed=seed)
    else:
        blocks = member.map_traces(latent_values, convert, num_draws, seed=seed)
    groups = _chained(blocks, 1)
    if not groups["sample_stats"]["log_q"].any():  # of points, or of draws that are stored
        groups["sample_stats"]["log_q"][:] = np.nan
    return groups


def _from_prior(member: Posterior, seed: int, converter: _Converter, num_draws: int) -> Arrays:
    """Return the groups of draws from the prior of a member's model, (1, draw, ...)."""
    prior, noise_seeds = member.with_fields(guide=PriorGuide(member.bnn), seed=seed), count(seed)

    def convert(draws: dict[str, Tensor]) -> Arrays:
        prediction, found = prior.predict(converter.data.x, draws=draws), {}
        if bool(prediction.draw_means.isfinite().all()):
            found = {"prior_predictive": converter.predictive(prediction, next(noise_seeds))}
        return {"prior": converter.monitored.select(draws, prior)} | _numpy(found)

    return _chained(prior.map_traces(latent_values, convert, num_draws, seed=derive(seed, "prior")), 1)


def _joined(parts: Sequence[Arrays]) -> Arrays:
    """Return the arrays of the groups that all parts have, concatenated along their first dimension."""
    return {
        group: {name: np.concatenate([arrays[group][name] for arrays in parts]) for name in variables}
        for group, variables in parts[0].items()
        if all(group in arrays for arrays in parts)
    }


def _chained(blocks: Sequence[Arrays], num_chains: int) -> Arrays:
    """Return blocks of draws as chains (chain, draw, ...)."""
    return {
        group: {name: values.reshape(num_chains, -1, *values.shape[1:]) for name, values in variables.items()}
        for group, variables in _joined(blocks).items()
    }


def log_prior_density(member: Posterior, draws: dict[str, Tensor]) -> Tensor:
    """Return the log prior density of each joint draw (B, *event), summed in float64, (B,)."""

    def density(values: dict[str, Tensor]) -> Tensor:
        trace = member.trace(poutine.condition(member.bnn, data=values))
        trace.compute_log_prob(lambda name, site: name in values)
        return torch.stack([trace.nodes[name]["log_prob_sum"].double() for name in values]).sum()

    with seeded(member.seed, "log prior"):
        return torch.func.vmap(density, randomness="different")(draws)


def log_likelihoods(
    member: Posterior, data: Data, draws: dict[str, Tensor], *, linearized: bool | None = None
) -> Tensor:
    """Return log p(y_n | x_n, w_s) in original units, times the weight of the example if given, (S, N)."""
    log_probs = member.predict(data.x, draws=draws, linearized=linearized).draw_log_prob(data.y).double()
    return log_probs if data.weights is None else log_probs * data.weights.to(log_probs.device)


@dataclasses.dataclass(frozen=True, eq=False)
class Monitored:
    """The dimensions and labels of the variables that are kept, and the sites with norms."""

    dims: dict[str, list[str]]
    coords: dict[str, list[str]]
    normed: list[str]

    def select(self, draws: Mapping[str, Tensor], member: Posterior) -> dict[str, np.ndarray]:
        """Return the variables kept of a block of draws (B, *event), the draws on the leading axis."""
        if _NOISE in draws:
            draws = {**draws, _NOISE: draws[_NOISE] * member.y_scaler.scale.to(draws[_NOISE])}
        kept = {name: values.cpu().numpy().copy() for name, values in draws.items() if name in self.dims}
        if self.normed:
            norms = [torch.linalg.vector_norm(draws[n].reshape(len(draws[n]), -1), dim=1) for n in self.normed]
            kept[NORM] = torch.stack(norms, 1).cpu().numpy()
        return kept


def _monitored(
    sites: Mapping[str, Tensor], weight_names: tuple[str, ...], feature_names: tuple[str, ...], monitor: Any
) -> Monitored:
    """Return what is kept of sites, given a value (*event) of each; features label the inputs of the first layer."""
    site_dims, coords = _site_dims(sites), dict[str, list[str]]()
    dims = {name: site_dims[name] for name in _wanted(monitor, sites)}
    first = next((name for name in weight_names if sites[name].ndim == 2), None)
    if first is not None and sites[first].shape[1] == len(feature_names):
        coords[site_dims[first][1]] = list(feature_names)
    normed = [*weight_names] if any(name not in dims for name in weight_names) else []
    if normed:
        dims[NORM], coords["site"] = ["site"], normed
    return Monitored(dims, coords, normed)


def _site_dims(sites: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return names of the dimensions of each site: those of a layer, which sites of equal size share, or numbers."""
    known, found = dict[str, int](), {}
    for name, value in sites.items():
        layer, _, leaf = name.rpartition(".")
        suffixes = {("weight", 2): ("out", "in"), ("bias", 1): ("out",)}.get((leaf, value.ndim), ())
        sizes = {f"{layer}.{suffix}".lstrip("."): size for suffix, size in zip(suffixes, value.shape, strict=False)}
        if name == _NOISE:
            found[name] = ["target"][: value.ndim]
        elif value.ndim != len(sizes) or any(known.get(dim, size) != size for dim, size in sizes.items()):
            found[name] = [f"{name}.dim_{index}" for index in range(value.ndim)]
        else:
            known |= sizes
            found[name] = list(sizes)
    return found


def _wanted(monitor: Any, sites: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the sites that are kept."""
    names, sizes = list(sites), [value.numel() for value in sites.values()]
    if isinstance(monitor, str) and monitor in ("auto", "all"):
        is_whole = monitor == "all" or sum(sizes) <= MAX_WHOLE
        return [name for name, size in zip(names, sizes, strict=True) if is_whole or size <= _SMALL]
    patterns = list(monitor) if isinstance(monitor, (list, tuple)) else []
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"`monitor` must be 'auto', 'all', or a list of patterns of site names, got {monitor!r}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"{pattern!r} in `monitor` matches no site: it may name any of {listed(names)}.")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
