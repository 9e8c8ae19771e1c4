"""Last-layer Laplace on convolutional networks beside laplace-torch.

A network of three convolutions and a ResNet-18 (both on 3 x 32 x 32, ten classes, untrained), 512 examples, 256 of them
predicted; float32, one process with one thread, by turns, medians of the rounds after one that does not count. Seconds
are those of the CPU, so that other work on the machine does not count. "fit" is curvature at the given weights,
"probit" the closed form, "draws" the mean of the classes' probabilities over 500 draws of the linearised network.
laplace-torch 0.3 takes batches of 128 and its default backend.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, short
from benchmarks.networks import resnet18, three_convolutions
from benchmarks.rows import Row, grid, grouped
from benchmarks.timing import fit_by_turns

EXAMPLES, PREDICTED, DRAWS, BATCH = 512, 256, 500, 128
STRUCTURES, TASKS = ("kron", "full", "diag"), ("fit", "probit", "draws")


NETS: dict[str, Callable[[], nn.Module]] = {"three convolutions": three_convolutions, "ResNet-18": resnet18}
KEY = ("net", "structure", "task", "engine")
OPTIONS = {"rounds": 5, "nets": list(NETS)}


def ours(net: nn.Module, x: Tensor, y: Tensor, structure: str) -> Any:
    """Return pyrobnn's posterior."""
    setting = bnn.guides.Laplace(structure=structure, sites="last_layer", joint_bias=False)
    return setting.around(net, bnn.Data(x, y, standardize=False), progress=False)


def theirs(net: nn.Module, x: Tensor, y: Tensor, structure: str) -> Any:
    """Return laplace-torch's."""
    import laplace

    fitted = laplace.Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure=structure)
    fitted.fit(DataLoader(TensorDataset(x, y), batch_size=BATCH))
    return fitted


ENGINES: dict[str, tuple[Callable[..., Any], Callable[..., Tensor], Callable[..., Tensor]]] = {
    "pyrobnn": (
        ours,
        lambda posterior, x: bnn.functional(posterior, x).class_probs("probit"),
        lambda posterior, x: posterior.predict(x, num_draws=DRAWS).class_probs,
    ),
    "laplace-torch": (
        theirs,
        lambda fitted, x: fitted(x),
        lambda fitted, x: fitted.predictive_samples(x, n_samples=DRAWS).mean(0),
    ),
}


def jobs(options: Options) -> list[Row]:
    """Return the structures on each network."""
    rest = {"task": [*TASKS], "engine": [*ENGINES]}
    return [{"net": net, "structure": structure} | rest for net in options.nets for structure in STRUCTURES]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each task and engine, with the largest difference of the probabilities."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = NETS[job["net"]]().eval()
    x, y = torch.randn(EXAMPLES, 3, 32, 32), torch.randint(0, 10, (EXAMPLES,))
    engines = {
        engine: (partial(fit, net, x, y, job["structure"]), *(partial(task, x=x[:PREDICTED]) for task in tasks))
        for engine, (fit, *tasks) in ENGINES.items()
    }
    spent, results = fit_by_turns(engines, TASKS, options.rounds, clock=time.process_time)
    first, second = (results[engine, "probit"].detach() for engine in ENGINES)
    difference = float(f"{float((first - second).abs().max()):.2g}")
    return [
        short(job | {"task": task, "engine": engine, "seconds": median(seconds), "difference": difference})
        for (engine, task), seconds in spent.items()
    ]


def page(rows: list[Row], options: Options) -> Page:
    """Return the results, the engines side by side."""
    lines = []
    for key, pair in grouped(rows, *KEY[:3]).items():
        first, second = (next(row for row in pair if row["engine"] == engine) for engine in ENGINES)
        ratio = first["seconds"] / second["seconds"]
        lines.append([*key, first["seconds"], second["seconds"], f"{ratio:.2f}", first["difference"]])
    about = (
        "CPU seconds of one thread; the ratio is pyrobnn's time over that of laplace-torch. The",
        "largest difference between the two in any class probability (probit) is in the last column.",
    )
    header = ["net", "structure", "task", *ENGINES, "ratio", "difference"]
    return Page("Last-layer Laplace on convolutional networks", about, grid(header, lines))
