"""A step of ResNet-18 with BatchNorm on 3 x 32 x 32 images, mini-batches of 128, float32, mean-field.

Beside pyrobnn, eager and captured, Bayes by Backprop by hand: one flat normal for all parameters, a N(0, 1) prior, KL
from the draw, and Adam, as it comes and with the loss under torch.compile.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import pyrobnn as bnn
from benchmarks.gpu import Checks, measure_of, size
from benchmarks.measures.harness import Options
from benchmarks.networks import resnet18
from benchmarks.rows import Row
from benchmarks.timing import milliseconds

_LEARNING_RATE = 1e-3
_INIT_RHO = -5.0


def checks(options: Options) -> Checks:
    """Yield engine by engine."""
    for engine in ("eager", "captured")[: size(options, 2, 1)]:
        yield f"pyrobnn, {engine}", partial(_ours, options, engine)
    yield "torch by hand, eager", partial(_by_hand, options, compiled=False)
    if not options.rehearse:
        yield "torch by hand, torch.compile", partial(_by_hand, options, compiled=True)


KEY, OPTIONS, jobs, run, page = measure_of("A step of ResNet-18 on a GPU", checks)


def _problem(options: Options) -> tuple[nn.Module, Tensor, Tensor, int]:
    torch.manual_seed(0)
    count, batch = size(options, 2560, 16), size(options, 128, 8)
    return resnet18(size(options, 64, 4)), torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,)), batch


def _ours(options: Options, engine: Any) -> Row:
    """Time the blocks of 50 steps between callbacks, without the first blocks, in which the step is recorded."""
    net, x, y, batch = _problem(options)
    ends: list[float] = []

    def after_block(_: Any) -> None:
        if options.device == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    method = bnn.SVI(
        guide=bnn.guides.MeanField(init_rho=_INIT_RHO),
        steps=size(options, 400, 100),
        lr=_LEARNING_RATE,
        batch_size=batch,
    )
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    data = bnn.Data(x, y, standardize=False)
    posterior = bnn.fit(
        model, data, method, seed=0, device=options.device, engine=engine, progress=False, callbacks=[after_block]
    )
    first = size(options, 1, 0)
    ms = 1000 * (ends[-1] - ends[first]) / (50 * (len(ends) - 1 - first))
    used = posterior.info["engine"]
    row = {"ms": ms, "used": used["used"], "num_weights": posterior.bnn.num_weights, "holds": used["used"] == engine}
    return row if used["used"] == engine else row | {"failures": [used["reason"]]}


def _by_hand(options: Options, *, compiled: bool) -> Row:
    net, x, y, batch = _problem(options)
    net, x, y = net.to(options.device), x.to(options.device), y.to(options.device)
    shapes = {name: value.shape for name, value in net.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    loc = torch.cat([value.detach().reshape(-1) for value in net.parameters()]).requires_grad_()
    rho = torch.full_like(loc, _INIT_RHO).requires_grad_()

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        scale, noise = nn.functional.softplus(rho), torch.randn_like(loc)
        w = loc + scale * noise
        parts = zip(shapes.items(), w.split(sizes), strict=True)
        f = functional_call(net, {name: piece.view(shape) for (name, shape), piece in parts}, (inputs,))
        kl = (0.5 * w.square() - 0.5 * noise.square() - scale.log()).sum()
        return kl + nn.functional.cross_entropy(f, labels) * len(x)

    run: Callable[..., Tensor] = torch.compile(loss) if compiled else loss
    optimizer = torch.optim.Adam([loc, rho], lr=_LEARNING_RATE, fused=True if compiled else None)

    def step() -> None:
        rows = torch.randint(len(x), (batch,), device=x.device)
        optimizer.zero_grad()
        run(x[rows], y[rows]).backward()
        optimizer.step()

    ms = milliseconds(step, options.device, seconds=2.0 if options.device == "cuda" else 0.5)
    return {"ms": ms, "num_weights": len(loc)}
