"""The captured step: fresh noise at each step, the same bits for the same seed, and memory that stays.

On a card a step is a replayed CUDA graph. With a learning rate of 0 nothing changes between steps but the noise: the
estimates of the KL of a normal guide of D weights scatter around it, and none comes twice.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.gpu import Checks, measure_of, size
from benchmarks.measures.harness import Options
from benchmarks.rows import Row
from benchmarks.timing import resident


def checks(options: Options) -> Checks:
    """Yield the checks."""
    yield "fresh noise at each step", partial(_fresh, options)
    yield "the same seed, the same bits", partial(_same_bits, options)
    yield "another seed, other numbers", partial(_other_seed, options)
    yield "memory over many steps", partial(_memory, options)


KEY, OPTIONS, jobs, run, page = measure_of("The captured step on a GPU", checks)


def _fit(options: Options, steps: int, *, seed: int = 0, lr: float = 0.01, callbacks: Any = ()) -> bnn.Posterior:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 16, generator=generator)
    data = bnn.Data(x, x[:, 0].sin() + 0.1 * torch.randn(256, generator=generator))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.1))
    method = bnn.SVI(steps=steps, lr=lr, batch_size=64)
    engine: Any = "captured"
    posterior = bnn.fit(
        model, data, method, seed=seed, device=options.device, engine=engine, progress=False, callbacks=callbacks
    )
    if posterior.record.engine.used != "captured":
        raise RuntimeError(f"the fit ran eagerly: {posterior.record.engine.reason}")
    return posterior


def _fresh(options: Options) -> Row:
    """Compare the variance of the estimated KL with its exact value, sum (1 - s^2)^2 / 2 + s^2 m^2 if p is N(0, 1)."""
    steps = size(options, 4000, 400)
    posterior = _fit(options, steps, lr=1e-12)
    kl = np.asarray(posterior.history.kl)[1:]
    expected = sum(
        float((0.5 * (1 - s.double() ** 2) ** 2 + (s * m).double() ** 2).sum())
        for m, s in posterior.guide.moments().values()
    )
    deviations = kl - kl.mean()
    error = np.sqrt(((deviations**4).mean() - kl.var() ** 2) / len(kl))
    distance = float(abs(kl.var(ddof=1) - expected) / error)
    lag = float(abs((deviations[1:] * deviations[:-1]).mean() / kl.var()) * np.sqrt(len(kl)))
    repeated = len(kl) - len(np.unique(kl))
    return {
        "holds": distance < 5 and lag < 5 and repeated < len(kl) / 10,
        "variance": float(kl.var(ddof=1)),
        "expected": expected,
        "distance": distance,
        "autocorrelation": lag,
        "repeated": repeated,
    }


def _flat(posterior: bnn.Posterior) -> torch.Tensor:
    return torch.cat([value.detach().cpu().reshape(-1) for value in posterior.guide.parameters()])


def _same_bits(options: Options) -> Row:
    first, second = (_flat(_fit(options, size(options, 1000, 100))) for _ in range(2))
    return {"holds": torch.equal(first, second), "largest_difference": float((first - second).abs().max())}


def _other_seed(options: Options) -> Row:
    first, second = (_flat(_fit(options, 100, seed=seed)) for seed in (0, 1))
    return {"holds": not torch.equal(first, second), "largest_difference": float((first - second).abs().max())}


def _memory(options: Options) -> Row:
    """Follow the memory that torch holds on the card; of a CPU the resident set."""
    held: list[int] = []
    steps = size(options, 10_000, 1000)
    _fit(options, steps, callbacks=(lambda _: held.append(_allocated(options.device)),))
    late = held[len(held) // 4 :]
    growth = (late[-1] - late[0]) / 2**20
    row = {"steps": steps, "mib": late[-1] / 2**20, "growth_mib": growth}
    if options.device == "cuda":
        return row | {"holds": growth == 0, "peak_mib": torch.cuda.max_memory_allocated() / 2**20}
    return row | {"holds": growth < 50}


def _allocated(device: str) -> int:
    if device == "cuda":
        return torch.cuda.memory_allocated()
    return 1024 * resident()
