"""The ratios that the project holds itself to, and how a file of results fares against them."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Value:
    """A measured number: a case, an engine, and the field of its entry."""

    case: str
    engine: str = "pyrobnn"
    field: str = "median"

    def of(self, found: dict[str, Any]) -> float | None:
        """Return the number, or None if it was not measured."""
        return found.get(self.case, {}).get(self.engine, {}).get(self.field)


@dataclass(frozen=True)
class Requirement:
    """A bound on a ratio of two values, or on a single value.

    Attributes:
        text: what is compared, "slower engine / pyrobnn" or the other way round.
        top: the value above the line.
        bottom: the value below it, if there is one.
        bound: "at least" or "at most".
        number: the bound.
    """

    text: str
    top: Value
    bottom: Value | None
    bound: Literal["at least", "at most"]
    number: float

    def achieved(self, found: dict[str, Any]) -> float | None:
        """Return the ratio, or None if a part of it was not measured."""
        top, bottom = self.top.of(found), self.bottom.of(found) if self.bottom else 1.0
        return None if top is None or bottom is None else top / bottom

    def holds(self, found: dict[str, Any]) -> bool | None:
        """Return whether the bound holds, or None if it was not measured."""
        achieved = self.achieved(found)
        if achieved is None:
            return None
        return achieved >= self.number if self.bound == "at least" else achieved <= self.number


def _faster_than(engine: str, case: str, number: float) -> Requirement:
    return Requirement(f"{engine} / pyrobnn", Value(case, engine), Value(case), "at least", number)


def _no_slower_than(engine: str, case: str, number: float, note: str = "") -> Requirement:
    return Requirement(f"pyrobnn / {engine}{note}", Value(case), Value(case, engine), "at most", number)


def _memory(field: str, note: str) -> Requirement:
    text = f"pyrobnn / torch_eager, peak memory {note}"
    case = "mlp1200"
    return Requirement(text, Value(case, field=field), Value(case, "torch_eager", field), "at most", 1.3)


REQUIREMENTS = (
    _faster_than("tyxe", "sine", 30),
    _faster_than("pyro", "sine", 20),
    _faster_than("torch_eager", "sine", 10),
    _no_slower_than("numpyro_scan", "sine", 1.5),
    _no_slower_than("numpyro_scan", "sine", 1.0, " (goal)"),
    Requirement(
        "numpyro_scan one at a time / pyrobnn", Value("sine", "numpyro_scan"), Value("replicates"), "at least", 3
    ),
    _no_slower_than("numpyro_scan", "replicates", 1.0, " vmapped"),
    _faster_than("tyxe", "mlp400", 2.8),
    _no_slower_than("numpyro_scan", "mlp400", 1.05),
    _faster_than("tyxe", "mlp1200", 2.3),
    _faster_than("numpyro_scan", "mlp1200", 1.5),
    _memory("peak_mib", "(whole process)"),
    _memory("peak_above_imports_mib", "above that after imports"),
    _faster_than("tyxe", "predict", 30),
    Requirement("seconds to the first step, cold cache", Value("compile", field="cold_s"), None, "at most", 20),
    Requirement("seconds to the first step, warm cache", Value("compile", field="warm_s"), None, "at most", 3),
    _faster_than("pyro", "mlp1200-gpu", 10),
)
