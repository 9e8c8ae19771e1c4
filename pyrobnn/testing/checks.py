"""The checks of priors, likelihoods, guides and methods: they raise AssertionError with the fault."""

import copy
import json
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyrobnn import guides, likelihoods, priors
from pyrobnn._core.errors import InputError, NotCapturable, PoorFitWarning
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import to_dict
from pyrobnn._torch.inputs import single
from pyrobnn._torch.pyro import fast_pyro, local_parameters
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics import elbo_report
from pyrobnn.diagnostics.convert import to_datatree
from pyrobnn.distributions.units import Scaler
from pyrobnn.guides.base import built
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference import SVI, fit
from pyrobnn.inference import method as methods
from pyrobnn.inference.data import make_source
from pyrobnn.inference.training.captured import Captured
from pyrobnn.inference.training.state import TrainingState, start
from pyrobnn.likelihoods import Gaussian
from pyrobnn.nets import MLP
from pyrobnn.posterior.posterior import Posterior, latent_names
from pyrobnn.priors import Hierarchical, Normal
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save

if TYPE_CHECKING:
    import pytest

Check = Callable[[Any], None]
DTYPES = (torch.float32, torch.float64)
PLACES = list(product(DTYPES, ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)))
_NUM_ROWS, _NUM_DRAWS, _STEPS = 6, 4, 3


def require(condition: object, message: str) -> None:
    """Raise AssertionError with a message unless the condition holds; unlike assert, under python -O too."""
    if not condition:
        raise AssertionError(message)


def require_equal(what: str, actual: Any, expected: Any) -> None:
    """Require that something, such as a shape, is what it must be."""
    require(actual == expected, f"{what} must be {expected}, got {actual}.")


def require_finite(what: str, value: Tensor | None) -> None:
    """Require a tensor without infinities and NaN."""
    require(value is not None and bool(value.isfinite().all()), f"{what} must be finite, got {value}.")


def make_net(out_features: int = 1, in_features: int = 3) -> nn.Module:
    """Return a small network, parameters "0.weight", "0.bias", "2.weight" and "2.bias"; the same at every call."""
    with seeded(0):
        return MLP(in_features, (4,), out_features, activation="tanh").build()


def make_inputs(num_rows: int = 20, in_features: int = 3) -> Tensor:
    """Return inputs (num_rows, in_features), the same at every call."""
    return torch.randn(num_rows, in_features, generator=torch.Generator().manual_seed(1))


def make_data() -> Data:
    """Return a regression of 20 examples with three features, the same at every call."""
    x = make_inputs()
    return Data(x, x.sum(1) + 0.3 * torch.randn(20, generator=torch.Generator().manual_seed(2)))


def short_fit(bnn: BNN, data: Data, **settings: Any) -> Posterior:
    """Return the posterior after a few steps on the CPU; that it predicts badly is no news."""
    with warnings.catch_warnings(action="ignore", category=PoorFitWarning):
        return bnn.fit(data, seed=0, device="cpu", progress=False, **({"steps": 5} | settings))


@contextmanager
def unchanged_globals(what: str) -> Iterator[None]:
    """Require that the block leaves Pyro's global parameter store alone."""
    before = set(pyro.get_param_store().keys())
    yield
    added = sorted(set(pyro.get_param_store().keys()) - before)
    require(not added, f"{what} left {added} in Pyro's global parameter store: hold parameters in the module.")


def require_owned(value: Tensor, module: nn.Module, what: str) -> None:
    """Require that a value depends on no trainable tensor but the module's parameters."""
    known, seen, steps = {id(parameter) for parameter in module.parameters()}, set[Any](), [value.grad_fn]
    while steps:
        step = steps.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        leaf = getattr(step, "variable", None)
        owned = leaf is None or id(leaf) in known
        require(owned, f"{what} has a trainable tensor that is not in its .parameters(): {leaf}.")
        steps += [parent for parent, _ in step.next_functions]


def require_capturable(bnn: BNN, data: Data, *, kind: type[SVI] = SVI, **settings: Any) -> None:
    """Require that captured steps equal eager steps for the same noise, alone and as two replicates side by side."""
    method = kind(steps=10, lr=0.02, **settings)
    *eager, fit, first, second = [_begin(bnn, method, data, seed) for seed in (0, 1, 0, 0, 1)]
    try:
        with seeded(0), fast_pyro():
            alone, together = Captured([fit]), Captured([first, second])
    except NotCapturable as error:
        raise AssertionError(f"The fit cannot be captured: {error}.") from error
    terms = [_run(step) for step in eager]
    _require_close("captured steps", _run(alone), "eager steps", terms[0])
    if together.noise.is_complete:
        for table, column in zip(together.noise.inputs, alone.noise.inputs, strict=True):
            table.copy_(torch.stack([column, column], 1))  # both replicates see the noise of the single fit
        together.noise.draw = lambda num_steps: None  # type: ignore[method-assign]
        _require_close("replicates side by side", _run(together), "single fits", torch.stack(terms, 1))


