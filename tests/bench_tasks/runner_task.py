"""A task whose jobs cost nothing: what they do is said by their settings."""

import os
import signal
from pathlib import Path

from pydantic import BaseModel

from benchmarks.rows import Table


class Settings(BaseModel):
    entry: str
    number: int
    log: str
    dies: int | None = None
    dies_always: int | None = None
    fails: int | None = None


def jobs(suite):
    return [
        {"entry": f"job {number}", "data": "none", "number": number, **suite["settings"]}
        for number in range(suite["count"])
    ]


def datasets(settings):
    return ()


def run(settings, keep):
    if settings.dies == settings.number and _first_time(settings):
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.dies_always == settings.number:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.fails == settings.number:
        raise ValueError("not this one\nnor that")
    with Path(settings.log).open("a") as file:
        file.write(f"{settings.number}\n")
    return [{"entry": settings.entry, "data": "none", "seed": 0, "value": settings.number / 7, "seconds": 0.0}]


def _first_time(settings):
    mark = Path(settings.log).with_suffix(".died")
    found = mark.exists()
    mark.touch()
    return not found


def tables(rows, published):
    return [Table("Values", "None.", ["entry", "value"], [[row["entry"], str(row["value"])] for row in rows])]


def figures(rows):
    return []
