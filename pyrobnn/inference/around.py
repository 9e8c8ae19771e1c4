"""Posteriors around weights that were trained elsewhere: the point itself, or the Laplace approximation."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pyrobnn._core.errors import InputError, listed
from pyrobnn._core.modes import gradients, under
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import to_dict
from pyrobnn._torch.devices import resolve_device
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.given import as_data, first_rows
from pyrobnn.guides.base import as_guide
from pyrobnn.guides.map import MapGuide
from pyrobnn.guides.sites import Site, latent_sites
from pyrobnn.inference.data import make_source
from pyrobnn.inference.laplace.curve import complete
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods.real import Gaussian
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.priors.factorized import Normal

_ROWS_AT_ONCE = 1024
_LEAST_NOISE = 1e-6
"""Noise of a network that meets a column of targets exactly, in its units."""


@under(gradients)
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
    """Return the posterior of a guide that seeks a mode, around weights trained elsewhere; see `Map.around`.

    `method` is the method that trained them, for the record; `SVI` if None.
    """
    data = as_data(data)
    with seeded(seed, "fit"), fast_pyro():  # looking into a DataLoader draws random numbers
        trained = model if isinstance(model, BNN) else _around_network(model, data, weights or {}, seed)
        source = make_source(data, trained, None, seed=seed)
        in_data_units = {f"likelihood.{name}" for name, _ in trained.likelihood.named_buffers()}
        bnn = trained.fresh(
            device=resolve_device(device, source.products),
            target_scale=source.target_scale,
            state={name: value for name, value in trained.state_dict().items() if name not in in_data_units},
        ).eval()
        example = source.example(bnn)
        point = MapGuide(_moved(latent_sites(bnn, *example), dict(weights or {}))).to(example[0].device)
    table = to_dict(SVI(guide=guide) if method is None else method)
    posterior = source.posterior(bnn, point, example, seed=seed, method=table)
    if as_guide(guide).curvature is not None:
        complete(posterior, guide, source, progress=progress)
    return posterior


def _around_network(net: nn.Module, data: Any, weights: Mapping[str, Tensor], seed: int) -> BNN:
    """Return a network with the prior N(0, 1): of real targets, with the deviation of its residuals in each column."""
    if not first_rows(data)[1].is_floating_point():
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
    unknown = sorted(set(values) - set(names))
    if unknown:
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
