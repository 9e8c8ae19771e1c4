"""The check of a whole fit: can it be trusted?"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import gradients, under
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import Remedy
from pyrobnn.data.given import collected
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.base import FOR_CALIBRATION
from pyrobnn.diagnostics.convergence import chain_findings, chains_of, continuation_finding, ending_finding
from pyrobnn.diagnostics.convert import MAX_WHOLE
from pyrobnn.diagnostics.findings import CLASSES, HELD_OUT, LINEAR, TOO_FEW, Diagnosis
from pyrobnn.diagnostics.importance import importance_weights
from pyrobnn.diagnostics.predictive_checks import (
    epistemic_finding,
    mean_findings,
    num_simulations,
    predictive_findings,
    ranking_finding,
    statistics_of,
)
from pyrobnn.guides.built import built
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.baselines import Baseline, fit_baselines
from pyrobnn.verdict.comparison import compare_with_baselines, findings_on_predictions, sites_at_prior
from pyrobnn.verdict.judgement import BASELINE, RARE, Finding, Verdict, ranks_better, rarest_class
from pyrobnn.verdict.remedies import Fitted, open_to, smaller, without_hidden

_ORDER = ("warning", "note", "fine")
_THREE_ERRORS = 0.00135
"""Probability of a normal number beyond three standard errors on one side."""
_KHAT_DRAWS = 1000
_MOST_EXAMPLES, _MOST_FOR_RARE, _MOST_FOR_PROCESS = 1000, 10_000, 500
_DRAWS_OF_STEPS = 100
"""Draws for targets with point masses, whose distribution function is slow."""
_MOST_FOR_KHAT = 10_000
_HOLD_OUT = Remedy("hold rows out, `train, test = data.split(0.25)`")
_OTHER_INPUTS = Remedy("look for other inputs, or collect more examples: from these it learned too little")
_USEFUL, _SHARE = 0.1, 0.2
"""Nats an example that a fit of use gains over a constant; of classes this share of the constant's loss if less."""
_TIMES_MORE = 4
"""Examples for each one there is that halve a standard error."""
_MOST_HELD_OUT = 0.5
"""Share of the examples above which holding out more is no remedy."""


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
    baselines: dict[str, Baseline] | None = None,
) -> Diagnosis:
    """Look for reasons not to trust a fit.

    The checks:

    - training: does the ELBO rise further (a fit of fixed length by `SVI` is continued for up to 400 steps), or do
      Markov chains disagree;
    - calibration: are held-out targets biased, too spread out or too close, outside their intervals, or less likely
      than the fit expects, and do errors grow with the prediction more than it says;
    - baselines: does a constant predict as well, or a linear model better; are targets memorised, or a function missed;
    - uncertainty: does it rank errors worse than chance, and does that of the weights reach the predictions;
    - layers: has the guide gone back to the prior at some weights.

    For up to 1000 weights and 10,000 examples it notes k-hat, no reason to worry if predictions are good. See
    docs/how-to/warnings.md for what to do about each warning.

    Args:
        posterior: the fitted posterior.
        train: the training data: `Data`, a pair (x, y), or a loader, which must fit into memory.
        test: held-out data, of which 1000 examples are used, and up to 10,000 where a class is rare. Fewer than 10, or
            than 10 that are not of the most frequent class, are not judged. Without them, training data tell what is
            bad, and never that a fit is good.
        num_draws: number of draws S for predictions.
        false_alarm_rate: largest chance that any test of ELBO and calibration warns of a good fit. The comparison with
            baselines, the order of the errors and their growth need three standard errors.
        seed: seed of draws and simulations; the fit's if not given.
        class_names: names of the classes, for the findings.
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
    baselines = fit_baselines(posterior.bnn, train) if baselines is None else baselines
    seed = posterior.seed if seed is None else seed
    every, is_held_out = (train, False) if test is None else (collected(test), True)
    judged = _some(every, seed, has_labels=as_likelihood(posterior.bnn.settings["likelihood"]).has_labels)
    prediction = posterior.predict(judged.x, num_draws=num_draws, seed=seed)
    if prediction.has_quantiles and not prediction.is_continuous and num_draws > _DRAWS_OF_STEPS:
        prediction = posterior.predict(judged.x, num_draws=max(_DRAWS_OF_STEPS, len(members_of(posterior))), seed=seed)
    fit = Fitted(posterior, train.y, train.x)
    case = _Case(fit, train, judged, is_held_out, len(every), prediction, baselines, seed, class_names)
    num_tests = _by_steps(posterior) + (len(statistics_of(prediction)) if is_held_out else 0)
    level = false_alarm_rate / max(1, num_tests)
    few, can_judge = _number_held_out(case)
    verdict = None
    if can_judge:
        options = {"num_draws": prediction.num_draws, "most_rows": max(_MOST_EXAMPLES, len(judged))}
        held_out = judged if is_held_out else None
        verdict = compare_with_baselines(posterior, train, baselines, held_out, level=_THREE_ERRORS, **options)
    findings = [
        *_of_training(case, level),
        epistemic_finding(prediction, fit),
        *mean_findings(prediction, fit),
        *(_of_baselines(case, verdict) if can_judge else ()),
        *_of_layers(fit, verdict),
        *few,
        *(_of_held_out(case, level) if can_judge and is_held_out else ()),
        *(_never_predicted(case) if case.has_classes else ()),
        *_of_weights(case),
    ]
    findings.sort(key=lambda finding: (_ORDER.index(finding.kind), finding.name not in (BASELINE, LINEAR)))
    return Diagnosis(tuple(findings), false_alarm_rate, len(judged) if is_held_out else 0)


@dataclasses.dataclass(frozen=True, eq=False)
class _Case:
    """The evidence that the checks look at.

    The rows judged, with their predictions, are some of `num_rows` held out, or else of the training rows.
    """

    fit: Fitted
    train: Data
    judged: Data
    is_held_out: bool
    num_rows: int
    prediction: Prediction
    baselines: dict[str, Baseline]
    seed: int
    class_names: Sequence[str]

    @property
    def y(self) -> Tensor:
        return self.judged.y

    @property
    def has_classes(self) -> bool:
        return self.prediction.is_classification and self.y.ndim == 1

    def counted(self, label: int) -> tuple[int, str, int]:
        """Return the number of rows of a class that are looked at, their name, and their number with training rows."""
        num = int((self.y == label).sum())
        return num, f"examples of class {self.named(label)}", num + int((self.train.y == label).sum())

    def named(self, label: int) -> str:
        return repr(self.class_names[label]) if self.class_names else str(label)


def _number_held_out(case: _Case) -> tuple[list[Finding], bool]:
    """Note that no rows were held out, or too few, and say whether predictions can be judged.

    Of labels they can be if ten or more are not of the most frequent class.
    """
    if not case.is_held_out:
        lead = "No data were held out"
        text = f"{lead}: nothing here tells how good predictions of new rows are."
        return [Finding(HELD_OUT, "note", text, remedies=(_HOLD_OUT,), plain=lead, value=0)], True
    num, of, total = len(case.y), "examples", len(case.y) + len(case.train)
    can_judge, least = num >= TOO_FEW, TOO_FEW if case.has_classes or num < TOO_FEW else FOR_CALIBRATION
    if case.has_classes and can_judge:
        counts = {int(label): int((case.y == label).sum()) for label in case.train.y.unique()}
        can_judge = num - max(counts.values()) >= TOO_FEW
        num, of, total = case.counted(min(counts, key=counts.__getitem__))
    if num >= least:
        return [], can_judge
    lead = f"Too few {of} are held out to judge {'them' if can_judge else 'the predictions'}"
    tries = (_more_rows(total, of, least),)
    return [Finding(HELD_OUT, "note", f"{lead}: {num}.", remedies=tries, plain=lead, value=num)], can_judge


def _more_rows(total: int, of: str, least: int) -> Remedy:
    """Return a way to at least so many of a number of examples in the part held out."""
    share, words = math.ceil(100 * (least + 0.5) / total) / 100, f"hold out {least} or more {of}"
    return Remedy(words, words, (f"data.test={share:g}",)) if share <= _MOST_HELD_OUT else Remedy(f"collect more {of}")


def _some(data: Data, seed: int, *, has_labels: bool) -> Data:
    """Return at most 1000 examples; of more, up to 10,000, if few of them are of some class."""
    most = _MOST_EXAMPLES
    if has_labels and data.y.ndim == 1:
        rarest = int(data.y.unique(return_counts=True)[1].min())
        most = min(max(most, math.ceil(2 * TOO_FEW / rarest * len(data))), _MOST_FOR_RARE)
    generator = torch.Generator().manual_seed(derive(seed, "examples"))
    rows = torch.randperm(len(data), generator=generator)[:most].sort().values
    return Data(data.x[rows], data.y[rows])


def _by_steps(posterior: Posterior | Mixture) -> bool:
    """Return whether steps along the gradient of the ELBO led to the fit, in a loop of the caller's or here."""
    return bool(posterior.record.own_loop) or (posterior.history is not None and len(posterior.history) > 0)


