"""Posteriors without a fit: the prior, and what was trained or drawn elsewhere: weights, a guide, or chains."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.nn import PyroModule
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyrobnn._core.errors import InputError, listed, shown
from pyrobnn._core.modes import gradients, plain_tensors
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import to_dict
from pyrobnn._torch.devices import resolve_device
from pyrobnn._torch.inputs import X, as_inputs, shape_of
from pyrobnn._torch.pyro import allow_new_home, fast_pyro, local_parameters, parameters_outside
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import Loader, as_data, as_loader
from pyrobnn.distributions.units import Scaler
from pyrobnn.guides.base import as_guide
from pyrobnn.guides.empirical import Empirical
from pyrobnn.guides.map import MapGuide
from pyrobnn.guides.sites import Site, latent_sites
from pyrobnn.inference.data import Source, make_source, tried
from pyrobnn.inference.laplace import complete
from pyrobnn.inference.mcmc.chains import check_all_inferred
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods.real import Gaussian
from pyrobnn.nets import leftovers
from pyrobnn.posterior.posterior import Posterior, latent_values
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.posterior.record import CUSTOM
from pyrobnn.priors.factorized import Normal

_ROWS_AT_ONCE = 1024
_LEAST_NOISE = 1e-6  # noise of a network that meets a column of targets exactly, in its units


@gradients()
def around(
    model: BNN | nn.Module,
    data: Any,
    guide: Any,
    *,
    weights: Mapping[str, Tensor] | None = None,
    method: Any = None,
    seed: int = 0,
    device: str = "auto",
    progress: bool = True,
) -> Posterior:
    """Return the posterior of a guide that seeks a mode, around weights that `method` trained; see `Map.around`."""
    data = as_data(data)
    with seeded(seed, "fit"), fast_pyro():  # looking into a DataLoader draws random numbers
        trained = model if isinstance(model, BNN) else _around_network(model, data, weights or {}, seed)
        source, bnn, example = _in_units(trained, data, seed, device)
        point = MapGuide(_moved(latent_sites(bnn, *example), dict(weights or {}))).to(example[0].device)
    table = to_dict(SVI(guide=guide) if method is None else method)
    posterior = source.posterior(bnn, point, example, seed=seed, method=table)
    if as_guide(guide).curvature is not None:
        complete(posterior, guide, source, progress=progress)
    return posterior


def _in_units(trained: BNN, data: Any, seed: int, device: str) -> tuple[Source, BNN, Batch]:
    """Return the source of data, and a copy of a trained model in its units, with rows to run it."""
    source = make_source(as_data(data), trained, None, seed=seed)
    in_data_units = {f"likelihood.{name}" for name, _ in trained.likelihood.named_buffers()}
    bnn = trained.fresh(
        device=resolve_device(device, source.products),
        target_scale=source.target_scale,
        state={name: value for name, value in trained.state_dict().items() if name not in in_data_units},
    ).eval()
    return source, bnn, source.example(bnn)


@gradients()
def from_draws(bnn: BNN, data: Any, draws: Mapping[str, Any], statistics: Mapping[str, Any], seed: int) -> Posterior:
    """Return the posterior of stored draws; see `Posterior.from_draws`."""
    check_all_inferred(bnn, "from_draws")
    with seeded(seed, "fit"), fast_pyro():
        source, model, example = _in_units(bnn, data, seed, str(bnn.like.device))
        sites = latent_sites(model, *example)
        shapes = {site.name: site.start.shape for site in sites} | dict.fromkeys(statistics, torch.Size())
        values = {name: torch.tensor(np.asarray(given)) for name, given in {**draws, **statistics}.items()}
        first = values.get(sites[0].name)
        axes = 2 if first is None else max(1, first.ndim - sites[0].start.ndim)
        _require_shapes(shapes, {name: value.shape[axes:] for name, value in values.items()}, "`draws`")
        lengths = {name: (1, *value.shape[:axes])[-2:] for name, value in values.items()}
        if len(set(lengths.values())) > 1 or axes > 2:
            raise InputError(f"`draws` must be (chain, draw, ...) or (draw, ...), alike for all sites, got {lengths}.")
        num_chains, num_draws = lengths[sites[0].name]
        for site in sites:
            value = values[site.name] = values[site.name].to(site.start)
            if not bool((value if site.transform is None else site.transform.inv(value)).isfinite().all()):
                raise InputError(f"`draws[{site.name!r}]` is not finite, or lies outside the support of its prior.")
        setting = Empirical(num_chains, num_draws, tuple(statistics))
        guide, shape = setting.build(model, *example), (num_chains, num_draws, -1)
        numbers = [values[name].double().reshape(shape) for name in statistics]
        flat = torch.cat([values[site.name].reshape(shape) for site in sites], -1)
        guide.hold(flat, torch.cat(numbers, -1) if numbers else guide.statistics)
    diverging = int(values["diverging"].sum()) if "diverging" in statistics else None
    table = {"type": "from_draws", "guide": to_dict(setting)}
    return source.posterior(model, guide, example, seed=seed, method=table, num_diverging=diverging)


@gradients()
def from_guide(bnn: BNN, data: Any, guide: PyroModule, seed: int) -> Posterior:
    """Return the posterior of a trained guide; see `Posterior.from_guide`."""
    if not isinstance(guide, PyroModule):
        raise InputError(f"`guide` must be a PyroModule, which holds its parameters, got {shown(guide)}.")
    with seeded(seed, "fit"), fast_pyro(), poutine.block(), torch.no_grad():
        source, model, example = _in_units(bnn, data, seed, str(bnn.like.device))
        guide = copy.deepcopy(guide).to(model.like.device)
        allow_new_home(guide)
        drawn = latent_values(poutine.trace(guide).get_trace(*example))
        if outside := parameters_outside(guide):
            text = f"The guide keeps {outside[0]!r} in Pyro's global store: hold it in the module, as a PyroParam."
            raise InputError(text)
        shapes = {site.name: site.start.shape for site in latent_sites(model, *example)}
        _require_shapes(shapes, {name: value.shape for name, value in drawn.items()}, "The guide")
    table = {"type": "from_guide", "guide": {"type": CUSTOM, "class": type(guide).__name__}}
    reason = "the guide was trained elsewhere: whether it has converged is unknown"
    return source.posterior(model, guide, example, seed=seed, method=table, own_loop=True, stop_reason=reason)


def _require_shapes(known: Mapping[str, torch.Size], given: Mapping[str, torch.Size], what: str) -> None:
    """Refuse names and shapes of values that are not those known."""
    for name in {**known, **given}:
        has, expected = (tuple(shapes[name]) if name in shapes else "none" for shapes in (given, known))
        if has != expected:
            text = f"of {name!r} has shape {has}, expected {expected} after the axes of draws: the sites are"
            raise InputError(f"{what} {text} {listed(known)}.")


def _around_network(net: nn.Module, data: Any, weights: Mapping[str, Tensor], seed: int) -> BNN:
    """Return a network with the prior N(0, 1): of real targets, with the deviation of its residuals in each column."""
    if not as_data(data).head[1].is_floating_point():
        return BNN(net, prior=Normal(1.0), likelihood="categorical")
    bnn = BNN(net, prior=Normal(1.0), likelihood=Gaussian(scale=1.0)).eval()
    source = make_source(data, bnn, None, seed=seed)
    scale = source.y_scaler.scale.to(bnn.like)
    mode, total = {name: weights.get(name, value) for name, value in bnn.initial_values.items()}, torch.zeros(())
    with torch.no_grad():
        for x, y, *counts in source.one_pass(bnn, _ROWS_AT_ONCE):
            squares = ((bnn.outputs(mode, x) - y.reshape(len(y), -1)) * scale).square().double()
            total = total + (squares * counts[0][:, None] if counts else squares).sum(0).cpu()
    scales = tuple(max(square**0.5, _LEAST_NOISE) for square in (total / source.total_weight).tolist())
    return BNN(net, prior=Normal(1.0), likelihood=Gaussian(scale=scales if len(scales) > 1 else scales[0]))


def _moved(sites: list[Site], values: dict[str, Tensor]) -> list[Site]:
    """Return sites that start at the values given, and the others as they are."""
    names = [site.name for site in sites]
    if unknown := sorted(set(values) - set(names)):
        raise InputError(f"`weights` has {unknown[0]!r}, which is no weight of the model: {listed(names)}.")
    moved = []
    for site in sites:
        value = values.get(site.name, site.start)
        if value.shape != site.start.shape:
            shapes = f"{tuple(value.shape)}, expected {tuple(site.start.shape)}"
            raise InputError(f"`weights[{site.name!r}]` has shape {shapes}.")
        moved.append(dataclasses.replace(site, start=value.detach().clone().to(site.start)))
        if site.name in values and not bool(moved[-1].unconstrained.isfinite().all()):
            raise InputError(f"`weights[{site.name!r}]` is not finite, or lies outside the support of its prior.")
    return moved


class PriorGuide(PyroModule):
    """A guide that draws every latent site of a model from its prior."""

    def __init__(self, bnn: BNN) -> None:
        with local_parameters():
            super().__init__()
            self._latents = poutine.block(bnn, hide_fn=lambda node: node["is_observed"] or site_is_subsample(node))

    def forward(self, x: X, y: Tensor) -> None:
        """Draw the sites; given targets, the model draws none."""
        self._latents(x, y)


@plain_tensors()
def predict_from_prior(bnn: BNN, x: Any, *, num_draws: int, seed: int) -> Prediction:
    """Predict as `Posterior.predict` does, with draws from the prior; see `BNN.sample_prior_predictive`."""
    model = copy.deepcopy(bnn, leftovers(bnn)).eval()
    given = as_loader(x)
    if isinstance(given, Data):
        source = make_source(given, model, None, seed=0)
        model.scale_targets(source.target_scale)
        prior = source.posterior(model, PriorGuide(model), source.example(model), seed=0)
        return prior.predict(given.x, num_draws=num_draws, seed=seed)
    first = next(given.one_pass(given.inputs_of)) if isinstance(given, Loader) else as_inputs(given)
    return prior_posterior(model, first).predict(given, num_draws=num_draws, seed=seed)


def prior_posterior(model: BNN, x: X) -> Posterior:
    """Return a posterior whose guide is the prior of a model, of inputs in its units."""
    example = model.cast_inputs(x[:2].clone())
    with torch.no_grad(), local_parameters(), seeded(0, "example"), poutine.block():
        y = model.likelihood(tried(model, model.initial_values, example, shape_of(x)).detach()).sample()
    units: dict[str, Any] = {"x_scaler": Scaler.identity(), "y_scaler": Scaler.identity()}
    return Posterior(model, PriorGuide(model), example=(example, y), seed=0, **units)
