"""The evidence framework: a mode and the scales that make the data most probable, in turns, from several starts."""

import dataclasses
import functools
import math
import sys
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from tqdm.auto import tqdm

from pyrobnn import guides
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import Count, fields_of, setting, to_dict
from pyrobnn._torch.private import tree_map
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.data.in_memory import Data, merged
from pyrobnn.guides.laplace import Laplace
from pyrobnn.inference import limits
from pyrobnn.inference.around import around
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.method import BaseMethod, Offer, Run, registry
from pyrobnn.inference.scales.fixed_point import Hyperprior
from pyrobnn.inference.scales.search import Rival, tuned_modes
from pyrobnn.inference.scales.tuned_mode import Search, TunedMode
from pyrobnn.likelihoods.base import as_likelihood, closed_numbers, resolve, target_units
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import EngineRecord

_BATCH = 4096
_NATS_PER_ODDS = 8.0
_NATS_A_ROW_BEHIND = 0.4  # a start so far behind the best has no share
_NATS_OF_ONE_MODE = 0.01


@registry.register
@setting
class EvidenceFramework(BaseMethod[Posterior | Mixture]):
    """Prior precisions and noise that maximise the evidence, then a posterior under them; for small tables.

    Two steps alternate (MacKay 1992): L-BFGS on all data goes to the mode under the present scales, and the fixed point
    alpha = (gamma + c) / (sum w^2 + c s^2) updates them; gamma is the number of weights that the data determine. The
    gamma prior of a precision counts c weights of mean square s^2, a fiftieth of the declared variance, or all of it
    for labels and counts in a single layer. Weights without effect on the outputs keep their declared prior.

    Every other start begins from a Gaussian process, if inputs are rows of numbers, the rest from noise of the spread
    of the targets, half of it and so on. The best score is kept: the mean of log evidence and leave-one-out log score
    (Fong & Holmes 2020), less gamma / 2.

    A Laplace approximation around the mode comes last. With real targets, the posterior is a `Mixture` of as many
    members as starts, divided among the modes in proportion to exp(score / 8). `SVI` trains other guides from the mode.

    Attributes:
        guide: a `Laplace` of curvature "ggn", "kron" over more than 3,000 weights.
        starts: number of starts, and of those of all likelihoods that go on after three rounds, unless 16 nats behind.
        rounds: rounds of each start; with 0 it only goes to the mode, and prior and noise stay as given.
        iterations: iterations of L-BFGS in a round.
        prior_counts: the c above, at most the weights of the group; the noise counts at most 1. None is 2 for labels
            and counts, 4 for fewer than six rows per input, else 0.
        per: which weights share a precision: those of a "site", or with "input" those of an input in the first layer
            (automatic relevance determination; MacKay 1994), and those that lead to outputs that are noise.
        likelihoods: others beside the model's, between which the best score chooses, in original units; see
            `record.evidence`. Beside likelihoods of counts a Gaussian has the probability from y - 1/2 to y + 1/2.

    Examples:
        >>> import pyrobnn as bnn
        >>> model = bnn.BNN(bnn.MLP(1, [20], 1, activation="silu"), prior=bnn.priors.Normal("fan_in"))
        >>> method = bnn.EvidenceFramework(starts=2, rounds=3)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> len(posterior.record.evidence.starts)
        2
    """

    guide: Annotated[Any, BeforeValidator(guides.resolve)] = Laplace(structure="full")
    starts: Count = 4
    rounds: Annotated[int, Field(ge=0)] = 8
    iterations: Count = 150
    prior_counts: Annotated[float, Field(ge=0)] | None = None
    per: Literal["input", "site"] = "input"
    likelihoods: tuple[Annotated[Any, BeforeValidator(resolve)], ...] = ()

    def __post_init__(self) -> None:
        if not self.takes(self.guide):
            needed = "the guide must be a Laplace of curvature='ggn' over all weights, and not of low rank"
            raise InputError(f"EvidenceFramework: {needed}, got {self.guide!r}: SVI trains others from the same mode.")

    @staticmethod
    def takes(guide: object) -> bool:
        if not isinstance(guide, Laplace) or guide.curvature != "ggn" or guide.subnetwork is not None:
            return False
        return guide.sites == ("*",) and guide.structure != "low_rank"

    def offer(self) -> Offer:
        return Offer(guide=self.guide, callbacks=False)

    def bounded(self, steps: int) -> "EvidenceFramework":
        """Return the method with rounds that share at most so many steps; its end counts as two."""
        iterations = min(self.iterations, math.ceil(steps / (self.rounds + 2)))
        return dataclasses.replace(self, iterations=iterations)

    def learning_on(self) -> "EvidenceFramework":
        return dataclasses.replace(self, starts=1, rounds=0)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior | Mixture:
        """Infer the posterior with the tuned prior and noise, or the mixture of several starts, the best first."""
        data = merged(data) if isinstance(data, Data) else data
        source = make_source(data, bnn, None, seed=run.seed)
        models = [bnn, *(_with_likelihood(bnn, one, source) for one in self.likelihoods)]
        sources = [source, *(make_source(data, one, None, seed=run.seed) for one in models[1:])]
        rivals = [Rival(*pair, functools.partial(_everything, pair[1])) for pair in zip(models, sources, strict=True)]
        searched = tuned_modes(rivals, source.num_data, run=run, search=self._search(bnn, source))
        starts, chosen = searched.starts, searched.chosen
        model = starts[chosen].model
        mixes = _has_real_targets(models[model])
        least = -_NATS_A_ROW_BEHIND * source.total_weight
        scores = [start.score if start.model == model else -np.inf for start in starts]
        counts = _members(scores, self.starts, mixes=mixes, least=least)
        order = sorted(range(len(starts)), key=lambda index: index != chosen)
        best = models[model], data, sources[model]
        around = {index: self._around(starts[index].mode, *best, run) for index in order if counts[index]}
        likelihoods = [one.settings["likelihood"] for one in models] if self.likelihoods else []
        tuned = around[chosen].bnn.settings["likelihood"]
        record = dataclasses.replace(
            around[chosen].record,
            method=to_dict(self) | {"guide": around[chosen].record.guide},
            seconds=run.seconds,
            evidence=dataclasses.replace(searched.record(sources[model].y_scaler, likelihoods), members=counts),
            measured=closed_numbers(models[model].settings["likelihood"], tuned),
        )
        if run.progress and self.likelihoods:
            tqdm.write(f"{record.evidence}.", file=sys.stderr)
        for one in around.values():
            one.record = record
        members = [around[index] for index in order for _ in range(counts[index])]
        return around[chosen] if len(around) == 1 else Mixture(members, seed=run.seed, record=record)

    def _search(self, bnn: BNN, source: Source) -> Search:
        if _has_real_targets(bnn):
            hyperprior = Hyperprior.of_real_targets(source.total_weight, source.head[0][0].numel(), self.prior_counts)
        else:
            is_linear = sum(value.ndim > 1 for value in bnn.initial_values.values()) == 1
            hyperprior = Hyperprior.of_labels(self.prior_counts, is_linear=is_linear)
        kinds = {one.integer_targets for one in (bnn.settings["likelihood"], *self.likelihoods)}
        return Search(self.starts, self.rounds, self.iterations, self.per, hyperprior, are_counts=len(kinds) > 1)

    def _around(self, best: TunedMode, bnn: BNN, data: Any, source: Source, run: Run) -> Posterior:
        """Return the posterior around the mode of a start, under its prior and noise."""
        tuned = best.tuned(bnn, source)
        is_large = self.guide.structure == "full" and len(best.prior.precision) > limits.MOST_FULL
        guide = dataclasses.replace(self.guide, structure="kron") if is_large else self.guide
        options: Any = {"seed": run.seed, "device": run.device, "progress": run.progress}
        posterior = around(tuned, data, guide, weights=best.weights, method=self, **options)
        why = f"; each call of the network changes {best.bnn.moving}" if best.bnn.moving else ""
        engine = "eager" if best.energy.recorded is None else "captured"
        used = EngineRecord(run.engine, engine, f"L-BFGS seeks the modes, on all data{why}")
        posterior.note(engine=used, threads=best.threads)
        return posterior


