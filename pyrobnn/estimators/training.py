"""How an estimator trains: a first fit with its own scaling and weights, and later ones that learn on."""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data, Scaler
from pyrobnn.estimators.parts import innermost
from pyrobnn.guides import Map
from pyrobnn.inference import SWAG, Ensemble, EvidenceFramework, MarginalLikelihood
from pyrobnn.inference.fit import fit
from pyrobnn.inference.method import guide_of
from pyrobnn.likelihoods.weighted import Weighted, units_of
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.weights import update_prior


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """What an estimator trains on.

    Attributes:
        x: inputs (N, D).
        y: targets (N,) or (N, K).
        weights: positive weights (N,), or None for examples that count once.
        names: of the columns of x.
        standardize: whether inputs, and real-valued targets, are centred and scaled.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None
    names: list[str]
    standardize: bool


def make_model(net: Any, prior: Any, likelihood: Any, examples: Examples, num_outputs: int) -> BNN:
    """Return the model, with the widths of a declared network filled in where they were left out."""
    widths = {"in_features": examples.x.shape[1], "out_features": num_outputs}
    open_widths = {name: width for name, width in widths.items() if getattr(net, name, 0) is None}
    net = dataclasses.replace(net, **open_widths) if open_widths else net
    return BNN(net, prior=prior, likelihood=likelihood)


def fit_first(bnn: BNN, method: Any, examples: Examples, **arguments: Any) -> Posterior | Mixture:
    """Return the posterior of a model; arguments are those of `pyrobnn.fit`."""
    if examples.weights is None:
        data = Data(examples.x, examples.y, standardize=examples.standardize, feature_names=examples.names)
        return fit(bnn, method, data, **arguments)
    x_scaler = y_scaler = Scaler.identity()
    if examples.standardize:
        x_scaler = Scaler.fit(examples.x, examples.weights)
        if bnn.settings["likelihood"].standardizes_targets:
            y_scaler = Scaler.fit(examples.y, examples.weights)
    return _fit_scaled(bnn, method, examples, x_scaler, y_scaler, **arguments)


def fit_on(fitted: Posterior | Mixture, method: Any, examples: Examples, *, seed: int, **arguments: Any) -> Any:
    """Return the posterior that has the posterior so far, as independent normals, for its prior.

    Scaling stays that of the first examples. Each member of a mixture learns on by itself; a method that tunes its
    prior trains without tuning.

    Raises:
        InputError: weights without a spread.
    """
    alone = method.method if isinstance(method, (Ensemble, MarginalLikelihood)) else method
    if isinstance(method, EvidenceFramework):
        alone = dataclasses.replace(method, starts=1, rounds=0)
    pairs = [(_updated(member), member) for member in members_of(fitted)]
    later: list[Any] = [
        _fit_scaled(
            model, alone, examples, old.x_scaler, old.y_scaler, seed=derive(seed, f"member {index}"), **arguments
        )
        for index, (model, old) in enumerate(pairs)
    ]
    return Mixture(later, seed=seed, info=later[0].info) if isinstance(fitted, Mixture) else later[0]


def require_learning_on(method: Any) -> None:
    """Refuse, before the first fit, a method that leaves points, from which nothing can be learned on."""
    guide = guide_of(method)
    if isinstance(guide, Map) and not isinstance(method, SWAG) and not isinstance(innermost(method), SWAG):
        raise InputError(
            f"partial_fit makes the posterior so far the prior of the next batch, and {guide!r} leaves points without "
            "a spread: use another guide, such as 'mean_field' or 'laplace'."
        )


def _updated(posterior: Posterior) -> BNN:
    """Return the model with a posterior for its prior; refuse weights without one, which would forget earlier data."""
    fixed = [name for name, value in posterior.bnn.net.named_parameters() if value.requires_grad]
    if fixed:
        raise InputError(
            f"partial_fit makes the posterior so far the prior of the next batch, and {fixed[0]!r} has no prior: give "
            "all weights one."
        )
    return update_prior(posterior)


def _fit_scaled(
    bnn: BNN, method: Any, examples: Examples, x_scaler: Scaler, y_scaler: Scaler, **arguments: Any
) -> Posterior | Mixture:
    """Fit to examples with weights in units that are given, and return the posterior in original units."""
    y = y_scaler.transform(examples.y).double()
    columns = y if y.ndim == 2 else y[:, None]
    weights = torch.ones(len(y)) if examples.weights is None else examples.weights
    units = tuple(np.broadcast_to(y_scaler.scale.numpy(), columns.shape[1]).tolist())
    model = bnn.with_parts(likelihood=Weighted(bnn.settings["likelihood"], units))
    model.units = None
    targets = torch.cat([columns, weights[:, None].to(columns)], 1)
    data = Data(x_scaler.transform(examples.x), targets, feature_names=examples.names)
    fitted = fit(model, method, data, **arguments)
    for member in members_of(fitted):
        _back_to_units(member, x_scaler, y_scaler, float(weights.sum()))
        member.bnn.units = bnn.units
    return fitted


def _back_to_units(posterior: Posterior, x_scaler: Scaler, y_scaler: Scaler, total: float) -> None:
    """Take the weights out of a trained model, and give it the units of the data."""
    bnn, weighted = posterior.bnn, posterior.bnn.settings["likelihood"]
    trained = bnn.likelihood.state_dict()
    bnn.settings["likelihood"] = weighted.likelihood
    bnn.scale_targets(units_of(weighted).to(posterior.example[0].device))
    bnn.likelihood.load_state_dict(trained)
    bnn.eval()
    x, y = posterior.example
    posterior.example = (x, bnn.cast_targets(y[:, :-1], x))
    posterior.x_scaler, posterior.y_scaler = x_scaler, y_scaler
    evidence, shift = posterior.info.get("laplace", {}), total * y_scaler.log_volume()
    for name in evidence.keys() & {"log_evidence", "log_likelihood"}:
        evidence[name] -= shift
    if "rounds" in evidence:
        evidence["rounds"] = [value - shift for value in evidence["rounds"]]
    for start in posterior.info.get("evidence", {}).get("starts", []):
        start |= {name: start[name] - shift for name in ("log_evidence", "log_left_out")}
