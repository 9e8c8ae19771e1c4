"""Open scales of priors and noise, measured before a method runs: by a search, and noise by a linear model too."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from pyrobnn import priors
from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.random import seeded
from pyrobnn._torch.work import Work
from pyrobnn.bnn import BNN, StartState
from pyrobnn.curvature.tracker import mixes_examples
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
from pyrobnn.priors.base import as_prior, at_scales_of
from pyrobnn.priors.given import by_site
from pyrobnn.verdict.baselines import fit_baselines

_MOST_ENTRIES = 2**25  # derivatives of outputs in weights that are held, 256 MiB
_MOST_STARTS, _SEARCH_ROUNDS, _SEARCH_ITERATIONS, _SEARCH_TOLERANCE = 4, 12, 100, 1e-6


class Size(NamedTuple):
    """How many examples a search takes, and how many starts."""

    rows: int
    starts: int


class LinearNoise(NamedTuple):
    """The noise of a linear model of a table, and its cross-validated score of a row."""

    scale: float | list[float]
    score: float


class MeasuredModel(NamedTuple):
    """A model whose open scales are closed where that was possible, and the record of the measurement."""

    bnn: BNN
    record: EvidenceRecord | None = None


class _Found(NamedTuple):
    """What a search and a linear model tell of the open scales."""

    best: Start | None  # of the search, unless the linear model is ahead
    linear: LinearNoise | None
    keeps_noise: bool  # as `measure` says
    source: Source
    record: EvidenceRecord | None = None  # of the search


def measure(bnn: BNN, data: Any, run: Run, *methods: Any, starts_there: bool = False) -> MeasuredModel:
    """Return the model with measured prior scales and noise in place of "tuned"; as it is if nothing can be measured.

    As in `EvidenceFramework`, the scales of largest evidence are sought from several starts, on up to 500 examples. A
    linear model tells the noise of a table where that would cost too much, or finds less than this model; and it widens
    noise that too few targets tell. With `starts_there` the network starts at the best mode.

    Noise is kept if the examples were all, or no more than the weights; else the guide trains it from there. Guides
    keep the latents that are scales of weights too, at their most probable values: independent weights would find
    others. For a guide with a spread noise is wider, by what such weights spend beyond the determined ones, at most a
    fifth: trained by the guide, it may end at that of a constant.
    """
    guides = [guide for guide in map(guide_of, methods) if guide is not None]
    wants = run.start is None and all(method.offer().wants_measured_scales for method in methods)
    found = _found(bnn, data, run) if wants and _is_to_measure(bnn, data, guides) else None
    return MeasuredModel(bnn) if found is None else _closed(bnn, found, guides, starts_there=starts_there)


def _is_to_measure(bnn: BNN, data: Any, guides: Sequence[Any]) -> bool:
    """Return whether the data can tell what a model leaves open: for guides, scales that its prior infers too."""
    is_open = bnn.has_open_numbers(inferred=bool(guides))
    return is_open and isinstance(data, Data) and not any(p.requires_grad for p in bnn.net.parameters())


def _found(bnn: BNN, data: Data, run: Run) -> _Found | None:
    """Return what a search and, for noise that is kept, a linear model find; None if neither finds anything."""
    data = merged(data, limits.MOST_AT_ONCE)
    with ignored_warnings():  # they are told when the fit begins
        source = make_source(data, bnn, None, seed=run.seed)
    size = None if mixes_examples(bnn.net) else affordable(bnn, source)
    keeps_noise = source.num_data <= max(bnn.num_weights, limits.MOST_MEASURED_ROWS if size is None else size.rows)
    takes_linear = keeps_noise and "scale" in open_numbers(bnn.settings["likelihood"], ("tuned",))
    linear = _linear(bnn.settings["likelihood"], data, source.outputs) if takes_linear else None
    try:
        searched = None if size is None else _searched(bnn, source, data, size, run)
    except FloatingPointError:  # the fit itself reports the non-finite values
        return None
    if searched is None:
        return None if linear is None else _Found(None, linear, keeps_noise, source)
    best, record = searched.best, searched.record(source.y_scaler)
    left_out = best.record.log_left_out / float(best.mode.rows.counts.sum())  # the mean of a row
    is_ahead = linear is None or left_out >= linear.score - limits.LITTLE_GAIN
    return _Found(best if is_ahead else None, linear, keeps_noise, source, record)


def _closed(bnn: BNN, found: _Found, guides: Sequence[Any], *, starts_there: bool) -> MeasuredModel:
    """Return the model at the best mode, or with the noise of the linear model where there is none."""
    best, linear, keeps_noise, source, record = found
    given, likelihood = by_site(bnn.settings["prior"], bnn.site_names), bnn.settings["likelihood"]
    numbers = open_numbers(likelihood, ("tuned",))
    parts: dict[str, Any] = {}
    start = StartState()
    if best is not None:
        mode, least = best.mode, 0.0 if guides else limits.SMALLEST_PRIOR_SCALE
        firsts = {name: first_scales(scale.clamp_min(least)) for name, scale in mode.prior.scales().items()}
        if sites := [name for name, prior in given.items() if as_prior(prior).has_open_scale]:
            parts["prior"] = given | {name: as_prior(given[name]).with_scale(firsts[name]) for name in sites}
        if numbers and keeps_noise:
            spreads = not all(as_guide(guide).seeks_mode for guide in guides)
            parts["likelihood"] = dataclasses.replace(likelihood, **_noise(best, source, linear, spreads=spreads))
        elif numbers:
            start = StartState(likelihood=dict(mode.bnn.likelihood.state_dict()))
        if starts_there:
            start = dataclasses.replace(start, net=mode.bnn.state_at(mode.weights), scales=mode.deviations())
    elif linear is not None:
        parts["likelihood"] = dataclasses.replace(likelihood, scale=linear.scale)
    with seeded(0, "closed"):
        closed = bnn.fresh(parts, start=start)
        if best is not None and keeps_noise and guides:
            values = {name: closed.initial_values[name] for name in given}
            kept = at_scales_of(closed.prior, values, best.mode.prior.scales())
            closed.start = dataclasses.replace(closed.start, kept=kept)
        return MeasuredModel(closed, record)


def _noise(best: Start, source: Source, linear: LinearNoise | None, *, spreads: bool) -> dict[str, Any]:
    """Return the numbers of the likelihood in units of the targets, as `measure` says."""
    mode, determined = best.mode, best.judged.determined
    numbers, total = mode.noise.settings(source.y_scaler), float(mode.rows.counts.sum())
    if spreads and "scale" in numbers:
        wider = min(math.sqrt(1 + (mode.spent() - determined) / total), limits.MOST_NOISE_OF_A_GUIDE)
        numbers["scale"] = (wider * np.array(numbers["scale"])).tolist()
    if linear is not None and determined > limits.MOST_DETERMINED * total:
        numbers["scale"] = np.maximum(numbers["scale"], linear.scale).tolist()
    return numbers


def _linear(likelihood: Any, data: Data, outputs: int) -> LinearNoise | None:
    """Return the noise and the score of a linear model of a table; None without such."""
    is_table = data.x.ndim == 2
    fitted = fit_baselines(likelihood, data, outputs, most_rows=limits.MOST_MEASURED_ROWS) if is_table else {}
    if "linear" not in fitted:
        return None
    model = fitted["linear"]
    scale, scores = model.noise.tolist(), model.cross_validated.log_prob(data.y[model.rows])
    return LinearNoise(scale[0] if len(scale) == 1 else scale, float(scores.mean()))


def _searched(bnn: BNN, source: Source, data: Data, size: Size, run: Run) -> Searched:
    """Return a search of some rows, of the weights under normal priors; those without an open scale are held."""
    with seeded(run.seed, "rows"):
        is_part = size.rows < source.num_data
        rows = torch.randperm(source.num_data)[: size.rows].sort().values if is_part else torch.arange(size.rows)
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
    length, ends = (_SEARCH_ROUNDS, _SEARCH_ITERATIONS), (_SEARCH_TOLERANCE, _SEARCH_TOLERANCE)
    search = Search(size.starts, *length, "input", hyperprior, *ends, held=held, phase="search for scales")
    examples = [values[rows] for values in data.tensors]
    with_normals = bnn.with_parts(prior=chosen, likelihood=likelihood)
    rival = Rival(with_normals, source, lambda model: source.scaled(model, *examples))
    return tuned_modes([rival], size.rows, run=run, search=search)


def affordable(bnn: BNN, source: Source) -> Size | None:
    """Return the numbers of examples and of starts that take 10 seconds; None if too few do."""
    weights, most_entries = bnn.num_weights, _MOST_ENTRIES // (source.outputs * bnn.num_weights)
    most = min(source.num_data, limits.MOST_MEASURED_ROWS // source.outputs, most_entries)
    least = min(source.num_data, limits.FEWEST_MEASURED_ROWS)
    numbers = {max(least, most // divisor) for divisor in (1, 2, 4)}
    for num_rows in sorted((number for number in numbers if number <= most), reverse=True):
        columns, solutions = num_rows * source.outputs, Work()
        smaller = min(columns, weights)
        solutions.products = STEPS * (4 * smaller * columns * weights + 10 * smaller**3)
        gradients = work_of_gradient(bnn, source, num_rows).seconds()
        seconds = _SEARCH_ROUNDS * _SEARCH_ITERATIONS * gradients + _SEARCH_ROUNDS * solutions.seconds()
        starts = min(_MOST_STARTS, int(limits.MEASURING_SECONDS / seconds))
        if starts >= min(_MOST_STARTS, 2) or (starts and num_rows == least):
            return Size(num_rows, starts)
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
