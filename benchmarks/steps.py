"""Training steps beside the plain PyTorch step of the same network: `python -m benchmarks.steps`.

ResNet-18 (3 x 32 x 32, batch 64), 784-400-400-10 (batch 128) and an LSTM (28 rows of 28, 128 units, batch 128),
float32, Adam, ten classes. "plain" is PyTorch's loop with weights of one point, "map" and "mean-field" (shared noise)
are fits of pyrobnn. Each is a process of its own, by turns; a step lasts from one run of the network to the next, and
the first three do not count. CPU seconds of one thread, so that other work on the machine does not count; captured
steps, which do not call the network, are blocks of steps between two callbacks. "peak" is how far the memory of the
process grew at most.
Writes benchmarks/results/steps.{csv,md}.
"""

import argparse
import csv
import itertools
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks.gpu.parts.resnet import resnet18

OUT = Path(__file__).parent / "results" / "steps"
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


def peak() -> float:
    """Return the most memory that the process held so far, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measure(name: str, case: str) -> dict[str, float]:
    """Return milliseconds of a step, and the peak of this process in MiB."""
    torch.set_num_threads(1)
    before = peak()
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
    return {"ms": 1000 * seconds, "peak": peak() - before}


def in_a_process(name: str, case: str) -> dict[str, float]:
    """Return what `measure` finds in a new process."""
    command = [sys.executable, "-m", "benchmarks.steps", "--measure", name, case]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def rows_of(name: str, cases: list[str], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each case: medians of rounds, and what they are of the plain step."""
    found: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            found[case].append(in_a_process(name, case))
            print(name, case, found[case][-1], flush=True)
    middle = {case: {key: median(one[key] for one in each) for key in each[0]} for case, each in found.items()}
    return [
        {
            "net": name,
            "step": case,
            "ms": f"{own['ms']:.4g}",
            "of plain": f"{own['ms'] / middle['plain']['ms']:.2f}",
            "peak MiB": f"{own['peak']:.0f}",
            "of plain's peak": f"{own['peak'] / middle['plain']['peak']:.2f}",
        }
        for case, own in middle.items()
    ]


def kept(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the file that were not measured again, and those that were; one plain step for each net."""
    new = {(row["net"], row["step"]) for row in found}
    old: list[dict[str, Any]] = []
    if OUT.with_suffix(".csv").exists():
        with OUT.with_suffix(".csv").open(newline="") as file:
            old = [row for row in csv.DictReader(file) if (row["net"], row["step"]) not in new]
    return [*(row for row in found if row["step"] == "plain"), *old, *(row for row in found if row["step"] != "plain")]


def page(rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Training steps beside plain PyTorch",
        "",
        "Made by `python -m benchmarks.steps`, which says what is measured. CPU time of one thread on an x86 server.",
        "",
        f"| {' | '.join(rows[0])} |",
        f"|{'---|' * len(rows[0])}",
        *(f"| {' | '.join(row.values())} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nets", nargs="*", default=list(NETS), choices=list(NETS))
    parser.add_argument("--engines", nargs="*", default=["eager", "captured"], choices=["eager", "captured"])
    parser.add_argument("--measure", nargs=2)
    arguments = parser.parse_args()
    if arguments.measure:
        with warnings.catch_warnings(action="ignore"):
            print(json.dumps(measure(*arguments.measure)))
        return
    cases = ["plain", *(f"{guide}, {engine}" for engine in arguments.engines for guide in GUIDES)]
    found = [row for name in arguments.nets for row in rows_of(name, cases, arguments.rounds)]
    rows = sorted(kept(found), key=lambda row: list(NETS).index(row["net"]))
    with OUT.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    OUT.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
