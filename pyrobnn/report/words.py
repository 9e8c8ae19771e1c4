"""Words of the report and of the terminal: the fit, the names of scores, settings as rows."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor, nn

from pyrobnn._core.errors import counted
from pyrobnn._core.folders import next_name
from pyrobnn._core.remedies import Spelling, options
from pyrobnn._core.settings import in_short, kind_of, leaves, to_dict
from pyrobnn._torch.inputs import shape_of
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.diagnosis import Diagnosis
from pyrobnn.metrics import Score
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.tables.cells import MARK, input_name, with_marks

_WIDTH = "Mean width in units of the target; narrow is good if coverage is right."
SCORES = {
    "accuracy": ("share that is right", "Share of the examples whose most probable class was right."),
    "auroc": (
        "pairs told apart (AUROC)",
        "How often two examples of different classes are told apart; 0.5 is a guess.",
    ),
    "r2": ("variance explained (R²)", "Share of the variance of the targets that the predictive mean explains."),
    "rmse": ("typical error (RMSE)", "Root mean squared error of the predictive mean, in the units of the target."),
    "log_likelihood": ("log score", "Mean log of the probability, or density, that targets got, in nats."),
    "coverage_95": ("targets in 95 % intervals", "Share of the targets inside their interval; it should be 0.95."),
    "width_95": ("width of 95 % intervals", _WIDTH),
    "brier": ("Brier score", "Squared error of the class probabilities, summed over the classes; 0 is perfect."),
    "ece": ("calibration error (ECE)", "Mean gap between confidence and accuracy; 0 is calibrated."),
    "crps": ("error of the distribution (CRPS)", "The absolute error of a distribution, in the units of the target."),
    "mae": ("mean absolute error (MAE)", "Mean absolute error of the predictive mean, in the units of the target."),
    "median_error": ("median absolute error", "Half of the targets are nearer to the mean. Outliers do not change it."),
    "ause": (
        "sorting of errors (AUSE)",
        "Error left when the least sure are dropped, above the best order; 0 is perfect.",
    ),
    "pit_error": ("unevenness of ranks (PIT)", "How unevenly targets fall into their distributions, 0 to 0.5."),
    "energy_score": ("energy score", "The ranked probability score of all target columns together."),
    "aurc": ("error of the surest (AURC)", "Mean error rate among the most confident examples, over all shares."),
}
"""The name and the meaning of each score; those that matter most are first."""
for _level in (50, 80, 90, 95):
    SCORES.setdefault(f"coverage_{_level}", (f"targets in {_level} % intervals", f"It should be 0.{_level}."))
    SCORES.setdefault(f"width_{_level}", (f"width of {_level} % intervals", _WIDTH))
    SCORES[f"interval_score_{_level}"] = (f"score of {_level} % intervals", "Their width, and a penalty for misses.")
_MAIN_SCORES = tuple(SCORES)[:9]
_OF_AN_ORDER = ("ause", "aurc")
"""Scores of the order of examples, which a constant has not."""
_SHOWN = 3
"""Scores in the terminal, beside that of the sentence."""
CAPTIONS = {
    "fit": "The grey lines bound the predictive interval, which should hold 19 of 20 targets. The blue band is its "
    "epistemic part, which more data would narrow.",
    "surface": "They are shown with the training data.",
    "epistemic": "High where more data would change predictions most.",
    "confusion": "Right predictions are blue and lie on the diagonal, wrong ones are orange. Shares are by row.",
    "observed_vs_predicted": "Dots belong near the diagonal; the bars are 95 % predictive intervals, and should "
    "cross it.",
    "reliability": "Of predictions with a confidence of 80 %, four in five should be right: dots belong inside the "
    "bars.",
    "coverage": "Of 80 % predictive intervals four in five should hold the target. Of networks whose intervals are "
    "right, 19 in 20 have their whole line in the grey area.",
    "importance": "By how much the log score falls if a column is shuffled among the examples: 0 for a column that "
    "the network does not use. Of columns that say the same, each stands in for the others.",
    "effects": "A column is set to a value in all examples, their other columns stay, and the predictions are "
    "averaged. The band is what more data would narrow. Where columns depend on each other, some of these examples do "
    "not occur.",
    "predictive_check": "Data that the fit simulates, beside the targets that were seen: what was seen should lie "
    "among them.",
    "elbo": "What training raises, at each step: how well the training data are explained, less how far the weights "
    "are from the prior. It should end flat; that proves little where the learning rate goes to zero.",
}
"""What each picture shows, by the name of its file."""
EXPLAINED = {
    "k-hat": "k-hat says how close the fitted distribution of all weights is to the exact distribution. Below "
    "the limit it is close; above, it is not, though predictions may be good all the same."
}
"""The subject of a check, by the name of its finding, if the finding takes it as known."""
_MOST_FREQUENT_SHARE = 0.8
"""Share of the most frequent class from which on accuracy says little."""
_WAYS = {
    "auroc": ("share", "tells apart", "# of pairs of examples of different classes from"),
    "accuracy": ("share", "finds", "the class of # of"),
    "r2": ("share", "explains", "# of the variance of {target} in"),
    "log_likelihood": ("nats", "has", "a mean log score of # on"),
}
"""How the first sentence puts a score: its kind, a verb, and what follows, with # for the number."""


