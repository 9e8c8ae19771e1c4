"""Break things on purpose, many times, and record the results.

    uv run python benchmarks/faults/run.py
    uv run python benchmarks/faults/run.py --parts corrupt fuzz --count 200
    uv run python benchmarks/faults/run.py --report-only

Parts may be run at different times: `benchmarks/results/faults.json` keeps each row as soon as it is there, and the
table in `benchmarks/results/faults.md` is made from all of them.
"""

import argparse
import importlib
import importlib.util
import platform
import sys
from typing import Any

import rows
import torch

PARTS = {
    "corrupt": "Saved posteriors with something broken",
    "fuzz": "Files and settings at random",
    "kill": "Processes killed while they work",
    "compiling": "Processes killed while they compile",
    "runner": "The runner of the benchmarks killed while it works",
    "soak": "Many fits in one process",
    "concurrency": "Threads and processes side by side",
}


def main() -> None:
    """Run the parts asked for, and report all that is on file."""
    options = _parse()
    torch.set_num_threads(1)
    for part in [] if options.report_only else options.parts:
        if importlib.util.find_spec(part) is None:
            print(f"{part}: there is no such part yet", file=sys.stderr)
            continue
        module = importlib.import_module(part)
        for row in module.run() if options.count is None else module.run(options.count):
            rows.keep(part, row)
    path = rows.RESULTS.with_suffix(".md")
    path.write_text(_markdown(rows.load()), encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--count", type=int, help="how often, in place of the number of each part")
    parser.add_argument("--report-only", action="store_true", help="make the table anew from the results on file")
    return parser.parse_args()


def _markdown(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [
        "# Faults",
        "",
        "What happens when files are damaged or strange, processes are killed, or much happens at once. Made by",
        f"`uv run python benchmarks/faults/run.py`, on {platform.system()} {platform.machine()}, one thread.",
    ]
    for part in (name for name in PARTS if name in found):
        lines += ["", f"## {PARTS[part]}", ""]
        lines += [
            "| what was done | times | asked | happened | holds | seconds | on |",
            "|---|---|---|---|---|---|---|",
        ]
        failures = []
        for row in found[part].values():
            cells = (row["what"], row["count"], row["asked"], row["found"], "yes" if row["holds"] else "**no**")
            lines.append(f"| {' | '.join(map(str, cells))} | {row['seconds']:.1f} | {row['date']} |")
            failures += [f"- {row['what']}: `{_one_line(failure)}`" for failure in row["failures"]]
        lines += ["", "What went wrong:", "", *failures] if failures else []
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:300]


if __name__ == "__main__":
    main()
