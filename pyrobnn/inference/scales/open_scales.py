"""Scales that a model leaves open, measured before a fit: the scales of its prior, and the noise."""

import dataclasses
from typing import Any

import numpy as np
import torch

from pyrobnn import priors
from pyrobnn._core.random import seeded
from pyrobnn._torch.work import Work
from pyrobnn.bnn import BNN, StartState
from pyrobnn.curvature.tracker import mixes_examples
from pyrobnn.data.batches import Batch
from pyrobnn.data.in_memory import Data, merged
from pyrobnn.inference import limits
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.method import Run
from pyrobnn.inference.scales.fixed_point import Hyperprior
from pyrobnn.inference.scales.search import Searched, tuned_modes
from pyrobnn.inference.scales.tuned_mode import STEPS, Search
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.posterior.record import EvidenceRecord
from pyrobnn.priors.base import as_prior
from pyrobnn.priors.given import by_site
from pyrobnn.verdict.baselines import fit_baselines

_TUNED = "tuned"
_MOST_ENTRIES = 2**25
"""Derivatives of outputs in weights that are held, 256 MiB."""
_MOST_STARTS = 4
_SEARCH_ROUNDS = 12
_SEARCH_ITERATIONS = 100
_SEARCH_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class MeasuredModel:
    """A model whose open scales are closed where that was possible, and the record of the measurement."""

    bnn: BNN
    record: EvidenceRecord | None = None


def measure(bnn: BNN, data: Any, run: Run, *methods: Any, starts_there: bool = False) -> MeasuredModel:
    """Return the model with measured prior scales and noise in place of "tuned".

    As in `EvidenceFramework`, the scales of largest evidence are sought from several starts, on up to 500 examples. The
    prior scales are kept. The noise is kept too if these were all examples, or no more than the weights: there the ELBO
    prefers noise to weights. Else the guide trains it from there. A linear model tells the noise of a table where the
    search would cost too much, or finds less than that model; and it widens noise that too few targets tell, as the
    weights take up more than four of five.

    The model is unchanged if a method wants no measured scales or the run has a start, or if nothing is open.
    `starts_there` says that the network starts at the best mode, unlike in an ensemble.
    """
    if run.start is not None or not all(method.offer().wants_measured_scales for method in methods):
        return MeasuredModel(bnn)
    given, likelihood = prior_by_site(bnn), bnn.settings["likelihood"]
    sites = [name for name, prior in given.items() if as_prior(prior).has_open_scale]
    numbers = open_numbers(likelihood, (_TUNED,))
    if not (sites or numbers) or not isinstance(data, Data) or any(p.requires_grad for p in bnn.net.parameters()):
        return MeasuredModel(bnn)
    data = merged(data, limits.MOST_AT_ONCE)
    source = make_source(data, bnn, None, seed=run.seed)
    size = None if mixes_examples(bnn.net) else affordable(bnn, source)
    keeps_noise = source.num_data <= max(bnn.num_weights, limits.MOST_MEASURED_ROWS if size is None else size[0])
    linear = _linear(bnn, data) if "scale" in numbers and keeps_noise else None
    try:
        searched = None if size is None else _searched(bnn, source, data, size, run)
    except FloatingPointError:
        return MeasuredModel(bnn)  # the fit itself reports the non-finite values
    if searched is None and linear is None:
        return MeasuredModel(bnn)
    parts: dict[str, Any] = {}
    start = StartState()
    if searched is not None and not (linear is not None and _score(searched) < linear[1] - limits.LITTLE_GAIN):
        mode, judged = searched.best.mode, searched.best.judged
        precisions = {name: value.reshape(-1)[0] for name, value in mode.prior.by_site().items()}  # one for a site
        scales = {name: max(float(precisions[name].rsqrt()), limits.SMALLEST_PRIOR_SCALE) for name in sites}
        if scales:
            parts["prior"] = given | {n: dataclasses.replace(given[n], scale=scale) for n, scale in scales.items()}
        if numbers and keeps_noise:
            found = mode.noise.settings(source.y_scaler)
            if linear is not None and judged.determined > limits.MOST_DETERMINED * float(mode.rows.counts.sum()):
                found["scale"] = np.maximum(found["scale"], linear[0]).tolist()
            parts["likelihood"] = dataclasses.replace(likelihood, **found)
        start = StartState(
            mode.bnn.state_at(mode.weights) if starts_there else None,
            dict(mode.bnn.likelihood.state_dict()) if numbers and not keeps_noise else None,
        )
    elif linear is not None:
        parts["likelihood"] = dataclasses.replace(likelihood, scale=linear[0])
    with seeded(0, "closed"):
        record = None if searched is None else searched.record()
        return MeasuredModel(bnn.fresh(parts, start=start), record)


