"""The search for modes and scales, from several starts."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._core.waiting import progress_bar
from pyrobnn.bnn import BNN
from pyrobnn.curvature.linear_model import check_entries
from pyrobnn.curvature.tracker import refuse_mixed_examples
from pyrobnn.data.batches import Batch
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import Source
from pyrobnn.inference.method import Run
from pyrobnn.inference.scales.gaussian_process import GaussianProcess
from pyrobnn.inference.scales.tuned_mode import Search, TunedMode
from pyrobnn.inference.training.start import fresh_model, running
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.record import EvidenceRecord, StartRecord

_LARGEST_NOISE = 1.0
_SMALLEST_NOISE = 0.05
"""In units of the spread of the targets."""
_NOISE_RATIO_OF_STARTS = 0.5
_PRECISION_RATIO_OF_STARTS = 0.1
"""Noise, or for labels the factor of precisions, of every other start relative to the one before, where the others
begin from a Gaussian process."""
_TRIAL_ROUNDS = 3
_NATS_BEHIND_TO_END = 16.0
"""None of 26 starts that ended so would have become the best."""
_PROGRESS_FORM = "{l_bar}{bar}| [{elapsed}<{remaining}]"


@dataclasses.dataclass
class _Starts:
    """The starts of a search, which take their rounds one after another; `process` is that of the first."""

    bnn: BNN
    source: Source
    num_data: int
    examples: Callable[[BNN], Batch]
    run: Run
    search: Search
    bar: Any
    process: GaussianProcess | None = None

    @property
    def numbers(self) -> Sequence[int]:
        return self.search.which or range(self.search.starts)

    @contextmanager
    def running(self, place: int) -> Iterator[int]:
        """Show which start is at work, and yield its threads, with the random state of its steps."""
        self.bar.set_description(f"{self.search.phase}, start {place + 1} of {len(self.numbers)}")
        seed = derive(self.run.seed, f"start {self.numbers[place]}")
        with running(self.bnn, self.num_data, seed, "fit") as threads:
            yield threads

    def begun(self, place: int, rounds: int) -> TunedMode:
        """Return a start after its first rounds."""
        with self.running(place) as threads:
            start = self._new(threads)
            if self.search.rounds:
                if place == 0 and self.search.per == "input":
                    self.process = start.gaussian_process(self.run.seed)
                self._open_scales(start, self.numbers[place])
            self.advance(start, 0, rounds)
        return start

    def _new(self, threads: int) -> TunedMode:
        model, example = fresh_model(self.bnn, self.source, self.run.device)
        sites = latent_sites(model, *example)
        if strange := [site.name for site in sites if site.name not in model.site_names]:
            raise InputError(
                f"EvidenceFramework tunes the precision of normal priors, and the model has the latent site "
                f"{strange[0]!r} beside its weights: use MarginalLikelihood, or another method."
            )
        check_entries(self.num_data, self.source.outputs, sum(site.start.numel() for site in sites))
        weights, records = {site.name: site.start.clone() for site in sites}, self.run.engine != "eager"
        return TunedMode(model, weights, self.examples(model), self.search, records=records, threads=threads)

    def _open_scales(self, start: TunedMode, index: int) -> None:
        """Begin to tune the scales: of every other start from a Gaussian process of the outputs, if there is any."""
        has_labels = as_likelihood(start.bnn.settings["likelihood"]).has_labels
        less = (_PRECISION_RATIO_OF_STARTS if has_labels else _NOISE_RATIO_OF_STARTS) ** (index // 2)
        if self.process is None:
            start.begin(float(np.geomspace(_LARGEST_NOISE, _SMALLEST_NOISE, max(self.search.starts, 2))[index]))
        elif index % 2:
            start.begin(_LARGEST_NOISE * less)
        else:
            start.begin_at(self.process, less if has_labels else 1.0)

    def advance(self, start: TunedMode, first: int, end: int) -> None:
        """Take rounds of a start, and judge it; it has no finite score if its numbers did not stay finite."""
        search = self.search
        try:
            for index in range(first, end):
                start.to_mode(search.iterations, search.tolerance, alike=index < search.rounds // 2)
                start.tune()
                self.bar.update()
            if end == search.rounds:
                start.to_mode(2 * search.iterations, search.last_tolerance, is_last=True)
            start.judge()
        except FloatingPointError:
            start.log_evidence = start.log_left_out = -np.inf


def tuned_modes(
    bnn: BNN, source: Source, num_data: int, examples: Callable[[BNN], Batch], *, run: Run, search: Search
) -> tuple[list[TunedMode], int]:
    """Return a mode for each start, with its tuned scales, and the place of the best, of a model with normal priors.

    `examples` returns the examples in the units and on the device of a model.
    """
    refuse_mixed_examples(bnn.net)
    num, rounds = len(search.which) or search.starts, search.rounds
    trials = min(rounds, _TRIAL_ROUNDS) if num > 1 else rounds
    options = {"desc": search.phase, "unit": "round", "bar_format": _PROGRESS_FORM}
    with progress_bar(total=num * rounds, shown=run.progress, **options) as bar:
        starts = _Starts(bnn, source, num_data, examples, run, search, bar)
        modes = [starts.begun(place, trials) for place in range(num)]
        least = max(mode.score for mode in modes) - _NATS_BEHIND_TO_END
        for place, mode in enumerate(modes):
            bar.update(num * trials + place * (rounds - trials) - bar.n)  # starts that ended took fewer rounds
            mode.ended = trials < rounds and mode.score < least
            if trials < rounds and not mode.ended:
                with starts.running(place):
                    starts.advance(mode, trials, rounds)
        bar.update(num * rounds - bar.n)
    scores = [mode.score for mode in modes]
    if not np.isfinite(scores).any():
        raise FloatingPointError(
            "EvidenceFramework: no start kept finite numbers. Look for extreme values in the data, standardise "
            "them, or use another network."
        )
    return modes, int(np.nanargmax(scores))


def evidence_record(modes: Sequence[TunedMode], chosen: int, source: Source) -> EvidenceRecord:
    """Return the record of the starts, with the precision of each site, or of each of its columns, of the best."""
    best = modes[chosen]
    volume = float(best.counts.sum()) * float(source.y_scaler.log_volume())
    rows = {n: value.flatten(0, -2)[0] if value.ndim > 1 else value for n, value in best.prior.by_site().items()}
    precision = {n: float(row[0]) if bool((row == row[0]).all()) else row.tolist() for n, row in rows.items()}
    starts = [StartRecord(m.first_noise, m.log_evidence - volume, m.log_left_out - volume, m.determined) for m in modes]
    return EvidenceRecord(starts, chosen, precision)