def _begin(bnn: BNN, method: SVI, data: Data, seed: int) -> TrainingState:
    source = make_source(data, bnn, method.batch_size, seed=seed)
    with seeded(seed, "fit"), fast_pyro():
        _, fit = start(bnn, method, source, seed, "cpu")
        fit.bnn.train()
        fit.advance(1)
    return fit


def _run(fit: TrainingState | Captured) -> Tensor:
    """Return the terms of the next steps, (steps, [R,] 2), under a fixed seed."""
    with seeded(5), fast_pyro():
        return fit.advance(_STEPS).double()


def _require_close(subject: str, result: Tensor, than: str, expected: Tensor) -> None:
    close = torch.allclose(result, expected, rtol=1e-4, atol=1e-4)
    require(close, f"For the same noise {subject} differ from {than}: {result.tolist()} and {expected.tolist()}.")


_N, _S, _DRAWS, _SAMPLE = 12, 4, 20, 400
_EXTREME, _NOISE = 1e4, 0.3
_LARGEST_ERRORS, _CHANCE_OF_AN_ALARM = 5.0, 1e-6
_SAME = Scaler.identity()
_PRIORS = {"normal weights": Normal(), "positive latent scales": Hierarchical("log_normal")}

Case = tuple[str, BNN, PyroModule, tuple[Tensor, Tensor]]


def _of_values(kind: str, resolve: Callable[[Any], Any]) -> list[Check]:
    """Return the checks that a kind of part is a value."""

    def is_value(setting: Any) -> None:
        """The setting prints as its class, and equals its copies, pickled or not, with the same hash."""
        name = type(setting).__name__
        require(repr(setting).startswith(name), f"{name} prints as {setting!r}, expected it to start with its name.")
        for how in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
            again = how(setting)
            require(again == setting, f"{setting!r} is not equal to its copy, {again!r}.")
            require(hash(again) == hash(setting), f"{setting!r} and its copy have different hashes.")

    def round_trips(setting: Any) -> None:
        """The setting comes back equal from dictionaries and from JSON."""
        for written in (to_dict(setting), json.loads(json.dumps(to_dict(setting)))):
            again = resolve(written)
            require(again == setting, f"{setting!r} came back as {again!r} from {written!r}.")

    for check in (is_value, round_trips):
        check.__name__ = f"check_{kind}_{check.__name__}"
    return [is_value, round_trips]


def _sites(setting: Any) -> Iterator[tuple[BNN, str, Any, Any]]:
    """Yield parameters of one, two and three dimensions, in every precision, on every device, and their priors."""
    convolution = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(6, 1))
    with seeded(0), local_parameters():
        for net in (make_net(), convolution):
            for dtype, device in PLACES:
                bnn = BNN(net.to(device, dtype), prior=setting)
                for name in bnn.site_names:
                    value = bnn.initial_values[name]
                    yield bnn, name, value, bnn.prior(name, value)


def check_prior_shape(setting: Any) -> None:
    """Each parameter gets a single distribution over the whole, with its precision and device."""
    for _, name, value, distribution in _sites(setting):
        shapes = (tuple(distribution.batch_shape), tuple(distribution.event_shape))
        what = f"Batch and event shape of the prior of {name!r}, after .expand(value.shape).to_event(value.ndim),"
        require_equal(what, shapes, ((), tuple(value.shape)))
        require_equal(f"The shape of draws of {name!r}", distribution.sample((5,)).shape, (5, *value.shape))
        for kind, result in {"draw": distribution.sample(), "density": distribution.log_prob(value)}.items():
            require_equal(f"The {kind} of {name!r}", (result.dtype, result.device), (value.dtype, value.device))


def check_prior_log_prob(setting: Any) -> None:
    """The log density and its gradient are finite at moderate values and at the prior's draws."""
    for _, name, value, distribution in _sites(setting):
        spread = torch.linspace(-2, 2, value.numel(), dtype=value.dtype, device=value.device).view(value.shape)
        for place in (spread, value, distribution.sample()):
            point = place.clone().requires_grad_()
            log_prob = distribution.log_prob(point)
            require_finite(f"The log density of {name!r} at {place}", log_prob)
            (gradient,) = torch.autograd.grad(log_prob.sum(), point, allow_unused=True, retain_graph=True)
            require_finite(f"The gradient of the log density of {name!r} at {place}", gradient)


def check_prior_owns_its_parameters(setting: Any) -> None:
    """Learned values of the prior are in its module's parameters, where optimisers and copies find it."""
    for bnn, name, value, distribution in _sites(setting):
        require_owned(distribution.log_prob(value).sum(), bnn.prior, f"The prior of {name!r}")


