"""Mean-field on the published splits of UCI sets, in original units: one row a split, and a table of the means.

    uv run python benchmarks/uci_mean_field.py energy yacht

Writes benchmarks/results/uci-mean-field.csv and .md. The settings stand in uci_mean_field.toml and are the same for
every set and split; the seed is the number of the split, so that the mean is over starting weights too.
"""

import csv
import math
import sys
import time
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).parent
SPEC = HERE / "uci_mean_field.toml"
SCORES = ("rmse", "log_likelihood", "coverage_95")


def run_split(job: tuple[str, int]) -> dict[str, str | int | float]:
    """Fit and score one split, as `pyrobnn fit` does."""
    import pyrobnn as bnn
    from pyrobnn.spec import RunSpec

    name, split = job
    spec = RunSpec.from_toml(SPEC, overrides=(f"data.name={name}", f"data.split={split}", f"fit.seed={split}"))
    prepared = spec.prepare()
    started = time.perf_counter()
    posterior = bnn.fit(prepared.bnn, prepared.spec.method, prepared.train, seed=spec.fit.seed, progress=False)
    seconds = time.perf_counter() - started
    scores = bnn.score(posterior.predict(prepared.test.x, num_draws=spec.predict.num_draws), prepared.test.y)
    row: dict[str, str | int | float] = {"data": name, "split": split, "seed": spec.fit.seed}
    return row | {key: round(scores[key].value, 6) for key in SCORES} | {"seconds": round(seconds, 1)}


def summarize(rows: list[dict[str, str | int | float]]) -> str:
    """Return the mean and standard error over splits of each score, as a Markdown table."""
    lines = ["| data | splits | " + " | ".join(SCORES) + " |", "|---|---|" + "---|" * len(SCORES)]
    for name in dict.fromkeys(str(row["data"]) for row in rows):
        own = [row for row in rows if row["data"] == name]
        cells = [_mean_and_stderr([float(row[key]) for row in own]) for key in SCORES]
        lines.append(f"| {name} | {len(own)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean_and_stderr(values: list[float]) -> str:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return f"{mean:.3f} ± {math.sqrt(variance / len(values)):.3f}"


def main(names: list[str]) -> None:
    """Run all splits of the sets in two processes, and write the results."""
    from pyrobnn import datasets

    jobs = [(name, split) for name in names for split in range(datasets.load(name).num_splits)]
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    rows = []
    columns = ("data", "split", "seed", *SCORES, "seconds")
    with get_context("spawn").Pool(2) as pool, (results / "uci-mean-field.csv").open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in pool.imap(run_split, jobs):
            rows.append(row)
            writer.writerow(row)
            file.flush()
            print(row, flush=True)
    table = summarize(rows)
    (results / "uci-mean-field.md").write_text(table + "\n", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main(sys.argv[1:] or ["energy", "yacht"])
