"""The results as Markdown."""

from collections.abc import Iterable
from typing import Any

from benchmarks.peers.cases import CASES, GPU, GROWTH, MAIN, Case
from benchmarks.peers.engines import ENGINES
from benchmarks.peers.ratios import REQUIREMENTS, Results
from benchmarks.rows import grid

_GIVEN = {True: "pass", False: "**fail**", None: "not measured"}


ABOUT = (
    "Medians over alternating rounds, in ms per step (predict: per call; replicates: per step and replicate). "
    "How it was measured stands in benchmarks/peers/README.md."
)


def tables(results: Results, stem: str) -> list[str]:
    """Return the tables of the rows of a machine, as lines of Markdown.

    Args:
        results: the rows.
        stem: name of the files without their endings.
    """
    parts = [
        _table(results, [case for case in MAIN if case.kind != "compile"]),
        f"![Milliseconds per step by case and engine]({stem}.png)",
        "## Required ratios",
        _ratios(results),
        "## Seconds to the first step",
        "With nothing compiled on disk at the start of each case.",
        _table(results, [case for case in MAIN if case.kind == "step"], "first_step_s"),
        _first_steps(results),
        "## Peak memory on mlp1200, MiB",
        _memory(results),
        "## Growth, ms per step (replicates: per step and replicate)",
        _table(results, GROWTH),
        f"![Milliseconds per step against size]({stem}-growth.png)",
        "## GPU, ms per step",
        _table(results, GPU),
        *_drift(results),
        "## Versions",
        _versions(results),
    ]
    return "\n\n".join(parts).split("\n")


def _table(results: Results, cases: Iterable[Case], column: str = "median") -> str:
    cases = list(cases)
    names = [name for name, engine in ENGINES.items() if any(engine.takes(case) for case in cases)]
    rows = []
    for case in cases:
        entries = results.get(case.name, {})
        cells = [_cell(entries[name], column) if name in entries else _absent(case, name) for name in names]
        rows.append([f"{case.name}: {_describe(case)}", *cells])
    return _grid(["case", *names], rows)


def _absent(case: Case, engine: str) -> str:
    return "not measured" if ENGINES[engine].takes(case) else ""


def _describe(case: Case) -> str:
    net = "-".join(map(str, case.widths)) or "LeNet-5"
    batch = f", batch {case.batch_size}" if case.batch_size else ""
    threads = f"{case.threads} thread{'s' if case.threads > 1 else ''}"
    copies = f", {case.replicates} replicates" if case.replicates > 1 else ""
    return f"{net}, N={case.num_data}{batch}{copies}, {threads}"


def _cell(entry: dict[str, Any], name: str) -> str:
    return _number(entry[name]) if name in entry else ""


def _number(value: float) -> str:
    """Return three significant digits, without an exponent."""
    digits = f"{value:#.3g}"
    return f"{value:.0f}" if "e" in digits or value >= 100 else digits


def _ratios(results: Results) -> str:
    rows = []
    for each in REQUIREMENTS:
        achieved = each.achieved(results)
        shown = "" if achieved is None else _number(achieved)
        rows.append([each.top[0], each.text, f"{each.bound} {each.number:g}", shown, _GIVEN[each.holds(results)]])
    return _grid(["case", "ratio", "required", "achieved", ""], rows)


def _first_steps(results: Results) -> str:
    entries = results.get("compile", {})
    rows = [[name, _cell(entry, "cold_s"), _cell(entry, "warm_s")] for name, entry in entries.items()]
    return _grid(["compile: first step of sine in a new process, s", "nothing on disk", "again"], rows)


def _memory(results: Results) -> str:
    entries = results.get("mlp1200", {})
    fields = ("peak_mib", "peak_above_imports_mib")
    rows = [[name, *(_cell(entry, field) for field in fields)] for name, entry in entries.items()]
    return _grid(["engine", "whole process", "above that after imports"], rows)


def _drift(results: Results) -> list[str]:
    """Return the largest ratio between rounds."""
    drifts = [
        (max(entry["rounds"]) / min(entry["rounds"]), case, engine)
        for case, entries in results.items()
        for engine, entry in entries.items()
        if "rounds" in entry
    ]
    largest, case, engine = max(drifts, default=(1.0, "", ""))
    text = f"The medians of single rounds differ by a factor of {largest:.2f} at most ({case}, {engine})."
    return ["## Drift", text] if drifts else []


def _versions(results: Results) -> str:
    versions: dict[str, str] = {}
    for name in CASES:
        for engine, entry in results.get(name, {}).items():
            if "versions" in entry:
                versions[engine] = ", ".join(f"{package} {number}" for package, number in entry["versions"].items())
    return "\n".join(f"- {engine}: {text}" for engine, text in versions.items())


def _grid(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(grid(header, rows))
