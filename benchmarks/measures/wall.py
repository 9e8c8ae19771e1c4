"""What a user waits for: seconds of a whole process that imports, fits and predicts, by engine and number of steps.

    uv run --group peers python -m benchmarks measure wall
    uv run --group peers python -m benchmarks measure wall --cases sine --rounds 1

Each job (`peers/whole_fits.py`) is a new process, from its start to its end. "pyrobnn" finds the library that runs
recorded steps; "pyrobnn, first" is the first fit without it, which compiles it. JAX keeps nothing between processes.
Engines take turns in each round. Python's own bytecode of all packages lies on disk, as on any computer where they were
imported once.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.library import no_library
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.peers import whole_fits
from benchmarks.rows import Row, grid
from benchmarks.timing import timed

KEY = ("case", "steps", "engine", "round")
STEPS = {name: (100, 500, 2_000, 10_000, 50_000) for name in ("sine", "uci")} | {"mnist": (938,)}
"""938 steps are two epochs of 60,000 rows."""
MOST_STEPS = {"pyrobnn eager": 500, "pyro": 2_000}
"""Steps above which an engine does not take part: they only take longer."""
ENGINES = ("pyrobnn", "pyrobnn, first", "pyrobnn eager", "numpyro", "pyro")
OPTIONS = {"cases": list(STEPS), "engines": list(ENGINES), "rounds": 3}
_ROOT = Path(__file__).parents[2]
_LONGEST = 600


def whole_fit(engine: str, case: str, steps: int, folder: str) -> tuple[float, float, list[list[object]]]:
    """Return the seconds of a process that fits and predicts, its CPU seconds, and the seconds of its parts."""
    settings = os.environ | {"XDG_CACHE_HOME": folder, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", whole_fits.__name__, engine, case, str(steps)]
    done, seconds, busy = timed(
        lambda: subprocess.run(
            command, env=settings, capture_output=True, text=True, check=True, cwd=_ROOT, timeout=_LONGEST
        )
    )
    return seconds, busy, json.loads(done.stdout.splitlines()[-1])


@cache
def used(engine: str) -> "tempfile.TemporaryDirectory[str]":
    """Return the cache folder of an engine that has run here; the bytecode of its imports is on disk too."""
    folder = tempfile.TemporaryDirectory()
    with no_library():
        whole_fit(engine, "sine", 500, folder.name)
    return folder


def jobs(options: Options) -> list[Row]:
    """Return the processes, by turns."""
    return [
        {"case": case, "steps": steps, "engine": engine, "round": number}
        for number in range(options.rounds)
        for case in options.cases
        for steps in STEPS[case]
        for engine in options.engines
        if steps <= MOST_STEPS.get(engine, steps)
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Return the row of a process."""
    case, steps, engine = job["case"], job["steps"], job["engine"]
    folder_of_used = used(engine.split(",")[0]).name
    with no_library(), tempfile.TemporaryDirectory() as fresh:
        folder = fresh if engine == "pyrobnn, first" else folder_of_used
        seconds, busy, parts = whole_fit(engine, case, steps, folder)
    row = {"seconds": round(seconds, 2), "processor": round(busy, 2), "parts": parts}
    return [job | row | {"date": datetime.date.today().isoformat(), "versions": _versions(engine)}]


def _versions(engine: str) -> str:
    packages = {"numpyro": ("numpyro", "jax"), "pyro": ("pyro-ppl", "torch")}.get(engine, ("pyrobnn", "torch"))
    return " ".join(f"{name} {version(name)}" for name in packages)


def page(rows: list[Row], options: Options) -> Page:
    """Return the medians and their ratios."""
    about = (
        "A new process that imports, fits and predicts: medians over rounds in which the engines take turns.",
        "Seconds of processors are those of a process and all that it starts.",
        "",
        "Rounds and dates: " + "; ".join(map(partial(_rounds, rows), ENGINES)) + ".",
    )
    lines: list[str] = []
    for title, field in (("Seconds on the clock", "seconds"), ("Seconds of processors", "processor")):
        cells = []
        for case, steps in ((case, steps) for case, all_steps in STEPS.items() for steps in all_steps):
            same = {name: chosen(rows, case=case, steps=steps, engine=name) for name in ENGINES}
            times = {name: median(row[field] for row in timed) for name, timed in same.items() if timed}
            shown = [f"{times[name]:.1f}" if name in times else "" for name in ENGINES]
            pairs = [("pyrobnn", "numpyro"), ("pyrobnn, first", "numpyro"), ("pyrobnn", "pyrobnn eager")]
            cells.append([case, f"{steps:,}", *shown, *(_ratio(times, *pair) for pair in pairs)])
        header = ["case", "steps", *ENGINES, "pyrobnn / numpyro", "first / numpyro", "pyrobnn / eager"]
        lines += [f"## {title}", "", *grid(header, cells), ""]
    return Page("Time to result", about, lines[:-1])


def _rounds(rows: list[Row], engine: str) -> str:
    same = chosen(rows, engine=engine)
    return f"{engine} {len({row['round'] for row in same})}, {', '.join(sorted({row['date'] for row in same}))}"


def _ratio(times: dict[str, float], ours: str, theirs: str) -> str:
    return f"{times[ours] / times[theirs]:.2f}" if {ours, theirs} <= times.keys() else ""
