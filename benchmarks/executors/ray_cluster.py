"""Runs jobs on a Ray cluster, or on Ray's processes of this machine."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyrobnn as bnn
from benchmarks.suite import Job
from benchmarks.worker import TRIES, Outcome, lost


def run_on_ray(
    jobs: Iterable[Job], workers: int, address: str | None, work: Callable[[Job], Outcome]
) -> Iterator[tuple[Job, Outcome]]:
    """Yield each job with its result, in the order in which they end.

    Each job takes as many CPUs as it has threads; Ray gives the job of a dead worker to another worker. A cluster is
    sent the code of `pyrobnn` and `benchmarks`; what they depend on, and the data, must be on its nodes.

    Args:
        jobs: what to do.
        workers: jobs at once.
        address: of a running cluster, "auto" for the local cluster; without it Ray is started here, and stopped.
        work: does a job.

    Raises:
        InputError: Ray is not installed, there is no cluster at that address, or no node of it has the CPUs of a job.
    """
    try:
        import ray
    except ImportError:
        raise bnn.InputError("`--on ray` needs Ray: `uv run --extra ray ...`, or `--on local`.") from None
    jobs = list(jobs)
    threads = max(job.threads for job in jobs)
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        here = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
        settings |= {"address": "local", "num_cpus": workers * threads, "include_dashboard": False, "runtime_env": here}
    else:
        folders = [str(Path(module.__file__).parent) for module in (bnn, sys.modules["benchmarks"]) if module.__file__]
        settings |= {"address": address, "runtime_env": {"py_modules": folders}}
    try:
        ray.init(**settings)
    except (ConnectionError, ValueError) as error:
        raise bnn.InputError(f"No Ray cluster at {address!r} ({error}): start one with `ray start --head`.") from None
    try:
        largest = max(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
        if largest < threads:
            raise bnn.InputError(f"A job has {threads} threads, and the largest node of the cluster {largest} CPUs.")
        yield from _done(ray, jobs, workers, work)
    finally:
        ray.shutdown()


def _done(ray: Any, jobs: list[Job], workers: int, work: Callable[[Job], Outcome]) -> Iterator[tuple[Job, Outcome]]:
    def do(job: Job) -> Outcome:
        return work(job)

    remote = ray.remote(max_retries=TRIES - 1)(do)  # it takes functions alone, and `work` may be partial
    waiting, running = list(jobs), {}
    while waiting or running:
        while waiting and len(running) < workers:
            job = waiting.pop(0)
            running[remote.options(num_cpus=job.threads).remote(job)] = job
        (done, *_), _ = ray.wait(list(running), num_returns=1)
        job = running.pop(done)
        try:
            yield job, ray.get(done)
        except ray.exceptions.RayTaskError as error:
            yield job, lost(f"the job could not begin on its worker: {error.cause!r}")
        except ray.exceptions.RayError as error:
            yield job, lost(f"the worker died {TRIES} times: {type(error).__name__}")
