"""Tables and picture of the distances to NUTS."""

import numpy as np

from benchmarks.report.parts import mean_cell, panels_of_methods, standard_error
from benchmarks.rows import Figure, Row, Table, distinct, grouped

FLOOR = "NUTS, half of it"
"""Name of the entry that compares two halves of NUTS."""
_METRICS = {
    "function": "Wasserstein-1 distance of the mean function (in deviations of the targets, or in probability)",
    "predictive": "total variation distance of the predictive distributions",
    "agreement": "share of inputs with the same most probable class",
    "member": "predictive distance of one member alone, mean ± standard deviation over members",
}


def tables(rows: list[Row], published: list[Row]) -> list[Table]:
    """Return a table for each problem."""
    return [_table(problem, _of(rows, problem)) for problem in distinct(rows, "data")]


def _of(rows: list[Row], problem: str) -> dict[str, list[Row]]:
    """Return the rows of a problem by method."""
    groups = grouped((row for row in rows if row["data"] == problem), "entry")
    return {name: groups[name] for name in sorted(groups, key=lambda name: name != FLOOR)}


def _table(problem: str, methods: dict[str, list[Row]]) -> Table:
    shown = [key for key in _METRICS if any(key in row for same in methods.values() for row in same)]
    lines = [[name, *(_cell(same, key) for key in (*shown, "seconds"))] for name, same in methods.items()]
    fits = [len(same) for name, same in methods.items() if name != FLOOR]
    seeds = f"{max(fits)} seeds" if max(fits, default=1) > 1 else "one seed"
    meanings = "; ".join(f"{key}: {_METRICS[key]}" for key in shown)
    note = (
        f"{_chains(methods.get(FLOOR))}The first row is what Monte Carlo error leaves between the halves, "
        f"of half as many draws as methods and NUTS have below. Fits of {seeds}; means over test inputs inside and "
        f"outside the data. {meanings}. Smaller is closer, but for agreement."
    )
    return Table(f"Distance to NUTS: {problem}", note, ["method", *shown, "seconds"], lines)


def _chains(floor: list[Row] | None) -> str:
    if not floor:
        return ""
    rhat, size = floor[0]["max_rhat"], floor[0]["min_ess"]
    return f"NUTS: largest R-hat of the function {rhat:.3f}, smallest effective sample size {size:.0f}. "


def _cell(same: list[Row], key: str) -> str:
    values = [row[key] for row in same if row.get(key) is not None]
    if not values:
        return ""
    if key == "seconds":
        return f"{np.mean(values):.0f}"
    if key == "member":
        return f"{np.mean(values):.3f} ± {np.mean([row['member_std'] for row in same]):.3f}"
    return mean_cell(values, 3)


def figures(rows: list[Row]) -> list[Figure]:
    """Return the distance of the predictive distributions, a panel a problem."""
    problems = distinct(rows, "data")
    methods = [FLOOR, *dict.fromkeys(row["entry"] for row in rows if row["entry"] != FLOOR)]
    size = (2.2 + 3.0 * len(problems), 1.2 + 0.22 * len(methods))
    picture, axes = panels_of_methods(problems, methods, "total variation distance to NUTS", size)
    for axis, problem in zip(axes, problems, strict=True):
        by_method = {name: [row["predictive"] for row in same] for name, same in _of(rows, problem).items()}
        places = [methods.index(name) for name in by_method]
        means = [float(np.mean(values)) for values in by_method.values()]
        axis.hlines(places, 0, means, color="0.8")
        axis.errorbar(
            means, places, xerr=[standard_error(v) for v in by_method.values()], fmt="o", color="#0b4f8a", capsize=2
        )
        axis.set_xlim(left=0)
    several = any(len(same) > 1 for problem in problems for same in _of(rows, problem).values())
    bars = "; bars are standard errors over seeds" if several else ""
    caption = f"Total variation distance between the predictions of each method and of NUTS{bars}."
    return [Figure("nuts-agreement", caption, picture)]