def name_of(key: str, score: Score) -> str:
    """Return the name of a score with an arrow to its better side, or the share that a coverage should be."""
    level = key.removeprefix("coverage_")
    aim = f"(0.{level})" if level != key else "↑" if score.higher_is_better else "↓"
    return f"{SCORES.get(key, (key, ''))[0]} {aim}"


def score_rows(scores: Mapping[str, Score]) -> tuple[list[str], list[str]]:
    """Return the names of the scores that matter most, or that are a user's, and of the others."""
    first = [name for name in (*_MAIN_SCORES, *(name for name in scores if name not in SCORES)) if name in scores]
    return first, [name for name in scores if name not in first]


def simple_score(model: str, scores: Mapping[str, Score], key: str) -> Score | None:
    """Return a score of a baseline; none where it says nothing of a constant."""
    return None if model == "constant" and key in _OF_AN_ORDER else scores.get(key)


def leading(scores: Mapping[str, Score], baselines: Mapping[str, Mapping[str, Score]]) -> str | None:
    """Return the name of the score that the first sentence is about; None without a finite one."""
    usual = baselines.get("constant", {}).get("accuracy")
    is_rare = usual is not None and usual.value >= _MOST_FREQUENT_SHARE
    names = (name for name in _WAYS if is_rare or name != "auroc")
    return next((name for name in names if name in scores and math.isfinite(scores[name].value)), None)


def found(
    scores: Mapping[str, Score], baselines: Mapping[str, Mapping[str, Score]], train: Data, num: int, *, has_test: bool
) -> str:
    """Return a sentence on how well the network predicts, beside the baselines; empty without a finite score."""
    name = leading(scores, baselines)
    if name is None:
        return ""
    kind, verb, phrase = _WAYS[name]
    shown = _share if kind == "share" else "{:.2f} nats".format
    before, _, after = phrase.partition("#")
    where = counted(num, "held-out example") if has_test else f"its own {counted(num, 'training example')}"
    simple = {model: shown(entries[name].value) for model, entries in [*baselines.items()][::-1] if name in entries}
    value = shown(scores[name].value)
    said = f"The network {verb} {before}{value}{after.replace('{target}', train.target_name)} {where}"
    if {value, *simple.values()} == {"none"}:
        return f"{said}, and simpler models explain none either."
    rest = " and ".join(f"a {model}{' model' if model == 'linear' else ''} {verb} {of}" for model, of in simple.items())
    return f"{said}, where {rest}." if rest else f"{said}."


def _share(value: float) -> str:
    return "none" if value < 0.005 else f"{100 * value:.{0 if value < 0.99 or value == 1 else 1}f} %"


def next_step(diagnosis: Diagnosis, spelling: Spelling, folder: str = "") -> tuple[str, str]:
    """Return what to do next in words, and the command for it; empty where there is none."""
    step, run = diagnosis.next_step, folder or "RUN_DIR"
    if spelling == "python":
        return ("predict new rows, `posterior.predict(x)`" if step is None else step.said(spelling)), ""
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


def summary(
    *,
    scores: Mapping[str, Score],
    baselines: Mapping[str, Mapping[str, Score]],
    train: Data,
    num: int,
    diagnosis: Diagnosis,
    folder: str,
    lines: Sequence[str] = (),
) -> str:
    """Return what the terminal says of the fit in a run folder: how well, the verdict, scores, and what is next."""
    first = leading(scores, baselines)
    rows = [(f"{num} held-out rows", "pyrobnn", *baselines)]
    for name in [name for name in score_rows(scores)[0] if name != first][:_SHOWN]:
        others = (simple_score(model, entries, name) for model, entries in baselines.items())
        rows.append(
            (name_of(name, scores[name]), *("" if each is None else str(each) for each in (scores[name], *others)))
        )
    said = found(scores, baselines, train, num, has_test=True)
    told = concluded(diagnosis, folder, [*lines, aligned(rows)])
    return "\n".join([*filter(None, [said]), told, f"Folder: {folder}, with report.html and held_out.csv"])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as a table for the terminal, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )


def title(spec: Any, target: str) -> str:
    """Return the file or the data set of a run, and its target."""
    data = spec.get("data") if isinstance(spec, Mapping) else None
    source = data.get("path") or data.get("name") if isinstance(data, Mapping) else None
    return f"{Path(source).name}: {target}" if source else f"{target}: Bayesian neural network"


def gap_line(scored: Data, which: str) -> list[str]:
    """Return how many of the examples that were scored lack a number, by the columns that mark it, if any does."""
    if not isinstance(scored.x, Tensor) or scored.x.ndim != 2:
        return []
    marks = torch.tensor([name.startswith(MARK) for name in scored.feature_names])
    num = int((scored.x[:, marks] > 0).any(1).sum())
    of = f"of {counted(len(scored), f'{which} example')}"
    return [f"{num:,} {of} lack a number: predicted by mixtures over numbers drawn given the others"] if num else []


def sentence(posterior: Posterior | Mixture, train: Data) -> str:
    """Return a plain sentence that describes the fit."""
    settings, record = posterior.bnn.settings, posterior.record
    steps = "" if record.num_steps is None else f", in {counted(record.num_steps, 'step')}"
    net = type(posterior.bnn.net).__name__ if isinstance(settings["net"], nn.Module) else in_short(settings["net"])
    prior, likelihood = (kind_of(settings[part]).replace("_", " ") for part in ("prior", "likelihood"))
    return (
        f"A Bayesian neural network with {posterior.bnn.num_weights} uncertain weights ({net}; {prior} prior; "
        f"{likelihood} likelihood) was fitted to {len(train)} examples of "
        f"{train.target_name}{_by(record.method)}{steps}."
    )


def _by(method: Any) -> str:
    """Return the method in words, given as a table."""
    if not isinstance(method, Mapping):
        return ""
    kind, inner = str(method.get("type", "svi")), method.get("method")
    of = _by(inner).replace(" by ", " of ", 1)
    guide = f" with a {kind_of(method['guide']).replace('_', ' ')} guide" if kind == "svi" and "guide" in method else ""
    return f" by {kind.replace('_', ' ')}{of}{guide}"


def data_rows(
    train: Data, test: Data | None, class_names: Sequence[str], columns: Mapping[str, Sequence[int]] | None = None
) -> list[tuple[str, str]]:
    """Return the facts about the data as rows; `columns` are as in `Facts`."""
    groups = columns or with_marks(train.feature_names)
    inputs = [input_name(train.feature_names[place], name) for name, places in groups.items() for place in places]
    names = ", ".join(inputs) or f"arrays of shape {shape_of(train.x[0])}"
    rows = [
        ("training examples", str(len(train))),
        ("test examples", "none: scored on the training data" if test is None else str(len(test))),
        ("target", train.target_name),
        (f"features ({train.x[0].numel()})", names),
        ("standardised", "yes" if train.standardize else "no"),
    ]
    if not class_names:
        return rows
    counts = [part.class_counts(len(class_names)) for part in (train, test) if part is not None]
    counted = (f"{name} ({' + '.join(map(str, numbers))})" for name, *numbers in zip(class_names, *counts, strict=True))
    return [*rows, (f"classes ({len(class_names)}), examples to train on and to test on", ", ".join(counted))]


def ending_rows(posterior: Posterior | Mixture) -> list[tuple[str, str]]:
    """Return how each fit, of a mixture each member, came to its end, as rows."""
    rows = []
    for number, member in enumerate(posterior.members, 1):
        of, end = f" {number}" if posterior.members[1:] else "", member.record.convergence
        if member.record.stop_reason is not None:
            rows.append((f"why it ended{of}", member.record.stop_reason))
        if end is not None:
            error = "" if end.elbo_error is None else f" ± {end.elbo_error:.2g}"
            is_reached = "converged" if end.converged else "not converged"
            rows.append((f"ELBO at the end{of}", f"{end.elbo:.2f}{error} nats, {is_reached}"))
    return rows


def flat(value: Any) -> list[tuple[str, str]]:
    """Return nested tables as rows of a dotted key and a value; settings are turned into tables first."""
    nested = value if isinstance(value, Mapping) else to_dict(value)
    return [(key, text(item)) for key, item in leaves(nested)]


def text(value: Any) -> str:
    """Return a setting as a table shows it."""
    if isinstance(value, Mapping):
        value = " ".join(text(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        value = ", ".join(text(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value in (None, "") else str(value)
