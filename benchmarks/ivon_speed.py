"""The captured step of IVON beside those of a point and of mean-field SVI, by Adam.

    uv run python -m benchmarks.ivon_speed

One step of a 784-400-400-10 network on mini-batches of 128, one thread, in milliseconds: the methods take turns of 25
steps in one process. Writes benchmarks/results/ivon-speed.md, with medians over turns and medians of the ratios within
a turn. The normal numbers of a step, one for each weight, are also timed by themselves.
"""

import statistics
import time
from pathlib import Path

import torch

import pyrobnn as bnn
from pyrobnn._core.random import seeded
from pyrobnn._torch.denormals import flushed_denormals
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.capture.captured import Captured
from pyrobnn.inference.training.start import prepare_source, start

RESULT = Path(__file__).parent / "results" / "ivon-speed.md"
TURNS, STEPS = 16, 25
METHODS = {
    "point, Adam": bnn.SVI(guide="map", batch_size=128, lr=1e-3),
    "mean-field, Adam, drawn KL": bnn.SVI(batch_size=128, lr=1e-3, steps=2000, kl="mc"),
    "mean-field, Adam, closed KL": bnn.SVI(batch_size=128, lr=1e-3, steps=2000, kl="analytic"),
    "IVON": bnn.IVON(batch_size=128, steps=2000),
}


def begin(method: bnn.SVI, data: bnn.Data) -> Captured:
    """Return a fit after its first step, captured."""
    model = bnn.BNN(bnn.MLP(784, [400, 400], 10), prior=bnn.priors.Normal(1.0), likelihood="categorical")
    source = prepare_source(model, method, data, 0)
    with seeded(0, "fit"), fast_pyro():
        _, fit = start(model, method, source, 0, "cpu")
        fit.bnn.train()
        fit.advance(1)
        return Captured([fit])


def measure() -> dict[str, list[float]]:
    """Return milliseconds a step of each turn, by method."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(10_000, 784, generator=generator), torch.randint(10, (10_000,), generator=generator)
    fits = {name: begin(method, bnn.Data(x, y)) for name, method in METHODS.items()}
    noise = torch.empty(478_410)
    found: dict[str, list[float]] = {name: [] for name in [*fits, "its noise alone"]}
    with seeded(0), fast_pyro(), flushed_denormals():
        for _ in range(TURNS):
            for name, turns in found.items():
                started = time.perf_counter()
                if name in fits:
                    fits[name].advance(STEPS)
                else:
                    [noise.normal_() for _ in range(STEPS)]
                turns.append(1000 * (time.perf_counter() - started) / STEPS)
    return found


def main() -> None:
    """Measure, and write the table."""
    found = measure()
    point = found["point, Adam"]
    lines = [__doc__.split("\n")[0], "", "| step | ms | times the point |", "| --- | --- | --- |"]
    for name, turns in found.items():
        ratio = statistics.median(one / other for one, other in zip(turns, point, strict=True))
        lines.append(f"| {name} | {statistics.median(turns):.2f} | {ratio:.2f} |")
    RESULT.write_text("# " + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
