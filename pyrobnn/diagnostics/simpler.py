"""What follows where simpler models are as good as a fit."""

from pyrobnn._core.remedies import Remedy
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.findings import BASELINE, LINEAR, Finding
from pyrobnn.verdict.judgement import Verdict
from pyrobnn.verdict.missed import behind_mode, missed_function
from pyrobnn.verdict.remedies import (
    OF_BAD_PREDICTIONS,
    OF_MISSED_FUNCTION,
    Fitted,
    measured_noise,
    open_to,
    other_start,
    standardised,
    without_hidden,
)

_MOST_ROWS = 500
_NOTHING_FOUND = Remedy("look for other inputs: neither this network nor a linear model finds anything in these")
_OTHER_INPUTS = Remedy("look for other inputs, or collect more examples: from these it learned too little")


def of_bad_predictions(fit: Fitted, verdict: Verdict | None) -> tuple[Remedy, ...]:
    """Return what to try where predictions are bad.

    Of a fit without a fault this is first a linear model or another start, if a linear model finds something, and
    other inputs, if neither does.
    """
    tries = open_to(fit, OF_BAD_PREDICTIONS)
    is_sound = not fit.lengths and measured_noise(fit) is None and standardised(fit) is None
    if verdict is None or not is_sound:
        return tries
    return (*((_NOTHING_FOUND,) if verdict.finds_nothing else _of_linear(fit, verdict)), *tries)


def of_little_use(fit: Fitted, verdict: Verdict) -> tuple[Remedy, ...]:
    """Return what to try where nothing shows a gain over a constant."""
    return (*_of_linear(fit, verdict), _OTHER_INPUTS)


def _of_linear(fit: Fitted, verdict: Verdict) -> tuple[Remedy, ...]:
    """Return a linear model and another start where a linear model finds something that the fit does not."""
    return open_to(fit, (without_hidden, other_start)) if verdict.linear_finds else ()


def of_missed_function(fit: Fitted, train: Data, num_draws: int) -> list[Finding]:
    """Warn of a fit that is worse on training rows than a Gaussian process, or its first mode, on rows left out."""
    sizes = {"num_draws": num_draws, "most_rows": _MOST_ROWS}
    text = behind_mode(fit.posterior, train, **sizes) or missed_function(fit.posterior, train, **sizes)
    return [] if text is None else [Finding("missed", "warning", text, remedies=open_to(fit, OF_MISSED_FUNCTION))]


def of_one_cause(findings: list[Finding]) -> tuple[Finding, ...]:
    """Leave out that the fit has missed what inputs say where another warning names the input."""
    names_input = any(finding.name == "inputs" and finding.kind == "warning" for finding in findings)
    return tuple(finding for finding in findings if not (names_input and finding.name == "missed"))


def linear_is_as_good(fit: Fitted, verdict: Verdict) -> list[Finding]:
    """Note that a linear model is as good or better, unless the fit is one."""
    if not verdict.prefers_linear or (fit.is_linear and not verdict.is_better):
        return []
    if fit.is_linear:
        same = "it is a linear model, and predicts about as well as one with a ridge penalty"
        text = f"The network has no hidden layer: {same}. {verdict.numbers}"
        return [Finding(BASELINE, "fine", text)]
    text, plain = verdict.text, verdict.plain
    if not verdict.is_better:
        plain = "a linear model, which is simpler, predicts no worse on the mean"
        text = f"{plain[:1].upper()}{plain[1:]}: keep it unless more data tell them apart. {verdict.numbers}"
    return [Finding(LINEAR, "note", text, remedies=open_to(fit, [without_hidden]), plain=plain)]
