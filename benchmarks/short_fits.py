"""The cost of the choice of the engine for fits of a few steps: engine="auto" against "eager", by turns.

    uv run python benchmarks/short_fits.py

Every fit runs in a new process, once with an empty compile cache for each process and once with one that holds the
step. The clock runs from the call of `fit` to its end. Writes benchmarks/results/short-fits.md.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STEPS = (100, 1000, 4000)
ROUNDS = 3
SCRIPT = """
import json, sys, time
import torch
import pyrobnn as bnn
torch.set_num_threads(1)
engine, steps = sys.argv[1], int(sys.argv[2])
x = torch.linspace(-0.5, 0.5, 32)[:, None]
model = bnn.BNN(bnn.MLP(1, [20, 20], 1), prior=bnn.priors.ScaleMixture(), likelihood=bnn.likelihoods.Gaussian(0.1))
method = bnn.SVI(steps=steps)
started = time.perf_counter()
posterior = bnn.fit(model, method, bnn.Data(x, torch.sin(6.28 * x[:, 0])), engine=engine, seed=0, progress=False)
print(json.dumps([time.perf_counter() - started, posterior.info["engine"]["used"]]))
"""


def time_fit(engine: str, steps: int, cache: Path) -> tuple[float, str]:
    """Return the seconds of a fit in a new process and the engine that it ended with."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", SCRIPT, engine, str(steps)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    seconds, used = json.loads(output)
    return seconds, used


def measure(steps: int, warm: Path | None) -> str:
    """Return a row of the table: medians over rounds in which the engines take turns."""
    seconds: dict[str, list[float]] = {"eager": [], "auto": []}
    used = ""
    for _ in range(ROUNDS):
        for engine, times in seconds.items():
            with tempfile.TemporaryDirectory() as empty:
                found, used = time_fit(engine, steps, warm or Path(empty))
            times.append(found)
    eager, auto = (statistics.median(times) for times in seconds.values())
    row = f"| {steps} | {'filled' if warm else 'empty'} | {eager:.2f} | {auto:.2f} | {used} | {auto / eager:.2f} |"
    print(row, flush=True)
    return row


def main() -> None:
    """Measure all and write the table."""
    lines = [
        f"1-20-20-1, 32 examples, one thread; seconds of `fit`, medians of {ROUNDS} new processes by turns.",
        "",
        "| steps | compile cache | eager | auto | auto chose | auto / eager |",
        "|---|---|---|---|---|---|",
    ]
    lines += [measure(steps, None) for steps in STEPS]
    with tempfile.TemporaryDirectory() as warm:
        time_fit("captured", 10, Path(warm))
        lines += [measure(steps, Path(warm)) for steps in STEPS]
    (HERE / "results" / "short-fits.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
