"""Does a job, in whichever process calls it."""

import json
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import own
from benchmarks.provenance import git_commit, manifest
from benchmarks.rows import Row
from benchmarks.suite import Job, get_task, typed

TRIES = 3
"""Times that a job is tried if its worker dies."""


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Attributes:
        rows: its rows; None if it failed.
        manifest: machine, versions and code that did it.
        fault: why it failed, in a line; empty if it did not.
        details: where it failed.
    """

    rows: list[Row] | None = field(repr=False)
    manifest: dict[str, Any] = field(repr=False)
    fault: str = ""
    details: str = field(default="", repr=False)


def do(job: Job, *, keep: Path | None = None) -> Outcome:
    """Do a job with its number of threads; an error becomes the result and is not raised.

    Args:
        job: what to do.
        keep: folder for checkpoints of long fits, which go on there after an interruption; None for none.
    """
    code = own.digest_with(job.task, job.folder, job.settings)
    if code != job.code:
        return lost(f"the worker has other code ({code}) than the runner ({job.code}): install the same everywhere")
    commit, started = git_commit(), time.perf_counter()
    try:
        own.load(job.folder, job.settings)
        task = get_task(job.task)
        torch.set_num_threads(job.threads)
        rows = json.loads(json.dumps(task.run(typed(task, job.settings, job.folder), keep)))
    except Exception as error:
        return Outcome(None, {}, f"{type(error).__name__}: {str(error).partition('\n')[0]}", traceback.format_exc())
    return Outcome(rows, manifest(job.threads, time.perf_counter() - started, commit))


def lost(why: str) -> Outcome:
    """Return the outcome of a job without a result."""
    return Outcome(None, {}, why)
