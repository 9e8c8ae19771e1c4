"""From a posterior to an ArviZ DataTree."""

import json
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pyrobnn._errors import InputError
from pyrobnn._pyro import fast_pyro
from pyrobnn._vectorize import draws_at_once
from pyrobnn.data import Data
from pyrobnn.diagnostics.monitored import Monitored
from pyrobnn.posterior import Posterior
from pyrobnn.prediction import Prediction

if TYPE_CHECKING:
    import xarray

Arrays = dict[str, dict[str, np.ndarray]]
"""Variables by group, with the draws on the leading axis."""
_DRAWS = 500
_TYPES: dict[str, type] = {"diverging": bool, "n_steps": int}
"""Types in which ArviZ has statistics of chains that are not real numbers."""


def to_datatree(
    posterior: Posterior, data: Data, *, num_draws: int | None = None, seed: int | None = None
) -> "xarray.DataTree":
    """Return draws of a posterior, and what follows from them at some data, as an ArviZ DataTree.

    Every group comes from the same joint draws of the latents, those of `posterior.draw(num_draws, seed=seed)`, as
    one chain, or those of Markov chains in their order: dimensions are (chain, draw, ...). Targets and their densities
    are in original units. The groups are

    - posterior: the latent sites. Of a network with more than 1000 weights, sites of more than 20 entries are
      represented by 20 of them (fewer if there are more than 50 sites), chosen once with a fixed seed and labelled
      with their indices, and `site_norm` has the Euclidean norm of every weight site;
    - posterior_predictive: `y`, one draw of the targets for each draw of the weights, and their mean `mu`, or for
      classes their probabilities `probs`;
    - log_likelihood: `y`, the log density of each example;
    - sample_stats: `lp`, the log joint density of data and latents, and `log_q`, the log density of the guide; of
      Markov chains instead of it what their method notes, such as `diverging`;
    - observed_data: `y`; constant_data: `x`;
    - svi: `elbo`, `log_likelihood` and `kl` at each step of the fit, in the units in which the model saw the targets.

    Unless they come from Markov chains the draws are independent: R-hat and effective sample sizes then say nothing
    about the quality of the approximation.

    Args:
        posterior: what to convert.
        data: inputs and targets in original units, usually the training data.
        num_draws: number of draws S, 500 if not given; of C Markov chains the last S / C of each, all if not given.
        seed: seed of the draws; that of the fit if not given.

    Raises:
        InputError: data that do not fit the model, or fewer than one draw of each chain.
    """
    import arviz as az
    import xarray as xr

    seed = posterior.seed if seed is None else seed
    example = {name: values[0] for name, values in posterior.draw(1, seed=seed).items()}
    monitored = Monitored(example, posterior.bnn.site_names, data.feature_names)
    chains = _stored_chains(posterior, num_draws)
    num_chains = len(next(iter(chains.values()))) if chains else 1
    groups = _draw_groups(posterior, data, monitored, chains or (_DRAWS if num_draws is None else num_draws), seed)
    attrs = _attributes(posterior, len(groups["sample_stats"]["lp"]), seed)
    tree = az.from_dict(
        {
            group: {name: values.reshape(num_chains, -1, *values.shape[1:]) for name, values in variables.items()}
            for group, variables in groups.items()
        }
        | {"observed_data": {"y": data.y.cpu().numpy()}, "constant_data": {"x": data.x.cpu().numpy()}},
        dims=monitored.dims | _data_dims(data, groups),
        coords=monitored.coords | {"feature": list(data.feature_names)},
        attrs=dict.fromkeys([*groups, "observed_data", "constant_data", "/"], attrs),
    )
    if posterior.history is not None and len(posterior.history):
        terms = {name: getattr(posterior.history, name)[None] for name in ("elbo", "log_likelihood", "kl")}
        tree["svi"] = xr.DataTree(az.dict_to_dataset(terms, attrs=attrs, sample_dims=["chain", "step"]))
    return tree


