"""Every part by its name alone on eight small problems: `python -m benchmarks.defaults`.

Nothing is set but the name, and nothing was chosen on these seeds (100 and up; rules were made on 0 to 9). Each fit is
a row of benchmarks/results/defaults.csv, written as it ends, so that a run that was stopped goes on; defaults.md and
its picture are made from the rows. Beside them stand a Gaussian process, a linear model and HistGradientBoosting of
scikit-learn.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy import special, stats
from sklearn.datasets import load_diabetes, make_friedman1, make_moons
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pyrobnn as bnn
from pyrobnn.verdict.baselines import fit_baselines

RESULTS = Path(__file__).parent / "results"
COLUMNS = ["problem", "kind", "name", "seed", "error", "log_score", "coverage", "epistemic", "seconds", "note"]
GUIDES = ["mean_field", "low_rank", "full_rank", "matrix_normal", "radial", "dropout", "map", "laplace", "flow"]
PRIORS = ["normal", "student_t", "laplace", "scale_mixture", "horseshoe", "hierarchical"]
METHODS: dict[str, Callable[[], Any]] = {
    "automatic": bnn.Automatic,
    "nuts": lambda: bnn.NUTS(num_draws=300, warmup=300, num_chains=1),
    "swag": bnn.SWAG,
    "ensemble": bnn.Ensemble,
    "marginal_likelihood": bnn.MarginalLikelihood,
    "evidence_framework": bnn.EvidenceFramework,
    "ivon": bnn.IVON,
    "sgld": bnn.SGLD,
    "sghmc": bnn.SGHMC,
}
_AT_ONCE = 300


class Problem(NamedTuple):
    """Training and test data; the curve where there is one, for the error; the network's widths, and a likelihood."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    curve: np.ndarray | None
    hidden: list[int]
    likelihood: Any
    outputs: int = 1

    @property
    def is_classification(self) -> bool:
        """Whether targets are labels."""
        return self.likelihood in ("categorical", "bernoulli")

    @property
    def is_real(self) -> bool:
        """Whether targets are real numbers."""
        return not self.is_classification and self.likelihood != "poisson"


def cubic(seed: int, likelihood: Any) -> Problem:
    """Return 20 points of x^3 with noise of 3, and the curve inside of them."""
    g = np.random.default_rng(seed)
    x, grid = g.uniform(-4, 4, (20, 1)), np.linspace(-4, 4, 200)[:, None]
    noise = 3 * g.normal(size=220)
    return Problem(x, x[:, 0] ** 3 + noise[:20], grid, grid[:, 0] ** 3 + noise[20:], grid[:, 0] ** 3, [100], likelihood)


