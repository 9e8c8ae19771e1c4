"""What is taken where a user has not chosen: an ordered table of rules, for `fit`, estimators, specs and command line.

docs/explanations/defaults.md has each rule with its measurements.
"""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.errors import counted
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import mixes_examples
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import as_guide
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.mcmc.mcmc import NUTS
from pyrobnn.inference.parts import Given, Parts, with_width
from pyrobnn.inference.scales.evidence_framework import EvidenceFramework
from pyrobnn.inference.scales.open_scales import work_of_gradient
from pyrobnn.inference.several.ensemble import Ensemble
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.priors.base import as_prior
from pyrobnn.tables.reading import LEAST_AMOUNT, Task

MOST_ROWS_OF_CHAINS, MOST_NUMBERS_OF_CHAINS, MOST_UNITS_OF_CHAINS = 100, 3000, 100
MOST_ROWS_OF_EVIDENCE: dict[Task, int] = {"regression": 500, "classification": 1000}
MOST_LONG_ROWS_OF_EVIDENCE = 10_000
_MOST_DERIVATIVES = 2**25
"""Derivatives of the outputs of all rows in the weights, which the evidence framework holds."""

_NET = nets.MLP(hidden=(50,), activation="silu", dtype="float64")
_LIKELIHOODS: dict[Task, Any] = {"regression": likelihoods.Gaussian(), "classification": likelihoods.Categorical()}
_FAN_IN, _OPEN = priors.Normal(scale="fan_in"), priors.Normal()
_MEAN_FIELD = guides.MeanField(init_rho=-3.0)
_NOTHING = Given()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What rules look at: the data, and what was given. Sizes that are not known yet are 0; a row of weight 2 is two.

    `learns_on` says that later rows will have the posterior, as independent normals, for their prior.
    """

    task: Task
    num_data: int = 0
    num_inputs: int = 0
    num_classes: int = 2
    num_targets: int = 0  # columns of targets (N, K); 0 for (N,)
    is_positive: bool = False
    are_counts: bool = False
    is_standardized: bool = True
    learns_on: bool = False
    given: Given = _NOTHING
    shares_weights: bool = False
    num_weights: int = 0
    has_derivatives: bool = True  # of the outputs of each row in all that is fitted

    @classmethod
    def of(cls, task: Task, data: Data, given: Given = _NOTHING, *, num_classes: int = 2, **more: Any) -> "Facts":
        """Return the facts of data."""
        y = data.y.double()
        return cls(
            task=task,
            num_data=max(len(data), round(data.total_weight)),
            num_inputs=data.x[0].numel(),
            num_classes=num_classes,
            num_targets=0 if y.ndim == 1 else data.y[0].numel(),
            is_positive=bool((y > 0).all()),
            are_counts=y.ndim == 1 and are_counts(y),
            is_standardized=bool(data.standardize),
            given=given,
            **more,
        )

    @classmethod
    def of_model(cls, bnn: BNN, data: Data) -> "Facts":
        """Return the facts of data and a model whose parts were given."""
        likelihood = bnn.settings["likelihood"]
        task: Task = "classification" if as_likelihood(likelihood).has_labels else "regression"
        source = make_source(data, bnn, None, seed=0)
        given = Given(**{name: bnn.settings[name] for name in ("net", "prior", "likelihood")})
        return cls.of(
            task,
            data,
            given,
            num_classes=source.outputs,
            num_weights=bnn.num_weights,
            shares_weights=_shares_weights(bnn, source),
            has_derivatives=not mixes_examples(bnn.net) and not any(one.requires_grad for one in bnn.net.parameters()),
        )

    @cached_property
    def likelihood(self) -> Any:
        return _LIKELIHOODS[self.task] if self.given.likelihood is None else self.given.likelihood

    def num_outputs(self, likelihood: Any) -> int:
        """Return the number of network outputs for a likelihood of all classes, or of the columns of targets."""
        labels, columns = torch.arange(self.num_classes), (1, self.num_targets) if self.num_targets else (1,)
        has_classes = self.task == "classification" and not self.num_targets
        return int(likelihood.num_outputs(labels if has_classes else torch.zeros(columns)))

    @property
    def leaves_likelihood(self) -> bool:
        """Whether the likelihood of a column of targets, and with it the number of outputs, may be chosen."""
        is_open = self.given.net is None or getattr(self.given.net, "out_features", 0) is None
        return is_open and self.given.likelihood is None and not self.num_targets

    @property
    def leaves_training(self) -> bool:
        """Whether neither a guide nor settings of a training were given; `steps` alone bounds any."""
        return self.given.guide is None and (self.given.only_bounds or not self.given.settings)

    @property
    def leaves_scales(self) -> bool:
        """Whether the scales of a normal prior may be chosen."""
        prior = self.given.prior
        return prior is None or (as_prior(prior).is_normal and (as_prior(prior).has_open_scale or prior == _FAN_IN))

    @property
    def takes_chains(self) -> bool:
        """Whether chains, which optimise no number and are long for large networks, take what was given."""
        net, likelihood = self.given.net, self.likelihood
        is_small = net is None or (self.num_weights or sum(getattr(net, "hidden", ()))) <= MOST_UNITS_OF_CHAINS
        return is_small and self.leaves_training and not self.learns_on and not open_numbers(likelihood)

    @property
    def takes_evidence(self) -> bool:
        """Whether the evidence framework takes what was given."""
        guide, told = self.given.guide, as_likelihood(self.likelihood)
        is_real = told.noise is not None
        takes_guide = guide is None or EvidenceFramework.takes(guide) or (is_real and as_guide(guide).curvature is None)
        takes_noise = told.varies_normally or told.noise not in ("inferred", "heteroscedastic")
        weights = self.num_weights or 51 * (self.num_inputs + 1)
        is_small = self.num_data * max(self.num_targets, self.num_classes - 1) * weights <= _MOST_DERIVATIVES
        takes_settings = self.given.only_bounds or not self.given.settings
        return (
            self.has_derivatives and is_small and self.leaves_scales and takes_guide and takes_noise and takes_settings
        )


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
    num_classes = int(data.y.max()) + 1 if told == "classification" else 2
    return choose(Facts.of(told, data, num_classes=num_classes)).sentence


def are_counts(y: Tensor) -> bool:
    """Return whether targets (N,) are whole numbers from 0 up, mostly below 100, that repeat."""
    is_whole = bool((y >= 0).all()) and torch.equal(y, y.round()) and bool(y.median() < LEAST_AMOUNT)
    return is_whole and len(y.unique()) <= len(y) / 2


def _with_given(parts: Parts, facts: Facts) -> Parts:
    """Return the parts that were given in place of others; an open prior leaves one that is closed."""
    given, prior = facts.given, facts.given.prior
    if prior is None or (as_prior(prior).has_open_scale and not parts.method.offer().tunes_scales):
        prior = parts.prior
    is_fixed = given.net is not None and getattr(given.net, "in_features", 0) is not None
    net = parts.net if given.net is None else given.net
    likelihood = parts.likelihood if given.likelihood is None else given.likelihood
    return Parts(
        net=with_width(net, "out_features", facts.num_outputs(likelihood)) if facts.num_data else net,
        prior=prior,
        likelihood=likelihood,
        method=given.method_for(parts.method),
        inputs=given.inputs or ("plain" if is_fixed else parts.inputs),
    )


def _shares_weights(bnn: BNN, source: Source) -> bool:
    """Return whether an example meets weights at several positions."""
    # a weight that it meets once has a product in the outputs, one in its gradient, and one in that of its inputs
    without_prior = sum(weight.numel() for weight in bnn.net.parameters())
    return work_of_gradient(bnn, source, 1).products > 3 * (bnn.num_weights + without_prior)


def _given(facts: Facts) -> list[Parts]:
    prior = _OPEN if facts.task == "classification" else _FAN_IN
    return [Parts(net=_NET, prior=prior, likelihood=facts.likelihood, method=facts.given.method)]


def _chains(facts: Facts) -> list[Parts]:
    """Return chains that draw the scales of weights too: a fixed scale suits one kind of problem, and fits noise."""
    prior = priors.Hierarchical("log_normal") if facts.is_standardized else _OPEN
    method = NUTS(num_draws=150, warmup=100, num_chains=2, max_tree_depth=8, target_accept=0.9)
    return [Parts(net=_NET, prior=prior, likelihood=facts.likelihood, method=method)]


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
    return [Parts(net=_NET, prior=_OPEN, likelihood=facts.likelihood, method=Ensemble(member, members=3))]


def _evidence(facts: Facts) -> list[Parts]:
    if facts.task == "classification":
        method = EvidenceFramework(guide=_MEAN_FIELD, guide_steps=1000)
    else:
        method = EvidenceFramework(likelihoods=_rivals(facts))
    return [Parts(net=_NET, prior=_FAN_IN, likelihood=facts.likelihood, method=method)]


def _rivals(facts: Facts) -> tuple[Any, ...]:
    """Return the likelihoods that compete with the first."""
    is_open = facts.leaves_likelihood and facts.given.guide is None and not facts.learns_on
    if not is_open or not facts.is_standardized or facts.num_data < _FEWEST_CHOSEN_ROWS:
        return ()
    if facts.are_counts:  # a density is a probability there unless it is far narrower than 1
        return likelihoods.Poisson(), likelihoods.NegativeBinomial()
    positive = (likelihoods.LogNormal(),) if facts.is_positive else ()
    return (*positive, likelihoods.StudentT(), likelihoods.Gaussian("heteroscedastic"))


def _trained(facts: Facts) -> list[Parts]:
    method = SVI(guide=_MEAN_FIELD, max_steps=40_000, lr=0.02, num_particles=2)
    prior = _OPEN if facts.task == "classification" else _FAN_IN
    return [Parts(net=_NET, prior=prior, likelihood=facts.likelihood, method=method)]


def _flexible(facts: Facts) -> list[Parts]:
    """Return the evidence framework, and ensembles with dropout under densities of any shape."""
    found = [each for each in _evidence(facts) if facts.takes_evidence and facts.num_data <= MOST_LONG_ROWS_OF_EVIDENCE]
    shapes = _SHAPES if facts.leaves_likelihood and facts.task == "regression" else (facts.likelihood,)
    for shape in shapes:
        for rate in _RATES:
            member = SVI(
                guide=guides.Dropout(rate=rate, per_example=True),
                steps=5000,
                batch_size=64 if facts.num_data < 1000 else 128,
                lr=0.002,
                schedule="cosine_annealing_lr",
            )
            found.append(
                Parts(
                    net=nets.MLP(hidden=(128, 128)),
                    prior=priors.Normal(1.0),
                    likelihood=shape,
                    method=Ensemble(member, members=5),
                    inputs="ranks" if facts.is_standardized else "plain",
                )
            )
    return found


_FEWEST_CHOSEN_ROWS = 30
_SHAPES = (likelihoods.StudentT(scale="heteroscedastic"), likelihoods.MixtureDensity(components=5))
_RATES = (0.02, 0.1, 0.3)

RULES = (
    Rule("given method", lambda facts: facts.given.method is not None, "the method was given", _given),
    Rule(
        "few labels",
        lambda facts: (
            facts.task == "classification"
            and facts.num_data <= MOST_ROWS_OF_CHAINS
            and facts.num_data * facts.num_inputs <= MOST_NUMBERS_OF_CHAINS
            and facts.takes_chains
        ),
        f"up to {MOST_ROWS_OF_CHAINS}, chains draw the weights, as many functions are possible",
        _chains,
    ),
    Rule(
        "shared weights",
        lambda facts: facts.shares_weights and facts.leaves_training,
        "weights are shared between positions, so a short ensemble of modes is trained",
        _shared,
    ),
    Rule(
        "labels",
        lambda facts: (
            facts.task == "classification"
            and facts.num_data <= MOST_ROWS_OF_EVIDENCE["classification"]
            and facts.takes_evidence
        ),
        "up to 1,000, the evidence measures the scales of weights, before a mean-field guide is trained",
        _evidence,
    ),
    Rule(
        "numbers",
        lambda facts: (
            facts.task == "regression"
            and facts.num_data <= MOST_ROWS_OF_EVIDENCE["regression"]
            and facts.takes_evidence
        ),
        "up to 500, the evidence measures what was left open",
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
        "a fifth of the rows, held out, chooses among the evidence framework and ensembles with dropout",
        _flexible,
    ),
)
"""The rules of the defaults, the first that holds counts."""
