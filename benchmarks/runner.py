"""Runs a suite: does the jobs that are not finished, and keeps each as soon as it is done."""

import sys
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import pyrobnn as bnn
from benchmarks import RESULTS
from benchmarks.processes import run_locally
from benchmarks.store import Record, Store, finished
from benchmarks.suite import Suite, make_job
from benchmarks.worker import do


def run_suite(
    suite: Suite,
    *,
    out: str | Path | None = None,
    workers: int = 1,
    any_code: bool = False,
    only: str = "",
    keep: Path | None = None,
) -> dict[str, str]:
    """Do the jobs of a suite that are not finished, and return why those that failed did, by label and key.

    A job is finished when its line is in `rows.jsonl`; it is not done again. So the same command goes on after a kill.

    Args:
        suite: what to run.
        out: folder of the results, `benchmarks/results/<name of the suite>` if not given.
        workers: number of jobs at a time.
        any_code: count jobs as finished that another version of the code has done.
        only: run only jobs whose label contains this text.
        keep: folder for checkpoints of long fits, which go on there after an interruption.

    Raises:
        InputError: no workers, no job of that label, or results that another runner is at work on.
    """
    if workers < 1:
        raise bnn.InputError(f"The number of workers must be at least 1, got {workers}.")
    jobs = tuple(job for job in suite.jobs if only in job.label)
    if not jobs:
        raise bnn.InputError(f"No job has {only!r} in its label. Labels: {', '.join(job.label for job in suite.jobs)}.")
    store = Store(out or RESULTS / suite.name)
    failures = {}
    with store.alone():
        store.plan(suite)
        done = finished(store.records(), jobs, any_code=any_code)
        open_jobs = [job for job in jobs if job.key not in done]
        with _progress() as progress:
            bar = progress.add_task(suite.name, total=len(jobs), completed=len(done), failed="")
            for job, outcome in run_locally(open_jobs, workers, partial(do, keep=keep and keep.resolve())):
                if outcome.rows is None:
                    failures[f"{job.label} ({job.key})"] = outcome.fault
                    progress.update(bar, failed=f"[red]{len(failures)} failed")
                    progress.console.print(f"{job.label} failed: {outcome.fault}\n{outcome.details}", markup=False)
                else:
                    store.add(Record(job, outcome.rows, outcome.manifest))
                    progress.console.print(f"{job.label}: {outcome.manifest['seconds']:.0f} s", markup=False)
                progress.advance(bar)
    return failures


def rerun(record: Record) -> Record:
    """Do a finished job again from what is on file, and return the record of now.

    Raises:
        InputError: the job fails, or its data differ from the record.
    """
    job = make_job(record.job.task, record.job.threads, record.job.settings, record.job.folder)
    if job.data != record.job.data:
        raise bnn.InputError(f"{job.label}: the data differ from those of the record: {job.data}, {record.job.data}.")
    outcome = do(job)
    if outcome.rows is None:
        raise bnn.InputError(f"{job.label} failed: {outcome.fault}\n{outcome.details}")
    return Record(job, outcome.rows, outcome.manifest)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"))
    console = Console(file=sys.stderr)
    return Progress(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console)
