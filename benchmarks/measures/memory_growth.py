"""Many fits in one process, and how much memory grows."""

import gc
import time
from typing import Any

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.faults import outcome, page_of
from benchmarks.measures.harness import Options
from benchmarks.rows import Row
from benchmarks.timing import resident

KEY = ("what",)
OPTIONS = {"count": 200}
_MOST_MIB = 1.0
_PER_KIND_WARMUP = 3
KINDS: dict[str, dict[str, Any]] = {
    "eager, mean_field": {"guide": "mean_field", "engine": "eager"},
    "eager, low_rank": {"guide": "low_rank", "engine": "eager"},
    "eager, AutoNormal": {"guide": "AutoNormal", "engine": "eager"},
    "eager, dropout": {"guide": "dropout", "engine": "eager"},
    "eager, Laplace": {"guide": "laplace", "engine": "eager"},
    "eager, mini-batches": {"guide": "mean_field", "engine": "eager", "batch_size": 16},
    "captured, mean_field": {"guide": "mean_field", "engine": "captured"},
    "captured, map": {"guide": "map", "engine": "captured"},
    "captured, mini-batches": {"guide": "mean_field", "engine": "captured", "batch_size": 16},
}
"""Fits that take turns."""


ALL = "fit, predict and forget, all kinds by turns"


def jobs(options: Options) -> list[Row]:
    """Return a single job, whose fits are all in this process."""
    return [{"what": [ALL, *(f"the same, {name}" for name in KINDS)]}]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for all kinds by turns, and a row for each kind alone with a tenth of the fits."""
    torch.set_num_threads(1)
    kinds, count = list(KINDS.values()), options.count
    for kind in kinds * _PER_KIND_WARMUP:
        _once(kind, 0)
    rows = [_row(ALL, kinds, count)]
    return rows + [_row(f"the same, {name}", [kind], count // 10) for name, kind in KINDS.items()]


page = page_of("Memory over many fits in one process")


def _row(what: str, kinds: list[dict[str, Any]], count: int) -> Row:
    started, held = time.perf_counter(), [resident() / 1024]
    for index in range(count):
        _once(kinds[index % len(kinds)], index)
        held.append(resident() / 1024)
    slope, error = _slope(np.array(held))
    mean = (held[-1] - held[0]) / count
    happened = f"{mean:+.3f} MiB a fit; slope {slope:+.3f} ± {error:.3f} MiB a fit; {held[-1]:.0f} MiB at the end"
    failures = [] if mean < _MOST_MIB else [f"{mean:+.3f} MiB a fit"]
    asked = f"less than {_MOST_MIB:g} MiB a fit after a warm-up"
    return outcome(what, count, asked, happened, failures=failures, started=started)


def _once(kind: dict[str, Any], index: int) -> None:
    """Fit data whose shape the index chooses among three, and predict."""
    rows, columns = [(40, 3), (64, 3), (40, 5)][index % 3]
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(index))
    model = bnn.BNN(
        bnn.MLP(columns, [8], 1), likelihood=bnn.likelihoods.Gaussian(scale=0.5), prior=bnn.priors.Normal(1.0)
    )
    posterior = model.fit(x, x.sum(1), steps=60, seed=index, progress=False, device="cpu", **kind)
    posterior.predict(x, num_draws=50)
    del posterior, model
    gc.collect()


def _slope(values: np.ndarray) -> tuple[float, float]:
    """Return the slope of a line by least squares, and its standard error from the scatter around it."""
    steps = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(steps @ values / (steps @ steps))
    rest = values - values.mean() - slope * steps
    return slope, float(np.sqrt(rest @ rest / max(1, len(values) - 2) / (steps @ steps)))
