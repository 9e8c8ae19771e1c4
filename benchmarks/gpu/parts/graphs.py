"""The captured step: fresh noise at each step, the same bits for the same seed, and memory that stays.

On a card a step is a replayed CUDA graph. With a learning rate of 0 nothing changes between steps but the noise: the
estimates of the KL of a normal guide of D weights scatter around it, and none comes twice.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.gpu.check import Check, Found, Setting
from benchmarks.measures.harness import resident


def checks(setting: Setting) -> Iterator[Check]:
    """Yield the checks."""
    yield "fresh noise at each step", partial(_fresh, setting)
    yield "the same seed, the same bits", partial(_same_bits, setting)
    yield "another seed, other numbers", partial(_other_seed, setting)
    yield "memory over many steps", partial(_memory, setting)


def _fit(setting: Setting, steps: int, *, seed: int = 0, lr: float = 0.01, callbacks: Any = ()) -> bnn.Posterior:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 16, generator=generator)
    data = bnn.Data(x, x[:, 0].sin() + 0.1 * torch.randn(256, generator=generator))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.1))
    method = bnn.SVI(steps=steps, lr=lr, batch_size=64)
    engine: Any = "captured"
    posterior = bnn.fit(
        model, data, method, seed=seed, device=setting.device, engine=engine, progress=False, callbacks=callbacks
    )
    if posterior.info["engine"]["used"] != "captured":
        raise RuntimeError(f"the fit ran eagerly: {posterior.info['engine']['reason']}")
    return posterior


def _fresh(setting: Setting) -> Found:
    """Compare the variance of the estimated KL with its exact value, sum (1 - s^2)^2 / 2 + s^2 m^2 if p is N(0, 1)."""
    steps = setting.size(4000, 400)
    posterior = _fit(setting, steps, lr=1e-12)
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


def _same_bits(setting: Setting) -> Found:
    first, second = (_flat(_fit(setting, setting.size(1000, 100))) for _ in range(2))
    return {"holds": torch.equal(first, second), "largest_difference": float((first - second).abs().max())}


def _other_seed(setting: Setting) -> Found:
    first, second = (_flat(_fit(setting, 100, seed=seed)) for seed in (0, 1))
    return {"holds": not torch.equal(first, second), "largest_difference": float((first - second).abs().max())}


def _memory(setting: Setting) -> Found:
    """Follow the memory that torch holds on the card; of a CPU the resident set."""
    held: list[int] = []
    steps = setting.size(10_000, 1000)
    _fit(setting, steps, callbacks=(lambda _: held.append(_allocated(setting.device)),))
    late = held[len(held) // 4 :]
    growth = (late[-1] - late[0]) / 2**20
    found = {"steps": steps, "mib": late[-1] / 2**20, "growth_mib": growth}
    if setting.device == "cuda":
        return found | {"holds": growth == 0, "peak_mib": torch.cuda.max_memory_allocated() / 2**20}
    return found | {"holds": growth < 50}


def _allocated(device: str) -> int:
    if device == "cuda":
        return torch.cuda.memory_allocated()
    return 1024 * resident()
