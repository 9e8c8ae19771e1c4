"""The search for modes and scales, from several starts."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._core.waiting import progress_bar
from pyrobnn._torch.devices import running
from pyrobnn.bnn import BNN
from pyrobnn.curvature.linear_model import check_entries
from pyrobnn.curvature.tracker import refuse_mixed_examples
from pyrobnn.data.batches import Batch
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import Source
from pyrobnn.inference.method import Run
from pyrobnn.inference.network_checks import check_calls
from pyrobnn.inference.scales.gaussian_process import GaussianProcess
from pyrobnn.inference.scales.noise import Rows
from pyrobnn.inference.scales.tuned_mode import FirstScales, ModeScore, Search, TunedMode, process_of_outputs
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


class Start(NamedTuple):
    """A start of a search, after its last round; its score is -infinity if others were ahead after a few rounds."""

    mode: TunedMode
    judged: ModeScore


@dataclasses.dataclass(frozen=True, eq=False)
class Searched:
    """All starts of a search, and the place of the best."""

    starts: list[Start]
    chosen: int

    @property
    def best(self) -> Start:
        return self.starts[self.chosen]

    def record(self, source: Source) -> EvidenceRecord:
        """Return the record of the starts, with the precision of each site, or of each of its columns, of the best."""
        mode = self.best.mode
        volume = float(mode.rows.counts.sum()) * float(source.y_scaler.log_volume())
        rows = {n: value.flatten(0, -2)[0] if value.ndim > 1 else value for n, value in mode.prior.by_site().items()}
        precision = {n: float(row[0]) if bool((row == row[0]).all()) else row.tolist() for n, row in rows.items()}
        pairs = [(start.mode.first_noise, start.judged) for start in self.starts]
        starts = [StartRecord(n, j.log_evidence - volume, j.log_left_out - volume, j.determined) for n, j in pairs]
        return EvidenceRecord(starts, self.chosen, precision)


@dataclasses.dataclass(frozen=True, eq=False)
class _Starts:
    """The starts of a search, which take their rounds one after another."""

    bnn: BNN
    source: Source
    num_data: int
    examples: Callable[[BNN], Batch]
    run: Run
    search: Search
    bar: Any

    @property
    def numbers(self) -> Sequence[int]:
        return self.search.which or range(self.search.starts)

    @contextmanager
    def running(self, place: int) -> Iterator[int]:
        """Show which start is at work, and yield its threads, with the random state of its steps."""
        self.bar.set_description(f"{self.search.phase}, start {place + 1} of {len(self.numbers)}")
        seed = derive(self.run.seed, f"start {self.numbers[place]}")
        with running(self.bnn.net, self.num_data, seed, "fit") as threads:
            yield threads

    def begun(self, place: int, rounds: int) -> Start:
        """Return a start after its first rounds."""
        first = self._first_scales(self.numbers[place])
        with self.running(place) as threads:
            records = self.run.engine != "eager"
            mode = TunedMode(*self._parts(), self.search, first=first, records=records, threads=threads)
            return Start(mode, self._judged(mode, range(rounds)))

    def _parts(self) -> tuple[BNN, dict[str, Tensor], Rows]:
        """Return a new model, its weights, and the rows in its units."""
        model, example = self.source.fresh_model(self.bnn, self.run.device)
        check_calls(model, example[0], training=False)
        sites = latent_sites(model, *example)
        if strange := [site.name for site in sites if site.name not in model.site_names]:
            raise InputError(
                f"EvidenceFramework tunes the precision of normal priors, and the model has the latent site "
                f"{strange[0]!r} beside its weights: use SVI, or another method."
            )
        check_entries(self.num_data, self.source.outputs, sum(site.start.numel() for site in sites))
        x, *targets = self.examples(model)
        return model, {site.name: site.start.clone() for site in sites}, Rows(x, tuple(targets))

    @cached_property
    def _process(self) -> GaussianProcess | None:
        """A Gaussian process of the outputs, if there is any."""
        if self.search.per != "input" or not self.search.rounds:
            return None
        with self.running(0):
            return process_of_outputs(*self._parts(), self.run.seed)

    def _first_scales(self, number: int) -> FirstScales:
        """Return where the scales of a start begin: every other begins from a Gaussian process, if there is any."""
        if self._process is None:
            noises = np.geomspace(_LARGEST_NOISE, _SMALLEST_NOISE, max(self.search.starts, 2))
            return FirstScales(float(noises[number]))
        has_labels = as_likelihood(self.bnn.settings["likelihood"]).has_labels
        less = (_PRECISION_RATIO_OF_STARTS if has_labels else _NOISE_RATIO_OF_STARTS) ** (number // 2)
        if number % 2:
            return FirstScales(_LARGEST_NOISE * less)
        return FirstScales(less if has_labels else 1.0, self._process)

    def further(self, place: int, start: Start, first: int) -> Start:
        """Return a start after its other rounds."""
        with self.running(place):
            return Start(start.mode, self._judged(start.mode, range(first, self.search.rounds)))

    def _judged(self, mode: TunedMode, rounds: range) -> ModeScore:
        """Take rounds of a mode, and judge it; its score is -infinity if its numbers did not stay finite."""
        search = self.search
        try:
            for index in rounds:
                if index >= search.rounds // 2:
                    mode.noise.release()
                mode.to_mode(search.iterations, search.tolerance)
                mode.tune()
                self.bar.update()
            if rounds.stop == search.rounds:
                mode.to_mode(2 * search.iterations, search.last_tolerance, is_last=True)
            return mode.judge()
        except FloatingPointError:
            return ModeScore()


def tuned_modes(
    bnn: BNN, source: Source, num_data: int, examples: Callable[[BNN], Batch], *, run: Run, search: Search
) -> Searched:
    """Return a mode for each start, with its tuned scales, of a model with normal priors.

    `examples` returns the examples in the units and on the device of a model.
    """
    refuse_mixed_examples(bnn.net)
    num, rounds = len(search.which) or search.starts, search.rounds
    trials = min(rounds, _TRIAL_ROUNDS) if num > 1 else rounds
    options = {"desc": search.phase, "unit": "round", "bar_format": _PROGRESS_FORM}
    with progress_bar(total=num * rounds, shown=run.progress, **options) as bar:
        work = _Starts(bnn, source, num_data, examples, run, search, bar)
        starts = [work.begun(place, trials) for place in range(num)]
        least = max(start.judged.score for start in starts) - _NATS_BEHIND_TO_END
        for place, start in enumerate(starts if trials < rounds else []):
            bar.update(num * trials + place * (rounds - trials) - bar.n)  # starts that ended took fewer rounds
            if start.judged.score >= least:
                starts[place] = work.further(place, start, trials)
            else:
                starts[place] = start._replace(judged=dataclasses.replace(start.judged, score=-math.inf))
        bar.update(num * rounds - bar.n)
    scores = [start.judged.score for start in starts]
    if not np.isfinite(scores).any():
        raise FloatingPointError(
            "EvidenceFramework: no start kept finite numbers. Look for extreme values in the data, standardise "
            "them, or use another network."
        )
    return Searched(starts, int(np.nanargmax(scores)))
