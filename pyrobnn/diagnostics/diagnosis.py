"""The check of a whole fit: can it be trusted?"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.counts import counted
from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import gradients, under
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import Remedy
from pyrobnn._torch.inputs import X
from pyrobnn.data.directions import Directions
from pyrobnn.data.given import collected
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.base import FOR_CALIBRATION
from pyrobnn.diagnostics.classes import never_predicted
from pyrobnn.diagnostics.continuation import chain_findings, continuation_finding, ending_finding
from pyrobnn.diagnostics.convergence import chains_of
from pyrobnn.diagnostics.findings import (
    BASELINE,
    HELD_OUT,
    LINEAR,
    NOTHING_HELD_OUT,
    TOO_FEW,
    Diagnosis,
    Finding,
    more_rows,
    of_few_rows,
)
from pyrobnn.diagnostics.importance import importance_weights
from pyrobnn.diagnostics.monitored import MAX_WHOLE
from pyrobnn.diagnostics.predictive_checks import (
    epistemic_finding,
    mean_findings,
    num_simulations,
    predictive_findings,
    ranking_finding,
    statistics_of,
)
from pyrobnn.diagnostics.simpler import (
    linear_is_as_good,
    of_bad_predictions,
    of_little_use,
    of_missed_function,
    of_one_cause,
)
from pyrobnn.guides.built import built
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.baselines import Baseline, fit_baselines
from pyrobnn.verdict.comparison import compare_with_baselines, sites_at_prior
from pyrobnn.verdict.judgement import Verdict, ranks_better, rarest_class
from pyrobnn.verdict.left_out import memorised_targets
from pyrobnn.verdict.remedies import Fitted, open_to, smaller

_ORDER = ("warning", "note", "fine")
_THREE_ERRORS = 0.00135
"""Probability of a normal number beyond three standard errors on one side."""
_KHAT_DRAWS = 1000
_MOST_EXAMPLES, _MOST_FOR_RARE = 1000, 10_000
_DRAWS_OF_STEPS = 100
"""Draws for targets with point masses, whose distribution function is slow."""
_MOST_FOR_KHAT = 10_000
_FEWEST_EXAMPLES = FOR_CALIBRATION
_HOLD_OUT = Remedy("hold rows out, `train, test = data.split(0.25)`")
_USEFUL, _SHARE = 0.1, 0.2
"""Nats an example that a fit of use gains over a constant; of classes this share of the constant's loss if less."""
_TIMES_MORE = 4
"""Examples for each one there is that halve a standard error."""


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
) -> Diagnosis:
    """Look for reasons not to trust a fit.

    The checks:

    - training: does the ELBO rise further, or do Markov chains disagree;
    - calibration: are held-out targets biased, too spread out or too close, outside their intervals, or less likely
      than the fit expects, and do errors grow with the prediction, or depend on an input, more than it says (see
      `predictive_checks` and `inputs`);
    - baselines: does a constant predict as well, or a linear model better (`pyrobnn.verdict.judgement`), and has the
      fit memorised its targets, or missed what a Gaussian process finds;
    - uncertainty: does it rank errors worse than chance, does the uncertainty of the weights reach the predictions, and
      is the mean of counts made up by a few draws;
    - layers: has the guide gone back to the prior at some weights.

    For up to 1000 weights and 10,000 examples it notes k-hat. k-hat is about the joint distribution of the weights, and
    no reason to worry if predictions are good. See docs/how-to/warnings.md for what to do about each warning.

    A fit of automatic length is judged by its ending. A fit of fixed length by `SVI` is copied and continued for up to
    400 steps at a constant learning rate. A gain in the ELBO above the tolerance of `SVI` is a warning, under any
    schedule of the fit; the fit is at least that many nats from convergence. For other fits of fixed length (SWAG,
    Laplace approximations) convergence is unknown, and a note says so.

    Args:
        posterior: the fitted posterior.
        train: the training data: `Data`, a pair (x, y), or a loader, whose examples are all collected in memory.
        test: held-out data, of which 1000 examples are used, and up to 10,000 where a class is rare. With them all
            judgements of predictions rest on them; fewer than 10, or than 10 that are not of the most frequent class,
            are not judged. Without them, training data tell what is bad, and never that a fit is good.
        num_draws: number of draws S for predictions.
        false_alarm_rate: largest chance that any test of ELBO and calibration warns of a good fit, split evenly between
            the tests. The comparison with baselines, the order of the errors, their growth and how they depend on
            inputs need three standard errors.
        seed: seed of draws and simulations; the fit's if not given.
        class_names: names of the classes, for the findings.

    Raises:
        InputError: data that do not fit the model, or a rate outside (0, 1).

    Examples:
        >>> train, test = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, guide="map", steps=20, seed=0, progress=False)
        >>> print(bnn.diagnose(posterior, train, test))  # after 20 steps only
        Do not trust it yet: its predictions, uncertainty included, are no better than those of a constant...
    """
    if not 0 < false_alarm_rate < 1:
        raise InputError(f"`false_alarm_rate` must lie between 0 and 1, got {false_alarm_rate}.")
    train = collected(train, weighted=True)
    baselines = fit_baselines(posterior.bnn, train)
    return checked(
        posterior,
        train,
        test,
        baselines,
        num_draws=num_draws,
        rate=false_alarm_rate,
        seed=seed,
        class_names=class_names,
    )


