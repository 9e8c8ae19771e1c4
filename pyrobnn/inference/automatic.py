"""The method that nobody has to choose: candidates by size, judged by examples that they have not seen."""

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyrobnn import guides
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._core.settings import setting, to_dict
from pyrobnn._core.waiting import progress_bar
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import mixes_examples
from pyrobnn.data.in_memory import Data, held_out, merged
from pyrobnn.data.splits import classes_of, drawn_together, same_inputs
from pyrobnn.inference import limits
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.default_parts import Chosen, evidence_for, suits_evidence
from pyrobnn.inference.mcmc.mcmc import NUTS
from pyrobnn.inference.method import BaseMethod, Method, Offer, Run, fill_in, registry
from pyrobnn.inference.scales.evidence_framework import EvidenceFramework
from pyrobnn.inference.scales.open_scales import MeasuredModel, affordable, measure, prior_by_site, work_of_gradient
from pyrobnn.inference.several.ensemble import Ensemble
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import AutomaticRecord, CandidateRecord
from pyrobnn.priors.base import as_prior

_SCORE_DRAWS = 200


@registry.register
@setting
class Automatic(BaseMethod[Posterior | Mixture]):
    """Try methods suited to the sizes of network and data, and keep the best on held-out examples.

    Small data under open normal priors get the evidence framework at once. Networks that share weights between
    positions, or whose steps are long, get a short ensemble at once. Else candidates are a Laplace approximation, a
    mean-field guide, chains by NUTS for few weights and examples, and an anchored ensemble for many. Each is fitted to
    a part of the data and scored on the rest, and the best is fitted to all data. A candidate takes as many steps as
    are predicted to last a minute. See docs/explanations/defaults.md.

    Examples:
        >>> import pyrobnn as bnn
        >>> model, data = bnn.BNN(bnn.MLP(1, [10], 1)), bnn.datasets.sinusoid()
        >>> bnn.fit(model, data, bnn.Automatic(), seed=0, progress=False).record.automatic.chosen
        'evidence_framework'
    """

    def offer(self) -> Offer:
        return Offer(callbacks=False)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior | Mixture:
        """Choose, and fit to all data; `record.automatic` has the candidates and their scores.

        Raises:
            InputError: data in files or loaders, or fewer than 5 examples.
            FloatingPointError: no candidate with a finite fit.
            KeyboardInterrupt: Ctrl-C, at once: nothing of the fit is kept.
        """
        if not isinstance(data, Data) or len(data) < limits.FOLDS[0]:
            raise InputError(
                "Without a method, candidates are compared on data in memory, at least 5 examples: pass Data(x, y), "
                "which bnn.Loader(loader).in_memory() makes of a loader, or "
                "a method such as SVI()."
            )
        data = merged(data, limits.MOST_AT_ONCE)
        source = make_source(data, bnn, None, seed=run.seed)
        run = dataclasses.replace(run, callbacks=[])
        if (alone := self._by_evidence(bnn, data, source, run)) is not None:
            return alone
        most_steps = int(limits.CANDIDATE_SECONDS / work_of_gradient(bnn, source, source.batch_size(None)).seconds())
        if most_steps < limits.FEWEST_COMPARED_STEPS or _shares_weights(bnn, source):
            record = AutomaticRecord(to_dict(self), [], "ensemble")
            return self._fitted(short_ensemble(bnn, source), record, MeasuredModel(bnn), data, run)
        parts = _splits(data, derive(run.seed, "folds"))
        models = [measure(bnn, train, run) for train, _ in parts]
        methods = candidates(bnn, _size(data), min(SVI().max_steps, most_steps))
        if any(_is_open(model) for model in models):
            methods.pop("nuts", None)  # it draws from priors, and optimises nothing
        weights = None if data.weights is None else torch.cat([rest.tensors[2] for _, rest in parts]).cpu()
        tried: dict[str, CandidateRecord] = {}
        with progress_bar(methods.items(), desc="methods", unit="method", shown=run.progress) as bar:
            for name, method in bar:
                bar.set_postfix_str(name)
                started = time.perf_counter()
                scores = _held_out_scores(name, method, models, parts, run)
                tried[name] = _record(name, scores, weights, time.perf_counter() - started)
        whole = measure(bnn, data, run)
        chosen = _best([one for one in tried.values() if one.name != "nuts" or not _is_open(whole)])
        record = AutomaticRecord(to_dict(self), [*tried.values()], chosen)
        return self._fitted(methods[chosen], record, whole, data, run)

    def _fitted(
        self, method: Any, record: AutomaticRecord, model: MeasuredModel, data: Data, run: Run
    ) -> Posterior | Mixture:
        """Return the posterior of all data by the chosen method, after a line that says which it is."""
        if run.progress:
            tqdm.write(str(record), file=sys.stderr)
        posterior: Posterior | Mixture = method.infer(model.bnn, data, run)
        fill_in(posterior, evidence=model.record)
        posterior.note(automatic=record, seconds=run.seconds)
        return posterior

    def _by_evidence(self, bnn: BNN, data: Data, source: Source, run: Run) -> Posterior | Mixture | None:
        """Return the posterior by the evidence framework; None if it does not suit model and data."""
        method = of_small_data(bnn, data, source)
        if method is None:
            return None
        record = AutomaticRecord(to_dict(self), [], "evidence_framework")
        try:
            return self._fitted(method, record, MeasuredModel(bnn), data, run)
        except FloatingPointError:
            return None


