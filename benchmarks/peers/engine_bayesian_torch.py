# /// script
# requires-python = "==3.12.*"
# dependencies = ["bayesian-torch==0.5.0", "torch==2.15.*", "numpy>=2"]
# ///
"""Intel's bayesian-torch: the network turned by its `dnn_to_bnn` into reparameterisation layers, its KL, Adam.

It differs from the common problem: its prior is a Normal, here with the mixture's standard deviation, its KL is in
closed form, and it takes the mean over the entries of each parameter, not the sum. So its ELBO is on another scale.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.cases import (
    INIT_RHO,
    LEARNING_RATE,
    NOISE,
    NUM_DRAWS,
    PI,
    SIGMA1,
    SIGMA2,
    Case,
    prediction_inputs,
)
from benchmarks.peers.protocol import Built, serve
from benchmarks.peers.torch_parts import Batches, loop_of, make_net, moments, set_up

_SETTINGS = {
    "prior_mu": 0.0,
    "prior_sigma": math.sqrt(PI * SIGMA1**2 + (1 - PI) * SIGMA2**2),
    "posterior_mu_init": 0.0,
    "posterior_rho_init": INIT_RHO,
    "type": "Reparameterization",
    "moped_enable": True,  # start the means at the network's weights
    "moped_delta": 0.5,
}


def make_bnn(case: Case, device: torch.device) -> nn.Module:
    """Return the Bayesian network with the starting values of every engine."""
    net = make_net(case, device)
    dnn_to_bnn(net, _SETTINGS)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "rho_" in name:
                parameter.fill_(INIT_RHO)
    return net.to(device)


def make_step(case: Case, net: nn.Module, device: torch.device) -> Callable[[], Tensor]:
    """Return the training step."""
    batches = Batches(case, device)
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)

    def step() -> Tensor:
        x, y = batches.draw()
        optimizer.zero_grad()
        loss = get_kl_loss(net) + _negative_log_likelihood(case, net(x), y) * (case.num_data / len(x))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _negative_log_likelihood(case: Case, f: Tensor, y: Tensor) -> Tensor:
    if case.task == "classification":
        return functional.cross_entropy(f, y, reduction="sum")
    variance = torch.full_like(y, NOISE**2)
    return functional.gaussian_nll_loss(f[:, 0], y, variance, full=True, reduction="sum")


def build(case: Case) -> Built:
    """Build a case."""
    device = set_up(case)
    net = make_bnn(case, device)
    inputs = torch.from_numpy(prediction_inputs())

    @torch.no_grad()
    def predict() -> Any:
        return moments(torch.stack([net(inputs)[:, 0] for _ in range(NUM_DRAWS)]))

    return loop_of(case, device, make_step(case, net, device), predict)


if __name__ == "__main__":
    serve(build, ("bayesian-torch", "torch", "numpy"))
