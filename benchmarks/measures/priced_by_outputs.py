"""Predictions of Laplace approximations of real networks, in passes of the network, and of 1,000 classes, in seconds.

A ResNet-18 (3 x 32 x 32, ten classes, untrained), float32, one thread. "last layer" is `predict` at one input with the
last layer's weights alone Gaussian (kron), in forward passes of that input. "all weights" is `predict` at ten inputs
with a diagonal Gaussian over all weights, in forward-backward passes of these ten. "predictor" is the module that
`posterior.predictor()` returns.

"1,000 classes" is a linear layer from 512 features, 1,000 examples, in a process of two threads: seconds, and by how
many MiB the peak memory of the process grows. "fit" is the curvature at given weights, "functional" the variances of
the outputs of 1,000 inputs, "probabilities" the mean of their classes' probabilities over 1,000 mirrored draws.

Seconds are the least of the rounds after one that does not count.
"""

import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page
from benchmarks.networks import resnet18
from benchmarks.new_process import in_process
from benchmarks.rows import Row, grid

KEY = ("case", "what")
EXAMPLES, FEATURES, CLASSES = 1000, 512, 1000
DRAWS = (2, 500, 5000)
OF_CLASSES = ["fit", "functional, one input", "functional", "predict, one input, 500 draws", "probabilities"]
WHAT = {
    "last layer": ["predict, 500 draws", "functional", "predictor, 100 draws"],
    "all weights": [f"predict, {num:,} draws" for num in DRAWS],
    "1,000 classes, kron": OF_CLASSES,
    "1,000 classes, diag": OF_CLASSES,
}
OPTIONS = {"rounds": 5, "cases": list(WHAT)}


def least(function: Callable[[], object], rounds: int) -> float:
    """Return the least seconds of some rounds, after one that does not count."""
    function()
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def around(net: nn.Module, x: torch.Tensor, y: torch.Tensor, **setting: Any) -> bnn.Posterior:
    """Return the Laplace approximation at the weights of a network."""
    guide = bnn.guides.Laplace(**{"structure": "kron"} | setting)
    return guide.around(net, bnn.Data(x, y, standardize=False), progress=False)


def last_layer(rounds: int) -> list[Row]:
    """Return forward passes for a prediction at one input."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, x = resnet18().eval(), torch.randn(16, 3, 32, 32)
    posterior = around(net, x, torch.arange(16) % 10, sites="last_layer")
    predictor = posterior.predictor()
    with torch.no_grad():
        forward = least(lambda: net(x[:1]), rounds)
        ready = least(lambda: predictor(x[:1]), rounds)
    seconds = [
        least(lambda: posterior.predict(x[:1]), rounds),
        least(lambda: bnn.functional(posterior, x[:1]), rounds),
        ready,
    ]
    return [{"what": what, "passes": value / forward} for what, value in zip(WHAT["last layer"], seconds, strict=True)]


def all_weights(rounds: int) -> list[Row]:
    """Return forward-backward passes for a prediction at ten inputs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, x = resnet18().eval(), torch.randn(10, 3, 32, 32)
    posterior = around(net, x, torch.arange(10), structure="diag")

    def forward_backward() -> None:
        net.zero_grad()
        net(x).sum().backward()

    one = least(forward_backward, rounds)
    seconds = [least(partial(posterior.predict, x, num_draws=num), 1) for num in DRAWS]
    return [{"what": what, "passes": value / one} for what, value in zip(WHAT["all weights"], seconds, strict=True)]


def classes(structure: str, rounds: int) -> list[Row]:
    """Return seconds and memory of a linear layer for many classes."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    net = nn.Linear(FEATURES, CLASSES)
    x, y = torch.randn(EXAMPLES, FEATURES), torch.randint(0, CLASSES, (EXAMPLES,))
    posterior = around(net, x, y, structure=structure)
    tasks: list[Callable[[], object]] = [
        lambda: around(net, x, y, structure=structure),
        lambda: bnn.functional(posterior, x[:1]).covariance,
        lambda: bnn.functional(posterior, x).variance,
        lambda: posterior.predict(x[:1]),
        lambda: bnn.functional(posterior, x).class_probs("mc"),
    ]
    rows = []
    for what, task in zip(OF_CLASSES, tasks, strict=True):
        before = _peak()
        rows.append({"what": what, "seconds": least(task, 1), "mib": _peak() - before})
    return rows


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def jobs(options: Options) -> list[Row]:
    """Return the cases."""
    return [{"case": case, "what": WHAT[case]} for case in options.cases]


def run(job: Row, options: Options) -> list[Row]:
    """Measure a case in a new process."""
    case, _, structure = job["case"].partition(", ")
    if structure:
        rows = in_process(classes, structure, options.rounds)
    else:
        rows = in_process({"last layer": last_layer, "all weights": all_weights}[case], options.rounds)
    return [{"case": job["case"]} | row for row in rows]


def page(rows: list[Row], options: Options) -> Page:
    """Return a table of all cases."""
    lines = [
        [
            row["case"],
            row["what"],
            f"{row['passes']:.2f}" if "passes" in row else "",
            f"{row['seconds']:.3f}" if "seconds" in row else "",
            f"{row['mib']:.0f}" if "mib" in row else "",
        ]
        for row in rows
    ]
    title = "Predictions priced by outputs: Laplace approximations of a ResNet-18, and of 1,000 classes"
    about = ["Passes are those of the network: forward for one input, forward and backward for ten."]
    return Page(title, about, grid(("case", "what", "passes", "s", "MiB more"), lines))
