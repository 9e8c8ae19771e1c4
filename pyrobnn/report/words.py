"""Words of the report and of the terminal, from words.toml: how good a fit is, scores, settings as rows."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from pyrobnn._core.errors import counted
from pyrobnn._core.folders import next_name
from pyrobnn._core.remedies import Spelling, options
from pyrobnn._core.settings import to_dict
from pyrobnn.diagnostics.diagnosis import Diagnosis
from pyrobnn.metrics import Score
from pyrobnn.metrics.base import digits
from pyrobnn.verdict.evidence import Evidence

WORDS: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
_NUM_MAIN, _NUM_SHOWN = 9, 3  # scores that the report shows at once, and the terminal after a share
_NONE = 0.005  # the share of the variance that counts as none
_MOST_FREQUENT_SHARE = 0.8  # of the most frequent class, from which on accuracy says little

Baselines = Mapping[str, Mapping[str, Score]]


def meaning(key: str) -> tuple[str, str]:
    """Return the name and the meaning of a score; a user's has its key for a name."""
    kind, _, level = key.rpartition("_")
    pair = WORDS["scores"].get(key) or WORDS["of_level"].get(kind, (key, ""))
    return pair[0].format(level), pair[1].format(level)


def name_of(key: str, score: Score) -> str:
    """Return the name of a score with an arrow to its better side, or the share that a coverage should be."""
    level = key.removeprefix("coverage_")
    aim = f"(0.{level})" if level != key else "↑" if score.higher_is_better else "↓"
    return f"{meaning(key)[0]} {aim}"


def score_rows(scores: Mapping[str, Score]) -> tuple[list[str], list[str]]:
    """Return the names of the scores that matter most, or that are a user's, and of the others."""
    users = (name for name in scores if meaning(name) == (name, ""))
    first = [name for name in (*[*WORDS["scores"]][:_NUM_MAIN], *users) if name in scores]
    return first, [name for name in scores if name not in first]


def leading(scores: Mapping[str, Score], baselines: Baselines) -> str | None:
    """Return the name of the score that the first sentence is about, errors where R² is 0; None without one."""
    usual = baselines.get("constant", {}).get("accuracy")
    is_rare = usual is not None and usual.value >= _MOST_FREQUENT_SHARE
    is_none = {"r2", "rmse"} <= scores.keys() and scores["r2"].value < _NONE
    names = (name for name in WORDS["first"] if (is_rare or name != "auroc") and not (is_none and name == "r2"))
    return next((name for name in names if name in scores and math.isfinite(scores[name].value)), None)


def found(scores: Mapping[str, Score], baselines: Baselines, evidence: Evidence, num_scored: int = 0) -> str:
    """Return a sentence on how well the network predicts, beside the baselines; empty without a finite score."""
    name = leading(scores, baselines)
    if name is None:
        return ""
    verb, before, after = WORDS["first"][name]
    value = f"{before}{_written(name, scores[name].value)}{after.replace('{}', evidence.train.target_name)}"
    num, is_unseen = num_scored or len(evidence.held_out or evidence.train), evidence.held_out is not None
    where = counted(num, "held-out example") if is_unseen else f"its own {counted(num, 'training example')}"
    is_ordinary = name in ("r2", "rmse") and evidence.likelihood.noise is None
    models = {"linear": "an ordinary linear model" if is_ordinary else "a linear model", "constant": "a constant"}
    scored = {model: baselines[model][name].value for model in models if name in baselines.get(model, {})}
    if name not in ("log_likelihood", "rmse") and scored.get("constant", math.inf) < _NONE:
        del scored["constant"]
    told = [f"{models[model]} {_written(name, score)}" for model, score in scored.items()]
    return f"The network {verb} {value} {where}{', ' if told else ''}{' and '.join(told)}."


def _written(name: str, value: float) -> str:
    """Return a score as the first sentence has it: a density, an error, or else a share."""
    if name in ("log_likelihood", "rmse"):
        return f"{value:.2f}" if name == "log_likelihood" else f"{value:.3g}"
    return "none" if value < _NONE else f"{100 * value:.{0 if value < 0.99 or value == 1 else 1}f} %"


def next_step(diagnosis: Diagnosis, spelling: Spelling, folder: str = "") -> tuple[str, str]:
    """Return what to do next in words, and the command for it; empty where there is none."""
    step, run = diagnosis.next_step, folder or "RUN_DIR"
    if spelling != "command":
        call = "model.predict(X)" if spelling == "estimator" else "posterior.predict(x)"
        return (f"predict new rows, `{call}`" if step is None else step.said("python")), ""
    if step is None:
        return "predict new rows", f"pyrobnn predict {quote(run)} NEW.csv --out predictions.csv"
    if not step.settings:
        return step.words, ""
    spec, out = quote(f"{run}/spec.toml"), quote(next_name(run))
    return step.words, f"pyrobnn fit {spec} {options(*step.settings)} --out {out}"


def concluded(diagnosis: Diagnosis, folder: str, between: Sequence[str] = ()) -> str:
    """Return the verdict on the fit of a run folder, other lines, and what to do next, as lines of the terminal."""
    step, command = next_step(diagnosis, "command", folder)
    last = f"Next: {step}{f': {command}' if command else '.'}"
    return "\n".join([diagnosis.conclusion, *diagnosis.details, *between, last])


def score_lines(scores: Mapping[str, Score], baselines: Baselines, evidence: Evidence) -> str:
    """Return the scores that matter most as a table for the terminal, but for the first, R² or the share of right."""
    rows = [(f"{len(evidence.held_out or ())} held-out rows", "pyrobnn", *baselines)]
    for name in score_rows(scores)[0][1 : 1 + _NUM_SHOWN]:
        cells = (shown(name, entries[name]) if name in entries else "" for entries in (scores, *baselines.values()))
        rows.append((name_of(name, scores[name]), *cells))
    return aligned(rows)


def shown(name: str, score: Score) -> str:
    """Return a score and its standard error; no error of 0, or of a width: that says little."""
    is_alone = name.startswith("width_") or score.stderr == 0
    return digits(score.value, score.value / 10)[0] if is_alone else str(score)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as a table for the terminal, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = (f"  {cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        lines.append(f"{first:<{widths[0]}}{''.join(cells)}".rstrip())
    return "\n".join(lines)


def flat(value: Any) -> list[tuple[str, str]]:
    """Return nested tables as rows of a dotted key and a value; settings are turned into tables first."""
    rows = []
    for key, item in (value if isinstance(value, Mapping) else to_dict(value)).items():
        inner = flat(item) if isinstance(item, Mapping) else []
        rows += [(f"{key}.{name}", told) for name, told in inner] or [(key, text(item))]
    return rows


def text(value: Any) -> str:
    """Return a setting as a table shows it."""
    if isinstance(value, Mapping):
        value = " ".join(text(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        value = ", ".join(text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else "–" if value in (None, "") else str(value)
