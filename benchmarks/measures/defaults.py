"""Every part by its name alone, and the estimators with nothing set, on eight small problems.

Nothing was chosen on these seeds (100 and up; rules were made on 0 to 9). Beside the parts stand a linear model
and a Gaussian process.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen, short
from benchmarks.problems import PROBLEMS, Problem, model_of
from benchmarks.references import Arrays, classifiers, label_scores, normals, process
from benchmarks.rows import Row, grid, grouped
from pyrobnn.verdict.baselines import fit_baselines

KEY = ("problem", "kind", "name", "seed")
FIRST_SEED = 100
GUIDES = ["mean_field", "low_rank", "full_rank", "matrix_normal", "radial", "dropout", "map", "laplace", "flow"]
PRIORS = ["normal", "student_t", "laplace", "scale_mixture", "horseshoe", "hierarchical"]
METHODS: dict[str, Callable[[], Any]] = {
    "nuts": lambda: bnn.NUTS(num_draws=300, warmup=300, num_chains=1),
    "swag": bnn.SWAG,
    "ensemble": bnn.Ensemble,
    "evidence_framework": bnn.EvidenceFramework,
    "ivon": bnn.IVON,
    "sgld": bnn.SGLD,
    "sghmc": bnn.SGHMC,
}
REFERENCES = ["linear model", "Gaussian process"]
NOTHING = "nothing set"
KINDS = {"reference": REFERENCES, "estimator": [NOTHING], "guide": GUIDES, "method": list(METHODS), "prior": PRIORS}
OPTIONS = {
    "seeds": 3,
    "kinds": list(KINDS),
    "names": [name for names in KINDS.values() for name in names],
    "problems": list(PROBLEMS),
}
_AT_ONCE = 300


def judge(problem: Problem, prediction: Any) -> dict[str, float]:
    """Return scores on the test data: error is a share of the spread of the targets, or of labels that are wrong."""
    scores = {"log_score": float(prediction.log_prob(torch.tensor(problem.test_y)).mean())}
    if problem.is_classification:
        labels = prediction.class_probs.argmax(-1).cpu().numpy()
        return scores | {"error": float((labels != problem.test_y).mean())}
    scores["error"] = _error(problem, prediction.mean.double().cpu().numpy().reshape(-1))
    low, high = (edge.double().cpu().numpy().reshape(-1) for edge in prediction.interval(0.95))
    scores["coverage"] = float(((low <= problem.test_y) & (problem.test_y <= high)).mean())
    spread = (problem.test_y if problem.curve is None else problem.curve).std()
    return scores | {"epistemic": float(prediction.epistemic_std.double().mean() / spread)}


def references(problem: Problem) -> dict[str, Callable[[], Row]]:
    """Return what scores the linear model of the same likelihood, and a Gaussian process but for counts, by name."""
    data = (problem.x, problem.y, problem.test_x, problem.test_y)
    linear = {"linear model": lambda: _linear(problem)}
    if problem.is_classification:  # whose process is better on inputs as they are
        gp = classifiers(0)["Gaussian process"]
        return linear | {"Gaussian process": lambda: label_scores(gp, data, standardize=False)}
    return linear | ({"Gaussian process": lambda: _process(problem, data)} if problem.is_real else {})


def _linear(problem: Problem) -> Row:
    data = bnn.Data(problem.x, problem.y, standardize=problem.is_real)
    linear = fit_baselines(model_of(problem).settings["likelihood"], data, problem.outputs)["linear"]
    return judge(problem, linear.predict(torch.tensor(problem.test_x)))


def _process(problem: Problem, data: Arrays) -> Row:
    predicted = normals(process(problem.x.shape[1], 0, restarts=2), data, states_std=True)
    scores = predicted.scores(problem.test_y)
    return {"error": _error(problem, predicted.mean)} | {name: scores[name] for name in ("log_score", "coverage")}


def _error(problem: Problem, mean: np.ndarray) -> float:
    """Return the root mean squared error as a share of the spread of the targets, or of their curve."""
    target = problem.test_y if problem.curve is None else problem.curve
    return float(np.sqrt(((mean - target) ** 2).mean()) / target.std())


def jobs(options: Options) -> list[Row]:
    """Return the parts and references on each problem, seed by seed."""
    return [
        {"problem": problem, "kind": kind, "name": name, "seed": seed}
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds)
        for kind in options.kinds
        for problem in PROBLEMS
        for name in (references(PROBLEMS[problem](seed)) if kind == "reference" else KINDS[kind])
        if problem in options.problems and name in options.names
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Fit and score a part, an estimator or a reference."""
    posed, started = PROBLEMS[job["problem"]](job["seed"]), time.perf_counter()
    if job["kind"] == "reference":
        scores = references(posed)[job["name"]]()
    else:
        scores = judge(posed, _predicted(posed, job["kind"], job["name"], job["seed"]))
    return [short(job | scores | {"seconds": round(time.perf_counter() - started, 1)})]


