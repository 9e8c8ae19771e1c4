"""Open scales of priors and noise, measured before a method runs: by a search, and noise by a linear model too."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from pyrobnn import priors
from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.random import seeded
from pyrobnn._torch.work import Work
from pyrobnn.bnn import BNN, StartState
from pyrobnn.curvature.tracker import mixes_examples
from pyrobnn.data.batches import Batch
from pyrobnn.data.in_memory import Data, merged
from pyrobnn.guides.base import as_guide
from pyrobnn.inference import limits
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.method import Run, guide_of
from pyrobnn.inference.scales.fixed_point import Hyperprior, first_scales
from pyrobnn.inference.scales.search import Rival, Searched, Start, tuned_modes
from pyrobnn.inference.scales.tuned_mode import STEPS, Search
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.posterior.record import EvidenceRecord
from pyrobnn.priors.base import as_prior, at_scales
from pyrobnn.priors.given import by_site
from pyrobnn.verdict.baselines import fit_baselines

_MOST_ENTRIES = 2**25  # derivatives of outputs in weights that are held, 256 MiB
_MOST_STARTS, _SEARCH_ROUNDS, _SEARCH_ITERATIONS, _SEARCH_TOLERANCE = 4, 12, 100, 1e-6


class MeasuredModel(NamedTuple):
    """A model whose open scales are closed where that was possible, and the record of the measurement."""

    bnn: BNN
    record: EvidenceRecord | None = None


def measure(bnn: BNN, data: Any, run: Run, *methods: Any, starts_there: bool = False) -> MeasuredModel:
    """Return the model with measured prior scales and noise in place of "tuned".

    As in `EvidenceFramework`, the scales of largest evidence are sought from several starts, on up to 500 examples. The
    noise is kept too if these were all examples, or no more than the weights; else the guide trains it from there. For
    a guide with a spread it is wider, by what independent weights spend beyond the determined ones, at most a fifth:
    trained by the guide, it may end at that of a constant. So are latents that are scales of weights, at their most
    probable values for the scales measured: a guide of independent weights would find others. A linear model tells the
    noise of a table where the search would cost too much, or finds less than that model; and it widens noise that too
    few targets tell. With `starts_there` the network starts at the best mode.
    """
    wants = run.start is None and all(method.offer().wants_measured_scales for method in methods)
    given, likelihood = by_site(bnn.settings["prior"], bnn.site_names), bnn.settings["likelihood"]
    sites = [name for name, prior in given.items() if as_prior(prior).has_open_scale]
    numbers, is_free = open_numbers(likelihood, ("tuned",)), any(p.requires_grad for p in bnn.net.parameters())
    guides = [guide for guide in map(guide_of, methods) if guide is not None]
    is_open = bnn.has_open_numbers if guides else bool(sites or numbers)
    if not wants or not is_open or not isinstance(data, Data) or is_free:
        return MeasuredModel(bnn)
    data = merged(data, limits.MOST_AT_ONCE)
    with ignored_warnings():  # they are told when the fit begins
        source = make_source(data, bnn, None, seed=run.seed)
    size = None if mixes_examples(bnn.net) else affordable(bnn, source)
    keeps_noise = source.num_data <= max(bnn.num_weights, limits.MOST_MEASURED_ROWS if size is None else size[0])
    spreads = not all(as_guide(guide).seeks_mode for guide in guides)
    linear = _linear(likelihood, data, source.outputs) if "scale" in numbers and keeps_noise else None
    try:
        searched = None if size is None else _searched(bnn, source, data, size, run)
    except FloatingPointError:  # the fit itself reports the non-finite values
        searched, linear = None, None
    if searched is None and linear is None:
        return MeasuredModel(bnn)
    parts: dict[str, Any] = {}
    start = StartState()
    best = None if searched is None else searched.best
    if best is not None and linear is not None:  # as a mean left-out score of a row
        counts = float(best.mode.rows.counts.sum())
        best = best if best.record.log_left_out / counts >= linear[1] - limits.LITTLE_GAIN else None
    if best is not None:
        mode = best.mode
        if sites:
            scales, least = mode.prior.scales(), 0.0 if guides else limits.SMALLEST_PRIOR_SCALE
            parts["prior"] = given | {
                name: as_prior(given[name]).with_scale(first_scales(scales[name].clamp_min(least))) for name in sites
            }
        if numbers and keeps_noise:
            parts["likelihood"] = dataclasses.replace(likelihood, **_noise(best, source, linear, spreads=spreads))
        start = StartState(
            mode.bnn.state_at(mode.weights) if starts_there else None,
            dict(mode.bnn.likelihood.state_dict()) if numbers and not keeps_noise else None,
            mode.deviations() if starts_there else None,
        )
    elif linear is not None:
        parts["likelihood"] = dataclasses.replace(likelihood, scale=linear[0])
    with seeded(0, "closed"):
        record = None if searched is None else searched.record(source.y_scaler)
        closed = bnn.fresh(parts, start=start)
        if best is not None and keeps_noise and guides:
            values = {name: closed.initial_values[name] for name in given}
            kept = at_scales(closed.prior, values, best.mode.prior.scales())
            closed.start = dataclasses.replace(closed.start, kept=kept)
        return MeasuredModel(closed, record)


def _noise(best: Start, source: Source, linear: tuple[Any, float] | None, *, spreads: bool) -> dict[str, Any]:
    """Return the numbers of the likelihood in units of the targets, as `measure` says."""
    mode, determined = best.mode, best.judged.determined
    found, counts = mode.noise.settings(source.y_scaler), float(mode.rows.counts.sum())
    if spreads and "scale" in found:
        wider = min(math.sqrt(1 + (mode.spent() - determined) / counts), limits.MOST_NOISE_OF_A_GUIDE)
        found["scale"] = (wider * np.array(found["scale"])).tolist()
    if linear is not None and determined > limits.MOST_DETERMINED * counts:
        found["scale"] = np.maximum(found["scale"], linear[0]).tolist()
    return found


def _linear(likelihood: Any, data: Data, outputs: int) -> tuple[float | list[float], float] | None:
    """Return the noise of a linear model of a table, and its cross-validated score of a row; None without such."""
    if data.x.ndim != 2:
        return None
    model = fit_baselines(likelihood, data, outputs, most_rows=limits.MOST_MEASURED_ROWS).get("linear")
    if model is None:
        return None
    noise = model.noise.tolist()
    return noise[0] if len(noise) == 1 else noise, float(model.cross_validated.log_prob(data.y[model.rows]).mean())


def _searched(bnn: BNN, source: Source, data: Data, size: tuple[int, int], run: Run) -> Searched:
    """Return a search of some rows, of the weights under normal priors; those without an open scale are held."""
    num_rows, starts = size
    with seeded(run.seed, "rows"):
        chosen_rows = torch.randperm(source.num_data) if num_rows < source.num_data else torch.arange(num_rows)
    rows = chosen_rows[:num_rows].sort().values
    given = by_site(bnn.settings["prior"], bnn.site_names)
    normal = {name: as_prior(prior) for name, prior in given.items() if as_prior(prior).is_normal}
    chosen = {name: prior if name in normal else priors.Normal() for name, prior in given.items()}
    likelihood, hyperprior = bnn.settings["likelihood"], Hyperprior(limits.PRIOR_COUNTS)
    noise = as_likelihood(likelihood).noise
    if noise is not None:
        of_few = Hyperprior.of_real_targets(data[rows].total_weight, data.num_inputs)
        hyperprior = of_few if of_few.counts else Hyperprior()
    if noise == "inferred":
        likelihood = dataclasses.replace(likelihood, scale="tuned")
    held = [name for name, prior in normal.items() if not prior.has_open_scale]
    length: dict[str, Any] = {"rounds": _SEARCH_ROUNDS, "iterations": _SEARCH_ITERATIONS, "phase": "search for scales"}
    ends: dict[str, Any] = {"tolerance": _SEARCH_TOLERANCE, "last_tolerance": _SEARCH_TOLERANCE}
    search = Search(starts, per="input", hyperprior=hyperprior, held=held, **length, **ends)

    def examples(model: BNN) -> Batch:
        return source.scaled(model, *(values[rows] for values in data.tensors))

    with_normals = bnn.with_parts(prior=chosen, likelihood=likelihood)
    return tuned_modes([Rival(with_normals, source, examples)], num_rows, run=run, search=search)


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
