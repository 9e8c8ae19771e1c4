"""Training steps beside the plain PyTorch step of the same network.

ResNet-18 (3 x 32 x 32, batch 64), 784-400-400-10 (batch 128) and an LSTM (28 rows of 28, 128 units, batch 128),
float32, Adam, ten classes. "plain" is PyTorch's loop with weights of one point, "map" and "mean-field" (shared noise)
are pyrobnn's. Each runs in a new process, by turns; the plain step takes turns with the steps of each engine. Eager
steps belong to a fit, and last from a run of the network to the next; captured steps are a block. The first steps do
not count. CPU seconds of one thread, so that other work on the machine does not count; medians of the rounds. "peak" is
the largest growth of the memory of the process; it includes what a fit, or PyTorch's optimiser, imports.
"""

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen, plain_page
from benchmarks.networks import LSTM, resnet18
from benchmarks.new_process import in_process
from benchmarks.rows import Row
from benchmarks.timing import resident

KEY = ("net", "engine", "step")
EXAMPLES, WARM_UP = 512, 3
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "ResNet-18": (resnet18, (3, 32, 32), 64, 5),
    "784-400-400-10": (bnn.MLP(784, (400, 400), 10).build, (784,), 128, 60),
    "LSTM": (LSTM, (28, 28), 128, 40),
}
"""Network, shape of an example, batch size, and timed steps."""
GUIDES: dict[str, Any] = {"map": bnn.guides.Map(), "mean-field": bnn.guides.MeanField(init_rho=-5.0, noise="shared")}
_FORMATS = {"ms": ".4g", "of plain": ".2f", "of plain's peak": ".2f"}
STEPS = ("plain", *GUIDES)
OPTIONS = {"rounds": 3, "nets": list(NETS), "engines": ["eager", "captured"]}


class NotesStarts(nn.Module):
    """Notes the times at which the network inside it runs in training, as `starts`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.starts = net, list[float]()

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        if self.training:
            self.starts.append(time.process_time())
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


def block(model: bnn.BNN, data: bnn.Data, method: bnn.SVI, steps: int) -> float:
    """Return the CPU seconds of a captured step."""
    from benchmarks.captured_fits import captured, running  # what it imports belongs to the peak, as that of a fit does

    with running(model.net, method.batch_size or EXAMPLES, 0, "steps"):
        fit = captured(model, data, method)
        fit.advance(WARM_UP)
        started = time.process_time()
        fit.advance(steps)
        return (time.process_time() - started) / steps


def cost(name: str, engine: str, step: str) -> dict[str, float]:
    """Return the milliseconds of a step, and the peak of this process in MiB."""
    torch.set_num_threads(1)
    before = resident("VmHWM")
    make, shape, batch, steps = NETS[name]
    torch.manual_seed(0)
    is_captured = engine == "captured" and step != "plain"
    net = make() if is_captured else NotesStarts(make())
    x, y = torch.randn(EXAMPLES, *shape), torch.randint(0, 10, (EXAMPLES,))
    data, total = bnn.Data(x, y, standardize=False), steps + WARM_UP
    if step == "plain":
        plain(net, x, y, batch, total)
    else:
        model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
        method = bnn.SVI(guide=GUIDES[step], steps=total, lr=1e-3, batch_size=batch)
        if is_captured:
            seconds = block(model, data, method, steps)
        else:
            net = bnn.fit(model, data, method, seed=0, device="cpu", engine="eager", progress=False).bnn.net
    if not is_captured:
        seconds = median([end - start for start, end in itertools.pairwise(net.starts)][WARM_UP - 1 :])
    return {"ms": 1000 * seconds, "peak": (resident("VmHWM") - before) / 1024}


def jobs(options: Options) -> list[Row]:
    """Return the networks with each engine."""
    return [{"net": net, "engine": engine, "step": [*STEPS]} for net in options.nets for engine in options.engines]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each step: medians of rounds, and what they are of the plain step beside them."""
    costs: dict[str, list[dict[str, float]]] = {step: [] for step in STEPS}
    for _, step in itertools.product(range(options.rounds), STEPS):
        costs[step].append(in_process(cost, job["net"], job["engine"], step))
    ms, peak = ({step: median(spent[key] for spent in costs[step]) for step in STEPS} for key in ("ms", "peak"))
    return [
        job
        | {"step": step, "ms": float(f"{ms[step]:.4g}"), "of plain": round(ms[step] / ms["plain"], 2)}
        | {"peak MiB": round(peak[step]), "of plain's peak": round(peak[step] / peak["plain"], 2)}
        for step in STEPS
    ]


def page(rows: list[Row], options: Options) -> Page:
    """Return the results, each with the plain step beside which it was measured."""
    shown = plain_page("Training steps beside plain PyTorch", "CPU time of one thread.", _FORMATS)
    return shown([row for net in NETS for row in chosen(rows, net=net)], options)
