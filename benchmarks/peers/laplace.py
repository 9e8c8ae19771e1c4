"""The Laplace approximation beside laplace-torch, in one process: fit, linearised prediction, memory.

    uv run python benchmarks/peers/laplace.py [--rounds 5] [--skip-default]

A 784-128-10 ReLU classifier on 6000 examples, float32, the same threads for all. laplace-torch takes batches of 256,
without the time to collate them and, as its users write it, from a DataLoader; pyrobnn takes tensors, 1024 examples at
once. Fit is the whole call: curvature, prior and evidence. Prediction is the mean and covariance of the 10 outputs of
200 inputs. Medians of the rounds, after one that does not count; laplace-torch's default backend, more than a minute a
fit, runs once. Memory is the peak of a process that fits a net of 10 million weights, less what it had with net and
data in place.
Writes benchmarks/results/laplace-speed.{json,md}.
"""

import argparse
import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import results
import torch
from torch import Tensor, nn

import pyrobnn as bnn
from pyrobnn.posterior.linearized import functional

OUT = Path(__file__).parents[1] / "results" / "laplace-speed"
EXAMPLES, BATCH, INPUTS, CLASSES, TEST = 6000, 256, 784, 10, 200
WIDE = 2500
STRUCTURES = ("diag", "kron")


class Batches:
    """The parts of a DataLoader that laplace-torch needs, without the time to collate examples."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.dataset, self.batch_size = torch.utils.data.TensorDataset(x, y), BATCH

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.dataset.tensors
        return zip(x.split(BATCH), y.split(BATCH), strict=True)


def make(widths: tuple[int, ...], examples: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, inputs and labels."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.rand(examples, widths[0]), torch.randint(0, CLASSES, (examples,))


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return seconds and result."""
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


def measure(rounds: int, *, with_default: bool) -> dict[str, dict[str, float]]:
    """Return median seconds by engine and task."""
    sys.path.remove(str(Path(__file__).parent))  # this file has the name of the package
    import laplace
    from laplace.curvature import BackPackGGN

    net, x, y = make((INPUTS, 128, CLASSES), EXAMPLES)
    test = torch.rand(TEST, INPUTS)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    data = bnn.Data(x, y, standardize=False)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)

    def ours(structure: str) -> Any:
        setting = bnn.guides.Laplace(structure=structure, joint_bias=False)
        return setting.around(model, data, progress=False)

    def theirs(structure: str, loader: Any = None, **options: Any) -> Any:
        fitted = laplace.Laplace(
            net, "classification", subset_of_weights="all", hessian_structure=structure, prior_precision=1.0, **options
        )
        fitted.fit(Batches(x, y) if loader is None else loader)
        fitted.log_marginal_likelihood()
        return fitted

    engines: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any], int]] = {
        "pyrobnn": (ours, lambda posterior: functional(posterior, test), rounds),
        "laplace-torch, BackPACK": (
            lambda structure: theirs(structure, backend=BackPackGGN),
            lambda fitted: fitted._glm_predictive_distribution(test),
            rounds,
        ),
        "laplace-torch, BackPACK, DataLoader": (
            lambda structure: theirs(structure, loader, backend=BackPackGGN),
            lambda fitted: fitted._glm_predictive_distribution(test),
            rounds,
        ),
    }
    if with_default:
        engines["laplace-torch, default"] = (theirs, lambda fitted: fitted._glm_predictive_distribution(test), 0)
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(rounds + 1):
        for name, (fit, predict, turns) in engines.items():
            for structure in STRUCTURES:
                if turn > turns:
                    continue
                fit_seconds, fitted = timed(lambda fit=fit, structure=structure: fit(structure))
                predict_seconds, _ = timed(lambda predict=predict, fitted=fitted: predict(fitted))
                if turn > 0 or turns == 0:
                    own = found.setdefault(name, {})
                    own.setdefault(f"{structure} fit", []).append(fit_seconds)
                    own.setdefault(f"{structure} predict", []).append(predict_seconds)
    return {name: {task: median(seconds) for task, seconds in found[name].items()} for name in engines}


