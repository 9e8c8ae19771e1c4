"""The same call, the same bits: `python -m benchmarks.same_bits`.

Default calls run in 20 processes each, every second one with nothing compiled before, and half of them beside another
busy process. The digest of each result is a row of benchmarks/results/same-bits.csv; the page counts how many differ.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
CALLS = {
    "mean_field, 57 x 4, its own length": (
        "bnn.fit(bnn.BNN(bnn.MLP(4, [20], 1)), data, bnn.SVI(), seed=0, progress=False)"
    ),
    "mean_field, 57 x 4, 4,000 steps": (
        "bnn.fit(bnn.BNN(bnn.MLP(4, [20], 1)), data, bnn.SVI(steps=4000), seed=0, progress=False)"
    ),
    "no method, 57 x 4": "bnn.fit(bnn.BNN(bnn.MLP(4, [5], 1)), data, seed=0, progress=False)",
    "BNNRegressor(), 57 x 4": "bnn.BNNRegressor(random_state=0).fit(x, y).posterior_",
}
_CODE = """
import hashlib, warnings
import numpy as np
warnings.simplefilter("ignore")
import pyrobnn as bnn
g = np.random.default_rng(0)
x = g.normal(size=(57, 4))
y = x @ [1.0, -2.0, 0.5, 0.0] + 0.3 * g.normal(size=57)
data = bnn.Data(x, y)
prediction = {call}.predict(x, num_draws=50)
print(hashlib.sha256(prediction.draw_means.numpy().tobytes()).hexdigest())
"""
_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with the process that started it, also where that is killed."""


def digest(call: str, cache: str) -> str:
    """Return the digest of what a call predicts, in a new process with this folder for compiled steps."""
    code, settings = _CODE.format(call=call), os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def run(names: list[str], times: int, path: Path) -> list[dict[str, object]]:
    """Do the calls, and write a row for each; rows of other calls stay in the file."""
    rows: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="") as file:
            rows += [row for row in csv.DictReader(file) if row["call"] not in names]
    with tempfile.TemporaryDirectory() as kept, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["call", "process", "cache", "beside", "digest", "seconds"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        for name in names:
            for process in range(times):
                is_cold, is_busy = process % 2 == 0, process % 4 > 1
                busy = subprocess.Popen([sys.executable, "-c", _BUSY]) if is_busy else None
                started = time.perf_counter()
                try:
                    with tempfile.TemporaryDirectory() as fresh:
                        found = digest(CALLS[name], fresh if is_cold else kept)
                finally:
                    if busy is not None:
                        busy.kill()
                        busy.wait()
                row: dict[str, object] = {"call": name, "process": process, "cache": "empty" if is_cold else "kept"}
                row |= {"beside": "a busy process" if is_busy else "", "digest": found[:16]}
                rows.append(row | {"seconds": round(time.perf_counter() - started, 1)})
                writer.writerow(rows[-1])
                file.flush()
                print(rows[-1], flush=True)
    return rows


def page(rows: list[dict[str, object]]) -> str:
    """Return the counts as Markdown."""
    lines = [
        "# The same call gives the same bits",
        "",
        "Made by `python -m benchmarks.same_bits`, which says what is run. Each call runs in new processes with one",
        "seed, half of them with nothing compiled before, half beside a busy process, on two cores of an x86 server.",
        "",
        "| call | processes | different results |",
        "|---|---|---|",
    ]
    for name in dict.fromkeys(row["call"] for row in rows):
        own = [row["digest"] for row in rows if row["call"] == name]
        lines.append(f"| {name} | {len(own)} | {len(set(own))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="processes for each call")
    parser.add_argument("--calls", nargs="*", default=list(CALLS), choices=list(CALLS))
    arguments = parser.parse_args()
    rows = run(arguments.calls, arguments.times, RESULTS / "same-bits.csv")
    (RESULTS / "same-bits.md").write_text(page(rows))


if __name__ == "__main__":
    main()