@under(gradients)
def checked(
    posterior: Posterior | Mixture,
    train: Data,
    test: Any,
    baselines: dict[str, Baseline],
    *,
    num_draws: int,
    rate: float = 0.05,
    seed: int | None = None,
    class_names: Sequence[str] = (),
) -> Diagnosis:
    """Return the diagnosis of a fit whose baselines are there already; arguments as of `diagnose`."""
    seed = posterior.seed if seed is None else seed
    case = _case(posterior, train, test, baselines, num_draws=num_draws, seed=seed, class_names=class_names)
    num_tests = _by_steps(posterior) + (0 if case.held_out is None else len(statistics_of(case.prediction)))
    level = rate / max(1, num_tests)
    few, can_judge = _number_held_out(case)
    verdict = _compared(case) if can_judge else None
    findings = [
        *_of_training(case, level),
        epistemic_finding(case.prediction, case.fit),
        *mean_findings(case.prediction, case.fit),
        *(_of_baselines(case, verdict) if can_judge else ()),
        *_of_layers(case.fit, verdict),
        *few,
        *(_of_held_out(case, case.held_out, level) if can_judge and case.held_out is not None else ()),
        *(never_predicted(case.prediction, case.y, case.train.y, class_names) if case.has_classes else ()),
        *_of_weights(case),
    ]
    findings.sort(key=lambda finding: (_ORDER.index(finding.kind), finding.name not in (BASELINE, LINEAR)))
    return Diagnosis(of_one_cause(findings), rate, 0 if case.held_out is None else len(case.y))


@dataclasses.dataclass(frozen=True, eq=False)
class _Case:
    """What the checks look at.

    Attributes:
        fit: the fit.
        train: its training data.
        held_out: the rows held out that are looked at, or None.
        y: targets of these rows, or of training rows.
        every_y: targets of all rows held out, or of all training rows.
        prediction: predictions for the same rows.
        baselines: fitted to the training data.
        seed: seed of draws and simulations.
        class_names: names of the classes; empty if they have numbers.
    """

    fit: Fitted
    train: Data
    held_out: Data | None
    y: Tensor
    every_y: Tensor
    prediction: Prediction
    baselines: dict[str, Baseline]
    seed: int
    class_names: Sequence[str]

    @property
    def has_classes(self) -> bool:
        """Whether each row has one label."""
        return self.prediction.is_classification and self.y.ndim == 1

    def named(self, label: int) -> str:
        """Return the name of a class."""
        return f"class {repr(self.class_names[label]) if self.class_names else label}"


def _case(
    posterior: Posterior | Mixture,
    train: Data,
    test: Any,
    baselines: dict[str, Baseline],
    *,
    num_draws: int,
    seed: int,
    class_names: Sequence[str],
) -> _Case:
    test = None if test is None else collected(test)
    has_labels = as_likelihood(posterior.bnn.settings["likelihood"]).has_labels
    every = train if test is None else test
    x, y = _some(every, seed, has_labels=has_labels)
    prediction = posterior.predict(x, num_draws=num_draws, seed=seed)
    if prediction.has_quantiles and not prediction.is_continuous and num_draws > _DRAWS_OF_STEPS:
        prediction = posterior.predict(x, num_draws=max(_DRAWS_OF_STEPS, len(members_of(posterior))), seed=seed)
    held_out = None if test is None else Data(x, y)
    fit = Fitted(posterior, train.y, train.x)
    return _Case(fit, train, held_out, y, every.y, prediction, baselines, seed, class_names)


