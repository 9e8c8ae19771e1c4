"""What happens when files are damaged, processes are killed, and many threads or processes work at once."""

import dataclasses
import importlib
import platform
import time
from collections.abc import Iterator

import torch

from benchmarks.measures.harness import Options, Page, Row, chosen, each
from benchmarks.report.parts import grid

KEY = ("part", "what")
PARTS = {
    "corrupt": ("damaged_posteriors", "Saved posteriors with something broken"),
    "fuzz": ("fuzz", "Files and settings at random"),
    "kill": ("killed_fits", "Processes killed while they work"),
    "compiling": ("killed_compilers", "Processes killed while they compile"),
    "runner": ("killed_suites", "The runner of the benchmarks killed while it works"),
    "soak": ("memory_growth", "Many fits in one process"),
    "concurrency": ("concurrency", "Threads and processes side by side"),
}
"""Module of `benchmarks.faults`, and heading."""
OPTIONS = {"parts": list(PARTS), "count": {"type": int, "help": "how often, in place of the number of each part"}}
jobs = each("part", "parts")


def run(job: Row, options: Options) -> Iterator[Row]:
    """Yield the rows of a part."""
    torch.set_num_threads(1)
    module = importlib.import_module(f"benchmarks.faults.{PARTS[job['part']][0]}")
    for row in module.run() if options.count is None else module.run(options.count):
        yield job | dataclasses.asdict(row) | {"date": time.strftime("%Y-%m-%d")}


def page(rows: list[Row], options: Options) -> Page:
    """Return a table for each part, and the failures."""
    about = (
        "What happens when files are damaged or strange, processes are killed, or much happens at once. On "
        f"{platform.system()} {platform.machine()}, one thread."
    )
    lines: list[str] = []
    columns = ("what", "count", "asked", "found", "holds", "seconds", "date")
    header = ["what was done", "times", "asked", "happened", "holds", "seconds", "on"]
    for part, (_, title) in PARTS.items():
        if own := chosen(rows, part=part):
            shown = [
                row | {"holds": "yes" if row["holds"] else "**no**", "seconds": f"{row['seconds']:.1f}"} for row in own
            ]
            cells = [[row[column] for column in columns] for row in shown]
            lines += [f"## {title}", "", *grid(header, cells), ""]
            failures = [f"- {row['what']}: `{_one_line(text)}`" for row in own for text in row["failures"]]
            lines += ["What went wrong:", "", *failures, ""] if failures else []
    return Page("Faults", [about], lines[:-1])


def _one_line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:300]
