"""What is taken where a user has not chosen: an ordered table of rules, for `fit`, estimators, specs and command line.

docs/explanations/defaults.md has each rule with its measurements.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.errors import counted
from pyrobnn.data import InputColumns
from pyrobnn.data.in_memory import Data
from pyrobnn.inference.facts import FAN_IN, NET, OPEN, Facts
from pyrobnn.inference.limits import ROWS_FOR_EACH_INPUT
from pyrobnn.inference.mcmc.mclmc import MCLMC
from pyrobnn.inference.parts import Parts, with_width
from pyrobnn.inference.scales.evidence_framework import EvidenceFramework
from pyrobnn.inference.several.ensemble import Ensemble
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods.noise import HalfNormal
from pyrobnn.tables.reading import Task

MOST_ROWS_OF_CHAINS, ROWS_OF_WIDE = 1000, 2
MOST_ROWS_OF_EVIDENCE, MOST_ROWS_OF_SHORT_EVIDENCE = 500, 200
MOST_LONG_ROWS_OF_EVIDENCE, MOST_NUMBERS_OF_TWO_STARTS = 10_000, 30_000
FEWEST_ROWS_OF_LARGE_BATCHES, FEWEST_ROWS_OF_ONE_NETWORK, MOST_COLUMNS_OF_WAVES = 2000, 20_000, 50

_Columns = tuple[tuple[InputColumns, float], ...]
_SHARED_SCALES = priors.Hierarchical("log_normal")
_SCALES_OF_INPUTS = priors.ARD("log_normal", scale="fan_in")
_MEAN_FIELD = guides.MeanField(init_rho=-3.0)


@dataclasses.dataclass(frozen=True)
class _Size:
    """Networks with dropout: inputs and rates to try for numbers, and steps of a trial and, at least, of a member."""

    numbers: _Columns
    hidden: tuple[int, ...]
    members: int
    trial: int
    steps: int
    batch_size: int
    lr: float


_NUMBERS: _Columns = (("ranks", 0.3), ("ranks", 0.1), ("ranks", 0.03), ("waves", 0.1), ("waves", 0.03))
_OF_MANY_NUMBERS: _Columns = (("ranks", 0.05), ("waves", 0.05))
_LABELS: _Columns = (("plain", 0.1), ("ranks", 0.1))
_FEW = _Size(_NUMBERS, hidden=(128, 128), members=5, trial=1000, steps=500, batch_size=128, lr=0.002)
_MANY = _Size(_OF_MANY_NUMBERS, hidden=(256, 256), members=1, trial=2500, steps=5000, batch_size=256, lr=0.003)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A row of the table: when it holds, why in words, and the parts to take; of several, rows held out choose."""

    name: str
    holds: Callable[[Facts], bool]
    because: str
    parts: Callable[[Facts], list[Parts]]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The rule that holds for facts, and the parts that it leads to with what was given."""

    rule: Rule
    facts: Facts
    candidates: list[Parts]

    @property
    def sentence(self) -> str:
        """Which rule held, and why, in words."""
        facts = self.facts
        kind = "labels" if facts.task == "classification" else "counts" if facts.are_counts else "numbers"
        return f"{counted(facts.num_data, 'row')} of {kind}: {self.rule.because}"


def choose(facts: Facts) -> Choice:
    """Return the first rule that holds, with its parts; those that were given stay."""
    rule = next(rule for rule in RULES if rule.holds(facts))
    candidates = list[Parts]()
    for parts in rule.parts(facts):
        own = _with_given(parts, facts)
        candidates += [own] if own not in candidates else []
    return Choice(rule, facts, candidates)


def explain(data: Data, task: Task | None = None) -> str:
    """Return which rule holds for data where nothing is given, and why, in a sentence.

    Args:
        data: the data of a fit.
        task: "regression" or "classification"; None takes whole numbers for labels.

    Examples:
        >>> bnn.inference.defaults.explain(bnn.datasets.sinusoid())
        '32 rows of numbers: up to 500, the evidence measures what was left open'
    """
    told: Task = task or ("regression" if data.y.is_floating_point() else "classification")
    return choose(Facts.of(told, data)).sentence


def _with_given(parts: Parts, facts: Facts) -> Parts:
    """Return the parts that were given in place of others.

    A prior of None is one whose scales the method tunes, or are measured before it. Another prior of a rule stands for
    one that leaves all open.
    """
    given = facts.given
    prior = given.prior if parts.prior is None or given.prior not in (None, OPEN) else parts.prior
    net = parts.net if given.net is None else given.net
    return Parts(
        net=with_width(net, "out_features", facts.num_outputs(parts.likelihood)) if facts.num_data else net,
        prior=prior or (OPEN if facts.task == "classification" else FAN_IN),
        likelihood=parts.likelihood,
        method=given.method_for(parts.method),
        inputs=given.inputs or parts.inputs,
        trial=None if parts.trial is None else given.method_for(parts.trial),
    )


def _is_wide(facts: Facts) -> bool:
    """Whether one column of targets has few rows for its inputs, in which the evidence takes noise for a function."""
    is_column = facts.task == "regression" and not facts.num_targets and not facts.are_counts
    is_wide = facts.is_table and facts.num_data < min(ROWS_OF_WIDE * facts.num_inputs, MOST_ROWS_OF_EVIDENCE)
    return is_column and is_wide and facts.takes_chains


def _chains(facts: Facts) -> list[Parts]:
    """Return chains that draw the scales of weights too, of an `MLP` one for each input, and open noise."""
    prior: Any = _SHARED_SCALES
    if facts.given.net is None or isinstance(facts.given.net, nets.MLP):
        prior = {"0.weight": _SCALES_OF_INPUTS, "*": _SHARED_SCALES}
    method = MCLMC(num_draws=100, warmup=600, num_chains=4, init="net")
    noise = likelihoods.Gaussian(HalfNormal(facts.spread))
    likelihood = noise if facts.likelihood == likelihoods.Gaussian() else facts.likelihood
    return [Parts(net=NET, prior=prior, likelihood=likelihood, method=method)]


def _shared(facts: Facts) -> list[Parts]:
    """Return an ensemble of modes, at a low temperature under an open prior, under which a mode is too smooth."""
    member = SVI(
        guide="map",
        steps=max(800, min(2000, 3 * facts.num_data // 32)),
        lr=0.005,
        batch_size=32,
        schedule="cosine_annealing_lr",
        temperature=0.03 if facts.leaves_scales else 1.0,
    )
    return [Parts(net=NET, prior=None, likelihood=facts.likelihood, method=Ensemble(member, members=3))]


def _evidence(facts: Facts) -> list[Parts]:
    """Return the evidence framework, with less to do for few rows, where it is as good, and for many."""
    starts, is_short = EvidenceFramework.starts, facts.num_data <= MOST_ROWS_OF_SHORT_EVIDENCE
    if facts.num_data > MOST_ROWS_OF_EVIDENCE:
        starts = 2 if facts.num_data * facts.num_inputs <= MOST_NUMBERS_OF_TWO_STARTS else 1
    iterations = 75 if is_short else EvidenceFramework.iterations
    method = EvidenceFramework(starts=starts, iterations=iterations, likelihoods=_rivals(facts))
    return [Parts(net=NET, prior=None, likelihood=facts.likelihood, method=method)]


def _rivals(facts: Facts) -> tuple[Any, ...]:
    """Return the likelihoods that compete with the first; none for fewer than six rows for each column."""
    is_open = facts.leaves_likelihood and facts.given.guide is None and not facts.learns_on
    if not is_open or not facts.is_standardized or facts.num_data < ROWS_FOR_EACH_INPUT * facts.num_inputs:
        return ()
    if facts.are_counts and facts.are_dispersed:
        return likelihoods.Poisson(), likelihoods.NegativeBinomial()
    varying = likelihoods.Gaussian("heteroscedastic")
    others = (varying,) if facts.num_data > MOST_ROWS_OF_EVIDENCE else (likelihoods.StudentT(), varying)
    return (likelihoods.LogNormal(), *others) if facts.is_positive else others


def _trained(facts: Facts) -> list[Parts]:
    method = SVI(guide=_MEAN_FIELD, max_steps=40_000, lr=0.02, num_particles=2)
    return [Parts(net=NET, prior=None, likelihood=facts.likelihood, method=method)]


def _shape(facts: Facts) -> Any:
    """Return a density of any shape; of whole numbers, on each of which that would pile up, one with a single peak."""
    if facts.are_counts:
        return likelihoods.NegativeBinomial() if facts.are_dispersed else likelihoods.StudentT(scale="heteroscedastic")
    return likelihoods.MixtureDensity(components=5)


def _flexible(facts: Facts) -> list[Parts]:
    """Return the evidence framework, and ensembles with dropout on ranks of inputs, under a density of any shape."""
    has_labels, size = facts.task == "classification", _FEW if facts.num_data < FEWEST_ROWS_OF_ONE_NETWORK else _MANY
    found = list[Parts]()
    if not has_labels and facts.takes_evidence and max(facts.num_data, facts.num_rows) <= MOST_LONG_ROWS_OF_EVIDENCE:
        found += _evidence(facts)
    is_open = facts.leaves_likelihood and not has_labels
    takes_ranks = facts.is_table and facts.is_standardized and facts.leaves_width("in_features")
    batch_size = 64 if facts.num_data < FEWEST_ROWS_OF_LARGE_BATCHES else size.batch_size
    for inputs, rate in _LABELS if has_labels else size.numbers:
        if inputs == "waves" and facts.num_inputs > MOST_COLUMNS_OF_WAVES:
            continue
        guide = guides.Dropout(rate=rate, per_example=True)
        member = SVI(
            guide=guide,
            steps=size.steps,
            batch_size=batch_size,
            lr=size.lr,
            schedule="cosine_annealing_lr",
            eval_every=100,
        )
        trial = dataclasses.replace(member, steps=size.trial, schedule=None, patience=5, eval_every=size.trial // 10)
        found.append(
            Parts(
                net=nets.MLP(hidden=size.hidden),
                prior=priors.Normal(1.0 if has_labels else 0.3),
                likelihood=_shape(facts) if is_open else facts.likelihood,
                method=Ensemble(member, members=size.members),
                inputs=inputs if takes_ranks else "plain",
                trial=trial,
            )
        )
    return found


RULES = (
    Rule(
        "given method",
        lambda facts: facts.given.method is not None,
        "the method was given",
        lambda facts: [Parts(net=NET, prior=None, likelihood=facts.likelihood, method=facts.given.method)],
    ),
    Rule(
        "labels",
        lambda facts: facts.task == "classification" and facts.num_data <= MOST_ROWS_OF_CHAINS and facts.takes_chains,
        f"up to {MOST_ROWS_OF_CHAINS:,}, chains draw the weights and their scales",
        _chains,
    ),
    Rule(
        "few numbers",
        _is_wide,
        f"fewer than {ROWS_OF_WIDE} for each column, chains draw the weights, their scales and the noise",
        _chains,
    ),
    Rule(
        "shared weights",
        lambda facts: facts.shares_weights and facts.leaves_training,
        "weights are shared between positions, so a short ensemble of modes is trained",
        _shared,
    ),
    Rule(
        "numbers",
        lambda facts: facts.task == "regression" and facts.num_data <= MOST_ROWS_OF_EVIDENCE and facts.takes_evidence,
        f"up to {MOST_ROWS_OF_EVIDENCE}, the evidence measures what was left open",
        _evidence,
    ),
    Rule(
        "trained guide",
        lambda facts: facts.learns_on or not (facts.leaves_training and facts.leaves_scales),
        "what was given is trained until it has converged",
        _trained,
    ),
    Rule(
        "many rows",
        lambda facts: True,
        "a fifth of the rows, held out, chooses the best of several fits",
        _flexible,
    ),
)
"""The rules of the defaults, the first that holds counts."""