def _number_held_out(case: _Case) -> tuple[list[Finding], bool]:
    """Note that no rows were held out, or too few, and say whether predictions can be judged.

    Of labels they can be if ten or more are not of the most frequent class.
    """
    y, train = case.y, case.train
    if case.held_out is None:
        text = "No data were held out: nothing here tells how good predictions of new rows are."
        return [Finding(HELD_OUT, "note", text, remedies=(_HOLD_OUT,), plain=NOTHING_HELD_OUT)], True
    if len(y) < TOO_FEW:
        text = f"{_counted(len(y))} held out, too few to judge the predictions."
        return [_few(text, len(y) + len(train), "examples")], False
    if not case.has_classes:
        text = f"Only {counted(len(y), 'example')} were held out: calibration can hardly be judged."
        few = _few(text, len(y) + len(train), "examples", _FEWEST_EXAMPLES)
        return [few] if len(y) < _FEWEST_EXAMPLES else of_few_rows(len(y)), True
    classes = train.y.unique()
    counts = [int((y == label).sum()) for label in classes]
    rarest = min(range(len(counts)), key=counts.__getitem__)
    if counts[rarest] >= TOO_FEW:
        return [], True
    label, are_others_enough = int(classes[rarest]), len(y) - max(counts) >= TOO_FEW
    name, every = case.named(label), int((case.every_y == label).sum())
    end = f"too few to judge the predictions{' of this class' if are_others_enough else ''}."
    if every >= TOO_FEW:
        where = f"among the {len(y)} of {len(case.every_y)} held out that were looked at"
        plain = f"too few examples of {name} were looked at to judge it"
        text = f"{_counted(counts[rarest])} of {name} {where}, {end}"
        return [Finding(HELD_OUT, "note", text, plain=plain)], are_others_enough
    text = f"{_counted(every)} of {name} among the {len(case.every_y)} held out, {end}"
    return [_few(text, every + int((train.y == label).sum()), f"examples of {name}")], are_others_enough


def _few(text: str, total: int, of: str, least: int = TOO_FEW) -> Finding:
    """Note that few of a number of examples were held out, and how to mend it."""
    plain = f"too few {of} were held out to judge it"
    return Finding(HELD_OUT, "note", text, remedies=(more_rows(total, of, least),), plain=plain)


def _counted(number: int) -> str:
    return f"{number or 'No'} example{'s are' if number != 1 else ' is'}"


def _some(data: Data, seed: int, *, has_labels: bool) -> tuple[X, Tensor]:
    """Return inputs and targets of at most 1000 examples; of more, up to 10,000, if few of them are of some class."""
    most = _MOST_EXAMPLES
    if has_labels and data.y.ndim == 1:
        rarest = int(data.y.unique(return_counts=True)[1].min())
        most = min(max(most, math.ceil(2 * TOO_FEW / rarest * len(data))), _MOST_FOR_RARE)
    generator = torch.Generator().manual_seed(derive(seed, "examples"))
    rows = torch.randperm(len(data), generator=generator)[:most].sort().values
    return data.x[rows], data.y[rows]


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


def _compared(case: _Case) -> Verdict | None:
    return compare_with_baselines(
        case.fit.posterior,
        case.train,
        case.baselines,
        case.held_out,
        num_draws=case.prediction.num_draws,
        level=_THREE_ERRORS,
        most_rows=max(_MOST_EXAMPLES, len(case.y)),
    )


def _of_baselines(case: _Case, verdict: Verdict | None) -> list[Finding]:
    """Say whether the fit has memorised its targets, and how it compares with the baselines."""
    is_good = verdict is not None and verdict.kind == "fine"
    memorised = None if is_good else memorised_targets(case.fit.posterior, case.train, case.baselines, case.held_out)
    bad = of_bad_predictions(case.fit, verdict)
    findings = [] if memorised is None else [Finding("memorised", "warning", memorised, remedies=bad)]
    if not findings and (verdict is None or verdict.kind != "warning"):
        findings += of_missed_function(case.fit, case.train, case.prediction.num_draws)
    if verdict is None:
        why = "there is one training example" if len(case.train) < 2 else "its likelihood has latent variables"
        said = f"was not compared with a constant, as {why}"
        findings.append(Finding(BASELINE, "note", f"The fit {said}.", plain=f"it {said}", is_open=True))
    elif verdict.kind == "note" and verdict.prefers_linear and verdict.is_better:
        findings += linear_is_as_good(case.fit, verdict)
    elif verdict.kind == "note" and not verdict.is_better:
        found = _not_better(case, verdict)
        findings += [found, *(linear_is_as_good(case.fit, verdict) if found.is_open else ())]
    else:
        tries = bad if verdict.kind == "warning" else ()
        findings.append(Finding(BASELINE, verdict.kind, verdict.text, verdict.p_value, tries, verdict.plain))
    return findings