def _with_likelihood(bnn: BNN, likelihood: Any, source: Source) -> BNN:
    """Return a model with another likelihood, and as many outputs of a declared network as it needs."""
    net, (_, y), first = bnn.settings["net"], source.head, bnn.settings["likelihood"]
    densities = [one for one in (likelihood, first) if not one.integer_targets]
    if len(densities) == 1 and not as_likelihood(densities[0]).is_normal:
        raise InputError(f"EvidenceFramework: compares counts with a Gaussian of one scale, not {densities[0]!r}.")
    if "out_features" in fields_of(type(net)):
        net = dataclasses.replace(net, out_features=likelihood.num_outputs(y))
    with seeded(0, "parts"):
        other = BNN(net, prior=bnn.settings["prior"], likelihood=likelihood)
    if bnn.units is not None:
        other.units = (bnn.units[0], target_units(likelihood, bnn.units[1]))
    return other


def _everything(source: Source, model: BNN) -> Batch:
    joined: Batch = tree_map(lambda *parts: torch.cat(parts), *source.one_pass(model, _BATCH))
    return joined


def _has_real_targets(bnn: BNN) -> bool:
    likelihood = bnn.settings["likelihood"]
    return not (likelihood.integer_targets or as_likelihood(likelihood).has_labels)


def _members(scores: list[float], total: int, *, mixes: bool, least: float = -np.inf) -> list[int]:
    """Return the members of each start, its share, rounded; starts with equal scores share a mode."""
    ranks = np.nan_to_num(np.array(scores), nan=-np.inf)
    shares = np.zeros(len(ranks))
    for index in np.argsort(-ranks, kind="stable"):
        is_new = not np.isclose(ranks[shares > 0], ranks[index], rtol=0, atol=_NATS_OF_ONE_MODE).any()
        behind = ranks[index] - ranks.max()
        if is_new and behind >= least and (mixes or not shares.any()):
            shares[index] = np.exp(behind / _NATS_PER_ODDS)
    shares *= total / shares.sum()
    counts = np.floor(shares).astype(int)
    counts[np.argsort(counts - shares, kind="stable")[: total - counts.sum()]] += 1
    return [int(count) for count in counts]
