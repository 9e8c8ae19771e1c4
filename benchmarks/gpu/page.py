"""The files of the GPU kit: all rows as JSON, and tables of them as Markdown."""

import json
import os
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.report.parts import grid

_FIRST, _LAST = ("name", "status"), ("seconds", "error")


def write(out: Path, results: dict[str, Any]) -> None:
    """Write results to `out` with the suffixes .json and .md, each replaced whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(results, indent=1) + "\n"), (".md", page(results))):
        draft = out.with_suffix(suffix + ".part")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, out.with_suffix(suffix))


def page(results: dict[str, Any]) -> str:
    """Return the rows as Markdown, a table for each part."""
    machine, rows = results["machine"], results["rows"]
    counts = {status: sum(row["status"] == status for row in rows) for status in {row["status"] for row in rows}}
    lines = [
        f"# The GPU kit on {machine['gpu'] or machine['cpu']}{', rehearsed' if results['rehearsal'] else ''}",
        "",
        "Made by `python -m benchmarks.gpu`; benchmarks/gpu/parts says what a row measures. "
        f"torch {machine['torch']}, Python {machine['python']}. Rows: "
        + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        + ".",
    ]
    for part, group in groupby(sorted(rows, key=lambda row: str(row["part"])), key=lambda row: row["part"]):
        lines += ["", f"## {part}", "", *_table(list(group))]
    return "\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    found = dict.fromkeys(key for row in rows for key in row if key not in (*_FIRST, *_LAST, "part"))
    columns = [*_FIRST, *found, *_LAST]
    cells = [[_cell(row.get(column, "")) for column in columns] for row in rows]
    return grid(columns, cells)


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")
