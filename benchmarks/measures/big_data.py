"""Data larger than memory: how much memory fits take from each kind of data, and how many steps a second they do.

The same examples, 400 MB of them, in memory and behind a DataLoader over mapped .npy files; each kind in a new process.
Growth of memory counts from the end of a first fit of two steps on other data, and includes pages of mapped files.
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, short
from benchmarks.new_process import in_process
from benchmarks.rows import Row, grid
from benchmarks.timing import resident, timed

KEY = ("data",)
NUM, WIDTH, BATCH, STEPS = 1_000_000, 100, 256, 200
KINDS = {
    "Data in memory": lambda folder: bnn.Data(np.load(folder / "x.npy"), np.load(folder / "y.npy")),
    "Loader, standardised": lambda folder: bnn.Loader(loader(folder, 0), standardize=True),
    "DataLoader, no workers": lambda folder: loader(folder, 0),
    "DataLoader, 2 workers": lambda folder: loader(folder, 2),
}
OPTIONS: dict[str, Any] = {}


class Mapped(Dataset):
    """The rows of mapped arrays."""

    def __init__(self, folder: Path) -> None:
        self.x, self.y = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.x)

    def __getitem__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a copy of the rows of a batch, in the order of the file."""
        rows = sorted(rows)
        return torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])


def loader(folder: Path, workers: int) -> DataLoader:
    """Return shuffled batches of the mapped rows."""
    rows = Mapped(folder)
    batches = BatchSampler(RandomSampler(rows), BATCH, drop_last=False)
    return DataLoader(rows, batch_size=None, sampler=batches, num_workers=workers)


@cache
def written() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder with the examples, written a part at a time, which goes when this process ends."""
    place = tempfile.TemporaryDirectory()
    folder = Path(place.name)
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.float32, shape=(NUM, WIDTH))
    generator, y = np.random.default_rng(0), np.empty(NUM, np.float32)
    for start in range(0, NUM, 10_000):
        part = generator.normal(size=(10_000, WIDTH)).astype(np.float32)
        x[start : start + 10_000], y[start : start + 10_000] = part, part.mean(1)
    np.save(folder / "y.npy", y)
    return place


def fit(data: Any, *, steps: int, batch_size: int | None, hidden: int = 50) -> float:
    """Return the seconds from the call to the end of a fit."""
    model = bnn.BNN(
        bnn.MLP(WIDTH, [hidden], 1), likelihood=bnn.likelihoods.Gaussian(scale=0.1), prior=bnn.priors.Normal(1.0)
    )
    method = bnn.SVI(steps=steps, batch_size=batch_size)
    return timed(lambda: bnn.fit(model, data, method, seed=0, engine="eager", progress=False)).seconds


def child(kind: str, place: str) -> Row:
    """Measure a kind of data in this process."""
    fit((np.zeros((1000, WIDTH), np.float32), np.zeros(1000, np.float32)), steps=2, batch_size=BATCH)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    before = resident()
    data, opening, _ = timed(lambda: KINDS[kind](Path(place)))
    batch_size = BATCH if kind == "Data in memory" else None
    brief, long = (fit(data, steps=steps, batch_size=batch_size) for steps in (20, 20 + STEPS))
    growth = 1024 * (resident("VmHWM") - before) / 1e6
    return {"growth": growth, "opening": opening, "rate": STEPS / (long - brief)}


def jobs(options: Options) -> list[Row]:
    """Return a single job, so that all rates are of the same run."""
    return [{"data": [*KINDS]}]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each kind of data; ratios are to the first."""
    place = written().name
    rows = [{"data": kind} | in_process(child, kind, place, OMP_NUM_THREADS="1") for kind in KINDS]
    return [short(row | {"ratio": row["rate"] / rows[0]["rate"]}) for row in rows]


def page(rows: list[Row], options: Options) -> Page:
    """Return the table."""
    kinds = [
        [row["data"], f"{row['growth']:.0f}", f"{row['opening']:.1f}", f"{row['rate']:.0f}", f"{row['ratio']:.2f}"]
        for row in rows
    ]
    about = (
        f"{NUM:,} examples of {WIDTH} float32 numbers, {4 * NUM * WIDTH / 1e6:.0f} MB; an eager fit of a {WIDTH}-50-1 "
        f"network, batches of {BATCH}, one thread. The files are in the page cache. Rates are of one "
        "run, and may be off by a half."
    )
    lines = [
        *grid(["data", "growth of memory, MB", "opening, s", "steps a second", "to memory"], kinds),
        "",
        "Workers of a DataLoader have memory of their own, which is not counted. Opening includes the pass that checks "
        "every value.",
    ]
    return Page("Data larger than memory", [about], lines)
