"""Checks of the properties of a prior that a `BNN` relies on."""

from collections.abc import Iterator
from typing import Any

import torch
from pyro import poutine
from torch import nn

from pyrobnn import priors
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.bnn import BNN
from pyrobnn.likelihoods import Gaussian
from pyrobnn.testing.captured import require_capturable
from pyrobnn.testing.common import (
    DTYPES,
    devices,
    make_data,
    make_inputs,
    make_net,
    require,
    require_owned,
    short_fit,
    unchanged_globals,
    value_checks,
)


def _nets() -> Iterator[nn.Module]:
    """Yield networks whose parameters have one, two and three dimensions, in every precision, on every device."""
    convolution = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(6, 1))
    for net in (make_net(), convolution):
        for dtype in DTYPES:
            for device in devices():
                yield net.to(device, dtype)


def _sites(setting: Any) -> Iterator[tuple[BNN, str, Any, Any]]:
    with seeded(0), local_parameters():
        for net in _nets():
            bnn = BNN(net, prior=setting)
            for name in bnn.site_names:
                value = bnn.initial_values[name]
                yield bnn, name, value, bnn.prior(name, value)


def check_prior_shape(setting: Any) -> None:
    """Each parameter gets a single distribution whose event is the whole parameter."""
    for _, name, value, distribution in _sites(setting):
        shapes = (tuple(distribution.batch_shape), tuple(distribution.event_shape))
        require(
            shapes == ((), tuple(value.shape)),
            f"The prior of {name!r} must have batch shape () and event shape {tuple(value.shape)}, got {shapes[0]} "
            f"and {shapes[1]}: end in .expand(value.shape).to_event(value.ndim).",
        )
        drawn = tuple(distribution.sample((5,)).shape)
        require(drawn == (5, *value.shape), f"Five draws of {name!r} must have shape (5, *event), got {drawn}.")


def check_prior_dtype_and_device(setting: Any) -> None:
    """Draws and densities have the precision and the device of the parameter."""
    for _, name, value, distribution in _sites(setting):
        for kind, result in {"draw": distribution.sample(), "density": distribution.log_prob(value)}.items():
            actual = (result.dtype, result.device)
            require(
                actual == (value.dtype, value.device),
                f"The {kind} of {name!r} must have {value.dtype} on {value.device}, got {actual[0]} on {actual[1]}.",
            )


def check_prior_log_prob(setting: Any) -> None:
    """The log density and its gradient are finite at moderate values and at the prior's draws."""
    for _, name, value, distribution in _sites(setting):
        spread = torch.linspace(-2, 2, value.numel(), dtype=value.dtype, device=value.device).view(value.shape)
        for start in (spread, value, distribution.sample()):
            point = start.clone().requires_grad_()
            log_prob = distribution.log_prob(point)
            require(bool(log_prob.isfinite().all()), f"The log density of {name!r} is not finite at {point}.")
            (gradient,) = torch.autograd.grad(log_prob.sum(), point, allow_unused=True, retain_graph=True)
            good = gradient is not None and bool(gradient.isfinite().all())
            require(good, f"The gradient of the log density of {name!r} is {gradient} at {point}.")


def check_prior_owns_its_parameters(setting: Any) -> None:
    """Learned values of the prior are in its module's parameters, where optimisers and copies find it."""
    for bnn, name, value, distribution in _sites(setting):
        require_owned(distribution.log_prob(value).sum(), bnn.prior, [], f"The prior of {name!r}")


def check_prior_fits_and_predicts(setting: Any) -> None:
    """A short fit runs, with finite ELBO and predictions."""
    posterior = short_fit(BNN(make_net(), prior=setting, likelihood=Gaussian(0.3)), make_data())
    require(bool((abs(posterior.history.elbo) < float("inf")).all()), "The ELBO of a short fit is not finite.")
    mean = posterior.predict(make_inputs(), num_draws=5).mean
    require(bool(mean.isfinite().all()), "Predictions after a short fit are not finite.")


def check_prior_added_sites(setting: Any) -> None:
    """Sites that the prior adds have its prefix, and their starting values lie in their support."""
    with seeded(0), local_parameters():
        bnn = BNN(make_net(), prior=setting)
        nodes = poutine.trace(bnn).get_trace(make_inputs()).nodes
    known = (*bnn.site_names, "data", "y")
    added = {name: node["fn"] for name, node in nodes.items() if node["type"] == "sample" and name not in known}
    strange = sorted(name for name in added if not name.startswith("prior."))
    require(not strange, f"The prior adds the sites {strange}: begin their names with `self._pyro_name`, 'prior'.")
    starts = {name: value for name, value in bnn.initial_values.items() if name not in bnn.site_names}
    for name, value in starts.items():
        site = added.get(name)
        fits = site is not None and site.event_shape == value.shape and bool(site.support.check(value).all())
        require(fits, f"`starts` gives {name!r} the value {value}, which no added site of {sorted(added)} can have.")


def check_prior_captures(setting: Any) -> None:
    """Captured steps equal eager steps, and replicates side by side equal single fits, for the same noise."""
    require_capturable(BNN(make_net(), prior=setting, likelihood=Gaussian(0.3)), make_data(), batch_size=7)


def check_prior_is_not_shared(setting: Any) -> None:
    """Two models with the same setting hold separate parameters and buffers."""
    first, second = (BNN(make_net(), prior=setting).prior.state_dict() for _ in range(2))
    shared = [name for name in first if first[name].data_ptr() == second[name].data_ptr()]
    require(not shared, f"Two models share {shared}: make tensors in `build`, anew each time.")


def check_prior_leaves_globals_alone(setting: Any) -> None:
    """Building, running and fitting leave nothing in Pyro's global parameter store."""
    with unchanged_globals("The prior"), seeded(0):
        bnn = BNN(make_net(), prior=setting)
        with local_parameters():
            bnn(make_inputs())
        short_fit(bnn, make_data())


PRIOR_CHECKS = [
    check_prior_shape,
    check_prior_dtype_and_device,
    check_prior_log_prob,
    check_prior_owns_its_parameters,
    check_prior_fits_and_predicts,
    check_prior_added_sites,
    check_prior_captures,
    check_prior_is_not_shared,
    check_prior_leaves_globals_alone,
    *value_checks("prior", priors.resolve),
]
"""Plain functions of a prior setting; each raises AssertionError with the fault.

Examples:
    >>> for check in bnn.testing.PRIOR_CHECKS[:2]:
    ...     check(bnn.priors.Normal(0.5))
"""
