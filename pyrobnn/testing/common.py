"""What the checks of parts share: data, requirements, and that a part can be recorded."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyrobnn._core.errors import NotCapturable, PoorFitWarning
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.inference import SVI
from pyrobnn.inference.capture.captured import Captured
from pyrobnn.inference.data import make_source
from pyrobnn.inference.training.start import start
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.nets import MLP
from pyrobnn.posterior.posterior import Posterior

DTYPES = (torch.float32, torch.float64)
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


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
        if leaf is not None and id(leaf) not in known:
            shape = tuple(leaf.shape)
            raise AssertionError(f"{what} has a trainable tensor of shape {shape} that is not in its .parameters().")
        steps += [parent for parent, _ in step.next_functions]


_STEPS = 3


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
    if together.step.noise.is_complete:
        for table, column in zip(together.step.noise.inputs, alone.step.noise.inputs, strict=True):
            table.copy_(torch.stack([column, column], 1))  # both replicates see the noise of the single fit
        together.step.noise.draw = lambda num_steps: None  # type: ignore[method-assign]
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
