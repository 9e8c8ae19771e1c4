"""The record of a fit in typed fields, and `info`, which shows it as a mapping."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from pyrobnn._core.settings import FrozenDict

Table = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class EngineRecord:
    """Which engine ran the steps of a fit, and why.

    Attributes:
        asked: "auto", "eager" or "captured".
        used: "eager"; "captured", a compiled graph; or "replayed", one whose operations ran one by one.
        reason: why, in words.
        from_step: the step, counted from 1, from which the captured graph ran; None if it did not.
        eager_seconds: seconds of an eager step, of all fits side by side, as predicted from what it computes; None if
            there was nothing to choose.
        compile_seconds: seconds that recording and compiling took; None if neither was done.
    """

    asked: str
    used: str
    reason: str
    from_step: int | None = None
    eager_seconds: float | None = None
    compile_seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convergence:
    """How a fit of automatic length came to its end; nats are on the scale of the whole data set.

    Attributes:
        converged: whether neither more steps nor a lower rate gained the tolerance.
        elbo: the objective of the best cycle: the ELBO, at the temperature of the method. It is the ELBO of the
            result, unless `patience` went back to the best validation score.
        elbo_error: its standard error by Monte Carlo; None where too few steps tell.
        gain: what the last cycle of the schedule gained over those before it; None if there was only one.
        tolerance: in nats.
        cycle_ends: steps done at the end of each cycle, with those that measured its ELBO.
    """

    converged: bool
    elbo: float
    elbo_error: float | None
    gain: float | None
    tolerance: float
    cycle_ends: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplaceRecord:
    """A Laplace approximation: its log evidence in nats, in the original units of the targets, and what was repaired.

    Attributes:
        setting: the `Laplace` guide as a table.
        log_evidence: log p(D).
        log_likelihood: log p(D | w) at the mode w.
        log_prior: log p(w) of the weights that are Gaussian.
        log_det: log determinant of the precision of these.
        dimension: how many they are.
        clipped: by site, how many weights stand where the log prior is not concave.
        repaired: directions of the curvature that were not positive.
        product_error: by site, how many times the prior's precision is off the product that stands in for it.
        slow: sites of layers of unknown structure.
        precision: of the prior by site, where it was tuned.
        rounds: the log evidence of each round of `MarginalLikelihood`.
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
    rounds: list[float] | None = None


@dataclasses.dataclass(frozen=True)
class StartRecord:
    """One start of the evidence framework.

    Attributes:
        noise: the noise that it began with; None if no scale was tuned.
        log_evidence: log p(D), in the original units of the targets.
        log_left_out: the leave-one-out log score, likewise.
        determined: the number of weights that the data determine; None in records of earlier versions.
    """

    noise: float | None
    log_evidence: float
    log_left_out: float
    determined: float | None = None