def _of_training(case: _Case, level: float) -> list[Finding]:
    """Say whether chains agree, and whether steps led far enough."""
    posterior = case.fit.posterior
    chains = chains_of(posterior, case.train)
    settings = next((table for table in case.fit.methods if "num_draws" in table), {})
    findings = [] if chains is None else chain_findings(chains, settings)
    every = (ending_finding(member, case.fit.section) for member in members_of(posterior))
    endings = [ending for ending in every if ending is not None]
    if _by_steps(posterior) and not endings:
        findings.append(continuation_finding(posterior, case.train, level, derive(case.seed, "continuation")))
    return findings + sorted(endings, key=lambda ending: _ORDER.index(ending.kind))[:1]


def _of_baselines(case: _Case, verdict: Verdict | None) -> list[Finding]:
    """Say whether the fit has memorised or missed its targets, and how it compares with the baselines.

    Where nothing shows a gain over a constant, inputs say too little, or examples are too few to tell: too few where a
    gain of use may be true, by two standard errors, or where the fit ranks better than chance.
    """
    held_out = case.judged if case.is_held_out else None
    findings = [
        *findings_on_predictions(
            case.fit.posterior,
            case.train,
            case.baselines,
            held_out,
            verdict,
            at_end=False,
            num_draws=case.prediction.num_draws,
            most_rows=_MOST_FOR_PROCESS,
        )
    ]
    if verdict is None:
        why = "there is one training example" if len(case.train) < 2 else "its likelihood has latent variables"
        text = f"The fit was not compared with a constant, as {why}."
        return [*findings, Finding(BASELINE, "note", text, is_open=True)]
    found, *others = findings
    kind, linear = verdict.kind, open_to(case.fit, (without_hidden,))
    if kind == "warning":
        other = (_OTHER_INPUTS,) if verdict.linear_finds is False else ()
        found = replace(found, remedies=(*found.remedies, *other))
    elif kind == "note" and verdict.prefers_linear:
        found = replace(found, name=LINEAR, remedies=linear) if linear else replace(found, kind="fine")
    elif kind == "note" and not verdict.is_better:
        useful, ranks, num, of, total = _USEFUL, False, len(case.y), "examples", case.num_rows + len(case.train)
        if case.has_classes:
            shares = case.y.unique(return_counts=True)[1].double() / len(case.y)
            useful = min(_USEFUL, _SHARE * float(-(shares * shares.log()).sum()))
            label, is_rare = rarest_class(case.y)
            ranks = case.is_held_out and ranks_better(case.prediction, case.y, label)
            num, of, total = case.counted(label) if is_rare else (num, of, total)
        if verdict.most < useful and not ranks:
            found = replace(found, remedies=(*(linear if verdict.linear_finds else ()), _OTHER_INPUTS))
        elif not case.is_held_out:
            found = replace(found, is_open=True)
        else:
            though = ", though it ranks better than guessing" if ranks else ""
            plain = f"{num} {of} are too few to tell it from a constant{though}"
            tries = (_more_rows(total, of, _TIMES_MORE * num),) if len(case.y) == case.num_rows else ()
            found = replace(found, remedies=tries, plain=plain, is_open=True)
    return [found, *others]


