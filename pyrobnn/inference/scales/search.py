"""The search for modes with scales that make the data most probable, from several starts."""

import dataclasses
from collections.abc import Callable, Collection, Sequence

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._core.waiting import progress_bar
from pyrobnn.bnn import BNN
from pyrobnn.curvature.linear_model import check_entries
from pyrobnn.curvature.tracker import refuse_mixed_examples
from pyrobnn.data.batches import Batch
from pyrobnn.data.gaussian_process import GaussianProcess
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import Source
from pyrobnn.inference.method import Run
from pyrobnn.inference.scales.fixed_point import Hyperprior
from pyrobnn.inference.scales.tuned_mode import TunedMode
from pyrobnn.inference.training.start import fresh_model, running
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.record import EvidenceRecord

_LARGEST_NOISE, _SMALLEST_NOISE = 1.0, 0.05
"""Noise that starts begin from, in units of the spread of the targets."""
_LESS_NOISE, _LESS_OF_LABELS = 0.5, 0.1
"""Noise, or for labels the factor of precisions, of every other start relative to the one before, where the others
begin from a Gaussian process."""
_TRIALS, _BEHIND = 3, 16.0
"""Rounds after which starts that are so many nats behind the best end: none of 26 would have become the best."""
_FORM = "{l_bar}{bar}| [{elapsed}<{remaining}]"


@dataclasses.dataclass(frozen=True)
class Search:
    """Settings of the search for modes and scales.

    Attributes:
        starts: number of starts, which differ in initial weights and scales.
        rounds: rounds of each start; with 0 the scales stay fixed.
        iterations: iterations of L-BFGS in a round.
        per: groups of weights, "input" or "site".
        hyperprior: prior of the scales.
        tolerance, last_tolerance: relative change of the energy at which L-BFGS stops, in a round and at the end.
        held: names of weights with a fixed prior.
        phase: what the bar says.
        which: numbers of the starts to do; all if empty.
    """

    starts: int
    rounds: int
    iterations: int
    per: str
    hyperprior: Hyperprior
    tolerance: float = 1e-7
    last_tolerance: float = 1e-12
    held: Collection[str] = ()
    phase: str = "search for weights and scales"
    which: Sequence[int] = ()


def tuned_modes(
    bnn: BNN, source: Source, num_data: int, examples: Callable[[BNN], Batch], *, run: Run, search: Search
) -> tuple[list[TunedMode], int]:
    """Return a mode for each start, with its tuned scales, and the place of the best.

    Args:
        bnn: the model, with normal priors.
        source: the data's units.
        num_data: number of examples to look at.
        examples: returns the examples in the units and on the device of a model.
        run: the arguments of the fit.
        search: settings of the search.

    Raises:
        InputError: latent sites other than weights, or a Jacobian that does not fit into memory.
        FloatingPointError: no start with finite numbers.
    """
    refuse_mixed_examples(bnn.net)
    numbers, rounds = search.which or range(search.starts), search.rounds
    starts, modes, process = len(numbers), list[TunedMode](), None
    trials = min(rounds, _TRIALS) if starts > 1 else rounds

    def begun(threads: int) -> TunedMode:
        model, example = fresh_model(bnn, source, run.device)
        sites = latent_sites(model, *example)
        if strange := [site.name for site in sites if site.name not in model.site_names]:
            raise InputError(
                f"EvidenceFramework tunes the precision of normal priors, and the model has the latent site "
                f"{strange[0]!r} beside its weights: use MarginalLikelihood, or another method."
            )
        check_entries(num_data, source.outputs, sum(site.start.numel() for site in sites))
        return TunedMode(
            model,
            {site.name: site.start.clone() for site in sites},
            examples(model),
            per=search.per,
            held=search.held,
            hyperprior=search.hyperprior,
            records=run.engine != "eager",
            threads=threads,
        )

    def advance(start: TunedMode, first: int, end: int) -> None:
        """Take rounds of a start, and judge it; it has no finite score if its numbers did not stay finite."""
        try:
            for index in range(first, end):
                start.to_mode(search.iterations, search.tolerance, alike=index < rounds // 2)
                start.tune()
                bar.update()
            if end == rounds:
                start.to_mode(2 * search.iterations, search.last_tolerance, is_last=True)
            start.judge()
        except FloatingPointError:
            start.log_evidence = start.log_left_out = -np.inf

    options = {"desc": search.phase, "unit": "round", "bar_format": _FORM}
    with progress_bar(total=starts * rounds, shown=run.progress, **options) as bar:
        for place, number in enumerate(numbers, 1):
            bar.set_description(f"{search.phase}, start {place} of {starts}")
            with running(bnn, num_data, derive(run.seed, f"start {number}"), "fit") as threads:
                start = begun(threads)
                if rounds and not modes and search.per == "input":
                    process = start.gaussian_process(run.seed)
                if rounds:
                    _begin(start, number, process, starts=search.starts)
                advance(start, 0, trials)
            modes.append(start)
        least = max(start.score for start in modes) - _BEHIND
        for index, start in enumerate(modes):
            bar.update(starts * trials + index * (rounds - trials) - bar.n)  # starts that ended took fewer rounds
            start.ended = trials < rounds and start.score < least
            if trials < rounds and not start.ended:
                bar.set_description(f"{search.phase}, start {index + 1} of {starts}")
                with running(bnn, num_data, derive(run.seed, f"start {numbers[index]}"), "fit"):
                    advance(start, trials, rounds)
        bar.update(starts * rounds - bar.n)
    scores = [start.score for start in modes]
    if not np.isfinite(scores).any():
        raise FloatingPointError(
            "EvidenceFramework: no start kept finite numbers. Look for extreme values in the data, standardise "
            "them, or use another network."
        )
    return modes, int(np.nanargmax(scores))


def _begin(start: TunedMode, index: int, process: GaussianProcess | None, *, starts: int) -> None:
    """Begin to tune the scales of a start: every other from a Gaussian process of the outputs, if there is one."""
    has_labels = as_likelihood(start.bnn.settings["likelihood"]).has_labels
    less = (_LESS_OF_LABELS if has_labels else _LESS_NOISE) ** (index // 2)
    if process is None:
        start.begin(float(np.geomspace(_LARGEST_NOISE, _SMALLEST_NOISE, max(starts, 2))[index]))
    elif index % 2:
        start.begin(_LARGEST_NOISE * less)
    else:
        start.begin_at(process, less if has_labels else 1.0)


def evidence_record(modes: Sequence[TunedMode], chosen: int, source: Source) -> EvidenceRecord:
    """Return the record of the starts, and the prior of the best."""
    volume = float(modes[chosen].counts.sum()) * float(source.y_scaler.log_volume())
    return EvidenceRecord([start.record(volume) for start in modes], chosen, modes[chosen].precision_by_site())
