"""Threads and processes side by side: each gives the bits that it gives alone."""

import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import pyrobnn as bnn
from benchmarks.faults.rows import Row, row_of

X = torch.linspace(-1, 1, 40)[:, None].repeat(1, 3)
MODEL = bnn.BNN(bnn.MLP(3, [8], 1), prior=bnn.priors.Normal(1.0))
_THREADS, _PROCESSES = 8, 4


def run(count: int = 25) -> list[Row]:
    """Return a row for threads that predict, threads that fit, and processes that fit; each thread does `count`."""
    posterior = _fit(0)
    return [
        _threads("8 threads predict from one posterior", count, lambda seed: _prediction(posterior, seed)),
        _threads("8 threads fit and predict", max(1, count // 10), lambda seed: _prediction(_fit(seed), seed)),
        _processes(),
    ]


def _fit(seed: int) -> Any:
    return MODEL.fit(X, X.sum(1), steps=50, seed=seed, engine="eager", progress=False, device="cpu")


def _prediction(posterior: Any, seed: int) -> str:
    return hashlib.sha256(posterior.predict(X, num_draws=50, seed=seed).draw_means.numpy().tobytes()).hexdigest()


def _threads(what: str, count: int, work: Any) -> Row:
    seeds = [seed % count for seed in range(_THREADS * count)]
    alone = {seed: work(seed) for seed in set(seeds)}
    started, failures = time.perf_counter(), []
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
    return _row(what, len(seeds), failures, started)


def _processes() -> Row:
    command = [sys.executable, __file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    alone = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    started = time.perf_counter()
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(_PROCESSES)]
    outputs = [process.communicate()[0] for process in running]
    failures = [f"other bits: {output!r}" for output in outputs if output != alone]
    return _row("4 processes fit, one captured and one eager fit each", _PROCESSES, failures, started)


def _row(what: str, count: int, failures: list[str], started: float) -> Row:
    found = f"{count - len(failures)} identical" + (f", {len(failures)} not" if failures else "")
    return row_of(what, count, "the same bits as alone", found, failures=failures, started=started)


def main() -> None:
    """Print digests of the predictions of two fits: what each of the processes does."""
    torch.set_num_threads(1)
    for engine in ("eager", "captured"):
        posterior = MODEL.fit(X, X.sum(1), steps=60, seed=3, engine=engine, progress=False, device="cpu")
        print(_prediction(posterior, 1))


if __name__ == "__main__":
    main()
