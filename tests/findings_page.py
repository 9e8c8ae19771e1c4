"""The tables of docs/how-to/warnings.md, made from the table of checks; run it to write them into the page."""

import inspect
import re
from pathlib import Path
from typing import Literal, NamedTuple

from pyrobnn.diagnostics.checks import ALL_CHECKS
from pyrobnn.verdict.checks import FIT_END_CHECKS
from pyrobnn.verdict.finding import WORDS, templates

PAGE = Path(__file__).parents[1] / "docs/how-to/warnings.md"
ANCHORS = {
    "Simpler models": "no-better-than-a-constant",
    "Training": "training",
    "Markov chains": "chains",
    "Predictions": "predictions",
    "The data": "held-out-data",
}
Section = Literal["Simpler models", "Training", "Markov chains", "Predictions", "The data"]


class Row(NamedTuple):
    """A row of the page: a check, or one of its statistics, its section, its false alarms, and the keys it finds."""

    check: str
    section: Section
    false_alarm: str
    keys: tuple[str, ...]
    statistic: str = ""


RARELY, RATE = "2 of 139, all at the end of a fit", "5 %, `false_alarm_rate`, of all such tests together"
COMPARED = ("impossible", "constant", "linear", "behind linear", "like linear", "near linear", "open")
COMPARED += ("better", "better than constant")
CHAINS = ("chains unknown", "chains stuck", "chains rough", "chains apart", "chains short")


def of_statistic(name, false_alarm=RATE):
    return Row("calibration", "Predictions", false_alarm, (f"{name} low", f"{name} high"), name)


ROWS = (
    Row("leak", "The data", "not known", ("copy", "row number")),
    Row("held-out data", "The data", "none", ("no held-out data", "seen held-out data", "few held-out data")),
    Row("constant target", "The data", "none", ("constant target", "one example")),
    Row("baselines", "Simpler models", RARELY, COMPARED),
    Row("memorised", "Simpler models", RARELY, ("memorised",)),
    Row("learned", "Simpler models", RARELY, ("learned", "hardly")),
    Row("length", "Training", RARELY, ("length",)),
    Row("use", "Simpler models", "none", ("few", "not compared")),
    Row("missed", "Simpler models", "none of 28", ("missed",)),
    Row("error", "Simpler models", "1 of 36, whose mean rests on few draws", ("error",)),
    Row("elbo", "Training", RATE, ("elbo", "elbo noisy", "elbo unknown")),
    Row("chains", "Markov chains", "of chains that agree, 1.01 is exceeded in few", CHAINS),
    Row("divergences", "Markov chains", "none", ("divergences",)),
    Row("epistemic", "Predictions", "none", ("epistemic",)),
    Row("mean", "Predictions", "none", ("mean",)),
    of_statistic("spread"),
    of_statistic("coverage"),
    of_statistic("confidence"),
    of_statistic("bias"),
    of_statistic("noise", "0.3 %"),
    of_statistic("surprise"),
    Row("ranking", "Predictions", "0.1 %", ("ranking high",), "ranking"),
    Row("classes", "The data", "none", ("classes",)),
    Row("blocks", "The data", "sorted tables, designed experiments", ("blocks", "shared", "in time")),
    Row("k-hat", "The data", "none", ("k-hat",)),
)
PLACEHOLDER = re.compile(r"\{[^}]*\}")


def cells(row):
    """A row for each finding that asks for something: its name, its beginning, and what to do."""
    for key in row.keys:
        template = templates()[key]
        if not (template.advice or template.tries or template.otherwise):
            continue
        remedies = (template.tries, template.otherwise)
        same = next(other for other, one in templates().items() if (one.tries, one.otherwise) == remedies)
        tries = ", ".join([*(WORDS["remedies"][name] for name in template.tries), *filter(None, [template.otherwise])])
        tries = f"as for `{same}`" if same != key and len(template.tries) > 2 else tries
        advice = " ".join(filter(None, [f"{tries[:1].upper()}{tries[1:]}." if tries else "", template.advice]))
        yield row.statistic or key, PLACEHOLDER.sub("...", template.lead), advice


def section(title):
    """A section of the page: what its findings ask for, and how its checks, alike ones in a row, are computed."""
    found, asked = {}, []
    for row in (row for row in ROWS if row.section == title):
        computed = " ".join(inspect.getdoc(ALL_CHECKS[row.check]).split())
        name = f"`{row.statistic or row.check}`{'*' * (row.check in FIT_END_CHECKS)}"
        found.setdefault((computed, row.false_alarm), []).append(name)
        asked += [f"| `{name}` | {lead} | {advice} |" for name, lead, advice in cells(row)]
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
