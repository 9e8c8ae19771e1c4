"""What is said of a fit: one template for each finding, in words.toml."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyrobnn._core.errors import counted

MEASURES = {
    "bias": "the mean share of a predictive distribution below its target",
    "spread": "the spread of the ranks of targets in their predictions, over that of uniform ones",
    "coverage": "the share of targets inside the central 95 %",
    "confidence": "the share of right labels less the mean confidence",
    "noise": "the rank correlation of the size of errors, in units of the predicted spread, with the median",
    "surprise": "the mean log score in nats",
    "ranking": "the share of the error that is left as the least sure examples are dropped, on average",
}
"""The statistics that are compared with those of a good fit."""
_ROWS = {
    "held out": ("held-out example", ""),
    "left out": ("training example", ", each left out of the fit"),
    "training": ("training example", ", which flatter the fit"),
}


class Template(NamedTuple):
    """A clause, what follows it with the numbers of a finding, names of remedies, and advice for the page."""

    lead: str
    rest: str = "."
    tries: tuple[str, ...] = ()
    advice: str = ""


@functools.cache
def templates() -> dict[str, Template]:
    """Return the templates by their key."""
    tables = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
    return {name: Template(**table) for name, table in tables.items()}


def key(name: str, severity: str, value: float | None, expected: float | None) -> str:
    """Return the key of the template of a finding: its name, with the severity or the side of the value if needed."""
    side = "high" if value is not None and expected is not None and value > expected else "low"
    return next(each for each in (f"{name} {severity}", name, f"{name} {side}") if each in templates())


def written(name: str, severity: str, numbers: Mapping[str, Any]) -> tuple[str, str]:
    """Return a finding as a clause, and in full with its numbers, which are its fields and facts."""
    template = templates()[key(name, severity, numbers["value"], numbers["expected"])]
    if name == "groups":
        numbers = {**numbers, "inner": lowered(written(str(numbers["of"]), severity, numbers)[0])}
    if "basis" in numbers:
        noun, more = _ROWS[numbers["basis"]]
        numbers = {**numbers, "rows": f"{counted(int(numbers['num']), noun)}{more}"}
    lead, rest = template.lead.format_map(numbers), template.rest
    if ", linear model" in rest and "linear" not in numbers:
        rest = rest.partition(", linear model")[0] + "."
    if name not in MEASURES:
        return lead, f"{lead}{rest.format_map(numbers)}"
    shown = "It is {value:.3g}, where {expected:.3g} ± {error:.2g} is expected.".format_map(numbers)
    if severity == "fine":
        return f"Nothing against the fit in {MEASURES[name]}", f"Nothing against the fit in {MEASURES[name]}. {shown}"
    lead = f"A weak sign, which may be chance, that {lowered(lead)}" if severity == "note" else lead
    return lead, f"{lead}, by {MEASURES[name]}. {shown}"


def lowered(clause: str) -> str:
    """Return a clause that goes on in a sentence."""
    return clause[:1].lower() + clause[1:]
