"""From a posterior to an ArviZ DataTree."""

import json
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn.data import Data
from pyrobnn.diagnostics.groups import Arrays, draw_groups
from pyrobnn.diagnostics.monitored import Monitored
from pyrobnn.mixture import Mixture, members_of
from pyrobnn.posterior import Posterior

if TYPE_CHECKING:
    import xarray

_HISTORY = ("elbo", "log_likelihood", "kl")


def to_datatree(
    posterior: Posterior | Mixture, data: Data, *, num_draws: int | None = None, seed: int | None = None
) -> "xarray.DataTree":
    """Return draws of a posterior, and what follows from them at some data, as an ArviZ DataTree.

    Every group comes from the same joint draws of the latents, those of `posterior.draw(num_draws, seed=seed)`, as
    one chain, or those of Markov chains in their order: dimensions are (chain, draw, ...). A mixture has a chain for
    each member, all of one length, with the draws of `mixture.draw` for the largest `num_draws` that divides; or, if
    all members hold Markov chains, as many and as long, those of the first member, then those of the next. Targets and
    their densities are in original units. The groups are

    - posterior: the latent sites. Of a network with more than 1000 weights, sites of more than 20 entries are
      represented by 20 of them (fewer if there are more than 50 sites), chosen once with a fixed seed and labelled
      with their indices, and `site_norm` has the Euclidean norm of every weight site;
    - posterior_predictive: `y`, one draw of the targets for each draw of the weights, and their mean `mu`, or for
      classes their probabilities `probs`;
    - log_likelihood: `y`, the log density of each example;
    - sample_stats: `lp`, the log joint density of data and latents, and `log_q`, the log density of the guide, as
      `elbo_report` counts it: of `Dropout` the log probability of the masks. Point masses such as `Map`, and stored
      draws, have no density, and no `log_q`. Markov chains have what their method notes, such as `diverging`. In a
      mixture both are those of the member that made the draw, with its own parameters: its q_k, not the mixture's
      density q >= q_k / K. A member without density has NaN where another has one;
    - observed_data: `y`; constant_data: `x`;
    - svi: `elbo`, `log_likelihood` and `kl` at each step of the fit, in the units in which the model saw the targets,
      for each member of a mixture whose records have one length. Loaded posteriors have no record.

    Unless they come from Markov chains the draws are independent: R-hat and effective sample sizes then say nothing
    about the quality of the approximation. Of a mixture R-hat tells how far its members differ.

    Args:
        posterior: what to convert.
        data: inputs and targets in original units, usually the training data.
        num_draws: number of draws S, 500 if not given; of a mixture of K members S // K each; of C Markov chains the
            last S // C of each, all if not given.
        seed: seed of the draws; that of the fit if not given.

    Raises:
        InputError: data that do not fit the model, or fewer than one draw of each chain.
    """
    import arviz as az
    import xarray as xr

    seed = posterior.seed if seed is None else seed
    first = members_of(posterior)[0]
    example = {name: values[0] for name, values in first.draw(1, seed=seed).items()}
    monitored = Monitored(example, posterior.bnn.site_names, data.feature_names)
    groups = draw_groups(posterior, data, monitored, num_draws, seed)
    attrs = _attributes(posterior, groups["sample_stats"]["lp"].size, seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer")  # many members, few draws
        tree = az.from_dict(
            groups | {"observed_data": {"y": data.y.cpu().numpy()}, "constant_data": {"x": data.x.cpu().numpy()}},
            dims=monitored.dims | _data_dims(data, groups),
            coords=monitored.coords | {"feature": list(data.feature_names)},
            attrs=dict.fromkeys([*groups, "observed_data", "constant_data", "/"], attrs),
        )
    record = _fit_record(posterior)
    if record:
        tree["svi"] = xr.DataTree(az.dict_to_dataset(record, attrs=attrs, sample_dims=["chain", "step"]))
    return tree


def _fit_record(posterior: Posterior | Mixture) -> dict[str, np.ndarray]:
    """Return the terms of the ELBO at each step, (chain, step); none if a fit has no record or they differ in length.

    A mixture has a chain for each member.
    """
    records = [member.history for member in members_of(posterior)]
    lengths = {0 if record is None else len(record) for record in records}
    if lengths == {0} or len(lengths) > 1:
        return {}
    return {name: np.stack([getattr(record, name) for record in records]) for name in _HISTORY}


def _data_dims(data: Data, groups: Arrays) -> dict[str, list[str]]:
    columns = ["target"] if data.y.ndim == 2 else []
    probs = groups["posterior_predictive"].get("probs", np.empty(0))
    classes = ["class"] if probs.ndim == 4 and not columns else []
    return {
        "x": ["obs_id", *(["feature"] if data.x.ndim == 2 else [])],
        "y": ["obs_id", *columns],
        "mu": ["obs_id", *columns],
        "probs": ["obs_id", *columns, *classes],
    }


def _attributes(posterior: Posterior | Mixture, num_draws: int, seed: int) -> dict[str, Any]:
    return {
        "creation_library": "pyrobnn",
        "creation_library_version": version("pyrobnn"),
        "inference_library": "pyro",
        "inference_library_version": version("pyro-ppl"),
        "inference_method": _method_name(posterior),
        "guide": type(members_of(posterior)[0].guide).__name__,
        "method": json.dumps(posterior.info.get("method")),
        "num_draws": num_draws,
        "seed": seed,
    }


def _method_name(posterior: Posterior | Mixture) -> str:
    method = posterior.info.get("method")
    return str(method["type"]).upper() if isinstance(method, dict) else "SVI"
