"""Last-layer Laplace on convolutional networks beside laplace-torch: `python -m benchmarks.last_layer`.

A network of three convolutions and a ResNet-18 (both on 3 x 32 x 32, ten classes, untrained), 512 examples, 256 of them
predicted; float32, one process with one thread, by turns, medians of the rounds after one that does not count. Seconds
are those of the CPU, so that other work on the machine does not count. "fit" is curvature at the given weights,
"probit" the closed form, "draws" the mean of the classes' probabilities over 500 draws of the linearised network.
laplace-torch 0.3 takes batches of 128 and its default backend.
Writes benchmarks/results/last-layer.{csv,md}.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from benchmarks.gpu.parts.resnet import resnet18

OUT = Path(__file__).parent / "results" / "last-layer"
EXAMPLES, PREDICTED, DRAWS, BATCH = 512, 256, 500, 128
STRUCTURES, TASKS = ("kron", "full", "diag"), ("fit", "probit", "draws")


def three_convolutions() -> nn.Module:
    """Return a small network of three convolutions."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


NETS: dict[str, Callable[[], nn.Module]] = {
    "three convolutions": three_convolutions,
    "ResNet-18": partial(resnet18, 64),
}


def ours(net: nn.Module, x: Tensor, y: Tensor, structure: str) -> Any:
    """Return pyrobnn's posterior."""
    setting = bnn.guides.Laplace(structure=structure, sites="last_layer", joint_bias=False)
    return setting.around(net, bnn.Data(x, y, standardize=False), progress=False)


def theirs(net: nn.Module, x: Tensor, y: Tensor, structure: str) -> Any:
    """Return laplace-torch's."""
    import laplace

    found = laplace.Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure=structure)
    found.fit(DataLoader(TensorDataset(x, y), batch_size=BATCH))
    return found


ENGINES: dict[str, tuple[Callable[..., Any], Callable[..., Tensor], Callable[..., Tensor]]] = {
    "pyrobnn": (
        ours,
        lambda posterior, x: bnn.functional(posterior, x).class_probs("probit"),
        lambda posterior, x: posterior.predict(x, num_draws=DRAWS).class_probs,
    ),
    "laplace-torch": (
        theirs,
        lambda found, x: found(x),
        lambda found, x: found.predictive_samples(x, n_samples=DRAWS).mean(0),
    ),
}


def timed[R](function: Callable[..., R], *args: Any) -> tuple[R, float]:
    """Return the result of a call and its seconds."""
    started = time.process_time()
    result = function(*args)
    return result, time.process_time() - started


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each engine, structure and task, with the largest difference of the probabilities."""
    torch.manual_seed(0)
    net = NETS[name]().eval()
    x, y = torch.randn(EXAMPLES, 3, 32, 32), torch.randint(0, 10, (EXAMPLES,))
    seconds: dict[tuple[str, str, str], list[float]] = {}
    rows = []
    for structure in STRUCTURES:
        for turn in range(rounds + 1):
            probs = []
            for engine, (fit, probit, draws) in ENGINES.items():
                fitted, fit_seconds = timed(fit, net, x, y, structure)
                found, probit_seconds = timed(probit, fitted, x[:PREDICTED])
                _, draws_seconds = timed(draws, fitted, x[:PREDICTED])
                if turn:
                    for task, spent in zip(TASKS, (fit_seconds, probit_seconds, draws_seconds), strict=True):
                        seconds.setdefault((engine, structure, task), []).append(spent)
                probs.append(found.detach())
        difference = float((probs[0] - probs[1]).abs().max())
        for engine in ENGINES:
            for task in TASKS:
                spent = median(seconds[engine, structure, task])
                row = {"net": name, "structure": structure, "task": task, "engine": engine, "seconds": f"{spent:.4g}"}
                rows.append(row | {"difference": f"{difference:.2g}"})
                print(rows[-1], flush=True)
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Last-layer Laplace on convolutional networks",
        "",
        "Made by `python -m benchmarks.last_layer`, which says what is measured. CPU seconds of one thread on an x86",
        "server; the ratio is pyrobnn's time over that of laplace-torch. The largest difference",
        "between the two in any class probability (probit) is in the last column.",
        "",
        "| net | structure | task | pyrobnn | laplace-torch | ratio | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for own, other in pairs(rows):
        ratio = float(own["seconds"]) / float(other["seconds"])
        cells = [own["net"], own["structure"], own["task"], own["seconds"], other["seconds"], f"{ratio:.2f}"]
        lines.append(f"| {' | '.join([*cells, own['difference']])} |")
    return "\n".join(lines) + "\n"


def pairs(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return pyrobnn's row and laplace-torch's for each net, structure and task."""
    keyed = {tuple(row[key] for key in ("net", "structure", "task", "engine")): row for row in rows}
    return [(row, keyed[(*key[:3], "laplace-torch")]) for key, row in keyed.items() if key[3] == "pyrobnn"]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nets", nargs="*", default=list(NETS), choices=list(NETS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings(action="ignore"):
        rows = [row for name in arguments.nets for row in measure(name, arguments.rounds)]
    with OUT.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    OUT.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