def _of_held_out(case: _Case, level: float) -> list[Finding]:
    """Judge predictions by the targets held out, and by targets simulated from the fit."""
    posterior, seed = case.fit.posterior, derive(case.seed, "simulated targets")
    num = num_simulations(level, len(members_of(posterior)))
    simulated = posterior.predict(case.judged.x, num_draws=num, seed=seed).sample(seed=seed)
    ranking = ranking_finding(case.prediction, case.y, _THREE_ERRORS, seed=case.seed, fit=case.fit)
    findings = predictive_findings(case.prediction, case.y, simulated, level, seed=case.seed, fit=case.fit)
    return findings if ranking is None else [*findings, ranking]


def _never_predicted(case: _Case) -> list[Finding]:
    """Note the classes among targets that are never the most probable, with a threshold for the rarest if it is rare.

    The threshold is the share of the class in training; none if no example of the class is above it.
    """
    predicted = set(case.prediction.label.unique().tolist())
    shares = {int(label): float((case.train.y == label).double().mean()) for label in case.y.unique()}
    missed = {label: share for label, share in shares.items() if label not in predicted}
    if not missed:
        return []
    num = sum(int((case.y == label).sum()) for label in missed)
    lead = f"The most probable class is never {', '.join(map(case.named, missed))}"
    remedies: tuple[Remedy, ...] = ()
    rarest = min(missed, key=missed.__getitem__)
    limit, is_one = f"{missed[rarest]:.2g}", case.y.cpu() == rarest
    said = case.prediction.class_probs[:, rarest].cpu() > float(limit)
    if 0 < missed[rarest] <= RARE and (right := int((said & is_one).sum())):
        price = f"which finds {right} of {int(is_one.sum())} among {int(said.sum())}"
        column = f"prob_{case.class_names[rarest]}" if case.class_names else "its probability"
        say, call = f"say {case.named(rarest)} where", f"`prediction.class_probs[:, {rarest}] > {limit}`"
        remedies = (Remedy(f"{say} {call}, {price}", f"{say} {column} is above {limit}, {price}"),)
    text = f"{lead}: {num} of {len(case.y)} are."
    return [Finding(CLASSES, "note", text, remedies=remedies, plain=lead, value=num)]


