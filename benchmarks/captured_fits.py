"""Fits up to their captured step, for measures that time the step alone; within `running`, which sets the process."""

from typing import Any

import pyrobnn as bnn
from pyrobnn._torch.devices import running
from pyrobnn.inference.data import make_source
from pyrobnn.inference.training.captured import Captured
from pyrobnn.inference.training.state import start

__all__ = ["begin", "captured", "running"]


def begin(model: bnn.BNN, data: bnn.Data, method: bnn.SVI) -> tuple[bnn.Posterior, Any]:
    """Return the posterior and the steps of a fit that begins, in training mode."""
    posterior, fit = start(model, method, make_source(data, model, method.batch_size, seed=0), 0, "cpu")
    fit.bnn.train()
    return posterior, fit


def captured(model: bnn.BNN, data: bnn.Data, method: bnn.SVI) -> Captured:
    """Return a fit after its first step, captured: `advance` does steps of it."""
    _, fit = begin(model, data, method)
    fit.advance(1)
    return Captured([fit])
