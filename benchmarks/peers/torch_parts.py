"""Parts of all engines on PyTorch: process settings, networks, mini-batches, the prior's density and the loop."""

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo  # an optimiser imports it at its first step: here, it is no part of the first step or its memory
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers import cases
from benchmarks.peers.cases import NOISE, PI, SEED, SIGMA1, SIGMA2, Case, Layer, initial_weights, layers, make_data

_LOG_WIDE, _LOG_NARROW = (
    math.log(share / (sigma * math.sqrt(2 * math.pi))) for share, sigma in ((PI, SIGMA1), (1 - PI, SIGMA2))
)


def set_up(case: Case) -> torch.device:
    """Flush denormals, take the case's threads, seed, and return the device of the case."""
    if case.device == "cuda" and not torch.cuda.is_available():
        raise NotImplementedError("no GPU")
    torch.set_flush_denormal(True)
    torch.set_num_threads(min(case.threads, len(os.sched_getaffinity(0))))
    torch.manual_seed(SEED)
    return torch.device(case.device)


def make_net(case: Case, device: torch.device) -> nn.Sequential:
    """Return the network of a case with the starting weights that all engines have."""
    net = nn.Sequential(*(_module(layer) for layer in layers(case)))
    with_weights = [module for module in net if isinstance(module, (nn.Linear, nn.Conv2d))]
    with torch.no_grad():
        for module, (weight, bias) in zip(with_weights, initial_weights(case), strict=True):
            module.weight.copy_(torch.from_numpy(weight))
            module.bias.copy_(torch.from_numpy(bias))
    return net.to(device)


def _module(layer: Layer) -> nn.Module:
    if layer.kind == "dense":
        return nn.Linear(layer.inputs, layer.outputs)
    if layer.kind == "conv":
        return nn.Conv2d(layer.inputs, layer.outputs, layer.size, padding=layer.padding)
    if layer.kind == "pool":
        return nn.MaxPool2d(layer.size)
    return nn.Flatten() if layer.kind == "flatten" else nn.ReLU()


def apply_layer(layer: Layer, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Return the output of a layer for given weights."""
    if layer.kind == "dense":
        return functional.linear(x, weight, bias)
    if layer.kind == "conv":
        return functional.conv2d(x, weight, bias, padding=layer.padding)
    if layer.kind == "pool":
        return functional.max_pool2d(x, layer.size)
    return x.flatten(1) if layer.kind == "flatten" else x.relu()


def initial_parameters(case: Case, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return the starting weights and biases as tensors."""
    return [tuple(torch.from_numpy(part).to(device) for part in pair) for pair in initial_weights(case)]


class Batches:
    """The training set on a device, and random rows of it."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.x, self.y = (torch.from_numpy(values).to(device) for values in make_data(case))
        self._size = case.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield self.draw()

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return the rows of a step: random rows with replacement, or all rows."""
        if self._size is None:
            return self.x, self.y
        rows = torch.randint(len(self.x), (self._size,), device=self.x.device)
        return self.x[rows], self.y[rows]


def log_prior(w: Tensor) -> Tensor:
    """Return log [pi N(w | 0, sigma1^2) + (1 - pi) N(w | 0, sigma2^2)], entry by entry."""
    squares = w.square()
    wide = squares * (-0.5 / SIGMA1**2) + _LOG_WIDE
    narrow = squares * (-0.5 / SIGMA2**2) + _LOG_NARROW
    return torch.logaddexp(wide, narrow)


class Loop:
    """Steps that are calls of a Python function.

    Args:
        step: does a step or a prediction, and returns its loss (a number or a tensor) or anything else.
        device: where it runs.
        has_loss: whether what it returns is the negative ELBO.
    """

    def __init__(self, step: Callable[[], Any], device: torch.device, *, has_loss: bool = True) -> None:
        self._step, self._device, self._has_loss = step, device, has_loss
        self._last: Any = None

    def run(self, num_steps: int) -> int:
        """Call that many times."""
        for _ in range(num_steps):
            self._last = self._step()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return num_steps

    def elbo(self) -> float | None:
        """Return the last estimate."""
        return -float(self._last) if self._has_loss else None


def loop_of(case: Case, device: torch.device, step: Callable[[], Any], predict: Callable[[], Any]) -> Loop:
    """Return steps, or predictions after some steps."""
    if case.kind != "predict":
        return Loop(step, device)
    Loop(step, device).run(cases.STEPS_BEFORE_PREDICTION)
    return Loop(predict, device, has_loss=False)


def moments(f: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the targets from draws of the outputs."""
    return f.mean(0), (f.var(0) + NOISE**2).sqrt()