def drawn(seed: int, rows: int, columns: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """Return a generator, inputs of that many rows and of 1,000 for tests, and a function of them."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(rows + 1000, columns))
    return g, x, np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] - 0.4 * x[:, 2] * x[:, 0]


def _cut(x: np.ndarray, y: np.ndarray, rows: int, hidden: list[int], likelihood: Any) -> Problem:
    return Problem(x[:rows], y[:rows], x[rows:], y[rows:], None, hidden, likelihood)


def _table(seed: int) -> Problem:
    g, x, f = drawn(seed, 100, 3)
    return _cut(x, f + 0.3 * g.normal(size=len(f)), 100, [50], "gaussian")


def _outliers(seed: int) -> Problem:
    g, x, f = drawn(seed, 200, 4)
    return _cut(x, f + 0.3 * g.standard_t(3, len(f)), 200, [50], "student_t")


def _counts(seed: int) -> Problem:
    g, x, f = drawn(seed, 200, 4)
    return _cut(x, g.poisson(np.exp(f + 0.5)), 200, [50], "poisson")


def _friedman(seed: int) -> Problem:
    x, y = make_friedman1(1300, noise=1.0, random_state=seed)
    return _cut(x, y, 300, [50], "gaussian")


def _diabetes(seed: int) -> Problem:
    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    return _cut(x[order], y[order], 331, [50], "gaussian")


def _moons(seed: int) -> Problem:
    x, y = make_moons(1060, noise=0.3, random_state=seed)
    return _cut(x, y, 60, [50], "categorical")._replace(outputs=2)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "cubic, noise learned": lambda seed: cubic(seed, "gaussian"),
    "cubic, noise known": lambda seed: cubic(seed, bnn.likelihoods.Gaussian(3.0)),
    "100 rows, 3 columns": _table,
    "diabetes, 331 rows": _diabetes,
    "Friedman 1, 300 rows": _friedman,
    "outliers, 200 rows": _outliers,
    "counts, 200 rows": _counts,
    "moons, 60 points": _moons,
}


WIDE = "500 rows, MLP(10, [200] * 3)"


def _wide(seed: int) -> Problem:
    g, x, f = drawn(seed, 500, 10)
    return _cut(x, f + 0.3 * g.normal(size=len(f)), 500, [200] * 3, "gaussian")


GUIDES_ONLY: dict[str, Callable[[int], Problem]] = {WIDE: _wide}
"""Problems that guides are tried on, and no methods and priors."""


def model_of(problem: Problem, prior: Any = "normal") -> bnn.BNN:
    """Return the network of a problem with a prior by its name."""
    net = bnn.MLP(problem.x.shape[1], problem.hidden, problem.outputs)
    return bnn.BNN(net, prior=prior, likelihood=problem.likelihood)


def fitted(problem: Problem, kind: str, name: str, seed: int) -> Any:
    """Fit what a name stands for, with nothing else set."""
    data = bnn.Data(problem.x, problem.y, standardize=True)
    method = METHODS[name]() if kind == "method" else bnn.SVI(guide=name) if kind == "guide" else bnn.SVI()
    return bnn.fit(model_of(problem, name if kind == "prior" else "normal"), data, method, seed=seed, progress=False)


def judge(problem: Problem, prediction: Any) -> dict[str, float]:
    """Return scores on the test data: error is a share of the spread of the targets, or of labels that are wrong."""
    found = {"log_score": float(prediction.log_prob(torch.tensor(problem.test_y)).mean())}
    if problem.is_classification:
        labels = prediction.class_probs.argmax(-1).cpu().numpy()
        return found | {"error": float((labels != problem.test_y).mean())}
    target = problem.test_y if problem.curve is None else problem.curve
    misses = prediction.mean.double().cpu().numpy().reshape(-1) - target
    found["error"] = float(np.sqrt((misses**2).mean()) / target.std())
    low, high = (edge.double().cpu().numpy().reshape(-1) for edge in prediction.interval(0.95))
    found["coverage"] = float(((low <= problem.test_y) & (problem.test_y <= high)).mean())
    return found | {"epistemic": float(prediction.epistemic_std.double().mean() / target.std())}


def references(problem: Problem) -> dict[str, dict[str, float]]:
    """Return the scores of scikit-learn's models, and of the linear model of the same likelihood."""
    found = {}
    data = bnn.Data(problem.x, problem.y, standardize=problem.is_real)
    linear = fit_baselines(model_of(problem), data)["linear"].predict(torch.tensor(problem.test_x))
    found["linear model"] = judge(problem, linear)
    if problem.is_classification:
        models = {
            "Gaussian process": GaussianProcessClassifier(ConstantKernel() * RBF(), random_state=0),
            "HistGradientBoosting": HistGradientBoostingClassifier(random_state=0),
            "logistic regression": make_pipeline(StandardScaler(), LogisticRegressionCV()),
        }
        for name, one in models.items():
            probs = one.fit(problem.x, problem.y).predict_proba(problem.test_x)
            chosen = probs[np.arange(len(probs)), problem.test_y]
            wrong = float((probs.argmax(1) != problem.test_y).mean())
            found[name] = {"log_score": float(np.log(chosen.clip(1e-12)).mean()), "error": wrong}
    elif problem.is_real:
        kernel = ConstantKernel() * RBF(np.ones(problem.x.shape[1])) + WhiteKernel()
        process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
        scaler = StandardScaler().fit(problem.x)
        mean, std = process.fit(scaler.transform(problem.x), problem.y).predict(
            scaler.transform(problem.test_x), return_std=True
        )
        found["Gaussian process"] = _normal(problem, mean, std)
        trees = HistGradientBoostingRegressor(random_state=0).fit(problem.x, problem.y)
        found["HistGradientBoosting"] = _normal(problem, trees.predict(problem.test_x), None)
        ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 20))).fit(problem.x, problem.y)
        spread = np.std(problem.y - ridge.predict(problem.x))
        found["ridge"] = _normal(problem, ridge.predict(problem.test_x), np.full(len(problem.test_y), spread))
    else:
        trees = HistGradientBoostingRegressor(loss="poisson", random_state=0).fit(problem.x, problem.y)
        rate = trees.predict(problem.test_x)
        error = float(np.sqrt(np.mean((rate - problem.test_y) ** 2)) / problem.test_y.std())
        score = special.xlogy(problem.test_y, rate) - rate - special.gammaln(problem.test_y + 1)
        found["HistGradientBoosting"] = {"log_score": float(score.mean()), "error": error}
    return found