def check_prior_added_sites(setting: Any) -> None:
    """Sites that the prior adds have its prefix, and their starting values lie in their support."""
    with seeded(0), local_parameters():
        bnn = BNN(make_net(), prior=setting)
        nodes = poutine.trace(bnn).get_trace(make_inputs()).nodes
    known = (*bnn.site_names, "data", "y")
    added = {name: node["fn"] for name, node in nodes.items() if node["type"] == "sample" and name not in known}
    strange = sorted(name for name in added if not name.startswith("prior."))
    require(not strange, f"The prior adds the sites {strange}: begin their names with `self._pyro_name`, 'prior'.")
    for name in [name for name in bnn.initial_values if name not in bnn.site_names]:
        value, site = bnn.initial_values[name], added.get(name)
        fits = site is not None and site.event_shape == value.shape and bool(site.support.check(value).all())
        require(fits, f"`starts` gives {name!r} the value {value}, which no added site of {sorted(added)} can have.")


def check_prior_is_not_shared(setting: Any) -> None:
    """Two models with the same setting hold separate parameters and buffers."""
    first, second = (BNN(make_net(), prior=setting).prior.state_dict() for _ in range(2))
    shared = [name for name in first if first[name].data_ptr() == second[name].data_ptr()]
    require(not shared, f"Two models share {shared}: make tensors in `build`, anew each time.")


def check_prior_fits_and_predicts(setting: Any) -> None:
    """A short fit runs, with finite ELBO and predictions, and leaves nothing in Pyro's global parameter store."""
    with unchanged_globals("The prior"):
        posterior = short_fit(BNN(make_net(), prior=setting, likelihood=Gaussian(0.3)), make_data())
        assert posterior.history is not None  # SVI keeps one
        require_finite("The ELBO of a short fit", torch.as_tensor(posterior.history.elbo))
        require_finite("The predictive mean", posterior.predict(make_inputs(), num_draws=5).mean)


def check_prior_captures(setting: Any) -> None:
    """Captured steps equal eager steps, and replicates side by side equal single fits, for the same noise."""
    require_capturable(BNN(make_net(), prior=setting, likelihood=Gaussian(0.3)), make_data(), batch_size=7)


PRIOR_CHECKS: list[Check] = [
    check_prior_shape, check_prior_log_prob, check_prior_owns_its_parameters, check_prior_added_sites,
    check_prior_is_not_shared, check_prior_fits_and_predicts, check_prior_captures,
    *_of_values("prior", priors.resolve),
]  # fmt: skip
"""Plain functions of a prior setting; each raises AssertionError with the fault.

Examples:
    >>> for check in bnn.testing.PRIOR_CHECKS[:2]:
    ...     check(bnn.priors.Normal(0.5))
"""


def accepted_targets(setting: Any) -> Iterator[tuple[Tensor, int]]:
    """Yield the targets that the likelihood takes, of several kinds, and the outputs it needs for them."""
    real = torch.randn(_N, 2, generator=torch.Generator().manual_seed(3))
    three, two = torch.arange(_N) % 3, torch.arange(_N) % 2
    rows = [real, real.exp(), real.sigmoid(), torch.stack([three, two], 1), torch.stack([two, 1 - two], 1)]
    accepts = False
    for y in [real[:, 0], real[:, 0].exp(), real[:, 0].sigmoid(), three, two, *rows]:
        try:
            outputs = setting.num_outputs(y)
            setting.check_targets(y, outputs)
        except InputError:
            continue
        accepts = True
        yield y, outputs
    require(accepts, f"{setting!r} takes no targets (N,) or (N, 2): real, positive, shares, counts or binary.")