def peak() -> float:
    """Return the largest memory of this process so far, in GiB (getrusage begins with the parent's)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def memory(structure: str) -> None:
    """Fit a net of 10 million weights, and print the growth of the peak in GiB."""
    net, x, y = make((INPUTS, WIDE, WIDE, 700, CLASSES), 512)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    small, small_x, small_y = make((4, 4, CLASSES), 8)
    bnn.guides.Laplace(structure=structure).around(
        bnn.BNN(small, likelihood="categorical", prior=bnn.priors.Normal(1.0)),
        bnn.Data(small_x, small_y),
        progress=False,
    )
    before = peak()
    setting = bnn.guides.Laplace(structure=structure, batch_size=BATCH)
    setting.around(model, bnn.Data(x, y, standardize=False), progress=False)
    print(json.dumps({"weights": model.num_weights, "gib": peak() - before}))


def bounds(found: dict[str, Any]) -> list[tuple[str, str, float, bool]]:
    """Return what is asked of the ratios, what they are, and whether they hold."""
    seconds = found["seconds"]
    own, loader = seconds["pyrobnn"], seconds["laplace-torch, BackPACK, DataLoader"]
    tensors, default = seconds["laplace-torch, BackPACK"], seconds.get("laplace-torch, default", {})
    rows = [
        ("diag fit: BackPACK without collating / pyrobnn", ">= 5", tensors["diag fit"] / own["diag fit"], 5.0),
        ("diag fit: BackPACK from a DataLoader / pyrobnn", ">= 5", loader["diag fit"] / own["diag fit"], 5.0),
    ]
    if default:
        rows.append(("diag fit: default backend / pyrobnn", ">= 500", default["diag fit"] / own["diag fit"], 500.0))
    rows += [
        (f"{s} predict: BackPACK / pyrobnn", ">= 20", tensors[f"{s} predict"] / own[f"{s} predict"], 20.0)
        for s in STRUCTURES
    ]
    held = [(name, asked, measured, measured >= bound) for name, asked, measured, bound in rows]
    kron = own["kron fit"] / tensors["kron fit"]
    held.append(("kron fit: pyrobnn / BackPACK without collating", "<= 0.7", kron, kron <= 0.7))
    return held + [(f"{s} memory, GiB", "< 1", m["gib"], m["gib"] < 1) for s, m in found["memory"].items()]


def table(found: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    tasks = [f"{structure} {what}" for structure in STRUCTURES for what in ("fit", "predict")]
    machine = found["machine"]
    lines = [
        "# The Laplace approximation beside laplace-torch",
        "",
        "Made by benchmarks/peers/laplace.py, which says what is measured. "
        f"{machine['cpu']}, {machine['cores']} cores. Milliseconds, medians; in brackets how many times longer than "
        "pyrobnn.",
        "",
        f"| engine | {' | '.join(tasks)} |",
        "|---|" + "---|" * len(tasks),
    ]
    own = found["seconds"]["pyrobnn"]
    for name, seconds in found["seconds"].items():
        cells = [f"{1e3 * seconds[task]:,.1f} ({seconds[task] / own[task]:.2g})" for task in tasks]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| bound | asked | measured |", "|---|---|---|"]
    for name, asked, measured, holds in bounds(found):
        lines.append(f"| {name} | {asked} | {measured:.3g}{'' if holds else ' (**does not hold**)'} |")
    grown = [f"{structure} {m['gib']:.2f} GiB" for structure, m in found["memory"].items()]
    weights = next(iter(found["memory"].values()))["weights"]
    return "\n".join([*lines, "", f"Peak memory of a fit of {weights:,} weights: {', '.join(grown)}."]) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-default", action="store_true", help="leave out laplace-torch's default backend")
    parser.add_argument("--memory", choices=STRUCTURES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.memory:
        memory(options.memory)
        return
    seconds = measure(options.rounds, with_default=not options.skip_default)
    command = [sys.executable, __file__, "--memory"]
    grown = {s: json.loads(subprocess.check_output([*command, s]).splitlines()[-1]) for s in STRUCTURES}
    found = {"machine": results.describe_machine(), "seconds": seconds, "memory": grown}
    OUT.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    OUT.with_suffix(".md").write_text(table(found), encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
