"""Threads and processes side by side: each gives the bits that it gives alone."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import pyrobnn as bnn
from benchmarks.faults import outcome, page_of
from benchmarks.measures.harness import Options
from benchmarks.new_process import in_process
from benchmarks.rows import Row

KEY = ("what",)
OPTIONS = {"count": 25}
X = torch.linspace(-1, 1, 40)[:, None].repeat(1, 3)
MODEL = bnn.BNN(bnn.MLP(3, [8], 1), prior=bnn.priors.Normal(1.0))
_THREADS, _PROCESSES = 8, 4
PREDICT, FIT, PROCESSES = (
    "8 threads predict from one posterior",
    "8 threads fit and predict",
    "4 processes fit, one captured and one eager fit each",
)


def jobs(options: Options) -> list[Row]:
    """Return threads that predict, threads that fit, and processes that fit."""
    return [{"what": what} for what in (PREDICT, FIT, PROCESSES)]


def run(job: Row, options: Options) -> list[Row]:
    """Return the row of threads, each of which predicts `count` times or fits a tenth as often, or of processes."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    if job["what"] == PREDICT:
        posterior = _fit(0)
        count, failures = _threads(options.count, lambda seed: _prediction(posterior, seed))
    elif job["what"] == FIT:
        count, failures = _threads(max(1, options.count // 10), lambda seed: _prediction(_fit(seed), seed))
    else:
        count, failures = _processes()
    happened = f"{count - len(failures)} identical" + (f", {len(failures)} not" if failures else "")
    return [outcome(job["what"], count, "the same bits as alone", happened, failures=failures, started=started)]


page = page_of("Threads and processes side by side")


def _fit(seed: int) -> Any:
    return MODEL.fit(X, X.sum(1), steps=50, seed=seed, engine="eager", progress=False, device="cpu")


def _prediction(posterior: Any, seed: int) -> str:
    return hashlib.sha256(posterior.predict(X, num_draws=50, seed=seed).draw_means.numpy().tobytes()).hexdigest()


def _threads(count: int, work: Any) -> tuple[int, list[str]]:
    """Return how often threads did the work, and the failures."""
    seeds = [seed % count for seed in range(_THREADS * count)]
    alone = {seed: work(seed) for seed in set(seeds)}
    failures = []
    state = torch.random.get_rng_state()
    with ThreadPoolExecutor(_THREADS) as pool:
        futures = [(seed, pool.submit(work, seed)) for seed in seeds]
        for seed, future in futures:
            try:
                if future.result() != alone[seed]:
                    failures.append(f"other bits for seed {seed}")
            except Exception as error:
                failures.append(f"{type(error).__name__}: {str(error)[:200]}")
    if not torch.equal(state, torch.random.get_rng_state()):
        failures.append("the global random state was changed")
    return len(seeds), failures


def _processes() -> tuple[int, list[str]]:
    """Return the number of processes at a time, and how they differ from a process alone."""

    def fits(_: int = 0) -> list[str]:
        return in_process(two_fits, OMP_NUM_THREADS="1")

    alone = fits()
    with ThreadPoolExecutor(_PROCESSES) as pool:
        digests = list(pool.map(fits, range(_PROCESSES)))
    return _PROCESSES, [f"other bits: {pair}" for pair in digests if pair != alone]


def two_fits() -> list[str]:
    """Return digests of the predictions of an eager and a captured fit."""
    torch.set_num_threads(1)
    fits = [
        MODEL.fit(X, X.sum(1), steps=60, seed=3, engine=engine, progress=False, device="cpu")
        for engine in ("eager", "captured")
    ]
    return [_prediction(posterior, 1) for posterior in fits]