def _predicted(problem: Problem, kind: str, name: str, seed: int) -> bnn.Prediction:
    """Fit with the part of that name and with nothing else set, and return predictions of the test data."""
    if kind == "estimator":
        estimator = bnn.BNNClassifier if problem.is_classification else bnn.BNNRegressor
        return estimator(random_state=seed).fit(problem.x, problem.y).predict_dist(problem.test_x)
    data = bnn.Data(problem.x, problem.y, standardize=True)
    method = METHODS[name]() if kind == "method" else bnn.SVI(guide=name) if kind == "guide" else bnn.SVI()
    model = model_of(problem, name if kind == "prior" else "normal")
    return bnn.fit(model, data, method, seed=seed, progress=False).predict(problem.test_x, num_draws=_AT_ONCE)


def page(rows: list[Row], options: Options) -> Page:
    """Return a table for each problem, and a picture of all."""
    seeds = sorted({row["seed"] for row in rows})
    shown = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"one seed, {seeds[0]}"
    about = (
        "Each guide, method and prior is fitted with nothing set but its name, and an estimator with nothing set, to",
        f"eight small problems ({shown}; the rules were made on seeds 0 to 9). The error is the root mean square",
        "over the spread of the targets (of the cubic: of its curve), of moons the share of wrong labels. The log",
        "score is a mean over test examples, in nats. Seconds are of one core beside other work. Means over seeds, of",
        'which a row tells the number. "before" is the estimator with the defaults of November 28, 2026.',
    )
    lines = ["![Log scores by problem](defaults.png)", ""]
    columns = ("error", "log_score", "coverage", "epistemic", "seconds")
    header = ["kind", "name", "seeds", "error", "log score", "95 % intervals hold", "epistemic", "seconds"]
    for problem in PROBLEMS:
        cells = [
            [kind, name, len(same), *(_mean(same, column) for column in columns)]
            for (kind, name), same in grouped(chosen(rows, problem=problem), "kind", "name").items()
        ]
        lines += [f"## {problem}", "", *grid(header, cells), ""]
    with style.context("pyrobnn.plots.style"):
        return Page("Every part by its name alone", about, lines[:-1], {"": _picture(rows)})


def _mean(rows: list[Row], column: str) -> str:
    values = [row[column] for row in rows if column in row]
    return f"{np.mean(values):.3g}" if values else ""


def _picture(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(7.5, 17), layout="constrained")
    kinds = dict(zip(KINDS, ("#1c1c1c", "#c23b22", "#0b4f8a", "#d9822b", "#6fa8d6"), strict=True))
    for axis, problem in zip(figure.subplots(4, 2).flat, PROBLEMS, strict=True):
        groups = grouped([row for row in chosen(rows, problem=problem) if "log_score" in row], "kind", "name")
        scores = {pair: float(_mean(same, "log_score")) for pair, same in groups.items()}
        names = sorted(scores, key=scores.__getitem__)
        lowest = max(scores.values(), default=0.0) - 1.0
        for place, pair in enumerate(names):
            look = "o" if scores[pair] >= lowest else "<"
            axis.plot(max(scores[pair], lowest), place, look, color=kinds[pair[0]], ms=4)
        axis.set_yticks(range(len(names)), [name for _, name in names], fontsize=8)
        axis.set_title(problem, fontsize=11)
        axis.set_xlabel("log score, nats (arrow: lower)", fontsize=9)
        axis.tick_params(axis="x", labelsize=8)
    handles = [Line2D([], [], marker="o", ls="", color=color, label=kind) for kind, color in kinds.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=9)
    return figure