def _outputs(setting: Any, *leading: int) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield modules with latents at a draw, outputs (*leading, N, outputs) and targets, in every precision."""
    with seeded(4), local_parameters():
        for y, outputs in accepted_targets(setting):
            for dtype, device in PLACES:
                f = torch.randn(*leading, _N, outputs, dtype=dtype, device=device)
                module = setting.build(f.new_empty(0), torch.ones(y.shape[1:], dtype=torch.float64))
                trace = poutine.trace(module).get_trace(f)
                latents = {name: trace.nodes[name]["value"].detach() for name in trace.stochastic_nodes}
                targets = y.to(device, torch.int64 if setting.integer_targets else dtype)
                yield _Conditioned(module, latents), f, targets


class _Conditioned(nn.Module):
    def __init__(self, likelihood: nn.Module, latents: dict[str, Tensor]) -> None:
        super().__init__()
        self.likelihood, self.latents = likelihood, latents

    def forward(self, f: Tensor) -> Any:
        return poutine.condition(self.likelihood, data=self.latents)(f)


def check_likelihood_shape(setting: Any) -> None:
    """Outputs (N, outputs) give a batch (N,) of rows of targets, outputs for S draws (S, N), in their precision."""
    for leading in ((), (_S,)):
        for module, f, y in _outputs(setting, *leading):
            distribution, batch, event = module(f), (*leading, _N), tuple(y.shape[1:])
            what, log_prob = f"for outputs {tuple(f.shape)} and targets {tuple(y.shape)}", distribution.log_prob(y)
            shapes = (tuple(distribution.batch_shape), tuple(distribution.event_shape), tuple(log_prob.shape))
            require_equal(f"The shapes of batch, event and log_prob {what}", shapes, (batch, event, batch))
            require_equal(f"log_prob {what}", (log_prob.dtype, log_prob.device), (f.dtype, f.device))
            draws = distribution.sample((7,))
            require_equal(f"The shape of seven draws {what}", tuple(draws.shape), (7, *batch, *event))
            require_finite(f"The log density of draws {what}", distribution.log_prob(draws))


def check_likelihood_is_rowwise(setting: Any) -> None:
    """The density of an example depends only on its outputs, and draws of the outputs do not mix."""
    for module, f, y in _outputs(setting, _S):
        changed = f.clone()
        changed[1, 3] += 0.5
        before, after = module(f).log_prob(y), module(changed).log_prob(y)
        after[1, 3] = before[1, 3]
        same = torch.equal(before, after)
        require(same, "The density of an example changes with the outputs of another: rows must not mix.")
        alone = torch.stack([module(draw).log_prob(y) for draw in f])
        require(torch.allclose(before, alone), "Densities for several draws at once differ from densities one by one.")


def check_likelihood_gradients(setting: Any) -> None:
    """The density has finite gradients, and every output column gets a gradient, from targets or draws."""
    for module, f, y in _outputs(setting):
        f.requires_grad_()
        distribution = module(f)
        total = distribution.log_prob(y).sum() + distribution.log_prob(distribution.sample((_DRAWS,))).sum()
        require(total.requires_grad, "No gradient reaches the network's outputs.")
        gradient = torch.autograd.grad(total, f, materialize_grads=True)[0]
        require_finite("The gradient with respect to the outputs", gradient)
        unused = (gradient == 0).all(0).nonzero().flatten().tolist()
        require(not unused, f"No gradient reaches the output columns {unused}.")


def check_likelihood_takes_extreme_outputs(setting: Any) -> None:
    """Outputs of +-1e4 give log densities and gradients that are finite."""
    for module, f, y in _outputs(setting):
        extreme = (_EXTREME * f.sign()).requires_grad_()
        log_prob = module(extreme).log_prob(y)
        require_finite(f"The log density for outputs of +-{_EXTREME:g}", log_prob)
        (gradient,) = torch.autograd.grad(log_prob.sum(), extreme)
        require_finite(f"The gradient for outputs of +-{_EXTREME:g}", gradient)


def check_likelihood_owns_its_parameters(setting: Any) -> None:
    """Learned values of the likelihood are in its module's parameters."""
    for module, f, y in _outputs(setting):
        require_owned(module(f).log_prob(y).sum(), module, f"{setting!r}")


def check_likelihood_contract(setting: Any) -> None:
    """Its flags are booleans, and `check_targets` takes the number of outputs of `num_outputs`, and not less."""
    flags = (setting.standardizes_targets, setting.integer_targets)
    require(all(isinstance(flag, bool) for flag in flags), f"The flags of {setting!r} must be booleans, got {flags}.")
    require(flags != (True, True), "Labels and counts cannot be standardised: one of the two flags must be False.")
    for y, outputs in accepted_targets(setting):
        require(outputs >= 1, f"num_outputs must be at least 1, got {outputs} for targets {tuple(y.shape)}.")
        try:
            setting.check_targets(y, outputs - 1)
        except InputError:
            continue
        raise AssertionError(f"check_targets takes {outputs - 1} outputs where num_outputs asks for {outputs}.")


def check_likelihood_fits_and_predicts(setting: Any) -> None:
    """A short fit runs, and leaves nothing in Pyro's global parameter store; predictions and scores are finite."""
    with unchanged_globals("The likelihood"):
        for y, outputs in accepted_targets(setting):
            posterior = short_fit(BNN(make_net(outputs), likelihood=setting), Data(make_inputs(_N), y))
            prediction = posterior.predict(make_inputs(_N), num_draws=5)
            score = prediction.log_prob(y)
            require_finite("The predictive mean after a short fit", prediction.mean)
            require_equal("The shape of log scores", tuple(score.shape), (_N,))
            require_finite("The log score after a short fit", score)


def check_likelihood_captures(setting: Any) -> None:
    """Captured steps equal eager steps, and replicates side by side equal single fits, for the same noise."""
    by_rank = {y.ndim: (y, outputs) for y, outputs in accepted_targets(setting)}
    for y, outputs in by_rank.values():
        require_capturable(BNN(make_net(outputs), likelihood=setting), Data(make_inputs(_N), y))


