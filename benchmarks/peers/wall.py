"""What a user waits for: seconds of a whole process that imports, fits and predicts, by engine and number of steps.

    uv run --group peers python benchmarks/peers/wall.py
    uv run --group peers python benchmarks/peers/wall.py --cases sine --rounds 1

Each job (`wall_jobs.py`) is a new process, from its start to its end. "pyrobnn" has an empty folder for what it
compiles; for "pyrobnn, filled" the folder holds what the same fit compiled before; JAX keeps nothing between processes.
Engines take turns in each round. Python's own bytecode of all packages lies on disk, as on any computer where they were
imported once. A row for each process goes to benchmarks/results/wall.csv as soon as it is there; rows on file are not
made again. The page benchmarks/results/wall.md is made from all of them.
"""

import argparse
import csv
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parents[1] / "results"
STEPS = {name: (100, 500, 2_000, 10_000, 50_000) for name in ("sine", "uci")} | {"mnist": (938,)}
"""938 steps are two epochs of 60,000 rows."""
MOST_STEPS = {"pyrobnn eager": 500, "pyro": 2_000}
"""Steps above which an engine does not take part: they only take longer."""
ENGINES = ("pyrobnn", "pyrobnn, filled", "pyrobnn eager", "numpyro", "pyro")
FIELDS = ("case", "steps", "engine", "round", "seconds", "processor", "parts", "date", "versions")
_LONGEST = 600
Row = dict[str, str]


def job(engine: str, case: str, steps: int, cache: str) -> tuple[float, float, list[list[object]]]:
    """Return the seconds of a process that does a job, those of processors, and what it says of its parts."""
    settings = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(Path(__file__).with_name("wall_jobs.py")), engine, case, str(steps)]
    started, before = time.perf_counter(), _processor()
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True, timeout=_LONGEST)
    return time.perf_counter() - started, _processor() - before, json.loads(done.stdout.splitlines()[-1])


def _processor() -> float:
    """Return the seconds of processors that all processes started here, and those that they started, have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(cases: list[str], engines: list[str], rounds: int, path: Path) -> None:
    """Do the jobs that have no row yet, by turns."""
    found = {(row["case"], row["steps"], row["engine"], row["round"]) for row in load(path)}
    wanted = [
        (case, steps, engine, number)
        for number in range(rounds)
        for case in cases
        for steps in STEPS[case]
        for engine in engines
        if steps <= MOST_STEPS.get(engine, steps) and (case, str(steps), engine, str(number)) not in found
    ]
    with tempfile.TemporaryDirectory() as folder, path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        for engine in {engine.split(",")[0] for _, _, engine, _ in wanted}:
            job(engine, cases[0], 1, folder)  # writes the bytecode of what it imports
        for case, steps, engine, number in wanted:
            kept = Path(folder) / f"{case}-{steps}"
            if engine == "pyrobnn, filled" and not kept.exists():
                job(engine, case, steps, str(kept))
            with tempfile.TemporaryDirectory() as fresh:
                seconds, busy, parts = job(engine, case, steps, str(kept) if engine == "pyrobnn, filled" else fresh)
            values = (case, steps, engine, number, f"{seconds:.2f}", f"{busy:.2f}", json.dumps(parts))
            row = dict(zip(FIELDS, values, strict=False))
            writer.writerow(row | {"date": datetime.date.today().isoformat(), "versions": _versions(engine)})
            file.flush()
            print(f"{case} {steps} {engine}: {seconds:.2f} s, {busy:.2f} s {parts}", file=sys.stderr, flush=True)


def _versions(engine: str) -> str:
    packages = {"numpyro": ("numpyro", "jax"), "pyro": ("pyro-ppl", "torch")}.get(engine, ("pyrobnn", "torch"))
    return " ".join(f"{name} {version(name)}" for name in packages)


def load(path: Path) -> list[Row]:
    """Return the rows on file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def page(rows: list[Row]) -> str:
    """Return the medians as Markdown, and what is asked of their ratios."""
    lines = [
        "# Time to result",
        "",
        "A new process that imports, fits and predicts: medians over rounds in which the engines take turns, on two",
        "cores of an x86 server. Made by `python benchmarks/peers/wall.py`, which says what is run. Seconds of",
        "processors are those of a process and all that it starts.",
        "",
        "Asked: at most 1.0 of NumPyro with nothing compiled, 0.4 with it, and 1.05 of the eager engine.",
    ]
    rounds = {row["round"] for row in rows}
    lines += ["", f"Rounds: {len(rounds)}."]
    for title, field in (("Seconds on the clock", "seconds"), ("Seconds of processors", "processor")):
        lines += ["", f"## {title}", ""]
        lines += [f"| case | steps | {' | '.join(ENGINES)} | pyrobnn / numpyro | filled / numpyro | pyrobnn / eager |"]
        lines += [f"|---|---|{'---|' * (len(ENGINES) + 3)}"]
        for case, all_steps in STEPS.items():
            for steps in all_steps:
                times = {engine: _median(rows, field, (case, str(steps), engine)) for engine in ENGINES}
                cells = ["" if value is None else f"{value:.1f}" for value in times.values()]
                cells += [_ratio(times, name, "numpyro") for name in ENGINES[:2]]
                cells += [_ratio(times, "pyrobnn", "pyrobnn eager")]
                lines.append(f"| {case} | {steps:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _median(rows: list[Row], field: str, wanted: tuple[str, str, str]) -> float | None:
    own = [float(row[field]) for row in rows if (row["case"], row["steps"], row["engine"]) == wanted]
    return median(own) if own else None


def _ratio(times: dict[str, float | None], one: str, other: str) -> str:
    above, below = times[one], times[other]
    return "" if above is None or below is None else f"{above / below:.2f}"


def main() -> None:
    """Measure what the arguments ask for, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="ENGINE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "wall.csv", help="the rows; the page goes beside them")
    options = parser.parse_args()
    run(options.cases, options.engines, options.rounds, options.out)
    options.out.with_suffix(".md").write_text(page(load(options.out)), encoding="utf-8")


if __name__ == "__main__":
    main()
