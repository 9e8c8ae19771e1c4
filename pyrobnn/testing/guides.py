"""Checks of the properties of a guide that `fit` and `Posterior` rely on."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn import guides
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Scaler
from pyrobnn.diagnostics import elbo_report
from pyrobnn.guides.built import built
from pyrobnn.posterior.posterior import Posterior, latent_names
from pyrobnn.testing.captured import require_capturable
from pyrobnn.testing.common import DTYPES, make_data, require, short_fit, unchanged_globals, value_checks
from pyrobnn.testing.models import arguments, distance_in_errors, flatten, linear_regression, make_models

_ERRORS = 5.0
_DRAWS = 400


def _cases(
    setting: Any, dtypes: Sequence[torch.dtype] = DTYPES
) -> Iterator[tuple[str, BNN, PyroModule, tuple[Tensor, Tensor]]]:
    with seeded(0), local_parameters():
        for name, bnn in make_models(dtypes).items():
            args = arguments(bnn)
            yield name, bnn, setting.build(bnn, *args), args


def _train(bnn: BNN, guide: PyroModule, args: tuple[Tensor, Tensor], *, steps: int, lr: float) -> None:
    optimizer = torch.optim.Adam(guide.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        Trace_ELBO().differentiable_loss(bnn, guide, *args).backward()
        optimizer.step()


def _posterior(bnn: BNN, guide: PyroModule, args: tuple[Tensor, Tensor]) -> Posterior:
    return Posterior(bnn, guide, example=args, x_scaler=Scaler.identity(), y_scaler=Scaler.identity(), seed=0)


def check_guide_covers_latents(setting: Any) -> None:
    """The guide draws exactly the latent sites of the model."""
    for name, bnn, guide, args in _cases(setting):
        expected = {site.name for site in guides.latent_sites(bnn, *args)}
        names = set(latent_names(poutine.trace(guide).get_trace(*args)))
        require(
            names == expected,
            f"For {name} the guide misses {sorted(expected - names)} and has {sorted(names - expected)} too many.",
        )


def check_guide_draws(setting: Any) -> None:
    """Draws have the shape and precision of their sites, lie in the support, and have finite densities."""
    for name, bnn, guide, args in _cases(setting):
        nodes = poutine.trace(bnn).get_trace(*args).nodes
        for _ in range(5):
            guide_trace = poutine.trace(guide).get_trace(*args)
            for site in latent_names(guide_trace):
                value, prior = guide_trace.nodes[site]["value"], nodes[site]["fn"]
                expected = (tuple(prior.batch_shape + prior.event_shape), args[0].dtype)
                actual = (tuple(value.shape), value.dtype)
                require(actual == expected, f"For {name} draws of {site!r} must be {expected}, got {actual}.")
                require(bool(prior.support.check(value).all()), f"A draw of {site!r} lies outside the prior's support.")
            model_trace = poutine.trace(poutine.replay(bnn, trace=guide_trace)).get_trace(*args)
            for part, trace in {"guide": guide_trace, "model": model_trace}.items():
                finite = bool(torch.as_tensor(trace.log_prob_sum()).isfinite())
                require(finite, f"For {name} the log density of the {part} at the guide's draw is not finite.")


def check_guide_gradients(setting: Any) -> None:
    """The ELBO has a finite gradient with respect to every parameter of the guide."""
    for name, bnn, guide, args in _cases(setting):
        Trace_ELBO(num_particles=2).differentiable_loss(bnn, guide, *args).backward()
        parameters = dict(guide.named_parameters())
        require(parameters, f"For {name} the guide has no parameters: they must exist after `build`.")
        for parameter, value in parameters.items():
            reached = value.grad is not None and bool((value.grad != 0).any())
            require(reached, f"For {name} no gradient of the ELBO reaches the guide's parameter {parameter!r}.")
            require(bool(value.grad.isfinite().all()), f"For {name} the gradient of {parameter!r} is not finite.")


def check_guide_is_reproducible(setting: Any) -> None:
    """The same seed gives the same fit and the same draws, and the global random state stays as it was."""
    bnn, data = make_models()["normal weights, torch.float32"], make_data()
    state = torch.get_rng_state()
    draws = [short_fit(bnn, data, guide=setting).draw(3, seed=seed) for seed in (1, 1)]
    same = all(torch.equal(draws[0][name], draws[1][name]) for name in draws[0])
    require(same, "Two fits with the same seed give different draws.")
    require(torch.equal(state, torch.get_rng_state()), "Fitting or drawing changed torch's global random state.")


def check_guide_vmaps(setting: Any) -> None:
    """A guide that says it is vmappable gives independent draws of the same distribution under vmap as in a loop."""
    for name, bnn, guide, args in _cases(setting, DTYPES[:1]):
        if not built(guide).vmappable:
            continue
        _train(bnn, guide, args, steps=5, lr=0.1)
        posterior = _posterior(bnn, guide, args)
        mapped = flatten(posterior.draw(5 * _DRAWS, seed=1))
        guide.vmappable = False
        looped = flatten(posterior.draw(_DRAWS, seed=2))
        for statistic, distance in distance_in_errors(mapped, looped).items():
            require(
                distance < _ERRORS,
                f"For {name} the {statistic} of vmapped draws is {distance:.1f} standard errors from draws made one "
                "by one: leave out `vmappable`, or draw all noise inside the call.",
            )


def check_guide_captures(setting: Any) -> None:
    """Captured steps equal eager steps, and replicates side by side equal single fits, for the same noise."""
    require_capturable(make_models(DTYPES[:1])["a positive latent scale, torch.float32"], make_data(), guide=setting)


def check_guide_mean(setting: Any) -> None:
    """`mean()`, if the guide has it, is the mean of its draws, site by site."""
    for name, bnn, guide, args in _cases(setting, DTYPES[:1]):
        if built(guide).mean() is None:
            continue
        with torch.no_grad():
            for parameter in guide.parameters():
                parameter.add_(2.0)  # wide enough for the mean to differ from other centres
        posterior = _posterior(bnn, guide, args)
        draws, means = posterior.draw(4 * _DRAWS, seed=3), posterior.mean()
        require(set(means) == set(draws), f"mean() has the sites {sorted(means)}, draws have {sorted(draws)}.")
        for site, values in draws.items():
            stderr = values.std(0) / len(values) ** 0.5
            distance = float(((values.mean(0) - means[site]).abs() / (stderr + 1e-5)).max())
            require(
                distance < _ERRORS,
                f"For {name} mean() of {site!r} is {distance:.1f} standard errors from the mean of draws.",
            )


def check_guide_leaves_globals_alone(setting: Any) -> None:
    """Building, fitting and drawing leave nothing in Pyro's global parameter store."""
    with unchanged_globals("The guide"):
        for bnn in make_models().values():
            short_fit(bnn, make_data(), guide=setting).predict(make_data().x, num_draws=3)


