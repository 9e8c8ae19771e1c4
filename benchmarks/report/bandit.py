"""Tables and picture of the mushroom bandit."""

from itertools import cycle

import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from benchmarks.report.parts import mean_cell
from benchmarks.rows import Figure, Row, Table, grouped

_COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#7a7a7a", "#56B4E9")
_BASELINE = "greedy, ε = 5 %"
_DASHES = ("-", "--", "-.", ":")
_PROTOCOL = (
    "Rewards, network, input, memory and mini-batches as Blundell et al. (2015, sections 5.3 and 6.3): 5 for an "
    "edible mushroom eaten, 5 or -35 with equal odds for a poisonous one, 0 for one left; two hidden layers of 100 "
    "ReLU units; the last 4096 interactions; mini-batches of 64; choices of Thompson agents by the mean of two draws. "
    "Regret is against an oracle that eats the edible ones alone, in expected reward: 5 for an edible one left, 15 "
    "for a poisonous one eaten; `realised` takes the rewards as they fell. Departures: they take 64 steps after every "
    "mushroom; here agents learn after blocks (20 mushrooms, later 5 % of those seen so far, at most 1000), 300 steps "
    "of Adam each from where they stopped, so that a mushroom has between 15 steps and a third of one. The first "
    "block is chosen by coin. The mushrooms of a block share 32 draws (an ensemble its members, a greedy agent the one "
    "network), whose noise is the same for all seeds. Agents of one seed meet the same mushrooms with the same luck. "
    "The paper has a figure only, no numbers. The prior of the mean-field agent and the noise "
    "that all agents believe in (2, in rewards) were chosen from 12 pairs in runs of 3,000 and 5,000 mushrooms on "
    "seed 0, which is among those shown; nothing else was tuned, greedy agents not at all."
)


def tables(rows: list[Row], published: list[Row]) -> list[Table]:
    """Return the regrets, and the differences between agents seed by seed."""
    return [_regrets(rows), *_differences(rows)]


def _regrets(rows: list[Row]) -> Table:
    groups = grouped(rows, "entry")
    num = rows[0]["steps"][-1]
    header = [
        "agent",
        "regret",
        "smallest",
        "largest",
        "realised",
        "in the last fifth",
        "poisonous eaten",
        "edible left",
    ]
    lines = []
    for name, same in sorted(groups.items(), key=lambda item: float(np.mean([row["regret"] for row in item[1]]))):
        regrets = [row["regret"] for row in same]
        columns = ("realised_regret", "late_regret", "poisonous_eaten", "edible_left")
        rest = [mean_cell([row[key] for row in same], 0) for key in columns]
        lines.append([name, mean_cell(regrets, 0), f"{min(regrets):.0f}", f"{max(regrets):.0f}", *rest])
    seeds = max(len(same) for same in groups.values())
    note = f"± is the standard error over {seeds} seeds. {_PROTOCOL}"
    return Table(f"Cumulative regret after {num:,} mushrooms", note, header, lines)


def _differences(rows: list[Row]) -> list[Table]:
    """Return each agent's regret less the baseline's, seed by seed."""
    groups = {name: {row["seed"]: row["regret"] for row in same} for name, same in grouped(rows, "entry").items()}
    last = _BASELINE if _BASELINE in groups else list(groups)[-1]
    others = [name for name in groups if name != last]
    seeds = sorted(groups[last])
    if not others:
        return []
    lines = [
        [name, *(f"{groups[name][seed] - groups[last][seed]:+.0f}" if seed in groups[name] else "" for seed in seeds)]
        for name in others
    ]
    note = "Negative: less regret. Agents of one seed met the same mushrooms with the same luck."
    return [Table(f"Regret less that of {last}, seed by seed", note, ["agent", *(f"seed {s}" for s in seeds)], lines)]


def figures(rows: list[Row]) -> list[Figure]:
    """Return the cumulative regret against mushrooms, as Figure 6 of Blundell et al. (2015)."""
    picture = MatplotlibFigure(figsize=(8.4, 4.6), layout="constrained")
    axis = picture.subplots()
    for (name, same), colour, dash in zip(
        grouped(rows, "entry").items(), cycle(_COLOURS), cycle(_DASHES), strict=False
    ):
        curves = np.array([row["curve"] for row in same])
        steps = same[0]["steps"]
        axis.plot(steps, curves.mean(0), dash, color=colour, linewidth=1.7, label=name)
        axis.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.13, linewidth=0)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_locator(NullLocator())
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set(xlabel="mushrooms offered", ylabel="cumulative regret (reward)", xlim=(0, None))
    axis.grid(axis="y", color="0.92", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    caption = "Cumulative regret of each agent: mean over seeds, band from the smallest to the largest."
    return [Figure("bandit-regret", caption, picture)]
