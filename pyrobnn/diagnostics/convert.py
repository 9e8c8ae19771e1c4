"""From posteriors to an ArviZ DataTree, for the training data or for held-out data."""

import json
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import pyrobnn
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._torch.inputs import Inputs, X, as_inputs
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.vectorize import draws_at_once
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import in_memory
from pyrobnn.diagnostics.audit import log_prior_density
from pyrobnn.diagnostics.monitored import Monitored
from pyrobnn.guides.base import built
from pyrobnn.inference.around import PriorGuide
from pyrobnn.posterior.base import require_posterior
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior, latent_values
from pyrobnn.posterior.prediction import Prediction

if TYPE_CHECKING:
    import xarray

Groups = dict[str, dict[str, np.ndarray]]
"""Variables by group, (draw, ...) or (chain, draw, ...)."""
_DEFAULT_DRAWS, _MOST_NUMBERS, _FEWEST_DRAWS = 500, 2**29, 100  # fewer draws where they are more numbers
_MOST_PRIOR_NUMBERS, _FEWEST_PRIOR_DRAWS = 2**27, 50  # of the prior, else as many draws as of the posterior
_TYPES: dict[str, type] = {"diverging": bool, "n_steps": int, "tree_depth": int}  # in ArviZ, of no real numbers
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

    require_posterior(posterior)
    seed, data = posterior.seed if seed is None else seed, in_memory(data)
    sites = _example(posterior, data, seed)
    monitored = Monitored.of(sites, posterior.bnn.site_names, data.feature_names, monitor)
    converter = _Converter(data, monitored, x_pred)
    groups = _from_posterior(posterior, converter, num_draws, seed)
    attrs = _attributes(posterior, groups["log_prior"]["lprior"].size, seed)
    of_prior, left_out = _prior_groups(posterior, converter, attrs["num_draws"], seed) if prior else ({}, {})
    groups |= of_prior | {"observed_data": {"y": data.y.cpu().numpy()}, "constant_data": _inputs(data.x)}
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
            attrs=dict.fromkeys(groups, attrs) | {"/": attrs | left_out},
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


def _data_dims(data: Data, groups: Groups, rows: str) -> dict[str, list[str]]:
    """Return the dimensions of inputs, targets and predictions, with a name for those of the rows."""
    columns = ["target"] if data.y.ndim == 2 else []
    has_classes = "probs" in groups["posterior_predictive"] and groups["posterior_predictive"]["probs"].ndim == 4
    inputs = {name: [rows] for name in _inputs(data.x)}
    if data.x.ndim == 2:
        inputs["x"] = [rows, "feature"]
    targets = [rows, *columns]
    return inputs | {"y": targets, "mu": targets, "probs": [*targets, *["class"] * (has_classes and not columns)]}


def _attributes(posterior: Posterior | Mixture, num_draws: int, seed: int) -> dict[str, Any]:
    """Return how the draws were made, each method and guide of the members once."""
    members, method = posterior.members, posterior.record.method
    methods = [member.record.method for member in members] if method is None else [method]
    kinds = [str(method["type"]).upper() if isinstance(method, dict) else "SVI" for method in methods]
    tables = list(dict.fromkeys(map(json.dumps, methods)))
    return {
        "creation_library": "pyrobnn",
        "creation_library_version": pyrobnn.__version__,
        "inference_library": "pyro",
        "inference_library_version": version("pyro-ppl"),
        "inference_method": ", ".join(dict.fromkeys(kinds)),
        "guide": ", ".join(dict.fromkeys(type(member.guide).__name__ for member in members)),
        "method": tables[0] if len(tables) == 1 else f"[{', '.join(tables)}]",
        "num_draws": num_draws,
        "seed": seed,
    }


class _Converter(NamedTuple):
    """From blocks of draws (B, *event) to arrays (B, ...), with predictions for data, and for `x_pred` if given."""

    data: Data
    monitored: Monitored
    x_pred: Any = None

    def posterior(self, member: Posterior, draws: dict[str, Tensor], seed: int, log_q: Tensor | None = None) -> Groups:
        """Return the groups of draws from a posterior, with their log density if it is known."""
        prediction = member.predict(self.data.x, draws=draws)
        log_likelihood, log_prior = prediction.draw_log_prob(self.data.y), log_prior_density(member, draws)
        log_joint = log_prior + log_likelihood.double().sum(1)
        groups = {
            "posterior": self.monitored.select(draws, member),
            "posterior_predictive": self._predictive(prediction, seed),
            "log_likelihood": {"y": log_likelihood.cpu().numpy()},
            "log_prior": {"lprior": log_prior.cpu().numpy()},
            "sample_stats": {"lp": log_joint.cpu().numpy()},
        }
        if log_q is not None:
            groups["sample_stats"]["log_q"] = log_q.double().cpu().numpy()
        if self.x_pred is not None:
            elsewhere = member.predict(self.x_pred, draws=draws)
            groups["predictions"] = self._predictive(elsewhere, derive(seed, "predictions"))
        return groups

    def prior(self, member: Posterior, draws: dict[str, Tensor], seed: int) -> Groups:
        """Return the groups of draws from a prior, without predictions that overflow."""
        groups, prediction = {"prior": self.monitored.select(draws, member)}, member.predict(self.data.x, draws=draws)
        if bool(prediction.draw_means.isfinite().all()):
            groups["prior_predictive"] = self._predictive(prediction, seed)
        return groups

    def _predictive(self, prediction: Prediction, seed: int) -> dict[str, np.ndarray]:
        """Return targets drawn for each draw of the weights, and their means or probabilities."""
        y, means = prediction.sample(seed=seed), prediction.draw_means.cpu().numpy()
        if prediction.is_classification:
            return {"y": y.to(self.data.y.dtype).cpu().numpy(), "probs": means}
        return {"y": y.cpu().numpy(), "mu": means}


