"""Every guide and prior by its name beside the evidence framework: from one start, with nothing else set.

A fit of a name is to be close to that of the evidence framework, where all of them begin, or to say that it is not.
"""

import time
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.datasets import make_friedman1

import pyrobnn as bnn
from benchmarks.measures.defaults import judge
from benchmarks.measures.harness import Options, Page, chosen, short
from benchmarks.problems import Problem, cubic
from benchmarks.rows import Row, grid, grouped

KEY = ("problem", "kind", "name", "seed")
FRAMEWORK = ("method", "evidence_framework")
CLOSE = {"guide": 0.25, "prior": 0.3}
"""Nats a row that a name may be behind the evidence framework."""
COVERAGE = 0.90, 0.98


def _products(seed: int) -> Problem:
    g = np.random.default_rng(seed)
    x = g.normal(size=(1150, 5))
    y = 3 + 10 * (x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.5 * x[:, 3] + 0.3 * g.normal(size=len(x)))
    return Problem(x[:150], y[:150], x[150:], y[150:], None, [20], "gaussian")


def _friedman(seed: int) -> Problem:
    x, y = make_friedman1(1100, n_features=5, noise=1.0, random_state=seed)
    return Problem(x[:100], y[:100], x[100:], y[100:], None, [20], "gaussian")


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "products, 150 rows": _products,
    "Friedman 1, 100 rows": _friedman,
    "cubic, 20 rows": lambda seed: cubic(seed, "gaussian")._replace(hidden=[20]),
}
NAMES = [
    FRAMEWORK,
    *(
        ("guide", name)
        for name in ("mean_field", "laplace", "radial", "matrix_normal", "full_rank", "low_rank", "flow")
    ),
    *(("prior", name) for name in ("student_t", "laplace", "scale_mixture", "spike_and_slab", "hierarchical")),
    *(("prior", name) for name in ("ard", "horseshoe", "regularized_horseshoe")),
]
OPTIONS = {"seeds": 5, "names": [name for _, name in NAMES], "problems": list(PROBLEMS)}


def jobs(options: Options) -> list[Row]:
    """Return the names on each problem, seed by seed."""
    return [
        {"problem": problem, "kind": kind, "name": name, "seed": seed}
        for seed in range(options.seeds)
        for kind, name in NAMES
        for problem in PROBLEMS
        if problem in options.problems and name in options.names
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Fit a name, and score it on 1,000 new rows, or of the cubic 200."""
    problem, kind, name = PROBLEMS[job["problem"]](job["seed"]), job["kind"], job["name"]
    net = bnn.MLP(problem.x.shape[1], problem.hidden, 1, activation="tanh")
    model = bnn.BNN(net, prior=name if kind == "prior" else "normal")
    method = bnn.EvidenceFramework() if kind == "method" else bnn.SVI(guide=name if kind == "guide" else "mean_field")
    data, started = bnn.Data(problem.x, problem.y, standardize=True), time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", bnn.PoorFitWarning)
        posterior = bnn.fit(model, data, method, seed=job["seed"], progress=False)
    seconds = round(time.perf_counter() - started, 1)
    said = "; ".join(str(each.message) for each in caught if issubclass(each.category, bnn.PoorFitWarning))
    scores = judge(problem, posterior.predict(problem.test_x, num_draws=300))
    steps = posterior.record.num_steps or 0
    return [short(job | scores | {"steps": steps, "seconds": seconds, "said": said[:120]})]


def behind(rows: list[Row], problem: str, kind: str, name: str) -> dict[int, float]:
    """Return by how many nats a row the log score of a name is behind the evidence framework's, by seed."""
    best = {row["seed"]: row["log_score"] for row in chosen(rows, problem=problem, kind="method")}
    same = chosen(rows, problem=problem, kind=kind, name=name)
    return {row["seed"]: best[row["seed"]] - row["log_score"] for row in same}


def is_close(row: Row, rows: list[Row]) -> bool:
    """Whether a row is close to the evidence framework, with intervals that hold, or its fit says that it is not."""
    lost = behind(rows, row["problem"], row["kind"], row["name"])[row["seed"]]
    holds = row["kind"] == "prior" or COVERAGE[0] <= row["coverage"] <= COVERAGE[1]
    return bool(row["said"]) or (lost <= CLOSE[row["kind"]] and holds)


def page(rows: list[Row], options: Options) -> Page:
    """Return a table for each problem."""
    about = (
        '`BNN(MLP(D, [20], 1, activation="tanh"))` is fitted with nothing set but a guide, or a prior (mean-field).',
        "Behind: nats a new row behind the evidence framework, as a mean over seeds and at most. Warned: how many fits",
        "ended with a warning. Close: how many were at most .25 nats behind (priors: .3), guides with coverages of 90",
        "to 98 %, or said that they are not. Seconds are of one core beside other work.",
    )
    header = ["kind", "name", "log score", "behind", "at most", "95 % intervals hold", "seconds", "warned", "close"]
    lines = []
    for problem, of_problem in grouped(rows, "problem").items():
        cells = []
        for (kind, name), same in grouped(of_problem, "kind", "name").items():
            mean = [np.mean([row[key] for row in same]) for key in ("log_score", "coverage", "seconds")]
            lost = [*behind(rows, problem, kind, name).values()]
            said = sum(bool(row["said"]) for row in same)
            close = "" if kind == "method" else f"{sum(is_close(row, rows) for row in same)} of {len(same)}"
            cell = [f"{mean[0]:.2f}", f"{np.mean(lost):.2f}", f"{max(lost):.2f}", f"{mean[1]:.3f}", f"{mean[2]:.0f}"]
            cells.append([kind, name, *cell, said, close])
        lines += [f"## {problem}", "", *grid(header, cells), ""]
    return Page("Guides and priors from one start", about, lines[:-1])
