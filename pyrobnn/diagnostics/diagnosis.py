"""Can a fit be trusted? `diagnose` collects the findings of all checks, and a `Diagnosis` decides on trust by them."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.modes import gradients, under
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import Remedy
from pyrobnn.data.given import collected
from pyrobnn.data.in_memory import Data
from pyrobnn.data.leaks import LEAK
from pyrobnn.data.splits import numbered
from pyrobnn.datasets.base import FOR_CALIBRATION
from pyrobnn.diagnostics.convergence import chain_findings, chains_of, continuation_finding, ending_finding
from pyrobnn.diagnostics.convert import MAX_WHOLE
from pyrobnn.diagnostics.importance import importance_weights
from pyrobnn.diagnostics.predictive_checks import (
    CLASSES,
    class_finding,
    epistemic_finding,
    mean_findings,
    num_simulations,
    predictive_findings,
    ranking_finding,
    ranks_better,
    rarest_class,
    statistics_of,
)
from pyrobnn.guides.base import built
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.calibration import check_targets
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.baselines import Baseline, fit_baselines
from pyrobnn.verdict.comparison import BaselineComparison, Evaluation, ScoreGain, compare_with_baselines
from pyrobnn.verdict.complaint import fault_in_full, sites_at_prior
from pyrobnn.verdict.finding import BASELINE, CAUSES, Finding, Kind, Name
from pyrobnn.verdict.remedies import OF_BAD_PREDICTIONS, Fitted, open_to, smaller, without_hidden

Mood = Literal["good", "care", "bad"]
"""Whether a fit can be trusted, may be used with care, if at all, or not yet, as a report colours it."""
_TRUST: dict[str, tuple[Mood, str]] = {
    "yes": ("good", "It can be trusted for data like these"),
    "its probabilities": ("good", "Its probabilities can be trusted for data like these"),
    "with care": ("care", "Use it with care"),
    "of little use": ("care", "It is of little use yet"),
    "use is open": ("care", "Whether it is of use is open"),
    "open": ("care", "Whether it can be trusted is open"),
    "no": ("bad", "Do not trust it yet"),
}
"""How a verdict begins."""
HELD_OUT: Literal["held-out data"] = "held-out data"
"""Name of the finding that few data, or none, were held out: its value is their number."""
LINEAR: Literal["linear model"] = "linear model"
"""Name of the finding that a linear model is as good as the fit, or a little better."""
TOO_FEW = 10
"""Held-out examples, of a class where there are some, below which nothing is said of predictions for them."""
_CLEAR = 1e-3
"""The p-value from which on a warning may be chance: tests of many fits have such numbers now and then."""
_ORDER = ("warning", "note", "fine")
_THREE_ERRORS = 0.00135
"""Probability of a normal number beyond three standard errors on one side."""
_KHAT_DRAWS = 1000
_MOST_FOR_KHAT = 10_000
_MOST_EXAMPLES = 1000
_MOST_FOR_RARE = 10_000
_MOST_FOR_PROCESS = 500
_DRAWS_OF_STEPS = 100
"""Draws for targets with point masses, whose distribution function is slow."""
_HOLD_OUT = Remedy("hold rows out, `train, test = data.split(0.25)`")
_OTHER_INPUTS = Remedy("look for other inputs, or collect more examples: from these it learned too little")
_WHOLE_GROUPS = Remedy("hold whole groups out, or score them by `bnn.kfold(..., groups=...)`")
_USEFUL_NATS = 0.1
_USEFUL_SHARE_OF_LOSS = 0.2
"""Nats an example that a fit of use gains over a constant; of classes this share of the constant's loss if less."""
_TIMES_MORE = 4
"""Examples for each one there is that halve a standard error."""
_MOST_HELD_OUT = 0.5
"""Share of the examples above which holding out more is no remedy."""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings for and against a fit; str() lists it: the verdict, what to try next, then the findings.

    Attributes:
        findings: all of them, warnings first, then notes.
        false_alarm_rate: the chance that any of the tests of ELBO and calibration warns of a good fit, at most.
        num_held_out: number of held-out examples that were looked at; 0 if it is not known.
    """

    findings: tuple[Finding, ...]
    false_alarm_rate: float
    num_held_out: int = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons not to trust the fit."""
        return tuple(finding.said() for finding in self._of_kind("warning"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings that are warnings."""
        return tuple(finding.name for finding in self._of_kind("warning"))

    @property
    def mood(self) -> Mood:
        """Whether the fit can be trusted, may be used with care, if at all, or not yet."""
        return _TRUST[self._trust()[0]][0]

    @property
    def verdict(self) -> str:
        """Whether to trust the fit, and the most important reason, in a sentence or two."""
        return " ".join([self.conclusion, *self.details])

    @property
    def conclusion(self) -> str:
        """Whether to trust the fit, and why, in a sentence, after columns that should not be inputs."""
        asked = [finding.text for finding in self.findings if finding.name == LEAK]
        trust, reason = self._trust()
        total, num = len(self.findings), len(self.warnings)
        on = f" on {counted(self.num_held_out, 'held-out example')}" if self.num_held_out else ""
        clause = f"none of {total} checks{on} gave a reason not to" if reason is None else reason.in_plain_words
        if num == 1:
            clause += f"{', though this may be chance' if self._may_be_chance else ''} (1 of {total} checks warns)"
        elif num:
            clause += f" ({num} of {total} checks warn)"
        return " ".join([*asked, f"{_TRUST[trust][1]}: {clause}."])

    @property
    def details(self) -> tuple[str, ...]:
        """What a reader of the verdict should know besides, a sentence each."""
        notes = [finding for finding in self._of_kind("note") if self.mood == "good" and finding.name == BASELINE]
        clauses = [finding.in_plain_words for finding in (*notes, *self._named(LINEAR, CLASSES))]
        return tuple(f"{clause[:1].upper()}{clause[1:]}." for clause in clauses)

    def _trust(self) -> tuple[str, Finding | None]:
        """Return the row of `_TRUST`, and the finding that decides, if any."""
        warnings, notes = self._of_kind("warning"), {finding.name: finding for finding in self._of_kind("note")}
        if warnings:
            first = next((finding for finding in warnings if finding.name == BASELINE), warnings[0])
            if not self._may_be_chance:
                return "no", first
            return "of little use" if first.name == BASELINE else "with care", first
        if few := notes.get(HELD_OUT):
            return "open" if few.value == 0 else "with care", few
        compared = notes.get(BASELINE)
        if compared is not None and (compared.is_open or compared.remedies):
            return "use is open" if compared.is_open else "of little use", compared
        return "its probabilities" if CLASSES in notes else "yes", None

    @property
    def _may_be_chance(self) -> bool:
        """Whether all warnings may be chance, among those of many fits."""
        return all(finding.p_value is not None and finding.p_value > _CLEAR for finding in self._of_kind("warning"))

    @property
    def next_step(self) -> Remedy | None:
        """What to try first: the first remedy of the first cause; None where there is nothing to mend."""
        causes = [finding for name in CAUSES for finding in self._named(name) if finding.kind == "warning"]
        notes = sorted(self._named(HELD_OUT, BASELINE, LINEAR, CLASSES), key=lambda finding: finding.is_open)
        # columns that should not be inputs change all others
        every = (*self._named(LEAK), *causes, *(finding for finding in notes if finding.kind == "note"))
        return next((remedy for finding in every for remedy in finding.remedies), None)

    def _of_kind(self, kind: Kind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]

    def _named(self, *names: Name) -> list[Finding]:
        return [finding for name in names for finding in self.findings if finding.name == name]

    def __str__(self) -> str:
        step = [] if self.next_step is None else [f"Next: {self.next_step.said('python')}."]
        rate = f"Tests of ELBO and calibration raise a false alarm in at most {self.false_alarm_rate:.0%} of cases."
        return "\n".join([self.verdict, *step, *map(str, self.findings), rate])


@under(gradients)
def diagnose(
    posterior: Posterior | Mixture,
    train: Any,
    test: Any = None,
    *,
    num_draws: int = 500,
    false_alarm_rate: float = 0.05,
    seed: int | None = None,
    class_names: Sequence[str] = (),
    groups: tuple[Any, Any] | None = None,
    baselines: dict[str, Baseline] | None = None,
) -> Diagnosis:
    """Look for reasons not to trust a fit.

    docs/how-to/warnings.md lists the checks, of training (a fit of fixed length by `SVI` is continued for up to 400
    steps), of predictions and of weights, and what to do about each warning.

    Args:
        posterior: the fitted posterior.
        train: the training data: `Data`, a pair (x, y), or a loader, which must fit into memory.
        test: held-out data, of which 1000 examples are used, and up to 10,000 where a class is rare. Fewer than 10, or
            than 10 outside the most frequent class, are not judged. Without them a fit may be called bad, never good.
        num_draws: number of draws S for predictions.
        false_alarm_rate: largest chance that any test of ELBO and calibration warns of a good fit. Other tests need
            three standard errors.
        seed: seed of draws and simulations; the fit's if not given.
        class_names: names of the classes, for the findings.
        groups: labels of any kind for the examples of `train`, and of `test`, such as patients with several rows each:
            then intervals (of classes, the confidence) are judged for groups that training has not seen.
        baselines: those of `pyrobnn.verdict.baselines.fit_baselines`, where they are there already.

    Raises:
        InputError: data that do not fit the model, or a rate outside (0, 1).

    Examples:
        >>> train, test = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, guide="map", steps=20, seed=0, progress=False)
        >>> print(bnn.diagnose(posterior, train, test))  # after 20 steps only
        Do not trust it yet: the fit predicts no better than a constant, which ignores the inputs...
    """
    if not 0 < false_alarm_rate < 1:
        raise InputError(f"`false_alarm_rate` must lie between 0 and 1, got {false_alarm_rate}.")
    train = collected(train, weighted=True)
    check_targets(posterior, train.y)
    baselines = fit_baselines(posterior.bnn, train) if baselines is None else baselines
    seed = posterior.seed if seed is None else seed
    every = train if test is None else collected(test)
    rows = _some(every, seed, has_labels=as_likelihood(posterior.bnn.settings["likelihood"]).has_labels)
    judged = Data(every.x[rows], every.y[rows])
    new = None if groups is None else _of_new_groups(groups, len(train), 0 if test is None else len(every))[rows]
    prediction = posterior.predict(judged.x, num_draws=num_draws, seed=seed)
    if prediction.has_quantiles and not prediction.is_continuous and num_draws > _DRAWS_OF_STEPS:
        prediction = posterior.predict(judged.x, num_draws=max(_DRAWS_OF_STEPS, len(posterior.members)), seed=seed)
    held_out = None if test is None else judged
    examples = _Examples(train, judged, held_out, len(every) + len(train), prediction, class_names)
    fit = Fitted(posterior, train.y, train.x)
    num_tests = _by_steps(posterior) + (0 if test is None else len(statistics_of(prediction))) + (new is not None)
    level = false_alarm_rate / max(1, num_tests)
    few, can_judge = _number_held_out(examples)
    on_predictions = _of_predictions(fit, examples, baselines) if can_judge else []
    findings = [
        *_of_training(fit, train, level, seed),
        epistemic_finding(prediction, fit),
        *mean_findings(prediction, fit),
        *on_predictions,
        *_of_layers(fit, is_bad=any(found.name == BASELINE and found.kind == "warning" for found in on_predictions)),
        *few,
        *(_of_held_out(fit, judged, prediction, level, seed) if can_judge and test is not None else ()),
        *(() if new is None else _of_groups(fit, judged, new, level, seed)),
        *(class_finding(prediction, judged.y, train.y, class_names) if examples.has_classes else ()),
        *_of_weights(posterior, train),
    ]
    findings.sort(key=lambda finding: (_ORDER.index(finding.kind), finding.name not in (BASELINE, LINEAR)))
    return Diagnosis(tuple(findings), false_alarm_rate, 0 if test is None else len(judged))


@dataclasses.dataclass(frozen=True, eq=False)
class _Examples:
    """Examples of a diagnosis: those judged are some of the rows held out, or else of training; `total` has both."""

    train: Data
    judged: Data
    held_out: Data | None
    total: int
    prediction: Prediction  # of those judged
    class_names: Sequence[str]

    @property
    def has_classes(self) -> bool:
        return self.prediction.is_classification and self.judged.y.ndim == 1

    def counted(self, label: int | None) -> tuple[int, str, int]:
        """Return the number judged, of a class if given, their name, and their number with training rows."""
        y = self.judged.y
        if label is None:
            return len(y), "examples", self.total
        num, name = int((y == label).sum()), repr(self.class_names[label]) if self.class_names else str(label)
        return num, f"examples of class {name}", num + int((self.train.y == label).sum())


def _number_held_out(examples: _Examples) -> tuple[list[Finding], bool]:
    """Note that no rows were held out, or too few, and say whether predictions can be judged.

    Of labels they can be if ten or more are not of the most frequent class.
    """
    if examples.held_out is None:
        lead = "No data were held out"
        text = f"{lead}: nothing here tells how good predictions of new rows are."
        return [Finding(HELD_OUT, "note", text, remedies=(_HOLD_OUT,), plain=lead, value=0)], True
    num, of, total = examples.counted(None)
    can_judge, least = num >= TOO_FEW, TOO_FEW if examples.has_classes or num < TOO_FEW else FOR_CALIBRATION
    if examples.has_classes and can_judge:
        counts = {int(label): int((examples.judged.y == label).sum()) for label in examples.train.y.unique()}
        can_judge = num - max(counts.values()) >= TOO_FEW
        num, of, total = examples.counted(min(counts, key=counts.__getitem__))
    if num >= least:
        return [], can_judge
    lead = f"Too few {of} are held out to judge {'them' if can_judge else 'the predictions'}"
    tries = (_more_rows(total, of, least),)
    return [Finding(HELD_OUT, "note", f"{lead}: {num}.", remedies=tries, plain=lead, value=num)], can_judge


def _more_rows(total: int, of: str, least: int) -> Remedy:
    """Return a way to at least so many of a number of examples in the part held out."""
    share, words = math.ceil(100 * (least + 0.5) / total) / 100, f"hold out {least} or more {of}"
    return Remedy(words, words, (f"data.test={share:g}",)) if share <= _MOST_HELD_OUT else Remedy(f"collect more {of}")


def _some(data: Data, seed: int, *, has_labels: bool) -> Tensor:
    """Return the rows of at most 1000 examples; of more, up to 10,000, if few of them are of some class."""
    most = _MOST_EXAMPLES
    if has_labels and data.y.ndim == 1:
        rarest = int(data.y.unique(return_counts=True)[1].min())
        most = min(max(most, math.ceil(2 * TOO_FEW / rarest * len(data))), _MOST_FOR_RARE)
    generator = torch.Generator().manual_seed(derive(seed, "examples"))
    return torch.randperm(len(data), generator=generator)[:most].sort().values


def _of_new_groups(groups: tuple[Any, Any], num_train: int, num_test: int) -> Tensor:
    """Return which held-out examples are of a group that training has not seen, (N,)."""
    if not num_test or not isinstance(groups, (tuple, list)) or len(groups) != 2:
        raise InputError("`groups` must be a pair of labels, of the examples of `train` and of `test`.")
    for each, num in zip(groups, (num_train, num_test), strict=True):
        numbered(each, num, "groups")
    of_train, of_test = (np.asarray(each, dtype=object).tolist() for each in groups)
    numbers = numbered([*of_train, *of_test], num_train + num_test, "groups")
    return torch.as_tensor(~np.isin(numbers[num_train:], numbers[:num_train]))


def _of_groups(fit: Fitted, judged: Data, new: Tensor, level: float, seed: int) -> list[Finding]:
    """Judge the spread of predictions for the rows of groups that training has not seen."""
    if not bool(new.any()):
        lead = "Every group held out has rows in training"
        text = f"{lead}: nothing here tells how good predictions of new groups are."
        return [Finding(HELD_OUT, "note", text, remedies=(_WHOLE_GROUPS,), plain=lead, value=0)]
    some = Data(judged.x[new], judged.y[new])
    findings = _of_held_out(fit, some, fit.posterior.predict(some.x, seed=seed), level, seed)
    found = next(each for each in findings if each.name in ("coverage", "confidence", "surprise"))
    plain = f"on {counted(len(some), 'row')} of groups that training has not seen, {found.in_plain_words}"
    return [replace(found, name="groups", text=f"{plain[:1].upper()}{plain[1:]}.", plain=plain)]


def _by_steps(posterior: Posterior | Mixture) -> bool:
    """Return whether steps along the gradient of the ELBO led to the fit, in a loop of the caller's or here."""
    return bool(posterior.record.own_loop) or (posterior.history is not None and len(posterior.history) > 0)


def _of_training(fit: Fitted, train: Data, level: float, seed: int) -> list[Finding]:
    """Say whether chains agree, and whether steps led far enough."""
    posterior = fit.posterior
    chains = chains_of(posterior, train)
    settings = next((table for table in fit.methods if "num_draws" in table), {})
    findings = [] if chains is None else chain_findings(chains, settings)
    every = (ending_finding(member, fit.section) for member in posterior.members)
    endings = [ending for ending in every if ending is not None]
    if _by_steps(posterior) and not endings:
        findings.append(continuation_finding(posterior, train, level, derive(seed, "continuation")))
    return findings + sorted(endings, key=lambda ending: _ORDER.index(ending.kind))[:1]


def _of_predictions(fit: Fitted, examples: _Examples, baselines: dict[str, Baseline]) -> list[Finding]:
    """Compare a fit with baselines, and say whether it has memorised its targets or missed what inputs say."""
    num_draws, rows = examples.prediction.num_draws, max(_MOST_EXAMPLES, len(examples.judged))
    evaluation = Evaluation(fit.posterior, examples.train, examples.held_out, baselines, num_draws, rows)
    compared = compare_with_baselines(evaluation, _THREE_ERRORS)
    fault = fault_in_full(replace(evaluation, most_rows=_MOST_FOR_PROCESS), compared)
    return [_of_baselines(compared, examples, fit), *([] if fault is None else [fault])]


def _of_baselines(compared: BaselineComparison | None, examples: _Examples, fit: Fitted) -> Finding:
    """Return how a fit compares with baselines and what to try, or why it was not compared."""
    if compared is None:
        why = "there is one training example" if len(examples.train) < 2 else "its likelihood has latent variables"
        return Finding(BASELINE, "note", f"The fit was not compared with a constant, as {why}.", is_open=True)
    tries = open_to(fit, OF_BAD_PREDICTIONS) if compared.kind == "warning" else ()
    found = Finding(BASELINE, compared.kind, compared.text, compared.p_value, tries, compared.plain)
    linear = open_to(fit, (without_hidden,))
    if compared.case == "no better" and compared.gains.linear_finds is False:
        return replace(found, remedies=(*tries, _OTHER_INPUTS))
    if compared.case in ("behind linear", "like linear"):
        return replace(found, name=LINEAR, remedies=linear) if linear else replace(found, kind="fine")
    if compared.case in ("too few", "not shown"):
        tries = (*(linear if compared.gains.linear_finds else ()), _OTHER_INPUTS)
        return _without_gain(found, compared.gains.fit, examples, tries)
    return found


def _without_gain(found: Finding, gain: ScoreGain, examples: _Examples, tries: tuple[Remedy, ...]) -> Finding:
    """Say whether inputs tell too little where nothing shows a gain over a constant, or examples are too few to tell.

    They are too few where a gain of use lies within two standard errors, or the fit ranks better than chance.
    """
    y, useful, ranks, rare = examples.judged.y, _USEFUL_NATS, False, None
    if examples.has_classes:
        shares = y.unique(return_counts=True)[1].double() / len(y)
        useful = min(_USEFUL_NATS, _USEFUL_SHARE_OF_LOSS * float(-(shares * shares.log()).sum()))
        label, is_rare = rarest_class(y)
        ranks = examples.held_out is not None and ranks_better(examples.prediction, y, label)
        rare = label if is_rare else None
    if gain.mean + 2 * gain.stderr < useful and not ranks:
        return replace(found, remedies=tries)
    if examples.held_out is None:
        return replace(found, is_open=True)
    num, of, total = examples.counted(rare)
    though = ", though it ranks better than guessing" if ranks else ""
    plain = f"{num} {of} are too few to tell it from a constant{though}"
    is_all = len(y) == examples.total - len(examples.train)
    more = (_more_rows(total, of, _TIMES_MORE * num),) if is_all else ()
    return replace(found, remedies=more, plain=plain, is_open=True)


def _of_held_out(fit: Fitted, held_out: Data, prediction: Prediction, level: float, seed: int) -> list[Finding]:
    """Judge predictions by the targets held out, and by targets simulated from the fit."""
    simulated_seed = derive(seed, "simulated targets")
    num = num_simulations(level, len(fit.posterior.members))
    simulated = fit.posterior.predict(held_out.x, num_draws=num, seed=simulated_seed).sample(seed=simulated_seed)
    ranking = ranking_finding(prediction, held_out.y, _THREE_ERRORS, seed=seed, fit=fit)
    findings = predictive_findings(prediction, held_out.y, simulated, level, seed=seed, fit=fit)
    return findings if ranking is None else [*findings, ranking]


def _of_layers(fit: Fitted, *, is_bad: bool) -> list[Finding]:
    """Name the layers in which the guide has gone back to the prior: a warning if the predictions are bad, else a note.

    Weights may be useful together though each alone stays near its prior: so nothing is said of all layers, or of
    correlated weights, unless the predictions are bad.
    """
    posterior = fit.posterior
    names = sites_at_prior(posterior)
    weights = [name for name in posterior.bnn.site_names if posterior.bnn.initial_values[name].ndim > 1]
    is_all = len(names) == len(weights)
    is_joint = any(built(member.guide).gaussian_blocks() for member in posterior.members)
    if not names or not (is_bad or not (is_all or is_joint)):
        return []
    lead = f"Collapse to the prior at {', '.join(names)}"
    text = f"{lead}: the fit tells each of these weights no better than the prior."
    if not is_bad:
        return [Finding("prior", "note", f"{text} A smaller network may predict as well.")]
    return [Finding("prior", "warning", text, remedies=() if is_all else open_to(fit, (smaller,)), plain=lead)]


def _of_weights(posterior: Posterior | Mixture, train: Data) -> list[Finding]:
    """Note k-hat where a guide has a density over few enough weights."""
    if posterior.bnn.num_weights > MAX_WHOLE or len(train) > _MOST_FOR_KHAT:
        return []
    try:
        weights = importance_weights(posterior, train, num_draws=_KHAT_DRAWS)
    except InputError:  # no density
        return []
    if weights.is_reliable:
        text = f"The fitted distribution of weights is close to the posterior: {weights}."
        return [Finding("k-hat", "fine", text, value=weights.khat)]
    text = (
        "The fitted distribution of the weights differs much from the posterior, as is usual for networks: k-hat "
        f"{weights.khat:.2f}, close below {weights.good_khat:.2f}. This says nothing against the predictions."
    )
    return [Finding("k-hat", "note", text, value=weights.khat)]