def _from_posterior(posterior: Posterior | Mixture, converter: _Converter, num_draws: int | None, seed: int) -> Groups:
    """Return the groups of draws from the posterior, (chain, draw, ...), by member; of alike Markov chains the last."""
    num_chains, length = _shape_of_chains(posterior)
    fewest = len(posterior.members) * max(1, num_chains)
    if num_draws is None:
        affordable = max(_FEWEST_DRAWS, _MOST_NUMBERS // max(1, posterior.bnn.num_weights))
        num_draws = length * fewest if num_chains else min(_DEFAULT_DRAWS, affordable)
    if num_draws < fewest:
        part = "chain" if num_chains else "member"
        raise InputError(f"`num_draws` must be at least {fewest}, one for each {part}, got {num_draws}.")
    read, most = (_from_chains, length) if num_chains else (_from_guide, num_draws)
    share, members = min(most, num_draws // fewest), posterior.shares(len(posterior.members), seed=seed)
    groups = _joined([read(member, key, converter, share) for member, _, key in members])
    if np.isnan(groups["sample_stats"].get("log_q", 0.0)).all():
        del groups["sample_stats"]["log_q"]
    return groups


def _shape_of_chains(posterior: Posterior | Mixture) -> tuple[int, int]:
    """Return the number of Markov chains of each member and of the draws of each; 0 unless members are alike."""
    kinds = set()
    for guide in (built(member.guide) for member in posterior.members):
        shapes = [values.shape[:2] for values in (guide.chains() or {}).values()] or [torch.Size([0, 0])]
        kinds.add((*shapes[0], *guide.sample_stats()))
    return next(iter(kinds))[:2] if len(kinds) == 1 else (0, 0)


def _from_chains(member: Posterior, seed: int, converter: _Converter, num_kept: int) -> Groups:
    """Return the groups of the last draws of each chain, (chain, draw, ...), in their order."""
    guide = built(member.guide)
    kept = {name: values[:, -num_kept:] for name, values in (guide.chains() or {}).items()}
    draws = {name: values.flatten(0, 1) for name, values in kept.items()}
    num_chains, num_draws = len(next(iter(kept.values()))), len(next(iter(draws.values())))
    size, blocks = draws_at_once(member.bnn.num_weights, member.bnn.like.device), []
    with fast_pyro(), torch.no_grad():
        for index, start in enumerate(range(0, num_draws, size)):
            block = {name: values[start : start + size] for name, values in draws.items()}
            blocks.append(converter.posterior(member, block, seed + index))
    groups = _chained(blocks, num_chains)
    for name, values in guide.sample_stats().items():
        groups["sample_stats"][name] = values[:, -num_kept:].cpu().numpy().astype(_TYPES.get(name, float))
    return groups


def _from_guide(member: Posterior, seed: int, converter: _Converter, num_draws: int) -> Groups:
    """Return the groups of independent draws, (1, draw, ...), with NaN for the log density where there is none."""
    noise_seeds = count(seed)

    def convert(draws: dict[str, Tensor], log_q: Tensor | None = None) -> Groups:
        return converter.posterior(member, draws, next(noise_seeds), log_q)

    if built(member.guide).chains() is None:
        blocks = member.map_draws(convert, num_draws, seed=seed)
    else:
        blocks = member.map_traces(latent_values, convert, num_draws, seed=seed)
    groups = _chained(blocks, 1)
    stats = groups["sample_stats"]
    if "log_q" not in stats or not stats["log_q"].any():  # of draws that are stored, or of points
        stats["log_q"] = np.full_like(stats["lp"], np.nan)
    return groups


def _prior_groups(
    posterior: Posterior | Mixture, converter: _Converter, num_draws: int, seed: int
) -> tuple[Groups, dict[str, str]]:
    """Return `prior` and `prior_predictive`, a chain for each member, and the attribute that says what is left out."""
    shares = posterior.shares(len(posterior.members), seed=seed)
    affordable = max(_FEWEST_PRIOR_DRAWS, _MOST_PRIOR_NUMBERS // max(1, posterior.bnn.num_weights))
    share = max(1, min(num_draws, affordable) // len(shares))
    try:
        groups = _joined([_from_prior(member, key, converter, share) for member, _, key in shares])
    except NotImplementedError as error:
        return {}, {"prior_left_out": f"the prior cannot be drawn from: {error or type(error).__name__}"}
    reason = "predictions under draws from the prior overflow, so prior_predictive is left out"
    return groups, {} if "prior_predictive" in groups else {"prior_left_out": reason}


def _from_prior(member: Posterior, seed: int, converter: _Converter, num_draws: int) -> Groups:
    """Return the groups of draws from the prior of a member's model, (1, draw, ...)."""
    prior, noise_seeds = member.with_fields(guide=PriorGuide(member.bnn), seed=seed), count(seed)

    def convert(draws: dict[str, Tensor]) -> Groups:
        return converter.prior(prior, draws, next(noise_seeds))

    return _chained(prior.map_traces(latent_values, convert, num_draws, seed=derive(seed, "prior")), 1)


def _joined(parts: Sequence[Groups]) -> Groups:
    """Return the arrays of the groups that all parts have, concatenated along their first dimension."""
    return {
        group: {name: np.concatenate([part[group][name] for part in parts]) for name in variables}
        for group, variables in parts[0].items()
        if all(group in part for part in parts)
    }


def _chained(blocks: Sequence[Groups], num_chains: int) -> Groups:
    """Return blocks of draws as chains (chain, draw, ...)."""
    return {
        group: {name: values.reshape(num_chains, -1, *values.shape[1:]) for name, values in variables.items()}
        for group, variables in _joined(blocks).items()
    }
