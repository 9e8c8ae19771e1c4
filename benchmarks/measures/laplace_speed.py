"""The Laplace approximation beside laplace-torch, in one process: fit, linearised prediction, memory.

A 784-128-10 ReLU classifier on 6000 examples, float32, the same threads for all. laplace-torch takes batches of 256,
without the time to collate them and, as its users write it, from a DataLoader; pyrobnn takes tensors, 1024 examples at
once. Fit is the whole call: curvature, prior and evidence. Prediction is the mean and covariance of the 10 outputs of
200 inputs. Medians of the rounds, after one that does not count; laplace-torch's default backend, more than a minute a
fit, runs once. Memory is the peak of a process that fits a net of 10 million weights, less what it had with net and
data in place.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks import laplace_torch
from benchmarks.measures.harness import Options, Page
from benchmarks.new_process import in_process
from benchmarks.rows import Row, grid
from benchmarks.timing import fit_by_turns, resident
from pyrobnn.posterior.linearized import functional

KEY = ("engine",)
EXAMPLES, BATCH, INPUTS, CLASSES, TEST = 6000, 256, 784, 10, 200
WIDE = 2500
STRUCTURES = ("diag", "kron")
TASKS = ("fit", "predict")
OURS, TENSORS, LOADER, DEFAULT = (
    "pyrobnn",
    "laplace-torch, BackPACK",
    "laplace-torch, BackPACK, DataLoader",
    "laplace-torch, default",
)
OPTIONS = {"rounds": 5, "engines": [OURS, TENSORS, LOADER, DEFAULT]}


def make(widths: tuple[int, ...], examples: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, inputs and labels."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.rand(examples, widths[0]), torch.randint(0, CLASSES, (examples,))


def engines_of(structure: str) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return the functions that fit and predict, by engine."""
    from laplace.curvature import BackPackGGN

    net, x, y = make((INPUTS, 128, CLASSES), EXAMPLES)
    test = torch.rand(TEST, INPUTS)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    data = bnn.Data(x, y, standardize=False)
    setting = bnn.guides.Laplace(structure=structure, joint_bias=False)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    theirs = partial(laplace_torch.fit, net, structure=structure)
    return {
        OURS: (partial(setting.around, model, data, progress=False), lambda posterior: functional(posterior, test))
    } | {
        name: (fit, lambda fitted: fitted._glm_predictive_distribution(test))
        for name, fit in {
            TENSORS: partial(theirs, batches=laplace_torch.Batches(x, y, BATCH), backend=BackPackGGN),
            LOADER: partial(theirs, batches=loader, backend=BackPackGGN),
            DEFAULT: partial(theirs, batches=laplace_torch.Batches(x, y, BATCH)),
        }.items()
    }


def memory(structure: str) -> Row:
    """Fit a net of 10 million weights, and return the growth of the peak in GiB."""
    net, x, y = make((INPUTS, WIDE, WIDE, 700, CLASSES), 512)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    small, small_x, small_y = make((4, 4, CLASSES), 8)
    bnn.guides.Laplace(structure=structure).around(
        bnn.BNN(small, likelihood="categorical", prior=bnn.priors.Normal(1.0)),
        bnn.Data(small_x, small_y),
        progress=False,
    )
    before = resident("VmHWM")
    setting = bnn.guides.Laplace(structure=structure, batch_size=BATCH)
    setting.around(model, bnn.Data(x, y, standardize=False), progress=False)
    return {"weights": model.num_weights, "gib": (resident("VmHWM") - before) / 2**20}


def jobs(options: Options) -> list[Row]:
    """Return a job in which the engines take turns, and a job for the memory of each structure."""
    return [{"engine": options.engines}, *({"engine": f"memory, {structure}"} for structure in STRUCTURES)]


def run(job: Row, options: Options) -> list[Row]:
    """Return median seconds of each engine, or memory."""
    if isinstance(job["engine"], str):
        return [job | in_process(memory, job["engine"].removeprefix("memory, "))]
    rows: dict[str, Row] = {name: {"engine": name} for name in job["engine"]}
    for structure in STRUCTURES:
        engines = {name: functions for name, functions in engines_of(structure).items() if name in rows}
        slow = {DEFAULT: engines.pop(DEFAULT)} if DEFAULT in engines else {}
        spent = fit_by_turns(engines, TASKS, options.rounds, clock=time.perf_counter)[0]
        spent |= fit_by_turns(slow, TASKS, 1, warm_up=0, clock=time.perf_counter)[0]
        for (name, task), seconds in spent.items():
            rows[name][f"{structure} {task}"] = median(seconds)
    return [*rows.values()]


def bounds(seconds: dict[str, Row]) -> list[tuple[str, str, float, bool]]:
    """Return the name, the bound and the value of each ratio, and whether it holds."""
    ours, loader, tensors, default = (seconds.get(name, {}) for name in (OURS, LOADER, TENSORS, DEFAULT))
    asked: list[tuple[str, Row, str, float]] = [
        ("diag fit: BackPACK without collating / pyrobnn", tensors, "diag fit", 5),
        ("diag fit: BackPACK from a DataLoader / pyrobnn", loader, "diag fit", 5),
        ("diag fit: default backend / pyrobnn", default, "diag fit", 500),
        *((f"{s} predict: BackPACK / pyrobnn", tensors, f"{s} predict", 20) for s in STRUCTURES),
    ]
    ratios = [(name, row[task] / ours[task], bound) for name, row, task, bound in asked if task in row]
    held = [(name, f">= {bound}", ratio, ratio >= bound) for name, ratio, bound in ratios]
    if tensors:
        kron = ours["kron fit"] / tensors["kron fit"]
        held.append(("kron fit: pyrobnn / BackPACK without collating", "<= 0.7", kron, kron <= 0.7))
    grown = {s: seconds[f"memory, {s}"]["gib"] for s in STRUCTURES if f"memory, {s}" in seconds}
    return held + [(f"{s} memory, GiB", "< 1", gib, gib < 1) for s, gib in grown.items()]


def page(rows: list[Row], options: Options) -> Page:
    """Return times, bounds and memory."""
    by_engine = {row["engine"]: row for row in rows}
    ours, tasks = by_engine[OURS], [f"{structure} {task}" for structure in STRUCTURES for task in TASKS]
    cells = [
        [name, *(f"{1e3 * row[task]:,.1f} ({row[task] / ours[task]:.2g})" for task in tasks)]
        for name, row in by_engine.items()
        if tasks[0] in row
    ]
    asked = [
        [name, asked, f"{measured:.3g}{'' if holds else ' (**does not hold**)'}"]
        for name, asked, measured, holds in bounds(by_engine)
    ]
    about = "Milliseconds, medians; in brackets how many times longer than pyrobnn."
    grown = [row for row in rows if "gib" in row]
    shown = ", ".join(f"{row['engine'].removeprefix('memory, ')} {row['gib']:.2f} GiB" for row in grown)
    lines = [
        *grid(["engine", *tasks], cells),
        "",
        *grid(["bound", "asked", "measured"], asked),
        *(["", f"Peak memory of a fit of {grown[0]['weights']:,} weights: {shown}."] if grown else []),
    ]
    return Page("The Laplace approximation beside laplace-torch", [about], lines)
