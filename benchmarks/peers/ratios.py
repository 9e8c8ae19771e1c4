"""Bounds on ratios of times, and whether the rows of a machine keep them."""

from dataclasses import dataclass
from typing import Any

LEAST, MOST = "at least", "at most"
Results = dict[str, dict[str, dict[str, Any]]]
"""Rows by case and engine."""
Value = tuple[str, str, str]
"""A measured number: a case, an engine, and a column."""


@dataclass(frozen=True)
class Requirement:
    """A bound on a ratio of two values, or on a single value.

    Attributes:
        text: what is compared, "slower engine / pyrobnn" or the other way round.
        top: the value above the line.
        bottom: the value below it, or None for a single value.
        bound: "at least" or "at most".
        number: the bound.
    """

    text: str
    top: Value
    bottom: Value | None
    bound: str
    number: float

    def achieved(self, results: Results) -> float | None:
        """Return the ratio, or None if a part of it was not measured."""
        values = [self.top] if self.bottom is None else [self.top, self.bottom]
        parts = [results.get(case, {}).get(engine, {}).get(column) for case, engine, column in values]
        return None if None in parts else parts[0] / (parts[1] if self.bottom else 1.0)

    def holds(self, results: Results) -> bool | None:
        """Return whether the bound holds, or None if it was not measured."""
        achieved = self.achieved(results)
        if achieved is None:
            return None
        return achieved >= self.number if self.bound == LEAST else achieved <= self.number


def _ours(case: str, column: str = "median") -> Value:
    return case, "pyrobnn", column


def _faster_than(engine: str, case: str, number: float) -> Requirement:
    return Requirement(f"{engine} / pyrobnn", (case, engine, "median"), _ours(case), LEAST, number)


def _no_slower_than(engine: str, case: str, number: float, note: str = "") -> Requirement:
    return Requirement(f"pyrobnn / {engine}{note}", _ours(case), (case, engine, "median"), MOST, number)


def _memory(column: str, note: str) -> Requirement:
    text = f"pyrobnn / torch_eager, peak memory {note}"
    return Requirement(text, _ours("mlp1200", column), ("mlp1200", "torch_eager", column), MOST, 1.3)


REQUIREMENTS = (
    _faster_than("tyxe", "sine", 30),
    _faster_than("pyro", "sine", 20),
    _faster_than("torch_eager", "sine", 10),
    _no_slower_than("numpyro_scan", "sine", 1.5),
    _no_slower_than("numpyro_scan", "sine", 1.0, " (goal)"),
    Requirement(
        "numpyro_scan one at a time / pyrobnn", ("sine", "numpyro_scan", "median"), _ours("replicates"), LEAST, 3
    ),
    _no_slower_than("numpyro_scan", "replicates", 1.0, " vmapped"),
    _faster_than("tyxe", "mlp400", 2.8),
    _no_slower_than("numpyro_scan", "mlp400", 1.05),
    _faster_than("tyxe", "mlp1200", 2.3),
    _faster_than("numpyro_scan", "mlp1200", 1.5),
    _memory("peak_mib", "(whole process)"),
    _memory("peak_above_imports_mib", "above that after imports"),
    _faster_than("tyxe", "predict", 30),
    Requirement("seconds to the first step, nothing on disk", _ours("compile", "cold_s"), None, MOST, 20),
    Requirement("seconds to the first step, again", _ours("compile", "warm_s"), None, MOST, 3),
    _faster_than("pyro", "mlp1200-gpu", 10),
)
