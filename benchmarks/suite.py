"""Suites and jobs: reads a TOML file as a list of jobs, each identified by what it does."""

import hashlib
import importlib
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

import pyrobnn as bnn
from benchmarks import own
from benchmarks.rows import Figure, Row, Table

TASKS = ("bandit", "mnist", "nuts", "regression")
_IS_A_PATH = re.compile(r"\w+(\.\w+)+")
_OF_THE_RUNNER = {"task": str, "title": str, "threads": int, "imports": list}


@runtime_checkable
class Task(Protocol):
    """The interface of a module of `benchmarks.tasks`."""

    jobs: Callable[[dict[str, Any]], list[dict[str, Any]]]
    """From the tables of a suite to the settings of its jobs, each with an `entry` and a `data`."""
    Settings: type[BaseModel]
    """The type in which the other functions get the settings of a job."""
    datasets: Callable[[Any], tuple[str, ...]]
    """From the settings of a job to the names of the data sets and files that it reads."""
    run: Callable[[Any, Path | None], list[Row]]
    """Do a job: from its settings, and a folder for checkpoints of long fits if there is one, to rows."""
    tables: Callable[[list[Row], list[Row]], list[Table]]
    """From rows and published numbers to tables; a module of `benchmarks.report` has this and `figures`."""
    figures: Callable[[list[Row]], list[Figure]]
    """From rows to pictures."""


@dataclass(frozen=True)
class Job:
    """A unit of work.

    Attributes:
        task: name of the task.
        threads: threads of torch that it has, since bits depend on them.
        settings: all settings of the job, in JSON values.
        data: SHA-256 of each data set and file that it reads.
        code: digest of the code that does it, and, with its name, of each module that the suite imports.
        folder: where its files and modules are, which is no part of its identity.
    """

    task: str
    threads: int
    settings: dict[str, Any]
    data: dict[str, str] = field(repr=False)
    code: str
    folder: Path = field(default=Path(), repr=False, compare=False)

    @property
    def question(self) -> str:
        """What jobs have in common that differ in the seed, the bytes of data and the code alone."""
        settings = {key: value for key, value in self.settings.items() if key not in ("seed", "seeds")}
        return _digest([self.task, self.threads, settings])

    @property
    def work(self) -> str:
        """The identity of the job whatever the code: a digest of task, threads, settings and data."""
        return _digest([self.task, self.threads, self.settings, self.data])

    @property
    def key(self) -> str:
        """The identity of the job: a digest of its work and the code."""
        return _digest([self.work, self.code])

    @property
    def seed(self) -> int | None:
        """The seed of the job, None where it has several or none."""
        return self.settings.get("seed")

    @property
    def label(self) -> str:
        """The name of the job while it runs."""
        return label_of([self])


def label_of(jobs: list[Job]) -> str:
    """Return the name of jobs of one question: entry and data, units of networks, and all seeds."""
    settings, seeds = jobs[0].settings, [str(job.seed) for job in jobs if job.seed is not None]
    units = f", {settings['units']} units" if "units" in settings else ""
    told = f", seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" if seeds else ""
    return f"{settings['entry']} on {settings['data']}{units}{told}"


@dataclass(frozen=True)
class Suite:
    """A suite file.

    Attributes:
        name: stem of the file; results go into a folder of that name.
        title: what it measures.
        task: name of the task.
        jobs: its jobs.
        folder: where the file is.
        files: the file, and the tables and modules beside it that jobs need, by their paths in the folder.
    """

    name: str
    title: str
    task: str
    jobs: tuple[Job, ...] = field(repr=False)
    folder: Path
    files: tuple[Path, ...]


def load_suite(path: str | Path) -> Suite:
    """Read a suite file.

    Raises:
        InputError: no such file, not TOML, an unknown task or key, or settings that the task refuses.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise bnn.InputError(f"The suite {path} cannot be read ({error.strerror}): see benchmarks/suites.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise bnn.InputError(f"The suite {path} is not valid TOML: {error}.") from None
    for key, kind in _OF_THE_RUNNER.items():
        if not isinstance(tables.get(key, kind()), kind):
            raise bnn.InputError(f"{path}: `{key}` must be {kind.__name__}, got {tables[key]!r}.")
    name, threads = tables.get("task", ""), tables.get("threads", 1)
    if threads < 1:
        raise bnn.InputError(f"{path}: `threads` must be at least 1, got {threads}.")
    folder = path.resolve().parent
    own.load(folder, tables)
    task = get_task(name)
    rest = {key: value for key, value in tables.items() if key not in _OF_THE_RUNNER}
    more = {key: tables[key] for key in tables if key == "imports"}
    try:
        jobs = [make_job(name, threads, settings | more, folder) for settings in task.jobs(rest)]
    except (AttributeError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise bnn.InputError(
            f"{path}: a key is missing or of the wrong kind ({what}): see benchmarks/suites."
        ) from error
    seen = {job.work: job for job in jobs}
    if not jobs or len(seen) < len(jobs):
        raise bnn.InputError(f"{path}: {'two jobs are the same' if jobs else 'no jobs'}: check entries and data.")
    read = {Path(path.name), *(Path(name) for job in jobs for name in job.data if name not in bnn.datasets.names())}
    files = (*read, *(file for files in own.files_of(folder, tables).values() for file in files))
    return Suite(path.stem, tables.get("title", path.stem), name, tuple(jobs), folder, files)


def make_job(task: str, threads: int, settings: dict[str, Any], folder: Path) -> Job:
    """Return the job of these settings, with the data and the code, also of files in a folder, as they are now."""
    settings = json.loads(json.dumps(settings))
    module = get_task(task)
    data = {name: _checksum(name, folder) for name in module.datasets(typed(module, settings, folder))}
    return Job(task, threads, settings, data, own.digest_with(task, folder, settings), folder)


def typed(task: Task, settings: dict[str, Any], folder: Path) -> BaseModel:
    """Return the settings of a job, and its folder, in the type of its task: the values that `jobs` has checked."""
    return task.Settings.model_construct(**settings, folder=folder)


def get_task(name: str) -> Task:
    """Return the module of a task: a name of `TASKS`, or the dotted path of any module.

    Raises:
        InputError: no task of that name.
    """
    if name not in TASKS and not _IS_A_PATH.fullmatch(name):
        raise bnn.InputError(f"`task` must be one of {', '.join(TASKS)}, or a module with dots, got {name!r}.")
    try:
        module: Any = importlib.import_module(name if "." in name else f"benchmarks.tasks.{name}")
    except ModuleNotFoundError as error:
        raise bnn.InputError(f"The task {name!r} cannot be imported ({error}): check its name.") from None
    if not isinstance(module, Task):
        raise bnn.InputError(f"The module {name!r} is no task: it needs {', '.join(sorted(Task.__annotations__))}.")
    return module


def _checksum(name: str, folder: Path) -> str:
    """Return the SHA-256 of a data set by its name, or of a file in a folder."""
    if name in bnn.datasets.names():
        return _known_checksum(name)
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


@cache
def _known_checksum(name: str) -> str:
    return bnn.datasets.load(name).checksum


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