@dataclasses.dataclass(frozen=True)
class EvidenceRecord:
    """The starts of the evidence framework.

    Attributes:
        starts: all of them.
        chosen: the number of the best.
        precision: of its prior, by site: a number, or one for each input.
        members: how many members of the posterior each start has; empty where the evidence was only measured.
    """

    starts: list[StartRecord]
    chosen: int
    precision: dict[str, float | list[float]]
    members: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class CandidateRecord:
    """A method that was tried.

    Attributes:
        name: its name.
        log_score: mean log score of the examples held out, in the original units of the targets.
        error: its standard error over examples.
        seconds: how long its fits took.
    """

    name: str
    log_score: float
    error: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class AutomaticRecord:
    """How a method was chosen.

    Attributes:
        method: the settings of `Automatic`.
        candidates: what was tried, in this order.
        chosen: the name of the one that was fitted to all data.
    """

    method: Table
    candidates: list[CandidateRecord]
    chosen: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitRecord:
    """How a posterior was inferred; a field that does not apply is None.

    Attributes:
        method: the method as a table, with the table of its guide under "guide"; as it prints where it is no setting.
        num_data: number of training examples.
        feature_names: the names of their inputs, if there are any.
        num_steps: number of steps done.
        device: where they were done.
        engine: how they were run.
        batch_size: examples in a mini-batch.
        noise: how the examples of a mini-batch shared the draws of `MeanField`, as it was chosen for noise="auto"; by
            pattern of names where there are several guides.
        kl: how the KL was estimated, likewise.
        stop_reason: why they ended.
        convergence: how a fit of automatic length ended.
        rewinds: for each time that numbers ceased to be finite, the step, the one gone back to, and the factor on the
            learning rate after that.
        threads: number of threads.
        num_diverging: number of draws whose trajectory diverged.
        replicate: the number of this fit among those side by side.
        replicates: how many these were.
        seconds: how long the fit took.
        laplace: the Laplace approximation.
        evidence: the evidence framework, also where it only found the scales that the model left open.
        automatic: the methods that were tried where none was given.
        data_parallel: number of processes ("world_size"), and how they talked ("backend").
        extra: what others have put into `info`.
    """

    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")

    method: Table | str | None = None
    num_data: int | None = None
    feature_names: list[str] | None = None
    num_steps: int | None = None
    device: str | None = None
    engine: EngineRecord | None = None
    batch_size: int | None = None
    noise: str | dict[str, str] | None = None
    kl: str | None = None
    stop_reason: str | None = None
    convergence: Convergence | None = None
    rewinds: list[dict[str, int | float]] | None = None
    threads: int | None = None
    num_diverging: int | None = None
    replicate: int | None = None
    replicates: int | None = None
    seconds: float | None = None
    laplace: LaplaceRecord | None = None
    evidence: EvidenceRecord | None = None
    automatic: AutomaticRecord | None = None
    data_parallel: dict[str, int | str | None] | None = None
    extra: Table = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, info: "FitRecord | Mapping[str, Any]") -> "FitRecord":
        """Return a record, or the one that a mapping shows; what a field does not take is kept in `extra`."""
        if isinstance(info, FitRecord):
            return info
        own = {name: info[name] for name in info if name in _NAMES}
        extra = {name: info[name] for name in info if name not in _NAMES}
        try:
            return _READER.validate_python(own | {"extra": extra})
        except pydantic.ValidationError as error:
            other = {str(found["loc"][0]) for found in error.errors()} & set(own)
        extra |= {name: own.pop(name) for name in sorted(other)}
        return _READER.validate_python(own | {"extra": extra})

    @property
    def methods(self) -> list[Table]:
        """The tables of the method and of those inside it, from the outside in; none of a method that is no setting."""
        found, table = [], self.method
        while isinstance(table, dict):
            found.append(table)
            table = table.get("method")
        return found

    @property
    def guide(self) -> Table | None:
        """The table that builds the guide; None if it was no setting, or of a mixture."""
        return self.method.get("guide") if isinstance(self.method, dict) else None

    def with_guide(self, guide: Table) -> "FitRecord":
        """Return the record with the table of another guide; without one it stays as it is."""
        if not isinstance(self.method, dict):
            return self
        return dataclasses.replace(self, method=self.method | {"guide": guide})


_NAMES = {field.name for field in dataclasses.fields(FitRecord)} - {"extra"}
_READER = pydantic.TypeAdapter(FitRecord)
_RECORDS = (
    FitRecord,
    EngineRecord,
    Convergence,
    LaplaceRecord,
    EvidenceRecord,
    StartRecord,
    AutomaticRecord,
    CandidateRecord,
)
_PARTIAL = (FitRecord, LaplaceRecord)
"""Records that show the fields that are set."""


class Info(FrozenDict):
    """A record, or a part of one, as a mapping that is read only; `|` and `|=` give a new one."""

    _refusal = "`info` shows the record of a fit and is read only: add to it by posterior.info |= {'note': ...}."

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        return self | other


def _shown(value: Any) -> Any:
    if isinstance(value, _RECORDS):
        table = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        extra = table.pop("extra", {})
        value = {k: v for k, v in table.items() if v is not None or not isinstance(value, _PARTIAL)} | extra
    if isinstance(value, Mapping):
        return Info({key: _shown(item) for key, item in value.items()})
    return [_shown(item) for item in value] if isinstance(value, list) else value


class Fitted:
    """Base of what a fit returns, a `Posterior` or a `Mixture`.

    Attributes:
        record: how it was inferred.
    """

    record: FitRecord

    @property
    def info(self) -> Info:
        """The record as a mapping that is read only: fields that are set, and what was added.

        To add to it, assign: `posterior.info |= {"note": "second try"}`.

        Examples:
            >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
            >>> posterior.info |= {"note": "second try"}
            >>> posterior.info["num_steps"], posterior.info["note"]
            (20, 'second try')
        """
        shown: Info = _shown(self.record)
        return shown

    @info.setter
    def info(self, info: Mapping[str, Any]) -> None:
        self.record = FitRecord.of(info)

    def save(self, path: str | Path) -> Path:
        """Write it to a new folder, which `pyrobnn.load` reads; the same as `pyrobnn.save(posterior, path)`.

        Examples:
            >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
            >>> folder = posterior.save("posterior")
            >>> torch.equal(bnn.load(folder).predict([[0.3]]).mean, posterior.predict([[0.3]]).mean)
            True
        """
        from pyrobnn.storage.save import save

        return save(self, path)  # type: ignore[arg-type]  # it is a Posterior or a Mixture