LIKELIHOOD_CHECKS: list[Check] = [
    check_likelihood_shape, check_likelihood_is_rowwise, check_likelihood_gradients,
    check_likelihood_takes_extreme_outputs, check_likelihood_owns_its_parameters, check_likelihood_contract,
    check_likelihood_fits_and_predicts, check_likelihood_captures, *_of_values("likelihood", likelihoods.resolve),
]  # fmt: skip
"""Plain functions of a likelihood setting; each raises AssertionError with the fault.

Examples:
    >>> for check in bnn.testing.LIKELIHOOD_CHECKS[:2]:
    ...     check(bnn.likelihoods.Poisson())
"""


def _model(prior: Any, dtype: torch.dtype = torch.float32) -> BNN:
    return BNN(make_net().to(dtype), prior=prior, likelihood=Gaussian(_NOISE))


def _guides(setting: Any, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[Case]:
    """Yield models with weights alone, and with positive latents in their prior, their guides, and a batch."""
    with seeded(0), local_parameters():
        data = make_data()
        for name, prior in _PRIORS.items():
            for dtype in dtypes:
                bnn = _model(prior, dtype)
                x = single(bnn.cast_inputs(data.x), "This model")
                args = (x, bnn.cast_targets(data.y, x))
                yield f"{name}, {dtype}", bnn, setting.build(bnn, *args), args


def _train(bnn: BNN, guide: PyroModule, args: tuple[Tensor, Tensor], *, steps: int, lr: float) -> None:
    optimizer = torch.optim.Adam(guide.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        Trace_ELBO().differentiable_loss(bnn, guide, *args).backward()
        optimizer.step()


def check_guide_draws(setting: Any) -> None:
    """Draws cover the latent sites, in their shapes, precision and support, with finite densities."""
    for name, bnn, guide, args in _guides(setting):
        nodes = poutine.trace(bnn).get_trace(*args).nodes
        sites = {site.name for site in latent_sites(bnn, *args)}
        for _ in range(5):
            of_guide = poutine.trace(guide).get_trace(*args)
            drawn = set(latent_names(of_guide))
            missing, extra = sorted(sites - drawn), sorted(drawn - sites)
            require(not missing + extra, f"For {name} the guide misses {missing} and has {extra} too many.")
            for site in sites:
                value, prior = of_guide.nodes[site]["value"], nodes[site]["fn"]
                expected = (prior.batch_shape + prior.event_shape, args[0].dtype)
                require_equal(f"For {name} a draw of {site!r}", (value.shape, value.dtype), expected)
                require(bool(prior.support.check(value).all()), f"A draw of {site!r} lies outside the prior's support.")
            of_model = poutine.trace(poutine.replay(bnn, trace=of_guide)).get_trace(*args)
            for part, trace in {"guide": of_guide, "model": of_model}.items():
                require_finite(f"For {name} the log density of the {part}", torch.as_tensor(trace.log_prob_sum()))


def check_guide_gradients(setting: Any) -> None:
    """The ELBO has a finite gradient in every parameter of the guide, and steps leave the network's weights alone."""
    for name, bnn, guide, args in _guides(setting):
        before = {site: value.clone() for site, value in bnn.initial_values.items()}
        parameters = dict(guide.named_parameters())
        require(parameters, f"For {name} the guide has no parameters: they must exist after `build`.")
        _train(bnn, guide, args, steps=3, lr=0.5)
        for parameter, value in parameters.items():
            reached = value.grad is not None and bool((value.grad != 0).any())
            require(reached, f"For {name} no gradient of the ELBO reaches the guide's parameter {parameter!r}.")
            require_finite(f"For {name} the gradient of {parameter!r}", value.grad)
        changed = [site for site, value in bnn.initial_values.items() if not torch.equal(value, before[site])]
        require(not changed, f"For {name} training the guide changed the initial values of {changed}: clone them.")


def check_guide_fits_and_predicts(setting: Any) -> None:
    """Fits of the same seed draw the same, and leave torch's random state and Pyro's parameter store alone."""
    state = torch.get_rng_state()
    with unchanged_globals("The guide"):
        for prior in _PRIORS.values():
            first, second = (short_fit(_model(prior), make_data(), guide=setting).draw(3, seed=1) for _ in range(2))
            same = all(torch.equal(value, second[name]) for name, value in first.items())
            require(same, "Two fits with the same seed give different draws.")
    require(torch.equal(state, torch.get_rng_state()), "Fitting or drawing changed torch's global random state.")


def check_guide_vmaps(setting: Any) -> None:
    """A guide that says it is vmappable gives independent draws of the same distribution under vmap as in a loop."""
    from scipy.stats import ks_2samp

    for name, bnn, guide, args in _guides(setting, DTYPES[:1]):
        if not built(guide).vmappable:
            continue
        _train(bnn, guide, args, steps=5, lr=0.1)
        posterior = Posterior(bnn, guide, example=args, x_scaler=_SAME, y_scaler=_SAME, seed=0)
        mapped = _flat(posterior.draw(5 * _SAMPLE, seed=1))
        guide.vmappable = False
        looped = _flat(posterior.draw(_SAMPLE, seed=2))
        chance = float(ks_2samp(mapped, looped).pvalue.min()) * mapped.shape[1]
        what = f"For {name} vmapped draws have another distribution than draws one by one (p = {chance:.1g})"
        require(chance > _CHANCE_OF_AN_ALARM, f"{what}: leave out `vmappable`, or draw all noise inside the call.")


def _flat(draws: Mapping[str, Any]) -> Any:
    """Return joint draws as an array (S, D), with a column for the sum of all entries, which reveals correlations."""
    entries = torch.cat([draws[name].reshape(len(draws[name]), -1) for name in sorted(draws)], 1)
    return torch.cat([entries, entries.sum(1, keepdim=True)], 1).numpy()


def check_guide_mean(setting: Any) -> None:
    """`mean()`, if the guide has it, is the mean of its draws, site by site."""
    for name, bnn, guide, args in _guides(setting, DTYPES[:1]):
        if built(guide).mean() is None:
            continue
        with torch.no_grad():
            for parameter in guide.parameters():
                parameter.add_(2.0)  # wide enough for the mean to differ from other centres
        posterior = Posterior(bnn, guide, example=args, x_scaler=_SAME, y_scaler=_SAME, seed=0)
        draws, means = posterior.draw(4 * _SAMPLE, seed=3), posterior.mean()
        require_equal("The sites of mean()", set(means), set(draws))
        for site, values in draws.items():
            stderr = values.std(0) / len(values) ** 0.5
            distance = float(((values.mean(0) - means[site]).abs() / (stderr + 1e-5)).max())
            what = f"For {name} mean() of {site!r} is {distance:.1f} standard errors from the mean of draws."
            require(distance < _LARGEST_ERRORS, what)


class _TwoLinear(nn.ModuleDict):
    """The sum of two linear maps, with the parameter names of the other networks."""

    def __init__(self) -> None:
        super().__init__({"0": nn.Linear(3, 1), "2": nn.Linear(3, 1)})

    def forward(self, x: Tensor) -> Tensor:
        return self["0"](x) + self["2"](x)


def check_guide_elbo_is_a_bound(setting: Any) -> None:
    """On Bayesian linear regression the ELBO stays below the exact log evidence (point masses have no such bound)."""
    data = make_data()
    with seeded(0):
        bnn = BNN(_TwoLinear(), prior=Normal(1.0), likelihood=Gaussian(_NOISE))
    posterior = short_fit(bnn, data, guide=setting, steps=100, lr=0.1)
    if any(bool((values == values[0]).all()) for values in posterior.draw(10).values()):
        return
    features = torch.cat([single(data.x, "This model"), torch.ones(len(data), 1)], 1).double()
    covariance = 2 * features @ features.T + _NOISE**2 * torch.eye(len(data), dtype=torch.float64)
    law = torch.distributions.MultivariateNormal(torch.zeros_like(covariance[0]), covariance)
    evidence = float(law.log_prob(data.y.double()))
    elbo = elbo_report(posterior, data, num_draws=_SAMPLE // 2, seed=4).elbo
    fault = f"The ELBO {elbo} exceeds the log evidence {evidence:.2f}: the guide's density does not fit its draws."
    require(elbo.mean <= evidence + 4 * elbo.stderr, fault)


def check_guide_captures(setting: Any) -> None:
    """Captured steps equal eager steps, and replicates side by side equal single fits, for the same noise."""
    require_capturable(_model(_PRIORS["positive latent scales"]), make_data(), guide=setting)


GUIDE_CHECKS: list[Check] = [
    check_guide_draws, check_guide_gradients, check_guide_fits_and_predicts, check_guide_vmaps, check_guide_mean,
    check_guide_elbo_is_a_bound, check_guide_captures, *_of_values("guide", guides.resolve),
]  # fmt: skip
"""Plain functions of a guide setting; each raises AssertionError with the fault.

Examples:
    >>> for check in bnn.testing.GUIDE_CHECKS[:2]:
    ...     check(bnn.guides.MeanField())  # an AssertionError says what is wrong
"""


def _fitted(setting: Any, bnn: BNN, data: Data | None = None, seed: int = 0) -> Any:
    """Return the posterior of a method, or the mixture; that few draws or steps are poor is no news."""
    with warnings.catch_warnings(action="ignore"):
        return fit(bnn, data or make_data(), setting, seed=seed, device="cpu", progress=False)


def check_method_repeats(setting: Any) -> None:
    """Only the seed decides the bits of draws; the model that is given and all global state stay as they are."""
    bnn, state = _model(_PRIORS["normal weights"]), torch.get_rng_state()
    parts, tensors = repr(bnn), copy.deepcopy(bnn.state_dict())
    with unchanged_globals("The method"):
        first, again, other = (_fitted(setting, bnn, seed=seed) for seed in (0, 0, 1))
    require(torch.equal(state, torch.get_rng_state()), "Fitting changed torch's global random state.")
    _require_same_draws(first, again, "of two fits of the same seed")
    same = [torch.equal(value, other.draw(2, seed=0)[name]) for name, value in first.draw(2, seed=0).items()]
    require(not all(same), "Fits of different seeds draw the same: take random numbers from torch's generator.")
    changed = [name for name, value in bnn.state_dict().items() if not torch.equal(value, tensors[name])]
    require(repr(bnn) == parts and not changed, f"The fit changed the model that was given, {changed}: copy it.")


def check_method_draws_and_predicts(setting: Any) -> None:
    """Draws cover the sites in shape and support, and have finite predictions and scores in the shapes of the data."""
    for name, prior in _PRIORS.items():
        try:
            posterior = _fitted(setting, _model(prior))
        except InputError:
            require(name != "normal weights", f"{setting!r} refuses a network with normal weights.")
            continue
        member, draws = posterior.members[0], posterior.draw(_NUM_DRAWS)
        with fast_pyro(), poutine.block():
            nodes = poutine.trace(member.bnn).get_trace(*member.example).nodes
            sites = {site.name: site.start.shape for site in latent_sites(member.bnn, *member.example)}
        require_equal("The sites of draws", {site: value.shape[1:] for site, value in draws.items()}, sites)
        outside = [site for site, value in draws.items() if not bool(nodes[site]["fn"].support.check(value).all())]
        require(not outside, f"Draws of {outside} lie outside of the prior's support.")
        require_equal("The shape of a mean", posterior.predict(make_inputs(), num_draws=_NUM_DRAWS).mean.shape, (20,))
        _require_prediction(posterior, make_data())


def check_method_stores(setting: Any) -> None:
    """A saved posterior is loaded with the same draws, and its record has the method, the examples and the time."""
    posterior = _fitted(setting, _model(_PRIORS["normal weights"]))
    record = posterior.record
    found = (*(table["type"] for table in record.methods[:1]), record.num_data, record.seconds is not None)
    require_equal("Method, examples and time in the record", found, (to_dict(setting)["type"], len(make_data()), True))
    _require_storage(posterior, make_data())


def check_method_refuses(setting: Any) -> None:
    """Data that do not fit the network, in inputs or targets, are refused with an InputError."""
    bnn, x, y = _model(_PRIORS["normal weights"]), make_inputs(), make_data().y
    for name, data in {"inputs": Data(x[:, :2], y), "targets": Data(x, torch.stack([y, y], 1))}.items():
        try:
            _fitted(setting, bnn, data)
        except InputError:
            continue
        raise AssertionError(f"{setting!r} takes {name} of another width: refuse them in `check`.")


METHOD_CHECKS: list[Check] = [
    check_method_repeats, check_method_draws_and_predicts, check_method_stores, check_method_refuses,
    *_of_values("method", methods.resolve),
]  # fmt: skip
"""Plain functions of the setting of a method, with few draws or steps; each raises AssertionError with the fault.

Examples:
    >>> for check in bnn.testing.METHOD_CHECKS[:2]:
    ...     check(bnn.SVI(steps=5))
"""


def pairwise(*families: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Return combinations of a member from each of three families, such that every pair of members occurs."""
    order = sorted(range(3), key=lambda place: -len(families[place]))
    first, second, third = (families[place] for place in order)
    for a, b in product(range(len(first)), range(len(second))):
        chosen = (first[a], second[b], third[(a + b) % len(third)])
        yield tuple(chosen[order.index(place)] for place in range(3))


def parametrize_with_checks(parts: Iterable[Any], checks: Sequence[Check]) -> "pytest.MarkDecorator":
    """Return a pytest decorator for a test that takes `part` and `check`, for every part and check of its kind.

    Examples:
        >>> @bnn.testing.parametrize_with_checks([bnn.priors.Normal(0.5)], bnn.testing.PRIOR_CHECKS)
        ... def test_prior(part, check):
        ...     check(part)
    """
    import pytest

    pairs = [pytest.param(part, check, id=f"{part!r}-{check.__name__}") for part in parts for check in checks]
    return pytest.mark.parametrize(("part", "check"), pairs)


def parametrize_combinations(
    priors: Sequence[Any], likelihoods: Sequence[Any], guides: Sequence[Any]
) -> "pytest.MarkDecorator":
    """Return a pytest decorator for a test that takes `prior`, `likelihood` and `guide`: every pair occurs once.

    Examples:
        >>> from pyrobnn import guides, likelihoods, priors
        >>> @bnn.testing.parametrize_combinations([priors.Normal(0.5)], [likelihoods.Poisson()], [guides.Map()])
        ... def test_combination(prior, likelihood, guide):
        ...     bnn.testing.check_combination(prior, likelihood, guide)
    """
    import pytest

    combinations = [
        pytest.param(prior, likelihood, guide, id=f"{prior!r}-{likelihood!r}-{guide!r}")
        for prior, guide, likelihood in pairwise(priors, guides, likelihoods)
    ]
    return pytest.mark.parametrize(("prior", "likelihood", "guide"), combinations)


def check_combination(prior: Any, likelihood: Any, guide: Any) -> None:
    """A model of these parts is fitted, audited, predicted, stored and exported, as each part promises.

    Examples:
        >>> bnn.testing.check_combination(bnn.priors.Normal(0.5), bnn.likelihoods.Gaussian(1.0), bnn.guides.MeanField())
    """
    y, outputs = next(accepted_targets(likelihood))
    data = Data(make_inputs(len(y)), y)
    posterior = short_fit(BNN(make_net(outputs), prior=prior, likelihood=likelihood), data, guide=guide, steps=2)
    with fast_pyro():
        latents = {site.name: site.start.shape for site in latent_sites(posterior.bnn, *posterior.example)}
    shapes = {name: value.shape[1:] for name, value in posterior.draw(_NUM_DRAWS).items()}
    require_equal("The sites of draws", shapes, latents)
    _require_same_draws(posterior, posterior, "of a posterior for the same seed")
    _require_batching(posterior, data)
    _require_prediction(posterior, data)
    _require_storage(posterior, data)
    tree = to_datatree(posterior, data, num_draws=_NUM_DRAWS)
    missing = set(posterior.bnn.site_names) - set(tree["posterior"].data_vars)
    require(not missing, f"The DataTree lacks {', '.join(sorted(missing))}.")
    shape = tuple(tree["log_likelihood"]["y"].shape[:3])
    require_equal("The shape of the log-likelihood in the DataTree", shape, (1, _NUM_DRAWS, len(data)))


def _require_same_draws(first: Posterior, second: Any, what: str) -> None:
    pairs = ((name, value, second.draw(_NUM_DRAWS)[name]) for name, value in first.draw(_NUM_DRAWS).items())
    different = [name for name, one, other in pairs if not torch.equal(one, other)]
    require(not different, f"Draws {what} differ at {', '.join(different)}.")


def _require_batching(posterior: Posterior, data: Data) -> None:
    """Require that the scaled log-likelihoods of two halves average to the log-likelihood of all data."""
    bnn, half = posterior.bnn, len(data) // 2
    x, y = posterior.inputs(data.x), bnn.cast_targets(posterior.y_scaler.transform(data.y), bnn.like)
    model = poutine.condition(bnn, data={name: value[0] for name, value in posterior.draw(_NUM_DRAWS).items()})

    def log_likelihood(rows: slice) -> torch.Tensor:
        trace = poutine.trace(model).get_trace(x[rows], y[rows], num_data=2 * half)
        trace.compute_log_prob(lambda name, node: name == "y")
        return trace.nodes["y"]["log_prob_sum"].double()

    with fast_pyro(), poutine.block(), torch.no_grad():
        every, first, second = map(log_likelihood, (slice(2 * half), slice(half), slice(half, 2 * half)))
    require_finite("The log-likelihood of a draw", every)
    difference = float(((first + second) / 2 - every).abs() / every.abs().clamp_min(1.0))
    require(difference < 1e-4, f"The log-likelihood of halves, scaled, is off by {difference:.2g} of the whole's.")


def _require_prediction(posterior: Posterior, data: Data) -> None:
    """Require finite scores, and that aleatoric and epistemic variance sum to the variance of a sample."""
    prediction = posterior.predict(data.x[:_NUM_ROWS], num_draws=_NUM_DRAWS)
    require_finite("The log score after a short fit", prediction.log_prob(data.y[:_NUM_ROWS]))
    epistemic = prediction.draw_means.var(0, correction=0)
    torch.testing.assert_close(prediction.epistemic_variance, epistemic, rtol=1e-3, atol=1e-5)
    total, finite = prediction.variance, prediction.variance.isfinite()
    rest = total - prediction.aleatoric_variance - prediction.epistemic_variance
    share = (rest.abs() / total.clamp_min(1e-6))[finite]
    require(not bool((share >= 1e-4).any()), f"Aleatoric and epistemic variance miss the variance by {share}.")


def _require_storage(posterior: Posterior, data: Data) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(posterior, Path(folder) / "posterior")
        loaded = load(Path(folder) / "posterior", net=posterior.bnn.settings["net"])
    _require_same_draws(posterior, loaded, "of the stored posterior")
    first, second = (each.predict(data.x[:_NUM_ROWS], num_draws=_NUM_DRAWS).mean for each in (posterior, loaded))
    require(torch.equal(first, second), "Predictions of the stored posterior differ.")
