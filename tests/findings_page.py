"""The tables of docs/how-to/warnings.md, made from the table of checks; run it to write them into the page."""

import inspect
import re
import tomllib
from pathlib import Path

from pyrobnn.diagnostics.checks import CHECKS
from pyrobnn.verdict import remedies
from pyrobnn.verdict.finding import MEASURES, templates

PAGE = Path(__file__).parents[1] / "docs/how-to/warnings.md"
ANCHORS = {
    "Simpler models": "no-better-than-a-constant",
    "Training": "training",
    "Markov chains": "chains",
    "Predictions": "predictions",
    "The data": "held-out-data",
}
REMEDIES = tomllib.loads((Path(remedies.__file__).parent / "remedies.toml").read_text(encoding="utf-8"))
PLACEHOLDER = re.compile(r"\{[^}]*\}")


def cells(check):
    """A row for each finding that asks for something: its name, its beginning, and what to do."""
    for key in check.findings or (check.name,):
        template = templates()[key]
        if not template.advice and not template.tries:
            continue
        same = next(other for other, one in templates().items() if one.tries == template.tries)
        tries = ", ".join(REMEDIES[name]["words"] for name in template.tries)
        tries = f"as for `{same}`" if same != key and len(template.tries) > 2 else tries
        advice = " ".join(filter(None, [f"{tries[:1].upper()}{tries[1:]}." if tries else "", template.advice]))
        name = key.removesuffix(" low").removesuffix(" high") if check.name in MEASURES else key
        yield name, PLACEHOLDER.sub("...", template.lead), advice


def section(title):
    """A section of the page: what its findings ask for, and how its checks, alike ones in a row, are computed."""
    found, asked = {}, []
    for check in (check for check in CHECKS if check.section == title):
        computed = " ".join(inspect.getdoc(check.of).split())
        found.setdefault((computed, check.false_alarm), []).append(f"`{check.name}`{'*' * (check.cost == 'cheap')}")
        asked += [f"| `{name}` | {lead} | {advice} |" for name, lead, advice in cells(check)]
    lines = [f"## {title} {{#{ANCHORS[title]}}}", "", "| finding | the message begins | what to do |", "|---|---|---|"]
    lines += [*asked, "", "| check | how it is computed | false alarms |", "|---|---|---|"]
    lines += [f"| {', '.join(names)} | {computed} | {alarm} |" for (computed, alarm), names in found.items()]
    return "\n".join(lines)


def generated():
    """All sections."""
    return "\n\n".join(section(title) for title in ANCHORS) + "\n"


def parts(text):
    """The page before, in and after the generated sections."""
    first, last = text.index("## Simpler models"), text.index("## Other Python warnings")
    return text[:first], text[first:last].rstrip() + "\n", text[last:]


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(f"{before}{generated()}\n{after}", encoding="utf-8")
