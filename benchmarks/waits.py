"""How long a prediction waits for another thread that fits: seconds, by what that thread does.

    uv run python benchmarks/waits.py [name ...]

Each method runs in a new process, with nothing compiled before, while the main thread predicts again and again. Prints
a table.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

PAUSE = 0.05
"""Seconds between two predictions."""
METHODS = {
    "eager": 'bnn.SVI(steps=3000), "eager"',
    "captured": 'bnn.SVI(steps=300_000), "captured"',
    "replicates": 'bnn.Ensemble(bnn.SVI(steps=500), members=10), "eager"',
    "captured replicates": 'bnn.Ensemble(bnn.SVI(steps=100_000), members=10), "captured"',
    "SWAG": 'bnn.SWAG(bnn.SVI(guide="map", steps=500, batch_size=32), steps=500, lr=1e-5), "eager"',
    "NUTS": 'bnn.NUTS(warmup=50, num_draws=50, num_chains=2, init="net"), "eager"',
    "HMC": 'bnn.HMC(warmup=50, num_draws=50, num_chains=2, init="net"), "eager"',
    "SGLD": 'bnn.SGLD(step_size=1e-5, burn_in=1000, num_draws=100, num_chains=4), "eager"',
    "Laplace": 'bnn.SVI(guide="laplace", steps=200), "eager"',
    "Laplace, full": 'bnn.SVI(guide=bnn.guides.Laplace(structure="full"), steps=200), "eager"',
    "MarginalLikelihood": 'bnn.MarginalLikelihood(bnn.SVI(guide="laplace", steps=200), rounds=2), "eager"',
    "EvidenceFramework": 'bnn.EvidenceFramework(starts=2, rounds=3), "eager"',
}
"""What the other thread does, with its engine."""
ROWS = {"Laplace": 5000, "Laplace, full": 5000, "MarginalLikelihood": 5000, "EvidenceFramework": 500}
"""Examples that it fits; 100 of others."""


def waits(method: Any, engine: str, rows: int) -> tuple[list[float], float]:
    """Return the seconds of each prediction during a fit, and of one without."""
    import torch

    import pyrobnn as bnn

    torch.set_num_threads(1)
    x = torch.linspace(-1, 1, rows)[:, None]
    y = torch.sin(6.28 * x[:, 0]) + 0.1 * torch.randn(rows)
    model = bnn.BNN(
        bnn.MLP(1, [50], 1),
        likelihood=bnn.likelihoods.Gaussian("learned" if "Evid" in str(method) else 0.1),
        prior=bnn.priors.Normal(1.0),
    )
    posterior = bnn.fit(model, (x, y), bnn.SVI(steps=10), seed=0, engine="eager", progress=False)

    def predict() -> float:
        started = time.perf_counter()
        posterior.predict(x[:100], num_draws=100, seed=1)
        return time.perf_counter() - started

    alone = statistics.median(predict() for _ in range(20))
    arguments = {"seed": 0, "engine": engine, "progress": False}
    thread = threading.Thread(target=bnn.fit, args=(model, method, (x, y)), kwargs=arguments)
    thread.start()
    found = []
    while thread.is_alive():
        found.append(predict())
        time.sleep(PAUSE)
    return found, alone


def main(names: list[str]) -> None:
    """Measure, and print the table."""
    print("| during | predictions | alone | median | longest |\n|---|---|---|---|---|")
    for name in names or METHODS:
        script = (
            "import json, sys; sys.path.insert(0, 'benchmarks'); import waits; import pyrobnn as bnn; "
            f"print(json.dumps(waits.waits({METHODS[name]}, {ROWS.get(name, 100)})))"
        )
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder}
            done = subprocess.run([sys.executable, "-c", script], env=environment, check=True, stdout=subprocess.PIPE)
        found, alone = json.loads(done.stdout.splitlines()[-1])
        middle, longest = statistics.median(found), max(found)
        print(f"| {name} | {len(found)} | {alone:.3f} | {middle:.3f} | {longest:.3f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