def _held_out_scores(
    name: str, method: Any, models: list[MeasuredModel], parts: list[tuple[Data, Data]], run: Run
) -> Tensor:
    """Return the log score of each held-out example, -infinity for a fit that failed."""
    scores = []
    for index, (model, (train, rest)) in enumerate(zip(models, parts, strict=True)):
        fold_run = dataclasses.replace(run, seed=derive(run.seed, f"{name} {index}"), progress=False)
        try:
            posterior = method.infer(model.bnn, train, fold_run)
            scores.append(posterior.predict(rest.x, num_draws=_SCORE_DRAWS).log_prob(rest.y).double().cpu())
        except FloatingPointError:
            scores.append(torch.full((len(rest),), -math.inf, dtype=torch.float64))
    return torch.cat(scores)


def _is_open(model: MeasuredModel) -> bool:
    """Return whether a number of the noise is left open."""
    return bool(open_numbers(model.bnn.settings["likelihood"]))


def of_small_data(bnn: BNN, data: Data, source: Source) -> EvidenceFramework | None:
    """Return the method for small data, which is not compared with others; None for larger data, and other models."""
    likelihood = as_likelihood(bnn.settings["likelihood"])
    is_sampled = len(data) <= limits.MOST_SAMPLED_ROWS and bnn.num_weights * len(data) <= limits.MOST_SAMPLED
    if mixes_examples(bnn.net) or (likelihood.has_labels and is_sampled):
        return None
    is_open = all(as_prior(prior).is_normal and as_prior(prior).has_open_scale for prior in prior_by_site(bnn).values())
    if not is_open or any(weight.requires_grad for weight in bnn.net.parameters()):
        return None
    method = evidence_for("classification" if likelihood.has_labels else "regression")
    size = affordable(bnn, source) if suits_evidence(Chosen(likelihood=bnn.settings["likelihood"])) else None
    if size is None or size[0] < len(data):
        return None
    return dataclasses.replace(method, starts=min(size[1], method.starts))


def candidates(bnn: BNN, num_data: int, max_steps: int) -> dict[str, Method[Any]]:
    """Return the methods to try on a model, examples and at most so many steps, by name, the cheapest first."""
    svi = SVI(max_steps=max_steps)
    size = bnn.num_weights
    laplace = guides.Laplace() if size <= limits.MOST_KRON else guides.Laplace(sites=("last_layer",))
    methods: dict[str, Method[Any]] = {"laplace": dataclasses.replace(svi, guide=laplace), "mean_field": svi}
    if size * num_data <= limits.MOST_SAMPLED:
        methods["nuts"] = NUTS(num_draws=300, warmup=300, num_chains=2)
    else:
        methods["ensemble"] = Ensemble(SVI(guide="map", max_steps=max_steps // Ensemble.members), anchored=True)
    return methods


def _shares_weights(bnn: BNN, source: Source) -> bool:
    """Return whether an example meets weights at several positions, and not so few that chains would be compared."""
    # a weight that it meets once has a product in the outputs, one in its gradient, and one in that of its inputs
    without_prior = sum(weight.numel() for weight in bnn.net.parameters())
    is_shared = work_of_gradient(bnn, source, 1).products > 3 * (bnn.num_weights + without_prior)
    return is_shared and bnn.num_weights * source.num_data > limits.MOST_SAMPLED


def short_ensemble(bnn: BNN, source: Source) -> Ensemble:
    """Return the method for networks that share weights or whose steps are long, without measured scales.

    A mode under an open prior is too smooth, so the prior counts less.
    """
    batch_size = source.batch_size(limits.BATCH_OF_LONG_STEPS)
    fewest = max(limits.FEWEST_LONG_STEPS, limits.FEWEST_EPOCHS * source.num_data // batch_size)
    total = int(limits.SECONDS_OF_LONG_STEPS / work_of_gradient(bnn, source, batch_size).seconds())
    members = max(1, min(Ensemble.members, total // fewest))
    is_open = any(as_prior(prior).has_open_scale for prior in prior_by_site(bnn).values())
    member = SVI(
        guide="map",
        steps=max(fewest, min(limits.MOST_LONG_STEPS, total // members)),
        lr=0.005,
        batch_size=batch_size,
        schedule="cosine_annealing_lr",
        temperature=limits.TEMPERATURE_OF_MODES if is_open else 1.0,
    )
    return Ensemble(member, members=members)


def _size(data: Data) -> int:
    """Return the number of examples; an example of weight 2 counts as two."""
    return max(len(data), round(data.total_weight))


def _splits(data: Data, seed: int) -> list[tuple[Data, Data]]:
    """Return pairs of a training part and a held-out part of equal sizes; rows with equal inputs stay together."""
    folds, used = limits.FOLDS_OF_FEW if _size(data) <= limits.FEW_ROWS else limits.FOLDS
    sizes = [data.total_weight / folds if data.weights is not None else len(data) // folds] * used
    groups, classes = same_inputs(data.x), classes_of(data.y)
    parts, _ = drawn_together(groups, sizes, seed=seed, weights=data.weights, classes=classes)
    return held_out(data, parts)


def _record(name: str, scores: Tensor, weights: Tensor | None, seconds: float) -> CandidateRecord:
    """Return the mean score and its standard error, weighted by the examples' weights."""
    count = torch.ones_like(scores) if weights is None else weights
    mean, total = float((count * scores).sum() / count.sum()), float(count.sum())
    if not math.isfinite(mean):
        return CandidateRecord(name, -math.inf, math.inf, seconds)
    error = math.sqrt(float((count * (scores - mean).square()).sum()) / (total - 1) / total) if total > 1 else 0.0
    return CandidateRecord(name, mean, error, seconds)


def _best(tried: Sequence[CandidateRecord]) -> str:
    """Return the name of the highest mean, of equals the first."""
    best = max(tried, key=lambda one: one.log_score)
    if not math.isfinite(best.log_score):
        raise FloatingPointError("No method kept to finite numbers. Look for extreme values in the data.")
    return best.name
