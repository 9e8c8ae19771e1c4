"""Checks of the properties of a likelihood that a `BNN` and its predictions rely on."""

from collections.abc import Iterator
from typing import Any

import torch
from pyro import poutine
from torch import Tensor, nn

from pyrobnn import likelihoods
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.testing.captured import require_capturable
from pyrobnn.testing.common import (
    DTYPES,
    devices,
    make_inputs,
    make_net,
    require,
    require_owned,
    short_fit,
    unchanged_globals,
    value_checks,
)

_N, _S = 12, 4
_EXTREME = 1e4
_DRAWS = 20


class _WithFixedLatents(nn.Module):
    """A likelihood with latents that are drawn once and keep their values in every call."""

    def __init__(self, likelihood: nn.Module, f: Tensor) -> None:
        super().__init__()
        trace = poutine.trace(likelihood).get_trace(f)
        self._values = {name: trace.nodes[name]["value"].detach() for name in trace.stochastic_nodes}
        self._likelihood = likelihood

    def forward(self, f: Tensor) -> Any:
        return poutine.condition(self._likelihood, data=self._values)(f)


def _candidates() -> list[Tensor]:
    real = torch.randn(_N, 2, generator=torch.Generator().manual_seed(3))
    three, two = torch.arange(_N) % 3, torch.arange(_N) % 2
    columns = [real, real.exp(), real.sigmoid(), torch.stack([three, two], 1), torch.stack([two, 1 - two], 1)]
    return [real[:, 0], real[:, 0].exp(), real[:, 0].sigmoid(), three, two, *columns]


def accepted_targets(setting: Any) -> Iterator[tuple[Tensor, int]]:
    """Yield the targets that the likelihood takes, of several kinds, and the outputs it needs for them."""
    accepts = False
    for y in _candidates():
        try:
            outputs = setting.num_outputs(y)
            setting.check_targets(y, outputs)
        except InputError:
            continue
        accepts = True
        yield y, outputs
    require(
        accepts,
        f"{setting!r} takes none of the targets tried: real, positive, shares, counts or binary, (N,) or (N, 2).",
    )


def _cases(setting: Any, *leading: int) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield modules, outputs of shape (*leading, N, outputs) and targets, in every precision, on every device."""
    with seeded(4), local_parameters():
        for y, outputs in accepted_targets(setting):
            for dtype in DTYPES:
                for device in devices():
                    f = torch.randn(*leading, _N, outputs, dtype=dtype, device=device)
                    like = torch.empty(0, dtype=dtype, device=device)
                    module = setting.build(like, torch.ones(y.shape[1:], dtype=torch.float64))
                    yield (
                        _WithFixedLatents(module, f),
                        f,
                        y.to(device, torch.int64 if setting.integer_targets else dtype),
                    )


def check_likelihood_shape(setting: Any) -> None:
    """Outputs (N, outputs) give a batch of shape (N,), outputs for S draws (S, N), and events are a row of targets."""
    for leading in ((), (_S,)):
        for module, f, y in _cases(setting, *leading):
            distribution, expected = module(f), (*leading, _N)
            shapes = (tuple(distribution.batch_shape), tuple(distribution.event_shape))
            require(
                shapes == (expected, tuple(y.shape[1:])),
                f"For outputs {tuple(f.shape)} and targets {tuple(y.shape)} expected batch shape {expected} and event "
                f"shape {tuple(y.shape[1:])}, got {shapes[0]} and {shapes[1]}.",
            )
            shape = tuple(distribution.log_prob(y).shape)
            require(shape == expected, f"log_prob of targets {tuple(y.shape)} must be {expected}, got {shape}.")


def check_likelihood_dtype_and_device(setting: Any) -> None:
    """The log density has the precision and the device of the outputs."""
    for module, f, y in _cases(setting):
        log_prob = module(f).log_prob(y)
        actual = (log_prob.dtype, log_prob.device)
        require(actual == (f.dtype, f.device), f"log_prob must have {f.dtype} on {f.device}, got {actual}.")


def check_likelihood_is_rowwise(setting: Any) -> None:
    """The density of an example depends only on its outputs, and draws of the outputs do not mix."""
    for module, f, y in _cases(setting, _S):
        changed = f.clone()
        changed[1, 3] += 0.5
        before, after = module(f).log_prob(y), module(changed).log_prob(y)
        unchanged = torch.ones_like(before, dtype=torch.bool)
        unchanged[1, 3] = False
        same = torch.equal(before[unchanged], after[unchanged])
        require(same, "The density of an example changes with the outputs of another: rows must not mix.")
        alone = torch.stack([module(draw).log_prob(y) for draw in f])
        require(torch.allclose(before, alone), "Densities for several draws at once differ from densities one by one.")


def check_likelihood_draws(setting: Any) -> None:
    """Draws have shape (N, *row), and finite log density."""
    for module, f, y in _cases(setting):
        distribution = module(f)
        draws = distribution.sample((7,))
        expected = (7, *y.shape)
        require(tuple(draws.shape) == expected, f"Seven draws must have shape {expected}, got {tuple(draws.shape)}.")
        finite = bool(distribution.log_prob(draws).isfinite().all())
        require(finite, f"The log density of the likelihood's own draws is not finite for outputs {f}.")


def check_likelihood_gradients(setting: Any) -> None:
    """The density has finite gradients, and every output column gets a gradient, from targets or draws."""
    for module, f, y in _cases(setting):
        f.requires_grad_()
        distribution = module(f)
        total = distribution.log_prob(y).sum() + distribution.log_prob(distribution.sample((_DRAWS,))).sum()
        gradient = torch.autograd.grad(total, f, allow_unused=True)[0] if total.requires_grad else None
        if gradient is None:
            raise AssertionError("No gradient reaches the network's outputs.")
        require(bool(gradient.isfinite().all()), f"The gradient with respect to the outputs is not finite: {gradient}.")
        unused = (gradient == 0).all(0).nonzero().flatten().tolist()
        require(not unused, f"No gradient reaches the output columns {unused}.")


def check_likelihood_takes_extreme_outputs(setting: Any) -> None:
    """Outputs of +-1e4 give log densities and gradients that are finite."""
    for module, f, y in _cases(setting):
        extreme = (_EXTREME * f.sign()).requires_grad_()
        log_prob = module(extreme).log_prob(y)
        require(bool(log_prob.isfinite().all()), f"The log density is not finite for outputs of +-{_EXTREME:g}.")
        (gradient,) = torch.autograd.grad(log_prob.sum(), extreme)
        require(bool(gradient.isfinite().all()), f"The gradient is not finite for outputs of +-{_EXTREME:g}.")


def check_likelihood_owns_its_parameters(setting: Any) -> None:
    """Learned values of the likelihood are in its module's parameters."""
    for module, f, y in _cases(setting):
        require_owned(module(f).log_prob(y).sum(), module, [], f"{setting!r}")