def _not_better(case: _Case, verdict: Verdict) -> Finding:
    """Note that nothing shows a gain over a constant: inputs say too little, or examples are too few to tell.

    They are too few where a gain of use may be true, by two standard errors, or where the fit ranks better than chance.
    """
    useful, ranks = _USEFUL, False
    if case.has_classes:
        shares = case.y.unique(return_counts=True)[1].double() / len(case.y)
        useful = min(_USEFUL, _SHARE * float(-(shares * shares.log()).sum()))
        ranks = case.held_out is not None and ranks_better(case.prediction, case.y, rarest_class(case.y)[0])
    if verdict.most < useful and not ranks:
        return Finding(BASELINE, "note", verdict.text, remedies=of_little_use(case.fit, verdict), plain=verdict.plain)
    if case.held_out is None:
        return Finding(BASELINE, "note", verdict.text, plain=verdict.plain, is_open=True)
    text, of, num, total = verdict.text, "examples", len(case.y), len(case.every_y) + len(case.train)
    though = ""
    if case.has_classes:
        label, is_rare = rarest_class(case.y)
        if is_rare:
            of, num = f"examples of {case.named(label)}", int((case.y == label).sum())
            total = sum(int((y == label).sum()) for y in (case.every_y, case.train.y))
        though = ", though it ranks better than guessing" if ranks else ""
        text += f" {num} {of} are too few to tell the fit from a constant{though}."
    is_all = len(case.y) == len(case.every_y)
    plain = f"{num} {of} {'held out' if is_all else 'looked at'} are too few to tell it from a constant{though}"
    tries = (more_rows(total, of, _TIMES_MORE * num),) if is_all else ()
    return Finding(BASELINE, "note", text, remedies=tries, plain=plain, is_open=True)


def _of_held_out(case: _Case, held_out: Data, level: float) -> list[Finding]:
    """Judge predictions by the targets held out, and by targets simulated from the fit."""
    posterior, seed = case.fit.posterior, derive(case.seed, "simulated targets")
    num = num_simulations(level, len(members_of(posterior)))
    simulated = posterior.predict(held_out.x, num_draws=num, seed=seed).sample(seed=seed)
    ranking = ranking_finding(case.prediction, case.y, _THREE_ERRORS, seed=case.seed, fit=case.fit)
    names = case.train.feature_names
    directions = Directions.of(held_out.x, names)
    findings = predictive_findings(
        case.prediction, case.y, simulated, level, seed=case.seed, fit=case.fit, directions=directions
    )
    return [*findings, *(() if ranking is None else (ranking,))]


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
    text = f"Collapse to the prior at {', '.join(names)}: the fit tells each of these weights no better than the prior."
    if not is_bad:
        return [
            Finding(
                "prior", "note", f"{text} This says nothing against the predictions; a smaller network may do as well."
            )
        ]
    end = "No layer is left that learns." if is_all else "Their layers only add noise."
    tries = () if is_all else (smaller,)
    return [Finding("prior", "warning", f"{text} {end}", remedies=open_to(fit, tries))]


def _of_weights(case: _Case) -> list[Finding]:
    """Note k-hat where a guide has a density over few enough weights."""
    posterior, train = case.fit.posterior, case.train
    if posterior.bnn.num_weights > MAX_WHOLE or len(train) > _MOST_FOR_KHAT:
        return []
    try:
        weights = importance_weights(posterior, train, num_draws=_KHAT_DRAWS)
    except InputError:  # no density
        return []
    if weights.is_reliable:
        return [Finding("k-hat", "fine", f"The fitted distribution of weights is close to the posterior: {weights}.")]
    khat = "inf: a few draws have all the weight" if math.isinf(weights.khat) else f"{weights.khat:.2f}"
    text = (
        "This says nothing against the predictions: the fitted distribution of the weights differs much from the "
        f"posterior, as is usual for networks (k-hat {khat}, close below {weights.good_khat:.2f})."
    )
    return [Finding("k-hat", "note", text)]