def check_guide_clones_starting_values(setting: Any) -> None:
    """Training the guide does not change the network's weights, which it may start from."""
    for name, bnn, guide, args in _cases(setting):
        before = {site: value.clone() for site, value in bnn.initial_values.items()}
        _train(bnn, guide, args, steps=3, lr=0.5)
        changed = [site for site, value in bnn.initial_values.items() if not torch.equal(value, before[site])]
        require(not changed, f"For {name} training the guide changed the initial values of {changed}: clone them.")


def check_guide_elbo_is_a_bound(setting: Any) -> None:
    """On Bayesian linear regression the ELBO stays below the exact log evidence (point masses have no such bound)."""
    bnn, data, evidence = linear_regression()
    posterior = short_fit(bnn, data, guide=setting, steps=100, lr=0.1)
    if any(bool((values == values[0]).all()) for values in posterior.draw(10).values()):
        return
    elbo = elbo_report(posterior, data, num_draws=_DRAWS // 2, seed=4).elbo
    require(
        elbo.mean <= evidence + 4 * elbo.stderr,
        f"The ELBO {elbo} exceeds the log evidence {evidence:.2f}: the guide's density does not fit its draws.",
    )


GUIDE_CHECKS = [
    check_guide_covers_latents,
    check_guide_draws,
    check_guide_gradients,
    check_guide_is_reproducible,
    check_guide_vmaps,
    check_guide_captures,
    check_guide_mean,
    check_guide_leaves_globals_alone,
    check_guide_clones_starting_values,
    check_guide_elbo_is_a_bound,
    *value_checks("guide", guides.resolve),
]
"""Plain functions of a guide setting; each raises AssertionError with the fault.

Examples:
    >>> for check in bnn.testing.GUIDE_CHECKS[:2]:
    ...     check(bnn.guides.MeanField())  # an AssertionError says what is wrong
"""
