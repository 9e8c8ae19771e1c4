"""Scales that a model leaves open, measured before a fit: the scales of its prior, and the noise."""

import dataclasses
import hashlib
import logging
import math
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import torch
from torch import Tensor

from pyrobnn import priors
from pyrobnn._core.folders import why
from pyrobnn._core.random import seeded
from pyrobnn._core.tree_files import digest, read_tree, write_tree
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
from pyrobnn.inference.scales.tuned_mode import STEPS, Search, TunedMode
from pyrobnn.inference.training.checkpoint import fingerprint, without_addresses, writable
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.nets import MLP
from pyrobnn.posterior.record import EvidenceRecord
from pyrobnn.priors.base import as_prior
from pyrobnn.priors.given import by_site
from pyrobnn.verdict.baselines import fit_baselines

_log = logging.getLogger("pyrobnn")
_RECORD = pydantic.TypeAdapter(EvidenceRecord)
_TUNED = "tuned"
_MOST_ENTRIES = 2**25
"""Derivatives of outputs in weights that are held, 256 MiB."""
_NOISE_FOLDS = 5
"""Folds of the rows; a fold is held out to measure noise where few targets are left for it."""
_MOST_STARTS = 4
_SEARCH_ROUNDS = 12
_SEARCH_ITERATIONS = 100
_SEARCH_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class MeasuredModel:
    """A model whose open scales are closed where that was possible, and the record of the measurement."""

    bnn: BNN
    record: EvidenceRecord | None = None


@dataclasses.dataclass(frozen=True)
class Found:
    """What the search for scales has found, as it is kept beside a checkpoint."""

    scales: dict[str, float]  # of the prior, by site
    numbers: dict[str, Any] | None  # of the likelihood; None if they stay open
    start: dict[str, Tensor] | None  # the state of the network to start at; None if it starts at random
    noise: dict[str, Tensor] | None  # the state of the likelihood to start at, where its numbers stay open
    record: EvidenceRecord


def measure(bnn: BNN, data: Any, run: Run, *methods: Any, starts_there: bool = False) -> MeasuredModel:
    """Return the model with measured prior scales and noise in place of "tuned".

    As in `EvidenceFramework`, the scales of largest evidence are sought from several starts, on up to 500 examples. The
    prior scales are kept. The noise is kept too if these were all examples, or no more than the weights: there the ELBO
    prefers noise to weights. Else the guide trains it from there. If the weights take up more than four of five
    targets, it is at least the error on a held-out fifth.

    The model is unchanged if a method wants no measured scales or the run has a start, if nothing is open, or if the
    measurement costs too much. A layer of 50 units measures the noise for large networks, and for those whose modes say
    little more than a constant. `starts_there` says that the network starts at the best mode, unlike in an ensemble.
    """
    if run.start is not None or not all(method.offer().wants_measured_scales for method in methods):
        return MeasuredModel(bnn)
    sites = {name for name, prior in prior_by_site(bnn).items() if as_prior(prior).has_open_scale}
    is_open = bool(open_numbers(bnn.settings["likelihood"], (_TUNED,)))
    if not (sites or is_open) or not isinstance(data, Data) or any(p.requires_grad for p in bnn.net.parameters()):
        return MeasuredModel(bnn)
    data = merged(data, limits.MOST_AT_ONCE)
    source = make_source(data, bnn, None, seed=run.seed)
    file = _file_for(bnn, source, run, starts_there=starts_there)
    if file is not None and file.exists():
        tree = read_tree(file)
        found: Found | None = Found(**(tree | {"record": _RECORD.validate_python(tree["record"])}))
    else:
        best = _best(bnn, source, data, run, is_open=is_open)
        found = None if best is None else best.found(bnn, source, sites, is_open=is_open, starts_there=starts_there)
        if file is not None and found is not None:
            try:
                write_tree(file, vars(found) | {"record": dataclasses.asdict(found.record)})
            except OSError as error:
                _log.warning("The scales could not be written to %s (%s): free some space.", file, why(error))
    return MeasuredModel(bnn) if found is None else MeasuredModel(_closed(bnn, found), found.record)


class _Look(NamedTuple):
    """A search of a network, how many rows it has seen, and the left-out score of a row."""

    bnn: BNN
    searched: Searched
    num_rows: int
    score: float

    def found(self, bnn: BNN, source: Source, sites: set[str], *, is_open: bool, starts_there: bool) -> Found:
        """Return the scales of some sites of a model, and of its noise if it is open, and where to start."""
        mode, is_of_model = self.searched.best.mode, self.bnn is bnn
        keeps_noise = self.num_rows == source.num_data or bnn.num_weights >= source.num_data
        precisions = {name: value.reshape(-1)[0] for name, value in mode.prior.by_site().items()}  # one for a site
        scales = {name: max(float(value.rsqrt()), limits.SMALLEST_PRIOR_SCALE) for name, value in precisions.items()}
        return Found(
            {name: scale for name, scale in scales.items() if name in sites and is_of_model},
            mode.noise.settings(source.y_scaler) if is_open and keeps_noise else None,
            mode.bnn.state_at(mode.weights) if starts_there and is_of_model else None,
            dict(mode.bnn.likelihood.state_dict()) if is_open and not keeps_noise else None,
            self.searched.record(),
        )