def _of_layers(fit: Fitted, verdict: Verdict | None) -> list[Finding]:
    """Name the layers in which the guide has gone back to the prior: a warning if the predictions are bad, else a note.

    Weights may be useful together though each alone stays near its prior: so nothing is said of all layers, or of
    correlated weights, unless the predictions are bad.
    """
    posterior = fit.posterior
    names = sites_at_prior(posterior)
    weights = [name for name in posterior.bnn.site_names if posterior.bnn.initial_values[name].ndim > 1]
    is_bad = verdict is not None and verdict.kind == "warning"
    is_all = len(names) == len(weights)
    is_joint = any(built(member.guide).gaussian_blocks() for member in members_of(posterior))
    if not names or not (is_bad or not (is_all or is_joint)):
        return []
    lead = f"Collapse to the prior at {', '.join(names)}"
    text = f"{lead}: the fit tells each of these weights no better than the prior."
    if not is_bad:
        return [Finding("prior", "note", f"{text} A smaller network may predict as well.")]
    return [Finding("prior", "warning", text, remedies=() if is_all else open_to(fit, (smaller,)), plain=lead)]


def _of_weights(case: _Case) -> list[Finding]:
    """Note k-hat where a guide has a density over few enough weights."""
    posterior, train = case.fit.posterior, case.train
    if posterior.bnn.num_weights > MAX_WHOLE or len(train) > _MOST_FOR_KHAT:
        return []
    try:
        weights = importance_weights(posterior, train, num_draws=_KHAT_DRAWS)
    except InputError:  # no density
        return []
    text = f"The fitted distribution of weights is close to the posterior: {weights}."
    if not weights.is_reliable:
        text = (
            "The fitted distribution of the weights differs much from the posterior, as is usual for networks: k-hat "
            f"{weights.khat:.2f}, close below {weights.good_khat:.2f}. This says nothing against the predictions."
        )
    return [Finding("k-hat", "fine" if weights.is_reliable else "note", text, value=weights.khat)]
