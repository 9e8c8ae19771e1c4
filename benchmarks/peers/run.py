"""Run every engine on every case by turns, and write results, tables and figures.

    uv run python benchmarks/peers/run.py --cases sine mlp400 --engines pyrobnn numpyro_scan
    uv run python benchmarks/peers/run.py --report-only

See README.md in this folder.
"""

import argparse
import datetime
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from statistics import median
from typing import Any

import results
from cases import CASES, Case
from engines import ENGINES, Engine
from workers import Worker, WorkerError

_MOST_COMPILATIONS = 3


def main() -> None:
    """Measure what the arguments ask for, and report all that is on file for the machine."""
    options = _parse()
    machine = results.describe_machine()
    path = results.FOLDER / f"speed-{options.machine or results.machine_name(machine)}.json"
    found = results.load(path)
    if not options.report_only:
        found["machine"] = machine
        for name in options.cases:
            found["cases"].setdefault(name, {"case": CASES[name].to_dict(), "engines": {}})
            found["cases"][name]["engines"].update(_measure(CASES[name], options))
            results.save(path, found)
    import figure
    import report

    path.with_suffix(".md").write_text(report.markdown(found, path.stem), encoding="utf-8")
    figure.draw(found, path)
    _say(f"wrote {path.with_suffix('.md')}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="ENGINE")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine (5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (1.0)")
    parser.add_argument("--machine", help="name of the machine in the names of the files")
    parser.add_argument("--python", help="run all engines with this interpreter, which has their packages, without uv")
    parser.add_argument("--report-only", action="store_true", help="make tables and figures anew from the results")
    return parser.parse_args()


def _measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Return what each engine did in a case, by its name."""
    engines = [ENGINES[name] for name in options.engines if ENGINES[name].takes(case)]
    if case.device == "cuda" and not _has_gpu():
        return {engine.name: {"status": "not measured", "message": "no GPU"} for engine in engines}
    with tempfile.TemporaryDirectory() as cache:
        if case.kind == "compile":
            return {engine.name: _stamped(_measure_compilation(engine, case, options), options) for engine in engines}
        return {
            name: _stamped(entry, options) for name, entry in _measure_by_turns(engines, case, options, cache).items()
        }


def _measure_by_turns(
    engines: list[Engine], case: Case, options: argparse.Namespace, cache: str
) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    workers: dict[str, Worker] = {}
    times: dict[str, list[list[float]]] = {}
    with ExitStack() as stack:
        for engine in engines:
            try:
                worker = stack.enter_context(_start(engine, case, options, cache))
                entries[engine.name] = _prepare(worker, case)
                workers[engine.name], times[engine.name] = worker, []
                _say(f"{case.name}: {engine.name} made its first step in {entries[engine.name]['first_step_s']} s")
            except WorkerError as error:
                entries[engine.name] = _failure(case, engine.name, error)
        for index in range(options.rounds):
            for name in _rotated(list(workers), index):
                try:
                    answer = workers[name].ask(do="time", seconds=options.seconds)
                    times[name].append(answer["ms"])
                    entries[name]["elbo_last"] = answer["elbo"]
                except WorkerError as error:
                    entries[name] = _failure(case, name, error)
                    del workers[name]
        for name, worker in workers.items():
            try:
                entries[name] |= results.summarize(times[name], case.replicates) | _memory(worker)
                _say(f"{case.name}: {name} takes {entries[name]['median']} ms")
            except WorkerError as error:
                entries[name] = _failure(case, name, error)
    return entries


def _start(engine: Engine, case: Case, options: argparse.Namespace, cache: str) -> Worker:
    environment = {"TORCHINDUCTOR_CACHE_DIR": cache}
    if case.device == "cpu":
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    try:
        return Worker(engine.command(options.python), threads=case.threads, environment=environment)
    except OSError as error:
        raise WorkerError("failed", str(error)) from None


def _prepare(worker: Worker, case: Case) -> dict[str, Any]:
    answer = worker.ask(do="prepare", case=case.to_dict())
    return {
        "status": "measured",
        "first_step_s": round(answer["seconds"], 3),
        "num_weights": answer["num_weights"],
        "elbo_first": answer["elbo"],
        "versions": worker.ready["ready"],
    }


def _memory(worker: Worker) -> dict[str, float]:
    """Return the peak of the resident set, and how far it lies above that after all imports."""
    answer = worker.ask(do="memory")
    peak, resident = answer["peak"], answer["resident"]
    return {"peak_mib": round(peak, 1), "peak_above_imports_mib": round(peak - resident, 1)}


def _measure_compilation(engine: Engine, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds to the first step in new processes, with an empty compile cache and with a filled one."""
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    entry: dict[str, Any] = {}
    try:
        for _ in range(min(options.rounds, _MOST_COMPILATIONS)):
            with tempfile.TemporaryDirectory() as cache:
                for state, values in seconds.items():
                    with _start(engine, case, options, cache) as worker:
                        entry = _prepare(worker, case)
                        values.append(entry.pop("first_step_s"))
                        _say(f"{case.name}: {engine.name} {state} {values[-1]} s")
    except WorkerError as error:
        return _failure(case, engine.name, error)
    return entry | {
        "cold_s": median(seconds["cold"]),
        "warm_s": median(seconds["warm"]),
        "processes": seconds,
    }


def _failure(case: Case, engine: str, error: WorkerError) -> dict[str, Any]:
    _say(f"{case.name}: {engine} {error.status}: {error}")
    return {"status": error.status, "message": str(error)}


def _stamped(entry: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Add when an entry was measured, and with which settings."""
    today = datetime.date.today().isoformat()
    return entry | {"date": today, "seconds_per_round": options.seconds}


def _rotated(names: list[str], by: int) -> list[str]:
    shift = by % len(names) if names else 0
    return names[shift:] + names[:shift]


def _has_gpu() -> bool:
    """Whether the driver of a CUDA GPU answers."""
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
