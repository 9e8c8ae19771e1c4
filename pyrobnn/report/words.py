"""Sentences and tables of the report: the fit, the meaning of scores, settings as rows."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor, nn

from pyrobnn._core.counts import counted
from pyrobnn._core.folders import next_name
from pyrobnn._core.remedies import Spelling, options
from pyrobnn._core.settings import in_short, kind_of, leaves, to_dict
from pyrobnn._core.table_cells import MARK, input_name, with_marks
from pyrobnn._torch.inputs import shape_of
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.findings import Diagnosis
from pyrobnn.inference.method import registry
from pyrobnn.metrics import Score, Scores
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior

_INTERVALS = {
    "coverage": "Share of the targets inside their {level} % predictive interval; it should be 0.{level}.",
    "width": "Mean width of the {level} % predictive intervals, in units of the target; narrow is good if "
    "coverage is right.",
    "interval_score": "Width of the {level} % predictive intervals, and a penalty for misses. Lower is better.",
}
SCORE_MEANINGS = {
    "log_likelihood": "Mean log of the probability, or density, that targets got, in nats. Higher is better.",
    "crps": "Continuous ranked probability score, in the units of the target: the absolute error of a distribution. "
    "Lower is better.",
    "rmse": "Root mean squared error of the predictive mean, in the units of the target. Lower is better.",
    "mae": "Mean absolute error of the predictive mean, in the units of the target. Lower is better.",
    "median_error": "Median absolute error of the predictive mean, in the units of the target: half of the targets are "
    "nearer. Outliers do not change it. Lower is better.",
    "r2": "Share of the variance of the targets that the predictive mean explains; 1 is perfect.",
    "pit_error": "PIT error: how unevenly targets fall into their predictive distributions, 0 (calibrated) to 0.5.",
    "energy_score": "Energy score: the ranked probability score of all target columns together. Lower is better.",
    "accuracy": "Share of the examples whose most probable class was right. Higher is better.",
    "brier": "Squared error of the class probabilities, summed over the classes; 0 is perfect.",
    "ece": "Expected calibration error: mean gap between confidence and accuracy; 0 is calibrated.",
    "auroc": "How often the fit tells which is which of two examples of different classes; 0.5 is guessing.",
    "aurc": "AURC: mean error rate among the most confident examples, over all shares of them. Lower is better.",
    "ause": "AUSE: error that is left when the least sure examples are dropped, above the best order; 0 is perfect.",
} | {
    f"{name}_{level}": meaning.format(level=level)
    for name, meaning in _INTERVALS.items()
    for level in ("50", "80", "90", "95")
}
"""The meaning of each score, at the default levels."""
NAMES = {
    "accuracy": "share that is right",
    "auroc": "pairs told apart (AUROC)",
    "r2": "variance explained (R²)",
    "rmse": "typical error (RMSE)",
    "log_likelihood": "log score",
    "coverage_95": "targets in 95 % intervals",
    "width_95": "width of 95 % intervals",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
    "crps": "error of the distribution (CRPS)",
    "mae": "mean absolute error (MAE)",
    "median_error": "median absolute error",
    "ause": "sorting of errors (AUSE)",
    "pit_error": "unevenness of ranks (PIT)",
    "energy_score": "energy score",
    "aurc": "error of the surest (AURC)",
} | {
    f"{name}_{level}": words.format(level=level)
    for name, words in {
        "coverage": "targets in {level} % intervals",
        "width": "width of {level} % intervals",
        "interval_score": "score of {level} % intervals",
    }.items()
    for level in ("50", "80", "90", "95")
}
"""The scores in plain words, those that matter most first."""
IN_TABLES = {"ause": "sorting of errors"}
"""Names in the tables of the command line, where they differ from those in files."""


PIT = (
    "PIT is the share of a predictive distribution that lies below its target. If the network is right, all shares are "
    "equally frequent, and the bars lie between the dashed lines."
)
AUSE = (
    "Dropping the most uncertain examples should lower the error. AUSE is the area between their order and the best "
    "order; 0 is perfect."
)
EFFECTS = (
    "A column is set to a value in all examples, their other columns stay, and the predictions are averaged. The band "
    "is what more data would narrow. Where columns depend on each other, some of these examples do not occur."
)
CONFIDENCE = (
    "Confidence",
    "Confidence of the predictions; wrong predictions should be among the less sure, on the left.",
    "Of predictions with a confidence of 80 %, four in five should be right: dots belong inside the bars.",
)
"""A title, its caption, and the caption of calibration."""
EXPLAINED = {
    "k-hat": "k-hat says how close the fitted distribution of all weights is to the exact distribution. Below "
    "the limit it is close; above, it is not, though predictions may be good all the same."
}
"""The subject of a check, by the name of its finding, if the finding takes it as known."""

_MAIN = (
    "log_likelihood", "auroc", "accuracy", "crps", "rmse", "r2", "coverage_95", "width_95", "brier", "ece", "ause",
)  # fmt: skip
"""The scores that a reader sees first, in their order."""
_FEW_ROWS = 4.0
"""Typical error (RMSE) in median errors above which few rows make it up: normal errors have 1.5, and a Student-t of 2.5
degrees of freedom has 2.9."""
_ONE_SIDED = 0.8
"""Share of the most frequent class from which on accuracy says little."""


def score_rows(scores: Mapping[str, Score]) -> dict[str, list[tuple[str, Score, str]]]:
    """Return the rows of the table of scores, name, score and meaning: the main rows, and the others."""
    order = [*(name for name in _MAIN if name in scores), *(name for name in scores if name not in _MAIN)]
    rows = [(name, scores[name], SCORE_MEANINGS.get(name, "")) for name in order]
    is_main = [name in _MAIN or name not in SCORE_MEANINGS for name in order]
    return {
        "main": [row for row, main in zip(rows, is_main, strict=True) if main],
        "other": [row for row, main in zip(rows, is_main, strict=True) if not main],
    }


def column_rows(scores: Mapping[str, Score], target: str) -> list[tuple[str, dict[str, Score]]]:
    """Return the scores of each target column by itself, with a name for it, where there are several."""
    columns = scores.by_column if isinstance(scores, Scores) else ()
    return [(f"{target} {number}", column) for number, column in enumerate(columns, 1)]


def found(
    scores: Mapping[str, Score], baselines: Mapping[str, Mapping[str, Score]], train: Data, num: int, *, has_test: bool
) -> str:
    """Return a sentence on how well the network predicts, beside the baselines; empty without a finite score."""
    where = counted(num, "test example") if has_test else f"its own {counted(num, 'training example')}"
    if "accuracy" in scores and of_accuracy(baselines):
        return _of_rare(scores, baselines, where)
    if _beside_outliers(scores, baselines.get("constant", {})):
        return _of_half(scores, baselines, train.target_name, where)
    ways = {
        "accuracy": (_share, "finds", f"the class of # of {where}"),
        "r2": (_share, "explains", f"# of the variance of {train.target_name} in {where}"),
        "log_likelihood": (_nats, "has", f"a mean log score of # on {where}"),
    }
    for name, (shown, verb, phrase) in ways.items():
        if name not in scores or not math.isfinite(scores[name].value):
            continue
        before, _, after = phrase.partition("#")
        rest = " and ".join(
            f"a {kind}{' model' if kind == 'linear' else ''} {verb} {shown(entries[name].value)}"
            for kind, entries in [*baselines.items()][::-1]
            if name in entries
        )
        said = f"The network {verb} {before}{shown(scores[name].value)}{after}"
        if {shown(entries[name].value) for entries in (scores, *baselines.values()) if name in entries} == {"none"}:
            return f"{said}, and simpler models explain none either."
        return f"{said}, where {rest}." if rest else f"{said}."
    return ""


def _beside_outliers(scores: Mapping[str, Score], constant: Mapping[str, Score]) -> bool:
    """Return whether few rows make up the errors, and the variance explained hides what the median error shows."""
    if not all({"rmse", "median_error", "r2"} <= entries.keys() for entries in (scores, constant)):
        return False
    middle, usual = scores["median_error"].value, constant["median_error"].value
    hides = usual > 0 and scores["r2"].value < (1 - (middle / usual) ** 2) / 2
    return hides and scores["rmse"].value > _FEW_ROWS * middle


def _of_half(scores: Mapping[str, Score], baselines: Mapping[str, Mapping[str, Score]], target: str, where: str) -> str:
    """Say how well the nearer half of the targets is predicted."""
    names = {"linear": "a linear model", "constant": "a constant"}
    within = [f"{names[kind]} within {entries['median_error'].value:.2g}" for kind, entries in baselines.items()]
    return (
        f"For half of {where} the network is within {scores['median_error'].value:.2g} of {target}, "
        f"{' and '.join(within[::-1])}. Outliers make up most of the variance, so the share that is explained, "
        f"{_share(scores['r2'].value)}, says little."
    )


def of_accuracy(baselines: Mapping[str, Mapping[str, Score]]) -> str:
    """Return a sentence on accuracy where one class is far more frequent than all others; else it is empty."""
    usual = baselines.get("constant", {}).get("accuracy")
    if usual is None or usual.value < _ONE_SIDED:
        return ""
    return f"Accuracy says little: the most frequent class makes {_share(usual.value)}."


def _of_rare(scores: Mapping[str, Score], baselines: Mapping[str, Mapping[str, Score]], where: str) -> str:
    """Say how well classes are told of which one is far more frequent than all others."""
    names = {"linear": "of a linear model", "constant": "of the shares of the classes alone"}
    losses = [f"{names[kind]} {-entries['log_likelihood'].value:.3f}" for kind, entries in [*baselines.items()][::-1]]
    loss = f"log loss{{}} is {-scores['log_likelihood'].value:.3f}, that {' and '.join(losses)}; lower is better."
    auroc = scores.get("auroc")
    if auroc is None or not math.isfinite(auroc.value):
        return f"The {loss.format(f' of the network on {where}')}"
    linear = baselines.get("linear", {}).get("auroc")
    beside = "" if linear is None else f"a linear model in {_share(linear.value)}, "
    few = "; one of the classes has too few of them to tell" if math.isnan(auroc.stderr) else ""
    return (
        f"Given two examples of different classes, the network tells which is which in {_share(auroc.value)} of "
        f"pairs from {where}, {beside}guessing in 50 % (AUROC){few}. Its {loss.format('')}"
    )


def _share(value: float) -> str:
    return "none" if value < 0.005 else f"{100 * value:.{0 if value < 0.99 or value == 1 else 1}f} %"


def _nats(value: float) -> str:
    return f"{value:.2f} nats"


def next_step(diagnosis: Diagnosis, spelling: Spelling, folder: str = "") -> tuple[str, str]:
    """Return what to do next in words, and the command for it; empty where there is none.

    Args:
        diagnosis: the findings.
        spelling: the reader.
        folder: the run folder of the fit.
    """
    step, run = diagnosis.next_step, folder or "RUN_DIR"
    if spelling == "python":
        return ("predict new rows, `posterior.predict(x)`" if step is None else step.words(spelling)), ""
    if step is None:
        return "predict new rows", f"pyrobnn predict {quote(run)} NEW.csv --out predictions.csv"
    if not step.settings:
        return step.words(spelling), ""
    spec, out = quote(f"{run}/spec.toml"), quote(next_name(run))
    return step.words(spelling), f"pyrobnn fit {spec} {options(*step.settings)} --out {out}"


def concluded(diagnosis: Diagnosis, folder: str) -> str:
    """Return the verdict on the fit of a run folder and what to do next, as lines of the terminal."""
    step, command = next_step(diagnosis, "command", folder)
    details = "".join(f"\n{detail}" for detail in diagnosis.details)
    return f"{diagnosis.conclusion}{details}\nNext: {step}{f':\n  {command}' if command else '.'}"


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
    kind = str(method.get("type", "svi"))
    if isinstance(method.get("method"), Mapping) and "members" in method:
        return f" by an ensemble of {method['members']} fits{_by(method['method'])}"
    if kind != "svi":
        chains = f" with {method['num_chains']} chains of {method['num_draws']} draws" if "num_chains" in method else ""
        name = registry.get(kind).__name__ if kind in registry.names else kind
        return f" by {name}{chains}"
    return f" with a {kind_of(method['guide']).replace('_', ' ')} guide" if method.get("guide") else ""


def settings(posterior: Posterior | Mixture) -> dict[str, Any]:
    """Return the parts and the method of a fit as tables, for a posterior that has no spec."""
    return {kind: repr(part) for kind, part in posterior.bnn.settings.items()} | {"method": posterior.record.method}


def data_rows(
    train: Data, test: Data | None, class_names: Sequence[str], columns: Mapping[str, Sequence[int]] | None = None
) -> list[tuple[str, str]]:
    """Return the facts about the data as rows; `columns` are as in `render`."""
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
    """Return how a fit came to its end as rows; of a mixture, with the members of which it is the same."""
    members = members_of(posterior)
    told: dict[tuple[str, str], list[int]] = {}
    for number, member in enumerate(members, 1):
        for row in _ending(member):
            told.setdefault(row, []).append(number)
    return [(f"{fact}{_which(numbers, len(members))}", value) for (fact, value), numbers in told.items()]


def _which(numbers: Sequence[int], num_members: int) -> str:
    if len(numbers) == num_members:
        return " (all members)" if num_members > 1 else ""
    return f" ({'members' if len(numbers) > 1 else 'member'} {', '.join(map(str, numbers))})"


def _ending(member: Posterior) -> list[tuple[str, str]]:
    reason, convergence = member.record.stop_reason, member.record.convergence
    rows = [] if reason is None else [("why it ended", reason)]
    if convergence is None:
        return rows
    error = "" if convergence.elbo_error is None else f" ± {convergence.elbo_error:.2g}"
    gain = "none: one cycle only" if convergence.gain is None else f"{convergence.gain:.2g} nats"
    return [
        *rows,
        ("converged", "yes" if convergence.converged else "no"),
        ("ELBO at the end", f"{convergence.elbo:.2f}{error} nats"),
        ("gain of the last cycle", f"{gain}; gains below {convergence.tolerance:.2g} nats do not matter"),
        ("steps at the end of each cycle", ", ".join(map(str, convergence.cycle_ends)) or "–"),
    ]


def flat(value: Any) -> list[tuple[str, str]]:
    """Return nested tables as rows of a dotted key and a value; settings are turned into tables first."""
    nested = value if isinstance(value, Mapping) else to_dict(value)
    return [(key, _text(item)) for key, item in leaves(nested)]


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)
