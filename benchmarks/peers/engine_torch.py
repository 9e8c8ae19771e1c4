# /// script
# requires-python = "==3.12.*"
# dependencies = ["torch==2.15.*", "numpy>=2"]
# ///
"""Bayes by Backprop written by hand in PyTorch (Blundell et al. 2015), without any library, in one of two ways.

engine_torch.py eager        torch.optim.Adam as it comes
engine_torch.py compiled     the loss under torch.compile, fused Adam
"""

import math
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.cases import INIT_RHO, LEARNING_RATE, NOISE, NUM_DRAWS, Case, Layer, layers, prediction_inputs
from benchmarks.peers.protocol import Built, serve
from benchmarks.peers.torch_parts import (
    Batches,
    apply_layer,
    initial_parameters,
    log_prior,
    loop_of,
    moments,
    set_up,
)

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


class BayesLayer(nn.Module):
    """A layer whose weight and bias are drawn anew in each pass."""

    def __init__(self, layer: Layer, start: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self._layer = layer
        self.weight_loc, self.bias_loc = (nn.Parameter(part) for part in start)
        self.weight_rho, self.bias_rho = (nn.Parameter(torch.full_like(part, INIT_RHO)) for part in start)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output for one draw of the weights, and log q(w) - log p(w) of the draw."""
        weight, weight_kl = _draw(self.weight_loc, self.weight_rho)
        bias, bias_kl = _draw(self.bias_loc, self.bias_rho)
        return apply_layer(self._layer, x, weight, bias), weight_kl + bias_kl


def _draw(loc: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    scale, noise = functional.softplus(rho), torch.randn_like(loc)
    w = loc + scale * noise
    log_q = -scale.log() - 0.5 * noise.square() - _LOG_ROOT_2PI
    return w, (log_q - log_prior(w)).sum()


class BayesNet(nn.Module):
    """The network of a case, and its loss."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__()
        starts = iter(initial_parameters(case, device))
        self._case, self._layers = case, layers(case)
        made = [BayesLayer(layer, next(starts)) for layer in self._layers if layer.has_weights]
        self.drawn = nn.ModuleList(made)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs for one draw of the weights, and log q(w) - log p(w) of the draw."""
        drawn, kl = iter(self.drawn), x.new_zeros(())
        for layer in self._layers:
            if layer.has_weights:
                x, term = next(drawn)(x)
                kl = kl + term
            else:
                x = apply_layer(layer, x)
        return x, kl

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return an estimate of the negative ELBO for the whole data set."""
        f, kl = self(x)
        return kl + self._negative_log_likelihood(f, y) * (self._case.num_data / len(x))

    def _negative_log_likelihood(self, f: Tensor, y: Tensor) -> Tensor:
        if self._case.task == "classification":
            return functional.cross_entropy(f, y, reduction="sum")
        constant = len(y) * (math.log(NOISE) + _LOG_ROOT_2PI)
        return 0.5 * ((y - f[:, 0]) / NOISE).square().sum() + constant


def make_step(case: Case, net: BayesNet, device: torch.device, *, compiled: bool) -> Callable[[], Tensor]:
    """Return the training step."""
    batches = Batches(case, device)
    loss_of = torch.compile(net.loss) if compiled else net.loss
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True if compiled else None)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(*batches.draw())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_prediction(net: BayesNet, *, compiled: bool) -> Callable[[], tuple[Tensor, Tensor]]:
    """Return a loop of forward passes that ends in mean and standard deviation of the targets."""
    inputs = torch.from_numpy(prediction_inputs()).to(next(net.parameters()).device)
    forward = torch.compile(net) if compiled else net

    @torch.no_grad()
    def predict() -> tuple[Tensor, Tensor]:
        return moments(torch.stack([forward(inputs)[0][:, 0] for _ in range(NUM_DRAWS)]))

    return predict


def build(case: Case, *, compiled: bool) -> Built:
    """Build a case, with or without `torch.compile`."""
    device = set_up(case)
    net = BayesNet(case, device)
    step = make_step(case, net, device, compiled=compiled and case.kind != "predict")
    return loop_of(case, device, step, make_prediction(net, compiled=compiled))


if __name__ == "__main__":
    serve(partial(build, compiled=sys.argv[1] == "compiled"), ("torch", "numpy"))