def _best(bnn: BNN, source: Source, data: Data, run: Run, *, is_open: bool) -> _Look | None:
    """Return a search of a network, or of a small one where that tells more of open noise; None without any."""
    best = _look(bnn, source, data, run)
    num_inputs = data.num_inputs
    is_table = data.x.ndim == 2 and num_inputs <= limits.MOST_INPUTS_OF_STAND_IN
    if not (is_open and is_table) or (best is not None and best.score >= _constant(bnn, data) + limits.LITTLE_GAIN):
        return best
    net = MLP(num_inputs, limits.STAND_IN, source.outputs)
    with seeded(0, "stand-in"):
        small = BNN(**(bnn.settings | {"net": net, "prior": priors.Normal()}))
    small.units = bnn.units
    looks = [look for look in (best, _look(small, source, data, run)) if look is not None]
    return max(looks, key=lambda look: look.score, default=None)


def _look(bnn: BNN, source: Source, data: Data, run: Run) -> _Look | None:
    """Return a search of a network; None where that takes too long, or where no start stays finite."""
    size = None if mixes_examples(bnn.net) else affordable(bnn, source)
    if size is None:
        return None
    num_rows, starts = size
    rows = torch.arange(num_rows)
    if num_rows < source.num_data:
        with seeded(run.seed, "rows"):
            rows = torch.randperm(source.num_data)[:num_rows].sort().values
    try:
        searched = _searched(bnn, source, data, rows, starts, run=run)
        best, judged = searched.best.mode, searched.best.judged
        total = float(best.rows.counts.sum())
        if "scale" in best.noise.names and judged.determined > limits.MOST_DETERMINED * total and num_rows > 1:
            with seeded(run.seed, "held out"):
                order = rows[torch.randperm(num_rows)]
            others, kept = order.tensor_split([max(num_rows // _NOISE_FOLDS, 1)])
            held_out = _searched(bnn, source, data, kept, 1, run=run, phase="noise on rows held out").best.mode
            _widen_noise(best, held_out, source.scaled(held_out.bnn, *(values[others] for values in data.tensors)))
    except FloatingPointError:
        return None  # the fit itself reports the non-finite values
    return _Look(bnn, searched, num_rows, judged.log_left_out / total - float(source.y_scaler.log_volume()))


def _widen_noise(mode: TunedMode, other: TunedMode, data: Batch) -> None:
    """Scale the noise of each column up to the root mean square by which another mode misses its targets."""
    x, y, *_ = data
    likelihood = mode.bnn.likelihood
    with torch.no_grad():
        law = other.bnn.likelihood(other.bnn.outputs(other.weights, x))
        missed = (y - law.mean).double().square().view(len(y), -1).mean(0).sqrt()
        expected = likelihood(mode.bnn.outputs(mode.weights, x)).variance.double().view(len(y), -1).mean(0).sqrt()
        wider = (missed / expected).clamp_min(1).to(mode.bnn.like).view(likelihood.scale.shape)
        likelihood.scale = likelihood.scale * wider


def _searched(
    bnn: BNN, source: Source, data: Data, rows: Tensor, starts: int, *, run: Run, phase: str = "search for scales"
) -> Searched:
    """Return a search of some rows, of the weights under normal priors; those without an open scale are held."""
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
        phase=phase,
    )

    def examples(model: BNN) -> Batch:
        return source.scaled(model, *(values[rows] for values in data.tensors))

    with_normals = bnn.with_parts(prior=chosen, likelihood=likelihood)
    return tuned_modes(with_normals, source, len(rows), examples, run=run, search=search)


def _constant(bnn: BNN, data: Data) -> float:
    """Return the mean log score of a row by the best constant; -infinity where there is none."""
    baselines = fit_baselines(bnn, data, most_rows=limits.MOST_MEASURED_ROWS)
    if "constant" not in baselines:
        return -math.inf
    constant = baselines["constant"]
    return float(constant.cross_validated.log_prob(data.y[constant.rows]).mean())


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


def _closed(bnn: BNN, found: Found) -> BNN:
    given = prior_by_site(bnn)
    tuned = {name: dataclasses.replace(given[name], scale=scale) for name, scale in found.scales.items()}
    parts: dict[str, Any] = {"prior": given | tuned} if tuned else {}
    if found.numbers is not None:
        parts["likelihood"] = dataclasses.replace(bnn.settings["likelihood"], **found.numbers)
    with seeded(0, "closed"):
        return bnn.fresh(parts, start=StartState(found.start, found.noise))


def _file_for(bnn: BNN, source: Source, run: Run, *, starts_there: bool) -> Path | None:
    """Return the file of the scales of a model and data, if the run keeps checkpoints; its name tells them apart."""
    if run.checkpoint is None:
        return None
    with seeded(run.seed, "kept scales"):
        start = digest(bnn.fresh().net.state_dict().values())
    request = (run.seed, run.engine, without_addresses(bnn), start, fingerprint(source), starts_there)
    name = hashlib.sha256(repr(request).encode()).hexdigest()[:16]
    return writable(Path(run.checkpoint)) / f"scales-{name}.safetensors"
