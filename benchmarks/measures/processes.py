"""Steps of `DataParallel` in one and two processes, the cost of an all-reduce, and a model of many processes.

784-400-400-10 and a network of three convolutions (3 x 32 x 32), mean-field, batches of 256, a thread for each process,
gloo on one machine. Each side runs in new processes, by turns; the first 50 steps do not count, and the fastest round
does. All processes of a fit together have the batch; "half the batch" is the share of one of two. "cpu" is the CPU time
of one process, which other work on the machine changes little. An all-reduce adds up float32 numbers of two processes;
it is the median of its repetitions in the fastest round. "load" is that of the machine before the job.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen, load_rows
from benchmarks.networks import three_convolutions
from benchmarks.new_process import in_process
from benchmarks.rows import Row, grid
from pyrobnn._torch.processes import is_main_process

KEY = ("what", "side")
OPTIONS = {"rounds": 2}
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "784-400-400-10": (bnn.MLP(784, (400, 400), 10).build, (784,)),
    "three convolutions": (three_convolutions, (3, 32, 32)),
}
BATCH, EXAMPLES, BLOCK, BLOCKS = 256, 1024, 50, 2
"""A callback comes after each block of steps."""
CAPTURED, ONE, HALF, TWO = "1 process, captured", "1 process", "1 process, half the batch", "2 processes"
SIDES = {CAPTURED: ("captured", BATCH), ONE: ("eager", BATCH), HALF: ("eager", BATCH // 2), TWO: ("eager", BATCH)}
"""Engine and batch."""
REDUCE, SIZES = "all-reduce", {f"{size:,} numbers": size for size in (10**4, 10**5, 10**6, 10**7)}
_PAIR = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_FLOAT, _GAUSSIAN = 4, 2
"""Bytes of a number, and numbers of each weight."""
NVLINK, NETWORK = (0.05, 300e6), (0.5, 10e6)
"""Assumed: milliseconds of latency, and bytes a millisecond, of 8 cards and of 64 machines."""


def jobs(options: Options) -> list[Row]:
    """Return a job for each network, and one for the all-reduce."""
    return [*({"what": name, "side": [*SIDES]} for name in NETS), {"what": REDUCE, "side": [*SIZES]}]


def run(job: Row, options: Options) -> Iterator[Row]:
    """Return the rows of all sides."""
    load = os.getloadavg()[0]
    if job["what"] == REDUCE:
        rounds = [in_process(reductions, launcher=_PAIR, OMP_NUM_THREADS="1") for _ in range(options.rounds)]
        for place, (side, size) in enumerate(SIZES.items()):
            ms = min(found[place] for found in rounds)
            yield {"what": REDUCE, "side": side, "ms": ms, "numbers": size, "load": load}
        return
    turns = [
        {
            side: in_process(cost, job["what"], side, launcher=_PAIR * (side == TWO), OMP_NUM_THREADS="1")
            for side in SIDES
        }
        for _ in range(options.rounds)
    ]
    for side in SIDES:
        found = {key: min(turn[side][key] for turn in turns) for key in ("ms", "cpu ms", "numbers")}
        yield {"what": job["what"], "side": side, **found, "steps a second": 1000 / found["ms"], "load": load}


def cost(name: str, side: str) -> Row:
    """Return what a step of a fit takes in this process, or in several of which this is one."""
    torch.set_num_threads(1)
    engine, batch = SIDES[side]
    make, shape = NETS[name]
    torch.manual_seed(0)
    x, y = torch.randn(EXAMPLES, *shape), torch.randint(0, 10, (EXAMPLES,))
    model = bnn.BNN(make(), prior=bnn.priors.Normal(1.0), likelihood="categorical")
    ends = list[tuple[float, float]]()
    svi = bnn.SVI(guide=bnn.guides.MeanField(init_rho=-5.0), steps=BLOCK * BLOCKS, lr=1e-3, batch_size=batch)
    settings: Any = {"engine": engine, "callbacks": [lambda _: ends.append((time.perf_counter(), time.process_time()))]}
    data, method = bnn.Data(x, y, standardize=False), bnn.DataParallel(svi) if side == TWO else svi
    bnn.fit(model, data, method, seed=0, device="cpu", progress=False, **settings)
    _leave_it_to_the_first()
    ms, cpu = (1000 * (last - first) / (BLOCK * (BLOCKS - 1)) for first, last in zip(ends[0], ends[-1], strict=True))
    return {"ms": ms, "cpu ms": cpu, "numbers": _GAUSSIAN * model.num_weights}


def reductions() -> list[float]:
    """Return the milliseconds of an all-reduce of each size, between the processes of which this is one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    for size in SIZES.values():
        numbers, seconds = torch.zeros(size), list[float]()
        for _ in range(max(10, min(200, 2 * 10**7 // size))):
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(numbers)
            seconds.append(time.perf_counter() - started)
        found.append(1000 * median(seconds[2:]))
    dist.destroy_process_group()
    _leave_it_to_the_first()
    return found


def _leave_it_to_the_first() -> None:
    """End a process other than the first, whose result alone is read."""
    if not is_main_process():
        sys.exit()


def all_reduce(numbers: float, count: int, latency: float, bandwidth: float) -> float:
    """Return the milliseconds of an all-reduce among processes in a ring: latency + 2 (P - 1) / P bytes / bandwidth."""
    return latency + 2 * (count - 1) / count * _FLOAT * numbers / bandwidth


def gloo(rows: list[Row]) -> tuple[float, float]:
    """Return latency (ms) and bandwidth (bytes a millisecond) between two processes: the ends of the measured sizes."""
    sizes = sorted(chosen(rows, what=REDUCE), key=lambda row: int(row["numbers"]))
    return sizes[0]["ms"], _FLOAT * sizes[-1]["numbers"] / sizes[-1]["ms"]


def parts(rows: list[Row], what: str) -> tuple[float, float]:
    """Return the CPU milliseconds of a step that stay with any batch, and those of the whole batch."""
    whole, half = (chosen(rows, what=what, side=side)[0]["cpu ms"] for side in (ONE, HALF))
    fixed = min(whole, max(0.0, 2 * half - whole))
    return fixed, whole - fixed


def page(rows: list[Row], options: Options) -> Page:
    """Return the page: what was measured, the model beside it, and what the model says of many processes."""
    measured = grid(
        ["network", "side", "ms a step", "cpu ms", "steps a second"],
        [
            [row["what"], row["side"], *(f"{row[key]:.1f}" for key in ("ms", "cpu ms", "steps a second"))]
            for row in rows
            if row["what"] in NETS
        ],
    )
    sizes = grid(
        ["numbers", "ms", "GB/s"],
        [
            [f"{row['numbers']:,}", f"{row['ms']:.3g}", f"{_FLOAT * row['numbers'] / row['ms'] / 1e6:.2g}"]
            for row in chosen(rows, what=REDUCE)
        ],
    )
    lines = ["## Measured", "", *measured, "", *sizes]
    if len(chosen(rows, what=REDUCE)) == len(SIZES) and all(chosen(rows, what=name, side=TWO) for name in NETS):
        lines += ["", *_model(rows)]
    loads = [row["load"] for row in rows]
    about = [
        f"Wall and CPU time on two cores. The load before the jobs was {min(loads):.1f} to {max(loads):.1f}. With",
        "other work two processes have less than two cores, and their wall time says little.",
    ]
    return Page("Fits in several processes", about, lines)


def _model(rows: list[Row]) -> list[str]:
    latency, bandwidth = gloo(rows)
    check, carried = [], []
    for name in NETS:
        (row,) = chosen(rows, what=name, side=TWO)
        numbers = row["numbers"]
        fixed, shared = parts(rows, name)
        said = fixed + shared / 2 + all_reduce(numbers, 2, latency, bandwidth)
        check.append(
            [
                name,
                f"{fixed:.1f}",
                f"{shared:.1f}",
                f"{numbers:,}",
                f"{said:.1f}",
                f"{row['ms']:.1f}",
                f"{row['cpu ms']:.1f}",
            ]
        )
        carried.append((f"{name}, one core, eager", fixed, shared, numbers))
    for engine in ("eager", "captured"):
        for row in chosen(load_rows("gpu_resnet"), name=f"pyrobnn, {engine}"):
            device = f"{row['device']}, {engine}{' (not possible yet)' * (engine == 'captured')}"
            carried.append((f"ResNet-18, {device}", 0.0, row["ms"], _GAUSSIAN * row["num_weights"]))
    many = []
    for name, fixed, shared, numbers in carried:
        alone, cells = fixed + shared, list[str]()
        for count, link in ((8, NVLINK), (64, NETWORK)):
            ms = fixed + shared / count + all_reduce(numbers, count, *link)
            cells += [f"{ms:.1f}", f"{alone / ms:.1f}"]
        many.append([name, f"{alone:.1f}", *cells])
    return [
        "## Model",
        "",
        "A step of P processes takes fixed + shared / P + latency + 2 (P - 1) / P x bytes / bandwidth. The fixed part",
        "is that of each weight (noise, KL, optimiser), which every process does; the shared part is the batch's.",
        "Both follow from the CPU time of steps with a batch and with half of it. Latency is that of 10,000 numbers,",
        f"{latency:.2g} ms, and bandwidth that of 10,000,000, {bandwidth / 1e6:.2g} GB/s. A mean-field guide sends two",
        "numbers for each weight.",
        "",
        *grid(
            [
                "network",
                "fixed ms",
                "shared ms",
                "numbers sent",
                "two processes, model, ms",
                "measured, ms",
                "measured, cpu ms",
            ],
            check,
        ),
        "",
        "## Many processes, by the model",
        "",
        "None of this is measured. The batch stays the same. Bandwidth and latency are assumptions: for 8 cards joined",
        f"by NVLink {NVLINK[1] / 1e6:.0f} GB/s and {NVLINK[0]} ms, and for 64 machines, one process each, joined by",
        f"100 Gbit/s {NETWORK[1] / 1e6:.0f} GB/s and {NETWORK[0]} ms. Steps of ResNet-18 are those [measured on one",
        "card](gpu-resnet.md), and count as shared. That is optimistic: an eager step on a card mostly waits for",
        "Python, which a smaller batch does not shorten.",
        "",
        *grid(["step", "1, ms", "8 as cards, ms", "times as fast", "64 as machines, ms", "times as fast"], many),
    ]
