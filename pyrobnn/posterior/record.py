"""The record of a fit in typed fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pydantic

from pyrobnn._core.errors import InputError

Table = dict[str, Any]
StoppedBy = Literal["steps", "convergence", "patience", "callback", "Ctrl-C"]
CUSTOM = "custom"
"""The type, in files, of a network or guide that is an object of the user's: to load it, it is passed again."""
_ERRORS_OF_A_LEAD = 2.0  # up to which it may be chance
_LENIENT = pydantic.ConfigDict(extra="ignore")  # of records of earlier versions


@dataclasses.dataclass(frozen=True)
class EngineRecord:
    """Which engine ran the steps of a fit, and why.

    Attributes:
        asked: "auto", "eager" or "captured".
        used: "eager", or "captured": recorded once and run without Python.
        reason: why, in words.
        from_step: first step that ran captured, counted from 1; None if none did.
        compile_seconds: seconds that recording and planning took; None if nothing was recorded.
    """

    __pydantic_config__ = _LENIENT

    asked: str
    used: str
    reason: str
    from_step: int | None = None
    compile_seconds: float | None = None


@dataclasses.dataclass(eq=False)
class History:
    """Estimates of the ELBO along a fit, on the scale of the whole data set in nats.

    Attributes:
        log_likelihood: expected log-likelihood at each step, (steps,); minus the `loss` of Pyro in a fit with one.
        kl: KL(q || prior) at each step, (steps,), whatever weight the objective gave it; 0 in a fit with a `loss`.
        validation_steps: steps after which the validation score was computed.
        validation_scores: mean log score on the validation data at those steps.
        engine: how the steps were run.
    """

    log_likelihood: np.ndarray
    kl: np.ndarray
    validation_steps: list[int]
    validation_scores: list[float]
    engine: EngineRecord = dataclasses.field(default_factory=lambda: EngineRecord("eager", "eager", "asked for"))

    @property
    def elbo(self) -> np.ndarray:
        """The ELBO at each step, log_likelihood - kl."""
        return self.log_likelihood - self.kl

    def __len__(self) -> int:
        return len(self.kl)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convergence:
    """How a fit of automatic length came to its end; nats are on the scale of the whole data set.

    Attributes:
        converged: whether neither more steps nor a lower rate gained the tolerance.
        elbo: the ELBO of the best cycle, at the temperature of the method.
        elbo_error: its standard error by Monte Carlo; None after too few steps.
        gain: gain of the last cycle over the cycles before, of a single one that of Adam over L-BFGS; else None.
        tolerance: in nats.
        cycle_ends: steps done at the end of each cycle, measurements of its ELBO included.
    """

    converged: bool
    elbo: float
    elbo_error: float | None
    gain: float | None
    tolerance: float
    cycle_ends: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplaceRecord:
    """A Laplace approximation: its log evidence in nats, in the original units of the targets, and the repairs made.

    Attributes:
        setting: the `Laplace` guide as a table.
        log_evidence: log p(D).
        log_likelihood: log p(D | w) at the mode w.
        log_prior: log p(w) of the Gaussian weights.
        log_det: log determinant of their precision.
        dimension: number of Gaussian weights.
        clipped: by site, number of weights where the log prior is not concave.
        repaired: directions of the curvature that were not positive.
        product_error: by site, the factor between the prior's precision and its approximation by a product.
        slow: sites in layers of unknown structure.
        precision: of the prior by site, where it was tuned.
    """

    setting: Table
    log_evidence: float
    log_likelihood: float
    log_prior: float
    log_det: float
    dimension: int
    clipped: dict[str, int]
    repaired: int
    product_error: dict[str, float]
    slow: list[str]
    precision: dict[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class StartRecord:
    """One start of the evidence framework.

    Attributes:
        noise: initial noise; None if no scale was tuned, or if it began from a Gaussian process.
        log_evidence: log p(D), in the original units of the targets.
        log_left_out: the leave-one-out log score, likewise.
        determined: the number of weights that the data determine; None in records of earlier versions.
        likelihood: the number of its likelihood among those that were compared.
        origin: the number of the start at whose mode it began, if any.
    """

    noise: float | None
    log_evidence: float
    log_left_out: float
    determined: float | None = None
    likelihood: int = 0
    origin: int | None = None


@dataclasses.dataclass(frozen=True)
class LikelihoodRecord:
    """A likelihood that the evidence framework compared.

    Attributes:
        name: the setting in short.
        score: mean of log evidence and left-out score of its best start, less the price of determined weights, in nats
            a row, in the original units of the targets.
        error: standard error of the lead of the chosen likelihood, by rows in pairs; 0 for the chosen itself.
    """

    name: str
    score: float
    error: float


@dataclasses.dataclass(frozen=True)
class EvidenceRecord:
    """The starts of the evidence framework; `print` says what was measured, and which likelihood they chose.

    Attributes:
        starts: all starts.
        chosen: the number of the best start.
        precision: the prior's precision by site: a number, or a number for each input.
        members: number of posterior members from each start; empty where the evidence was only measured.
        likelihoods: those that were compared, in this order; empty if there was a single one.
        left_out: the leave-one-out log score of the best start in nats a row, in the original units of the targets.
        numbers: the numbers of the likelihood that were measured, in original units, such as its "scale".
    """

    starts: list[StartRecord]
    chosen: int
    precision: dict[str, float | list[float]]
    members: list[int] = dataclasses.field(default_factory=list)
    likelihoods: list[LikelihoodRecord] = dataclasses.field(default_factory=list)
    left_out: float | None = None
    numbers: Table = dataclasses.field(default_factory=dict)

    @property
    def likelihood(self) -> LikelihoodRecord:
        """The likelihood that was chosen, of those that were compared."""
        return self.likelihoods[self.starts[self.chosen].likelihood]

    def __str__(self) -> str:
        """Return what was measured, or the likelihood that was chosen, and its lead over the others."""
        if len(self.likelihoods) < 2:
            scales = {f"scale of {name}": np.power(value, -0.5) for name, value in self.precision.items()}
            numbers = (f"{name} {_range(value)}" for name, value in (scales | self.numbers).items())
            return f"measured in {len(self.starts)} starts: {', '.join(numbers)}"
        chosen = self.likelihood
        finite = [one for one in self.likelihoods if one is not chosen and one.score > -np.inf]
        others = sorted(finite, key=lambda one: -one.score)
        leads = [f"{chosen.score - one.score:.2g} nats a row ahead of {one.name}" for one in others]
        doubted = [one.name for one in others if chosen.score - one.score < _ERRORS_OF_A_LEAD * one.error]
        doubt = f"; the lead over {' and '.join(doubted)} may be chance" if doubted else ""
        return f"{chosen.name}: {', '.join(leads) or 'alone with a finite score'}{doubt}"


def _range(values: Any) -> str:
    least, most = np.min(values), np.max(values)
    return f"{least:.2g}" if least == most else f"{least:.2g} to {most:.2g}"


@dataclasses.dataclass(frozen=True)
class CandidateRecord:
    """A fit that rows held out judged.

    Attributes:
        name: the parts by which candidates differ, in words.
        log_score: mean log score of the examples held out, in the original units of the targets.
        error: its standard error over examples.
        seconds: how long it took.
    """

    name: str
    log_score: float
    error: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class ChoiceRecord:
    """How the parts that nobody gave were chosen; `print` shows the rule, and the scores of what was compared.

    Attributes:
        rule: the name of the rule of `pyrobnn.inference.defaults` that held.
        sentence: the rule and its reason in words.
        candidates: what rows held out judged; none where a rule leads to one fit.
        chosen: the number of the best candidate, which was fitted to all rows.
        lead: the mean of its log score less that of the second, and its standard error, paired by row.
        chose_length: whether neither the method nor its length was given.
    """

    rule: str
    sentence: str
    candidates: list[CandidateRecord] = dataclasses.field(default_factory=list)
    chosen: int = 0
    lead: tuple[float, float] | None = None
    chose_length: bool = True

    def __str__(self) -> str:
        """Return the sentence, and of several candidates the best and its lead."""
        if self.lead is None:
            return f"{self.sentence}."
        mean, error = self.lead
        chance = ", which may be chance" if mean < _ERRORS_OF_A_LEAD * error else ""
        ahead = f"{mean:.2g} ± {error:.1g} nats a row ahead{chance}" if mean < np.inf else "alone with a finite score"
        return f"{self.sentence}. {self.candidates[self.chosen].name} was taken, {ahead}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitRecord:
    """How a posterior was inferred; a field that does not apply is None.

    Attributes:
        method: the method as a table, with its guide's table under "guide"; its repr where it is not a setting.
        num_data: number of training examples.
        feature_names: the names of the inputs, if there are any.
        num_steps: number of steps done.
        device: device of the steps.
        engine: engine of the steps.
        batch_size: examples in a mini-batch.
        noise: how the examples of a mini-batch shared the draws of `MeanField`; by pattern if there are several guides.
        kl: how the KL was estimated, or the divergence in its place, by the names that `SVI` takes.
        stopped_by: why the steps ended; None in the loop of a caller.
        stop_reason: the same in words.
        convergence: how a fit of automatic length ended.
        threads: number of threads.
        num_diverging: number of draws whose trajectory diverged.
        replicate: the number of this fit among those side by side.
        replicates: number of fits side by side.
        seconds: how long the fit took.
        laplace: the Laplace approximation.
        evidence: the evidence framework, also where it only measured the model's open scales.
        measured: the numbers of the likelihood, such as "scale", that the data gave, where the model left them open.
        choice: how the parts that nobody gave were chosen.
        own_loop: whether a loop of the caller's trained it, as with `pyrobnn.prepare`; its steps are then unknown.
        start: the seed, the steps and the examples of the posterior that it went on from.
        extra: a dictionary for entries of callers, which are saved too.
    """

    __pydantic_config__ = _LENIENT

    method: Table | str | None = None
    num_data: int | None = None
    feature_names: list[str] | None = None
    num_steps: int | None = None
    device: str | None = None
    engine: EngineRecord | None = None
    batch_size: int | None = None
    noise: str | dict[str, str] | None = None
    kl: str | None = None
    stopped_by: StoppedBy | None = None
    stop_reason: str | None = None
    convergence: Convergence | None = None
    threads: int | None = None
    num_diverging: int | None = None
    replicate: int | None = None
    replicates: int | None = None
    seconds: float | None = None
    laplace: LaplaceRecord | None = None
    evidence: EvidenceRecord | None = None
    measured: list[str] | None = None
    choice: ChoiceRecord | None = None
    own_loop: bool | None = None
    start: dict[str, int | None] | None = None
    extra: Table = dataclasses.field(default_factory=dict)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "FitRecord":
        """Return the record that a table describes; names that are no fields are passed over."""
        try:
            return _READER.validate_python(table)
        except pydantic.ValidationError as error:
            raise InputError(f"The record of a fit cannot be read: {error}") from None

    def to_table(self) -> Table:
        """Return the record as a table of the fields that are set."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @property
    def methods(self) -> list[Table]:
        """The tables of the method and of those inside it, from the outside in; none of a method that is no setting."""
        tables, table = [], self.method
        while isinstance(table, dict):
            tables.append(table)
            table = table.get("method")
        return tables

    @property
    def guide(self) -> Table | None:
        """The table that builds the guide; None if it was no setting, or of a mixture."""
        return self.method.get("guide") if isinstance(self.method, dict) else None


def with_guide_table(method: Table | str | None, guide: Table) -> Table | str | None:
    """Return the table of a method with that of another guide; a method without a table as it is."""
    return method | {"guide": guide} if isinstance(method, dict) else method


_READER = pydantic.TypeAdapter(FitRecord)
