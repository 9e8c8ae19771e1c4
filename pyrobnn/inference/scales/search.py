"""The search for modes and scales, from several starts."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, progress_bar
from pyrobnn._core.random import derive
from pyrobnn._core.settings import in_short
from pyrobnn._torch.devices import running
from pyrobnn.bnn import BNN
from pyrobnn.curvature.linear_model import check_entries
from pyrobnn.curvature.tracker import refuse_mixed_examples
from pyrobnn.data.batches import Batch
from pyrobnn.distributions.units import Scaler
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import Source, check_calls
from pyrobnn.inference.method import Run
from pyrobnn.inference.scales.fixed_point import Rows
from pyrobnn.inference.scales.tuned_mode import Energy, FirstScales, ModeScore, Search, TunedMode, output_process
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.record import EvidenceRecord, LikelihoodRecord, StartRecord

_LARGEST_NOISE, _SMALLEST_NOISE = 1.0, 0.05  # in units of the spread of the targets
_NOISE_RATIO_OF_STARTS, _PRECISION_RATIO_OF_STARTS = 0.5, 0.1  # of a start without a process to the one before it
_TRIAL_ROUNDS = 3
_TRIAL_ROUNDS_AT_A_MODE = 2  # of a start that begins at another's mode, after that one's
_STARTS_OF_OTHERS = 2
_NATS_BEHIND_TO_END = 16.0  # none of 26 starts that ended so would have become the best
_PROGRESS_FORM = "{l_bar}{bar}| [{elapsed}<{remaining}]"


class Rival(NamedTuple):
    """A model of a search, the source of its data, and its examples in the units and on the device of a model."""

    bnn: BNN
    source: Source
    examples: Callable[[BNN], Batch]

    def is_like(self, other: "Rival") -> bool:
        """Whether the first outputs of both mean the same: locations, or logs of means, in the same units."""
        mine, theirs = (as_likelihood(each.bnn.settings["likelihood"]) for each in (self, other))
        are_locations = mine.noise is not None and theirs.noise is not None
        units = [(each.source.y_scaler.loc, each.source.y_scaler.scale) for each in (self, other)]
        is_same = all(torch.equal(*pair) for pair in zip(*units, strict=True))
        return is_same and (are_locations or mine.link == theirs.link == "logs")


class Start(NamedTuple):
    """A start of a search, after its last round."""

    mode: TunedMode
    judged: ModeScore
    model: int  # the number of its model
    number: int  # its own among those of the model
    volume: float  # the log of a unit of all targets: without it, log scores are in original units
    rounds: int  # that it has taken, with those of its origin
    origin: int | None  # the number of the start of the first model that it began at
    has_ended: bool = False  # whether others were ahead after a few rounds

    @property
    def reached(self) -> float:
        """Its score in original units."""
        return self.judged.score - self.volume

    @property
    def score(self) -> float:
        """The same; -infinity if it has ended."""
        return -math.inf if self.has_ended else self.reached

    @property
    def record(self) -> StartRecord:
        judged = self.judged
        scores = (judged.log_evidence - self.volume, judged.log_left_out - self.volume, judged.determined)
        return StartRecord(self.mode.first_noise, *scores, self.model, self.origin)


@dataclasses.dataclass(frozen=True, eq=False)
class Searched:
    """All starts of a search, and the place of the best."""

    starts: list[Start]
    chosen: int

    @property
    def best(self) -> Start:
        return self.starts[self.chosen]

    def record(self, scaler: Scaler, likelihoods: Sequence[Any] = ()) -> EvidenceRecord:
        """Return the record of the starts, with the numbers of the best in units of targets, and likelihoods."""
        mode = self.best.mode
        rows = {n: value.flatten(0, -2)[0] if value.ndim > 1 else value for n, value in mode.prior.by_site().items()}
        precision = {n: float(row[0]) if bool((row == row[0]).all()) else row.tolist() for n, row in rows.items()}
        starts = [start.record for start in self.starts]
        compared = [self._compared(model, setting) for model, setting in enumerate(likelihoods)]
        left_out = starts[self.chosen].log_left_out / float(mode.rows.counts.sum())
        numbers = mode.noise.settings(scaler)
        return EvidenceRecord(starts, self.chosen, precision, [], compared, left_out, numbers)

    def _compared(self, model: int, likelihood: Any) -> LikelihoodRecord:
        """Return the best score of a likelihood in nats a row, and the error of the lead of the chosen over it."""
        best = max((start for start in self.starts if start.model == model), key=lambda start: start.reached)
        counts = self.best.mode.rows.counts
        total, error = float(counts.sum()), 0.0
        ahead, behind = self.best.judged.of_rows, best.judged.of_rows
        if best.model != self.best.model and ahead is not None and behind is not None:
            lead = ahead - behind
            error = float(((counts * (lead - counts @ lead / total).square()).sum() / total**2).sqrt())
        return LikelihoodRecord(in_short(likelihood).removesuffix("()"), best.reached / total, error)


@dataclasses.dataclass(frozen=True, eq=False)
class _Starts:
    """The starts of a search, which take their rounds one after another."""

    models: Sequence[Rival]
    num_data: int
    run: Run
    search: Search
    bar: Any
    energies: dict[int, Energy] = dataclasses.field(default_factory=dict)  # of the last start of a model

    @contextmanager
    def at_work(self, model: int, number: int) -> Iterator[int]:
        """Show which start is at work, and yield its threads, with the random state of its steps."""
        of_model = f" of likelihood {model + 1}" if len(self.models) > 1 else ""
        self.bar.set_description(f"{self.search.phase}, start {number + 1}{of_model}")
        seed = derive(self.run.seed, f"start {number}")
        with running(self.models[model].bnn.net, self.num_data, seed, "fit") as threads:
            yield threads

    def begun(self, model: int, number: int, rounds: int, origin: Start | None = None) -> Start:
        """Return a start after rounds, those of its origin included, which it begins at if there is any."""
        first = self._first_scales(model, number) if origin is None else FirstScales(mode=origin.mode)
        with self.at_work(model, number) as threads:
            records = self.run.engine != "eager"
            parts, energy = self._parts(model), self.energies.get(model)
            mode = TunedMode(*parts, self.search, first=first, records=records, threads=threads, energy=energy)
            self.energies[model] = mode.energy
            volume = float(mode.rows.counts.sum()) * float(self.models[model].source.y_scaler.log_volume())
            judged = self.after_rounds(mode, range(0 if origin is None else origin.rounds, rounds))
            return Start(mode, judged, model, number, volume, rounds, None if origin is None else origin.number)

    def _parts(self, model: int) -> tuple[BNN, dict[str, Tensor], Rows]:
        """Return a new copy of a model, its weights, and the rows in its units."""
        rival = self.models[model]
        bnn, example = rival.source.fresh_model(rival.bnn, self.run.device)
        check_calls(bnn, example[0], training=False)
        sites = latent_sites(bnn, *example)
        if strange := [site.name for site in sites if site.name not in bnn.site_names]:
            strange_site = f"the model has the latent site {strange[0]!r}"
            raise InputError(f"EvidenceFramework tunes normal priors, and {strange_site}: use SVI.")
        check_entries(self.num_data, rival.source.outputs, sum(site.start.numel() for site in sites))
        x, *targets = rival.examples(bnn)
        unit = 1 / float(rival.source.y_scaler.scale.reshape(-1)[0]) if self.search.are_counts else None
        return bnn, {site.name: site.start.clone() for site in sites}, Rows(x, tuple(targets), unit)

    @cached_property
    def _of_process(self) -> FirstScales | None:
        if self.search.per != "input" or not self.search.rounds:
            return None
        with self.at_work(0, 0):
            process = output_process(*self._parts(0), self.run.seed)
        return None if process is None else FirstScales(process=process)

    def _first_scales(self, model: int, number: int) -> FirstScales:
        """Return where the scales of a start begin: every other of the first model from a Gaussian process, if any."""
        if model:
            return FirstScales(_LARGEST_NOISE * _NOISE_RATIO_OF_STARTS**number)
        of_process = self._of_process
        if of_process is None:
            noises = np.geomspace(_LARGEST_NOISE, _SMALLEST_NOISE, max(self.search.starts, 2))
            return FirstScales(float(noises[number]))
        has_labels = as_likelihood(self.models[model].bnn.settings["likelihood"]).has_labels
        less = (_PRECISION_RATIO_OF_STARTS if has_labels else _NOISE_RATIO_OF_STARTS) ** (number // 2)
        if number % 2:
            return FirstScales(_LARGEST_NOISE * less)
        return dataclasses.replace(of_process, factor=less if has_labels else 1.0)

    def after_rounds(self, mode: TunedMode, rounds: range) -> ModeScore:
        """Take rounds of a mode, and judge it; its score is -infinity if its numbers did not stay finite."""
        search = self.search
        try:
            for index in rounds:
                if index >= search.rounds // 2:
                    mode.noise.release()
                mode.to_mode(search.iterations, search.tolerance)
                mode.tune()
                self.bar.update()
                if mode.num_past > 1:
                    break
            if rounds.stop < search.rounds:
                return mode.best
            mode.restore()
            mode.to_mode(2 * search.iterations, search.last_tolerance, is_last=True)
            return mode.judge()
        except FloatingPointError:
            return ModeScore()

    def to_the_end(self, starts: Sequence[Start], trials: int) -> Iterator[Start]:
        """Take the rounds after trials of starts that are not too far behind to go on."""
        rounds, ahead = self.search.rounds, sorted((start.score for start in starts), reverse=True)
        least = max(ahead[0] - _NATS_BEHIND_TO_END, ahead[: self.search.starts][-1])
        for place, start in enumerate(starts):
            self.bar.update(len(starts) * trials + place * (rounds - trials) - self.bar.n)  # ended ones took fewer
            if start.score < least:
                yield start._replace(has_ended=True)
                continue
            with self.at_work(start.model, start.number):
                judged = self.after_rounds(start.mode, range(start.rounds, rounds))
            yield start._replace(judged=judged)


def tuned_modes(models: Sequence[Rival], num_data: int, *, run: Run, search: Search) -> Searched:
    """Return a mode for each start, with its tuned scales, of models with normal priors; as many as of one go on.

    Of another model that is like the first, two starts begin at the best modes of the first, after its first rounds.
    """
    others, rounds = models[1:], search.rounds
    for rival in models:
        refuse_mixed_examples(rival.bnn.net)
    num = search.starts + len(others) * min(search.starts, _STARTS_OF_OTHERS)
    trials = min(rounds, _TRIAL_ROUNDS) if num > 1 else rounds
    options = {"desc": search.phase, "unit": "round", "bar_format": _PROGRESS_FORM}
    with progress_bar(total=num * rounds, shown=run.progress, **options) as bar:
        work = _Starts(models, num_data, run, search, bar)
        starts = [work.begun(0, number, trials) for number in range(search.starts)]
        origins = sorted(starts, key=lambda start: -start.judged.score)[:_STARTS_OF_OTHERS]
        for model, rival in enumerate(others, 1):
            for number, origin in enumerate(origins):
                if rival.is_like(models[0]):
                    starts.append(work.begun(model, number, min(trials + _TRIAL_ROUNDS_AT_A_MODE, rounds), origin))
                else:
                    starts.append(work.begun(model, number, trials))
        starts = starts if trials == rounds else [*work.to_the_end(starts, trials)]
        bar.update(num * rounds - bar.n)
    scores = [start.score for start in starts]
    if not np.isfinite(scores).any():
        said = "EvidenceFramework: no start kept finite numbers"
        raise FloatingPointError(f"{said}: look for extreme values in the data.")
    return Searched(starts, int(np.nanargmax(scores)))