def _score(searched: Searched) -> float:
    """Return the mean left-out score of a row by the best mode of a search."""
    return searched.best.record.log_left_out / float(searched.best.mode.rows.counts.sum())


def _linear(bnn: BNN, data: Data) -> tuple[float | list[float], float] | None:
    """Return the noise of a linear model of a table, and its cross-validated score of a row; None without such."""
    model = fit_baselines(bnn, data, most_rows=limits.MOST_MEASURED_ROWS).get("linear") if data.x.ndim == 2 else None
    if model is None:
        return None
    noise = model.noise.tolist()
    return noise[0] if len(noise) == 1 else noise, float(model.cross_validated.log_prob(data.y[model.rows]).mean())


def _searched(bnn: BNN, source: Source, data: Data, size: tuple[int, int], run: Run) -> Searched:
    """Return a search of some rows, of the weights under normal priors; those without an open scale are held."""
    num_rows, starts = size
    rows = torch.arange(num_rows)
    if num_rows < source.num_data:
        with seeded(run.seed, "rows"):
            rows = torch.randperm(source.num_data)[:num_rows].sort().values
    given = prior_by_site(bnn)
    normal = {name: as_prior(prior) for name, prior in given.items() if as_prior(prior).is_normal}
    chosen = {name: prior if name in normal else priors.Normal() for name, prior in given.items()}
    likelihood, hyperprior = bnn.settings["likelihood"], Hyperprior(limits.PRIOR_COUNTS)
    noise = as_likelihood(likelihood).noise
    if noise is not None:
        of_few = Hyperprior.of_real_targets(data[rows].total_weight, data.num_inputs)
        hyperprior = of_few if of_few.counts else Hyperprior()
    if noise == "inferred":
        likelihood = dataclasses.replace(likelihood, scale=_TUNED)
    search = Search(
        starts,
        _SEARCH_ROUNDS,
        _SEARCH_ITERATIONS,
        hyperprior=hyperprior,
        tolerance=_SEARCH_TOLERANCE,
        last_tolerance=_SEARCH_TOLERANCE,
        held=[name for name, prior in normal.items() if not prior.has_open_scale],
        phase="search for scales",
    )

    def examples(model: BNN) -> Batch:
        return source.scaled(model, *(values[rows] for values in data.tensors))

    with_normals = bnn.with_parts(prior=chosen, likelihood=likelihood)
    return tuned_modes(with_normals, source, num_rows, examples, run=run, search=search)


def prior_by_site(bnn: BNN) -> dict[str, Any]:
    """Return the setting of the prior of each weight, by name."""
    return by_site(bnn.settings["prior"], bnn.site_names)


def affordable(bnn: BNN, source: Source) -> tuple[int, int] | None:
    """Return the numbers of examples and of starts that take 10 seconds; None if too few do."""
    size = bnn.num_weights
    most = min(source.num_data, limits.MOST_MEASURED_ROWS // source.outputs, _MOST_ENTRIES // (source.outputs * size))
    least = min(source.num_data, limits.FEWEST_MEASURED_ROWS)
    for num_rows in sorted({max(least, most // divisor) for divisor in (1, 2, 4)}, reverse=True):
        if num_rows > most:
            continue
        columns, solutions = num_rows * source.outputs, Work()
        smaller = min(columns, size)
        solutions.products = STEPS * (4 * smaller * columns * size + 10 * smaller**3)
        gradients = work_of_gradient(bnn, source, num_rows).seconds()
        seconds = _SEARCH_ROUNDS * _SEARCH_ITERATIONS * gradients + _SEARCH_ROUNDS * solutions.seconds()
        starts = min(_MOST_STARTS, int(limits.MEASURING_SECONDS / seconds))
        if starts >= min(_MOST_STARTS, 2) or (starts and num_rows == least):
            return num_rows, starts
    return None


def work_of_gradient(bnn: BNN, source: Source, num_rows: int) -> Work:
    """Return the work of a gradient of the outputs of `num_rows` rows."""
    with seeded(0, "work"):
        model = bnn.fresh().eval()
        x, *_ = source.scaled(model, source.head[0][:num_rows], source.head[1][:num_rows])
        weights = {name: value.clone().requires_grad_() for name, value in model.initial_values.items()}
        with Work() as work:
            torch.autograd.grad(model.outputs(weights, x).sum(), list(weights.values()), allow_unused=True)
    return work