def _normal(problem: Problem, mean: np.ndarray, std: np.ndarray | None) -> dict[str, float]:
    target = problem.test_y if problem.curve is None else problem.curve
    found = {"error": float(np.sqrt(((mean - target) ** 2).mean()) / target.std())}
    if std is None:
        return found
    inside = np.abs(problem.test_y - mean) <= stats.norm.ppf(0.975) * std
    score = stats.norm(mean, std).logpdf(problem.test_y).mean()
    return found | {"log_score": float(score), "coverage": float(inside.mean())}


def jobs(seeds: list[int]) -> list[tuple[str, str, str, int]]:
    """Return what there is to do, in order."""
    kinds = {"reference": ["all"], "guide": GUIDES, "method": list(METHODS), "prior": PRIORS}
    return [
        (problem, kind, name, seed)
        for seed in seeds
        for kind, names in kinds.items()
        for name in names
        for problem in (PROBLEMS if kind in ("method", "prior") else PROBLEMS | GUIDES_ONLY)
    ]


def run(seeds: list[int], path: Path, only: dict[str, list[str]]) -> None:
    """Do the jobs that have no row yet, of some kinds, names and problems; an empty list stands for all."""
    rows = read(path)
    done = {
        (row["problem"], row["kind"] if row["kind"] != "reference" else "reference", row["name"], row["seed"])
        for row in rows
    }
    for problem, kind, name, seed in jobs(seeds):
        chosen = {"kinds": kind, "names": name, "problems": problem}
        if any(values and chosen[key] not in values for key, values in only.items()):
            continue
        is_done = (problem, kind, name, str(seed)) in done
        if is_done or (kind == "reference" and any(key[:2] == (problem, kind) and key[3] == str(seed) for key in done)):
            continue
        posed, started = (PROBLEMS | GUIDES_ONLY)[problem](seed), time.perf_counter()
        base = {"problem": problem, "kind": kind, "seed": seed}
        if kind == "reference":
            found = [base | {"name": key} | value for key, value in references(posed).items()]
        else:
            found = [base | {"name": name} | _scored(posed, kind, name, seed)]
        for row in found:
            row["seconds"] = round(time.perf_counter() - started, 1)
            print(
                {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
        append(path, COLUMNS, found)


def _scored(problem: Problem, kind: str, name: str, seed: int) -> dict[str, Any]:
    try:
        posterior = fitted(problem, kind, name, seed)
        found: dict[str, Any] = judge(problem, posterior.predict(problem.test_x, num_draws=_AT_ONCE))
    except (bnn.InputError, FloatingPointError) as error:
        return {"note": f"{type(error).__name__}: {str(error)[:80]}"}
    automatic = posterior.record.automatic
    return found | {"note": "" if automatic is None else automatic.chosen}


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows that there are."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    """Add rows to a file, which gets its head with the first."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        if is_new:
            writer.writeheader()
        shown = (
            {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows
        )
        writer.writerows(shown)


def report(path: Path) -> None:
    """Write the page and its picture from the rows."""
    rows = read(path)
    seeds = sorted({int(row["seed"]) for row in rows})
    shown = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"one seed, {seeds[0]}"
    lines = [
        "# Every part by its name alone",
        "",
        "`python -m benchmarks.defaults` fits each guide, method and prior with nothing set but its name, to eight",
        f"small problems ({shown}; the rules were made on seeds 0 to 9). The error is the root",
        "mean square over the spread of the targets (of the cubic: of its curve), of moons the share of wrong",
        "labels. The log score is a mean over test examples, in nats. Seconds are of one core beside other work.",
        "Means over seeds, of which a row tells the number: names without a row are still to come.",
        "",
        "![Errors and log scores by problem](defaults.png)",
        "",
    ]
    for problem in PROBLEMS | GUIDES_ONLY:
        lines += [
            f"## {problem}",
            "",
            "| kind | name | seeds | error | log score | 95 % intervals hold | epistemic | seconds | |",
        ]
        lines.append("|---|---|---|---|---|---|---|---|---|")
        own = [row for row in rows if row["problem"] == problem]
        for kind, name in dict.fromkeys((row["kind"], row["name"]) for row in own):
            same = [row for row in own if (row["kind"], row["name"]) == (kind, name)]
            numbers = [_mean(same, column) for column in ("error", "log_score", "coverage", "epistemic", "seconds")]
            notes = ", ".join(dict.fromkeys(row["note"] for row in same if row["note"]))
            lines.append(f"| {kind} | {name} | {len(same)} | {' | '.join(numbers)} | {notes} |")
        lines.append("")
    path.with_suffix(".md").write_text("\n".join(lines))
    _picture(rows, path.with_suffix(".png"))


def _mean(rows: list[dict[str, str]], column: str) -> str:
    values = [float(row[column]) for row in rows if row[column]]
    return f"{np.mean(values):.3g}" if values else ""


def _picture(rows: list[dict[str, str]], path: Path) -> None:
    figure, axes = plt.subplots(4, 2, figsize=(7.5, 17), layout="constrained")
    kinds = {"reference": "black", "guide": "C0", "method": "C1", "prior": "C2"}
    for axis, problem in zip(axes.flat, PROBLEMS, strict=True):
        own = [row for row in rows if row["problem"] == problem and row["log_score"]]
        names = list(dict.fromkeys((row["kind"], row["name"]) for row in own))
        scores = {pair: float(_mean([r for r in own if (r["kind"], r["name"]) == pair], "log_score")) for pair in names}
        names.sort(key=scores.__getitem__)
        best = max(scores.values(), default=0.0)
        lowest = best - 1.0
        for place, pair in enumerate(names):
            axis.plot(
                max(scores[pair], lowest), place, "o" if scores[pair] >= lowest else "<", color=kinds[pair[0]], ms=4
            )
        axis.set_yticks(range(len(names)), [name for _, name in names], fontsize=8)
        axis.set_title(problem, fontsize=11)
        axis.set_xlabel("log score, nats (arrow: lower)", fontsize=9)
        axis.tick_params(axis="x", labelsize=8)
    handles = [plt.Line2D([], [], marker="o", ls="", color=color, label=kind) for kind, color in kinds.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 100 on")
    for what in ("kinds", "names", "problems"):
        parser.add_argument(f"--{what}", nargs="*", default=[], help=f"do only these {what}")
    parser.add_argument("--report", action="store_true", help="only write the page from the rows that there are")
    arguments = parser.parse_args()
    path = RESULTS / "defaults.csv"
    if not arguments.report:
        with warnings.catch_warnings(action="ignore"):
            seeds = [100 + index for index in range(arguments.seeds)]
            run(seeds, path, {what: getattr(arguments, what) for what in ("kinds", "names", "problems")})
    report(path)


if __name__ == "__main__":
    main()
