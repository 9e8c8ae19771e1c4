"""Runs jobs in processes of this machine: each worker is a process that does jobs one after the other."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.suite import Job
from benchmarks.worker import TRIES, Outcome, lost

_PATIENCE = 10.0


def run_locally(jobs: Iterable[Job], workers: int, work: Callable[[Job], Outcome]) -> Iterator[tuple[Job, Outcome]]:
    """Yield each job with its result, in the order in which they end.

    A worker that dies is replaced, and its job begins anew, at most three times in all. Workers end when this process
    does, however it ends.

    Args:
        jobs: what to do.
        workers: number of processes.
        work: does a job.
    """
    waiting = [(job, 1) for job in jobs]
    context = multiprocessing.get_context("spawn")
    staff = [_Worker(context, work) for _ in range(min(workers, len(waiting)))]
    try:
        while waiting or any(worker.task for worker in staff):
            for worker in staff:
                if waiting and worker.task is None:
                    worker.give(*waiting.pop(0))
            busy = {worker.pipe: worker for worker in staff if worker.task}
            for pipe in wait(list(busy)):
                worker = busy[pipe]
                job, tries = worker.task
                outcome = worker.result()
                if outcome is None:
                    staff[staff.index(worker)] = _Worker(context, work)
                    if tries < TRIES:
                        waiting.insert(0, (job, tries + 1))
                        continue
                    outcome = lost(f"the worker died {TRIES} times, exit code {worker.exit_code}")
                yield job, outcome
    finally:
        for worker in staff:
            worker.end()


class _Worker:
    """A process, and the job that it has."""

    def __init__(self, context: Any, work: Callable[[Job], Outcome]) -> None:
        self.task: Any = None
        self.pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, os.getpid(), work), daemon=True)
        self._process.start()
        far.close()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def give(self, job: Job, tries: int) -> None:
        self.task = (job, tries)
        with suppress(OSError):  # it died: the end of the pipe says so to whoever waits for the result
            self.pipe.send(job)

    def result(self) -> Outcome | None:
        """Return the outcome of the job, or None if the worker died."""
        self.task = None
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return None

    def end(self) -> None:
        """Let an idle worker end by itself; terminate a busy worker."""
        self.pipe.close()
        if self.task is None:
            self._process.join(_PATIENCE)
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, parent: int, work: Callable[[Job], Outcome]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(work(job))


def _end_with(parent: int) -> None:
    """End this process when its parent changes, because the runner was killed."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
