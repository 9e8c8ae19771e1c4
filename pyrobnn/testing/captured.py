"""Checks that a part can be recorded: captured steps equal eager steps, replicates side by side equal single fits."""

from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.inference import SVI
from pyrobnn.inference.capture.captured import Captured
from pyrobnn.inference.data import make_source
from pyrobnn.inference.training.start import start
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.testing.common import require

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
