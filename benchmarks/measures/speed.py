"""One SVI step, by engine: every engine on every case by turns. The README of benchmarks/peers says what is timed.

Rows are of a machine, and so is the page, speed-MACHINE.md with its pictures. An engine that fails stops nothing.
Environments are installed by uv when they are first used, or --python names an interpreter that has the packages of the
engines wanted.
"""

import datetime
import re
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from functools import cache
from statistics import median, quantiles
from typing import Any

import pyrobnn as bnn
from benchmarks.library import no_library
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.engines import ENGINES, Engine
from benchmarks.peers.processes import EngineError, EngineProcess
from benchmarks.peers.ratios import Results
from benchmarks.provenance import describe_machine
from benchmarks.report import speed, speed_figures
from benchmarks.rows import Row

KEY = ("machine", "case", "engine")


def machine_name(machine: Row) -> str:
    """Return a name for files from the processor and its cores."""
    slug = re.sub(r"[^a-z0-9]+", "-", str(machine["cpu"]).lower()).strip("-")
    return f"{slug}-{machine['cores']}-cores"


def summarize(rounds: list[list[float]], replicates: int) -> Row:
    """Return median and quartiles over all blocks, and the median of each round, in ms per step and replicate."""
    per_replicate = [[ms / replicates for ms in blocks] for blocks in rounds]
    every_block = [ms for blocks in per_replicate for ms in blocks]
    first, middle, third = quantiles(every_block, n=4, method="inclusive")
    return {
        "median": _rounded(middle),
        "quartiles": [_rounded(first), _rounded(third)],
        "rounds": [_rounded(median(blocks)) for blocks in per_replicate],
        "blocks": len(every_block),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


OPTIONS = {
    "cases": list(CASES),
    "engines": list(ENGINES),
    "rounds": 5,
    "seconds": 1.0,
    "machine": machine_name(describe_machine()),
    "python": "",
}
_MOST_FIRST_STEPS = 3


def jobs(options: Options) -> list[Row]:
    """Return the cases, each with the engines that take part, without those for a GPU where there is none."""
    cases = [case for case in options.cases if CASES[case].device == "cpu" or _has_gpu()]
    engines = {case: [name for name in options.engines if ENGINES[name].takes(CASES[case])] for case in cases}
    return [{"machine": options.machine, "case": case, "engine": names} for case, names in engines.items() if names]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each engine."""
    case = CASES[job["case"]]
    engines = [ENGINES[name] for name in job["engine"]]
    stamp = {"date": datetime.date.today().isoformat(), "seconds_per_round": options.seconds}
    if case.kind == "compile":
        entries = {engine.name: _measure_first_step(engine, case, options) | stamp for engine in engines}
    else:
        with no_library(), tempfile.TemporaryDirectory() as cache:
            measured = _measure_by_turns(engines, case, options, cache)
        entries = {name: entry | stamp for name, entry in measured.items()}
    return [job | {"engine": name} | entry | describe_machine() for name, entry in entries.items()]


def page(rows: list[Row], options: Options) -> Page:
    """Return the page and the pictures of a machine.

    Raises:
        InputError: no rows of it.
    """
    results: Results = {}
    for row in chosen(rows, machine=options.machine):
        results.setdefault(row["case"], {})[row["engine"]] = row
    if not results:
        known = ", ".join(dict.fromkeys(row["machine"] for row in rows))
        raise bnn.InputError(f"There are no rows of the machine {options.machine!r}. Machines with rows: {known}.")
    some = next(iter(next(iter(results.values())).values()))
    title, of = f"One SVI step, by engine: {some['cpu']}, {some['cores']} cores", f"-{options.machine}"
    lines, pictures = speed.tables(results, f"speed{of}"), speed_figures.pictures(results)
    return Page(title, [speed.ABOUT], lines, pictures, of, dpi=130)


def _measure_by_turns(engines: list[Engine], case: Case, options: Options, cache: str) -> dict[str, Row]:
    entries: dict[str, Row] = {}
    processes: dict[str, EngineProcess] = {}
    times: dict[str, list[list[float]]] = {}
    with ExitStack() as stack:
        for engine in engines:
            try:
                process = stack.enter_context(_start(engine, case, options, cache))
                entries[engine.name] = _prepare(process, case)
                processes[engine.name], times[engine.name] = process, []
            except EngineError as error:
                entries[engine.name] = {"failed": str(error)}
        for index in range(options.rounds):
            for name in _rotated(list(processes), index):
                try:
                    answer = processes[name].ask(do="time", seconds=options.seconds)
                    times[name].append(answer["ms"])
                    entries[name]["elbo_last"] = answer["elbo"]
                except EngineError as error:
                    entries[name] = {"failed": str(error)}
                    del processes[name]
        for name, process in processes.items():
            try:
                entries[name] |= summarize(times[name], case.replicates) | _memory(process)
            except EngineError as error:
                entries[name] = {"failed": str(error)}
    return entries


def _start(engine: Engine, case: Case, options: Options, cache: str) -> EngineProcess:
    environment = {"TORCHINDUCTOR_CACHE_DIR": cache, "XDG_CACHE_HOME": cache}
    if case.device == "cpu":
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    try:
        return EngineProcess(engine.command(options.python or None), threads=case.threads, environment=environment)
    except OSError as error:
        raise EngineError(str(error)) from None


def _prepare(process: EngineProcess, case: Case) -> Row:
    answer = process.ask(do="prepare", case=case.to_dict())
    return {
        "first_step_s": round(answer["seconds"], 3),
        "num_weights": answer["num_weights"],
        "elbo_first": answer["elbo"],
        "versions": process.ready["ready"],
    }


def _memory(process: EngineProcess) -> dict[str, float]:
    """Return the peak of the resident set, and its growth since all imports."""
    answer = process.ask(do="memory")
    peak, resident = answer["peak"], answer["resident"]
    return {"peak_mib": round(peak, 1), "peak_above_imports_mib": round(peak - resident, 1)}


def _measure_first_step(engine: Engine, case: Case, options: Options) -> Row:
    """Return seconds to the first step in new processes, with nothing compiled on disk and after that."""
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    entry: dict[str, Any] = {}
    try:
        for _ in range(min(options.rounds, _MOST_FIRST_STEPS)):
            with no_library(), tempfile.TemporaryDirectory() as cache:
                for values in seconds.values():
                    with _start(engine, case, options, cache) as process:
                        entry = _prepare(process, case)
                        values.append(entry.pop("first_step_s"))
    except EngineError as error:
        return {"failed": str(error)}
    return entry | {
        "cold_s": median(seconds["cold"]),
        "warm_s": median(seconds["warm"]),
        "processes": seconds,
    }


def _rotated(names: list[str], by: int) -> list[str]:
    shift = by % len(names) if names else 0
    return names[shift:] + names[:shift]


@cache
def _has_gpu() -> bool:
    """Whether the driver of a CUDA GPU answers."""
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0
