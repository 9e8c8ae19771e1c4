"""Results on file: a line for each finished job, only ever added to."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyrobnn as bnn
from benchmarks.rows import Row
from benchmarks.suite import Job, Suite


@dataclass(frozen=True)
class Record:
    """A finished job.

    Attributes:
        job: what was done.
        rows: the result.
        manifest: machine, versions and code that did it.
    """

    job: Job
    rows: list[Row] = field(repr=False)
    manifest: dict[str, Any] = field(repr=False)


class Store:
    """The results of a suite: `rows.jsonl`, a line for each finished job, and `suite.json`, the jobs that count.

    `inputs` has copies of the suite file, and of the tables and modules beside it, from which jobs are done again.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "rows.jsonl"
        self.inputs = self.folder.resolve() / "inputs"

    def records(self) -> list[Record]:
        """Return the finished jobs in the order in which they ended; a last line that was cut short does not count.

        Raises:
            InputError: a line within the file that cannot be read.
        """
        return [self._record(number, line) for number, line in enumerate(whole_lines(self.path), 1)]

    def _record(self, number: int, line: str) -> Record:
        try:
            entry = json.loads(line)
            return Record(Job(**entry["job"], folder=self.inputs), entry["rows"], entry["manifest"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise bnn.InputError(
                f"{self.path}, line {number} cannot be read ({error}): restore the file, or remove that line and run "
                "the suite again."
            ) from None

    def plan(self, suite: Suite) -> None:
        """Write the jobs of the results, the order in which they are shown, and copies of the files that they need."""
        for file in suite.files:
            content, copy = (suite.folder / file).read_bytes(), self.inputs / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            if suite.folder != self.inputs:
                copy.write_bytes(content)
        part = self.folder / "suite.json.part"
        planned = {"title": suite.title, "works": [job.work for job in suite.jobs]}
        part.write_text(json.dumps(planned, indent=1) + "\n", encoding="utf-8")
        part.replace(self.folder / "suite.json")

    def title(self) -> str:
        """Return the title of the suite, or the name of the folder."""
        return self._planned().get("title", self.folder.resolve().name)

    def num_planned(self) -> int | None:
        """Return the number of jobs of the suite as it is now, finished or not; None where that is not on file."""
        works = self._planned().get("works")
        return None if works is None else len(works)

    def current(self) -> list[Record]:
        """Return the finished jobs of the suite as it is now, in its order, each as the last code did it.

        Jobs of earlier versions of the suite stay on file and are left out.

        Raises:
            InputError: as `records`; or no plan, and jobs of one label with different settings.
        """
        by_work = {record.job.work: record for record in self.records()}
        works = self._planned().get("works")
        if works is not None:
            return [by_work[work] for work in works if work in by_work]
        if len({record.job.label for record in by_work.values()}) < len(by_work):
            raise bnn.InputError(
                f"{self.folder} has jobs of several versions of its suite and no suite.json that says which count: run "
                "the suite again."
            )
        return list(by_work.values())

    def _planned(self) -> dict[str, Any]:
        path = self.folder / "suite.json"
        try:
            plan = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except json.JSONDecodeError as error:
            raise bnn.InputError(f"{path} cannot be read ({error}): remove it, and run the suite again.") from None
        if not isinstance(plan, dict):
            raise bnn.InputError(f"{path} cannot be read (no table): remove it, and run the suite again.")
        return plan

    def add(self, record: Record) -> None:
        """Add a finished job, so that it is on the disk when this returns."""
        entry = {"key": record.job.key, **asdict(record)}
        del entry["job"]["folder"]
        append(self.path, [json.dumps(entry, allow_nan=True)])

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runners away from these results.

        Raises:
            InputError: another process is at work on them, or they cannot be there.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise bnn.InputError(f"{self.folder} cannot be a folder of results ({error.strerror}).") from None
        with lock as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise bnn.InputError(
                    f"Another process is at work on {self.folder}: wait for it, or choose another folder with --out."
                ) from None
            yield


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file without a last one that was cut short; none where there is no file."""
    return [line.decode() for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def append(path: Path, lines: Iterable[str]) -> None:
    """Add lines to a file in place of a last one that was cut short; they are on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())


def finished(records: list[Record], jobs: tuple[Job, ...], *, any_code: bool = False) -> dict[str, Record]:
    """Return the last record of each job by its key; with `any_code` also those done by other versions of the code."""
    by_key = {record.job.key: record for record in records}
    by_work = {record.job.work: record for record in records} if any_code else {}
    last = {job.key: by_key.get(job.key) or by_work.get(job.work) for job in jobs}
    return {key: record for key, record in last.items() if record is not None}
