"""Training steps beside the plain PyTorch step of the same network.

ResNet-18 (3 x 32 x 32, batch 64), 784-400-400-10 (batch 128) and an LSTM (28 rows of 28, 128 units, batch 128),
float32, Adam, ten classes. "plain" is PyTorch's loop with weights of one point, "map" and "mean-field" (shared noise)
are fits of pyrobnn. Each is a process of its own, by turns; a step lasts from one run of the network to the next, and
the first three do not count. CPU seconds of one thread, so that other work on the machine does not count; captured
steps, which do not call the network, are blocks of steps between two callbacks. "peak" is how far the memory of the
process grew at most.
"""

import itertools
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks.gpu.parts.resnet import resnet18
from benchmarks.measures.harness import Options, Page, Row, chosen, in_process, resident
from benchmarks.report.parts import grid

KEY = ("net", "step")
EXAMPLES, WARM_UP, BLOCK = 512, 3, 50


class Reader(nn.Module):
    """An LSTM that reads the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs after the last row."""
        last: Tensor = self.head(self.cell(x)[0][:, -1])
        return last


def mlp() -> nn.Module:
    """Return 784-400-400-10."""
    hidden = (nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(400, 10))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "ResNet-18": (partial(resnet18, 64), (3, 32, 32), 64, 5),
    "784-400-400-10": (mlp, (784,), 128, 60),
    "LSTM": (Reader, (28, 28), 128, 40),
}
"""Network, shape of an example, batch size, and timed steps."""
GUIDES: dict[str, Any] = {"map": bnn.guides.Map(), "mean-field": bnn.guides.MeanField(init_rho=-5.0, noise="shared")}
ENGINES = ["eager", "captured"]
OPTIONS = {"rounds": 3, "nets": list(NETS), "engines": ENGINES}
ENDS: list[float] = []


class Timed(nn.Module):
    """Notes when the network inside it runs in training."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        if self.training:
            ENDS.append(time.process_time())
        outputs: Tensor = self.net(x)
        return outputs


def plain(net: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int) -> None:
    """Train a point as PyTorch does."""
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,))
        optimizer.zero_grad()
        (nn.functional.cross_entropy(net(x[rows]), y[rows]) * len(x)).backward()
        optimizer.step()


def ours(net: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int, *, guide: str, engine: Any) -> None:
    """Fit."""
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    method = bnn.SVI(guide=GUIDES[guide], steps=steps, lr=1e-3, batch_size=batch)
    notes = [lambda _: ENDS.append(time.process_time())] if engine == "captured" else []
    data = bnn.Data(x, y, standardize=False)
    posterior = bnn.fit(model, data, method, seed=0, device="cpu", engine=engine, progress=False, callbacks=notes)
    if posterior.info["engine"]["used"] != engine:
        raise RuntimeError(posterior.info["engine"]["reason"])


def measure(name: str, case: str) -> dict[str, float]:
    """Return milliseconds of a step, and the peak of this process in MiB."""
    torch.set_num_threads(1)
    before = resident("VmHWM")
    make, shape, batch, steps = NETS[name]
    torch.manual_seed(0)
    net = Timed(make())
    x, y = torch.randn(EXAMPLES, *shape), torch.randint(0, 10, (EXAMPLES,))
    guide, _, engine = case.partition(", ")
    if case == "plain":
        plain(net, x, y, batch, steps + WARM_UP)
    elif engine == "eager":
        ours(net, x, y, batch, steps + WARM_UP, guide=guide, engine=engine)
    else:
        ours(net, x, y, batch, 2 * BLOCK, guide=guide, engine=engine)
        ENDS[:] = ENDS[-2:]
    spent = [end - start for start, end in itertools.pairwise(ENDS)]
    seconds = spent[-1] / BLOCK if engine == "captured" else median(spent[WARM_UP - 1 :])
    return {"ms": 1000 * seconds, "peak": (resident("VmHWM") - before) / 1024}


def jobs(options: Options) -> list[Row]:
    """Return the networks with each engine; the plain step is measured beside both."""
    return [{"net": net, "step": f"mean-field, {engine}"} for net in options.nets for engine in options.engines]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each case: medians of rounds, and what they are of the plain step."""
    engine = job["step"].partition(", ")[2]
    cases = ["plain", *(f"{guide}, {engine}" for guide in GUIDES)]
    found: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    for _, case in itertools.product(range(options.rounds), cases):
        found[case].append(in_process(measure, job["net"], case))
    middle = {case: {key: median(one[key] for one in each) for key in each[0]} for case, each in found.items()}
    return [
        {
            "net": job["net"],
            "step": case,
            "ms": float(f"{own['ms']:.4g}"),
            "of plain": round(own["ms"] / middle["plain"]["ms"], 2),
            "peak MiB": round(own["peak"]),
            "of plain's peak": round(own["peak"] / middle["plain"]["peak"], 2),
        }
        for case, own in middle.items()
    ]


def page(rows: list[Row], options: Options) -> Page:
    """Return the results, the plain step of a network first."""
    cells = []
    for row in (row for net in NETS for row in chosen(rows, net=net)):
        net, step, ms, of_plain, peak_mib, of_peak = row.values()
        cells.append([net, step, ms, f"{of_plain:.2f}", peak_mib, f"{of_peak:.2f}"])
    about = "CPU time of one thread on an x86 server."
    return Page("Training steps beside plain PyTorch", [about], grid(list(rows[0]), cells))