def check_likelihood_num_outputs(setting: Any) -> None:
    """`num_outputs` is a number of outputs that `check_targets` takes, and a number smaller by one is refused."""
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
            bnn = BNN(make_net(outputs), likelihood=setting)
            posterior = short_fit(bnn, Data(make_inputs(_N), y))
            prediction = posterior.predict(make_inputs(_N), num_draws=5)
            require(bool(prediction.mean.isfinite().all()), "Predictive means after a short fit are not finite.")
            score = prediction.log_prob(y)
            require(tuple(score.shape) == (_N,), f"Log scores must have shape ({_N},), got {tuple(score.shape)}.")
            require(bool(score.isfinite().all()), "Log scores after a short fit are not finite.")


def check_likelihood_captures(setting: Any) -> None:
    """Captured steps equal eager steps, and replicates side by side equal single fits, for the same noise."""
    by_rank = {y.ndim: (y, outputs) for y, outputs in accepted_targets(setting)}
    for y, outputs in by_rank.values():
        require_capturable(BNN(make_net(outputs), likelihood=setting), Data(make_inputs(_N), y))


def check_likelihood_flags(setting: Any) -> None:
    """`standardizes_targets` and `integer_targets` are booleans."""
    for name in ("standardizes_targets", "integer_targets"):
        value = getattr(setting, name, None)
        require(isinstance(value, bool), f"{type(setting).__name__}.{name} must be True or False, got {value!r}.")
    contradicts = setting.standardizes_targets and setting.integer_targets
    require(not contradicts, "Labels and counts cannot be standardised: one of the two flags must be False.")


LIKELIHOOD_CHECKS = [
    check_likelihood_shape,
    check_likelihood_dtype_and_device,
    check_likelihood_is_rowwise,
    check_likelihood_draws,
    check_likelihood_gradients,
    check_likelihood_takes_extreme_outputs,
    check_likelihood_owns_its_parameters,
    check_likelihood_num_outputs,
    check_likelihood_fits_and_predicts,
    check_likelihood_captures,
    check_likelihood_flags,
    *value_checks("likelihood", likelihoods.resolve),
]
"""Plain functions of a likelihood setting; each raises AssertionError with the fault.

Examples:
    >>> for check in bnn.testing.LIKELIHOOD_CHECKS[:2]:
    ...     check(bnn.likelihoods.Poisson())
"""
