"""Methods beside each other on the same data: the table of a paper."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.errors import REFUSALS, InputError, progress_bar
from pyrobnn._core.modes import gradients
from pyrobnn._core.random import seeded
from pyrobnn._torch.devices import threads_for
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import in_memory
from pyrobnn.diagnostics.checks import ALL_CHECKS
from pyrobnn.inference.fit import by_rules, fit_in_silence
from pyrobnn.inference.method import Run, checked_method
from pyrobnn.metrics import score
from pyrobnn.metrics.base import as_columns, plus_minus
from pyrobnn.verdict.checks import FIT_END_CHECKS, findings
from pyrobnn.verdict.evidence import Evidence

if TYPE_CHECKING:
    import pandas as pd

_SCORES = ("log_likelihood", "rmse", "accuracy", "coverage_95")
_OF_CONVERGENCE = {name: ALL_CHECKS[name] for name in ("length", "elbo", "chains", "divergences")}
_OTHERS = {name: check for name, check in FIT_END_CHECKS.items() if name not in _OF_CONVERGENCE}


@dataclasses.dataclass(frozen=True, eq=False)
class MethodComparison:
    """Methods fitted to the same data and scored on the same rows; printed as a table, in which ! marks warnings.

    Attributes:
        table: a row for each method, best log score first: mean scores, each with a `_stderr` over rows and seeds; the
            `difference` of the log score to the best, paired by row and seed; seconds; `converged`, None if unknown;
            `warning`, what warns of its fits or made them fail.
        fits: the same for each method and seed, with errors over rows.
    """

    table: "pd.DataFrame"
    fits: "pd.DataFrame"

    @property
    def scores(self) -> list[str]:
        """The columns with a standard error."""
        return [name for name in map(str, self.table) if f"{name}_stderr" in self.table]

    def __repr__(self) -> str:
        table, told = self.table, [(str(name), text) for name, text in self.table["warning"].items()]
        cells = {name: list(map(plus_minus, table[name], table[f"{name}_stderr"])) for name in self.scores}
        cells["seconds"] = [f"{value:.2g}" for value in table["seconds"]]
        cells["converged"] = [{True: "yes", False: "no"}.get(value, "") for value in table["converged"]]
        shown = type(table)(cells, index=["! " * bool(text) + name for name, text in told]).replace("nan", "")
        return "\n".join([shown.to_string(), *(f"! {name}: {text}" for name, text in told if text)])


@gradients()
def compare_methods(
    model: BNN,
    data: Any,
    methods: Mapping[str, Any],
    *,
    held_out: Any,
    seeds: Sequence[int] = (0, 1, 2),
    progress: bool = True,
) -> MethodComparison:
    """Fit each method with each seed, score all fits on the same held-out rows, and judge them by checks of `diagnose`.

    One that fails is a row with its error, and the others go on. `pyrobnn.plots.compare_methods` draws the result.

    Args:
        model: the model.
        data: the training data, `Data` or a pair (x, y).
        methods: by the name of the row, each as in `fit`: a setting, its name, or None for the rules.
        held_out: rows that no fit sees, `Data` or a pair.
        seeds: seeds of the fits, each of which has the bits of `fit` with it.
        progress: show a progress bar.

    Raises:
        InputError: no methods or no seeds; the error of the last fit if all fail.

    Examples:
        >>> train, test = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> model, methods = bnn.BNN(bnn.MLP(1, [5], 1)), {"Laplace": bnn.SVI(guide="laplace", steps=50), "odd": "nut"}
        >>> compared = bnn.compare_methods(model, train, methods, held_out=test, seeds=[0], progress=False)
        >>> list(compared.table.index), compared.table.warning["odd"][:37]
        (['Laplace', 'odd'], "InputError: Unknown method 'nut'. Did")
    """
    import pandas as pd

    pairs, scores, rows = list(itertools.product(methods, seeds)), dict[Any, np.ndarray](), list[dict[str, Any]]()
    if not pairs:
        raise InputError(f"`methods` and `seeds` must not be empty, got {methods!r} and {seeds!r}.")
    data, held_out = in_memory(data), in_memory(held_out)
    with progress_bar(pairs, desc="fits", unit="fit", shown=progress) as bar:
        for name, seed in bar:
            row = {"method": name, "seed": seed, "converged": None}
            try:
                found, scores[name, seed] = _fitted(model, data, methods[name], seed, held_out)
            except (*REFUSALS, AttributeError) as error:
                if len(rows) + 1 == len(pairs) and not scores:
                    raise
                found = {"warning": " ".join([f"{type(error).__name__}:", *str(error).split()])}
            rows.append(row | found)
    fits = pd.DataFrame(rows)
    best, lost = fits.groupby("method")["log_likelihood"].mean().idxmax(), np.full(len(held_out), np.nan)
    gaps = [scores.get((name, seed), lost) - scores.get((best, seed), lost) for name, seed in pairs]
    fits["difference"] = [gap.mean() for gap in gaps]
    fits["difference_stderr"] = [gap.std(ddof=1) / len(gap) ** 0.5 for gap in gaps]
    groups = fits.groupby("method", sort=False)
    table, over_seeds = groups.mean(numeric_only=True), groups.sem(numeric_only=True).fillna(0)
    for name in [name for name in map(str, table) if name.endswith("_stderr")]:
        table[name] = np.hypot(table[name], over_seeds[name.removesuffix("_stderr")])
    table["converged"] = [None if each.isna().all() else bool(each.dropna().all()) for _, each in groups["converged"]]
    table["warning"] = [_counted(each) for _, each in groups["warning"]]
    return MethodComparison(table.drop(columns="seed").sort_values("log_likelihood", ascending=False), fits)


def _fitted(model: BNN, data: Data, method: Any, seed: int, held_out: Data) -> tuple[dict[str, Any], np.ndarray]:
    """Return the scores of a fit and what warns of it, a line each, and the log scores (N,) of its predictions."""
    run = Run(seed=seed, progress=False, method=None if method is None else checked_method(method, data))
    with seeded(seed, "run"):
        model, run = by_rules(model, data, run) if method is None else (model, run)
        posterior = fit_in_silence(model, data, run.method, run)
    row: dict[str, Any] = {"seconds": run.seconds}
    prediction, evidence = posterior.predict(held_out.x), Evidence(posterior, data, held_out, seed=seed)
    for name, one in score(prediction, held_out.y, levels=[0.95]).items():
        row |= {name: one.value, f"{name}_stderr": one.stderr} if name in _SCORES else {}
    with threads_for(posterior.bnn.net, evidence.budget.baseline_rows):
        of_convergence, others = (list(findings(checks, evidence)) for checks in (_OF_CONVERGENCE, _OTHERS))
    kinds = {one.kind for one in of_convergence}
    row["converged"] = None if kinds <= {"note"} else "warning" not in kinds
    row["warning"] = "\n".join(one.lead for one in of_convergence + others if one.kind == "warning")
    return row, as_columns(prediction.log_prob(held_out.y)).mean(1)


def _counted(warnings: "pd.Series[str]") -> str:
    """Return the different warnings of the fits of a method, and of how many."""
    counts, num = warnings[warnings != ""].str.split("\n").explode().value_counts(), len(warnings)
    return "; ".join(f"{text} ({some} of {num} seeds)" if num > 1 else f"{text}" for text, some in counts.items())
