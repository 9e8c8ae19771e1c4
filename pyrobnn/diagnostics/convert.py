"""From a posterior to an ArviZ DataTree."""

import json
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pyrobnn.data import Data
from pyrobnn.diagnostics.monitored import Monitored
from pyrobnn.posterior import Posterior
from pyrobnn.prediction import Prediction

if TYPE_CHECKING:
    import xarray

Arrays = dict[str, dict[str, np.ndarray]]
"""Variables by group, with the draws on the leading axis."""


def to_datatree(
    posterior: Posterior, data: Data, *, num_draws: int = 500, seed: int | None = None
) -> "xarray.DataTree":
    """Return draws of a posterior, and what follows from them at some data, as an ArviZ DataTree.

    Every group comes from the same joint draws of the latents, those of `posterior.draw(num_draws, seed=seed)`, as
    one chain: dimensions are (chain, draw, ...). Targets and their densities are in original units. The groups are

    - posterior: the latent sites. Of a network with more than 1000 weights, sites of more than 20 entries are
      represented by 20 of them (fewer if there are more than 50 sites), chosen once with a fixed seed and labelled
      with their indices, and `site_norm` has the Euclidean norm of every weight site;
    - posterior_predictive: `y`, one draw of the targets for each draw of the weights, and their mean `mu`, or for
      classes their probabilities `probs`;
    - log_likelihood: `y`, the log density of each example;
    - sample_stats: `lp`, the log joint density of data and latents, and `log_q`, the log density of the guide;
    - observed_data: `y`; constant_data: `x`;
    - svi: `elbo`, `log_likelihood` and `kl` at each step of the fit, in the units in which the model saw the targets.

    The draws are independent: R-hat and effective sample sizes say nothing about the quality of the approximation.

    Args:
        posterior: what to convert.
        data: inputs and targets in original units, usually the training data.
        num_draws: number of draws S.
        seed: seed of the draws; that of the fit if not given.

    Raises:
        InputError: data that do not fit the model, or fewer than one draw.
    """
    import arviz as az
    import xarray as xr

    seed = posterior.seed if seed is None else seed
    example = {name: values[0] for name, values in posterior.draw(1, seed=seed).items()}
    monitored = Monitored(example, posterior.bnn.site_names, data.feature_names)
    groups = _draw_groups(posterior, data, monitored, num_draws, seed)
    attrs = _attributes(posterior, num_draws, seed)
    tree = az.from_dict(
        {group: {name: values[None] for name, values in variables.items()} for group, variables in groups.items()}
        | {"observed_data": {"y": data.y.cpu().numpy()}, "constant_data": {"x": data.x.cpu().numpy()}},
        dims=monitored.dims | _data_dims(data, groups),
        coords=monitored.coords | {"feature": list(data.feature_names)},
        attrs=dict.fromkeys([*groups, "observed_data", "constant_data", "/"], attrs),
    )
    if posterior.history is not None and len(posterior.history):
        terms = {name: getattr(posterior.history, name)[None] for name in ("elbo", "log_likelihood", "kl")}
        tree["svi"] = xr.DataTree(az.dict_to_dataset(terms, attrs=attrs, sample_dims=["chain", "step"]))
    return tree


def _draw_groups(posterior: Posterior, data: Data, monitored: Monitored, num_draws: int, seed: int) -> Arrays:
    noise_seeds = count(seed)

    def convert(draws: dict[str, Tensor], log_q: Tensor) -> Arrays:
        prediction = posterior.predict(data.x, draws=draws)
        log_likelihood = prediction.draw_log_prob(data.y)
        lp = _log_prior(posterior, draws) + log_likelihood.double().sum(1)
        tensors = {
            "posterior_predictive": _predictive(prediction, data, next(noise_seeds)),
            "log_likelihood": {"y": log_likelihood},
            "sample_stats": {"lp": lp, "log_q": log_q.double()},
        }
        arrays = {
            group: {name: value.cpu().numpy() for name, value in variables.items()}
            for group, variables in tensors.items()
        }
        return {"posterior": monitored.select(draws)} | arrays

    blocks = posterior.map_draws(convert, num_draws, seed=seed)
    return {
        group: {name: np.concatenate([block[group][name] for block in blocks]) for name in variables}
        for group, variables in blocks[0].items()
    }


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
        "inference_method": "SVI",
        "guide": type(posterior.guide).__name__,
        "method": json.dumps(posterior.info.get("method")),
        "num_draws": num_draws,
        "seed": seed,
    }