def _stored_chains(posterior: Posterior, num_draws: int | None) -> dict[str, Tensor]:
    """Return the last draws of Markov chains, (chain, draw, *event) by site name; empty if there are no chains."""
    if not hasattr(posterior.guide, "chains"):
        return {}
    chains = posterior.guide.chains()
    num_chains, length = next(iter(chains.values())).shape[:2]
    kept = length if num_draws is None else min(length, num_draws // num_chains)
    if kept < 1:
        raise InputError(f"`num_draws` must be at least {num_chains}, one for each chain, got {num_draws}.")
    return {name: values[:, length - kept :] for name, values in chains.items()}


def _draw_groups(
    posterior: Posterior, data: Data, monitored: Monitored, given: int | dict[str, Tensor], seed: int
) -> Arrays:
    """Return the groups of a number of draws of the guide, or of chains (chain, draw, *event), one after the other."""
    noise_seeds = count(seed)

    def convert(draws: dict[str, Tensor], log_q: Tensor | None) -> Arrays:
        prediction = posterior.predict(data.x, draws=draws)
        log_likelihood = prediction.draw_log_prob(data.y)
        lp = _log_prior(posterior, draws) + log_likelihood.double().sum(1)
        tensors = {
            "posterior_predictive": _predictive(prediction, data, next(noise_seeds)),
            "log_likelihood": {"y": log_likelihood},
            "sample_stats": {"lp": lp} if log_q is None else {"lp": lp, "log_q": log_q.double()},
        }
        arrays = {
            group: {name: value.cpu().numpy() for name, value in variables.items()}
            for group, variables in tensors.items()
        }
        return {"posterior": monitored.select(draws)} | arrays

    if isinstance(given, int):
        blocks = posterior.map_draws(convert, given, seed=seed)
    else:
        with fast_pyro(), torch.no_grad():
            blocks = [convert(block, None) for block in _blocks(posterior, given)]
    groups = {
        group: {name: np.concatenate([block[group][name] for block in blocks]) for name in variables}
        for group, variables in blocks[0].items()
    }
    if not isinstance(given, int):
        kept = next(iter(given.values())).shape[1]
        groups["sample_stats"] |= {
            name: values[:, -kept:].flatten().cpu().numpy().astype(_TYPES.get(name, float))
            for name, values in posterior.guide.sample_stats().items()
        }
    return groups


def _blocks(posterior: Posterior, chains: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the draws of chains one after the other, in blocks (B, *event) that can be held at once."""
    pieces = {n: v.flatten(0, 1).split(draws_at_once(posterior.bnn.num_weights)) for n, v in chains.items()}
    for index in range(len(next(iter(pieces.values())))):
        yield {name: piece[index] for name, piece in pieces.items()}


def _predictive(prediction: Prediction, data: Data, seed: int) -> dict[str, Tensor]:
    y = prediction.sample(seed=seed)
    if prediction.is_classification:
        return {"y": y.to(data.y.dtype), "probs": prediction.draw_means}
    return {"y": y, "mu": prediction.draw_means}


def _log_prior(posterior: Posterior, draws: dict[str, Tensor]) -> Tensor:
    """Return the log prior density of each joint draw, (B,)."""

    def one(values: dict[str, Tensor]) -> Tensor:
        with poutine.block():
            model = poutine.condition(posterior.bnn, data=values)
            trace = poutine.trace(model).get_trace(*posterior.example)
        trace.compute_log_prob(lambda name, site: name in values)
        return torch.stack([trace.nodes[name]["log_prob_sum"].double() for name in values]).sum()

    return torch.func.vmap(one, randomness="different")(draws)


def _data_dims(data: Data, groups: Arrays) -> dict[str, list[str]]:
    columns = ["target"] if data.y.ndim == 2 else []
    probs = groups["posterior_predictive"].get("probs", np.empty(0))
    classes = ["class"] if probs.ndim == 3 and not columns else []
    return {
        "x": ["obs_id", *(["feature"] if data.x.ndim == 2 else [])],
        "y": ["obs_id", *columns],
        "mu": ["obs_id", *columns],
        "probs": ["obs_id", *columns, *classes],
    }


def _attributes(posterior: Posterior, num_draws: int, seed: int) -> dict[str, Any]:
    return {
        "creation_library": "pyrobnn",
        "creation_library_version": version("pyrobnn"),
        "inference_library": "pyro",
        "inference_library_version": version("pyro-ppl"),
        "inference_method": _method_name(posterior),
        "guide": type(posterior.guide).__name__,
        "method": json.dumps(posterior.info.get("method")),
        "num_draws": num_draws,
        "seed": seed,
    }


def _method_name(posterior: Posterior) -> str:
    method = posterior.info.get("method")
    return str(method["type"]).upper() if isinstance(method, dict) else "SVI"
