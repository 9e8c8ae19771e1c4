"""The spec: a whole run as one value, read from and written to a TOML file, and changes to it, as guide.type=map."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.remedies import advised
from pyrobnn._core.settings import Count, FrozenDict, Options, setting, to_dict
from pyrobnn._torch.devices import resolve_device
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets import Dataset
from pyrobnn.guides.base import as_guide
from pyrobnn.inference import Ensemble, parts
from pyrobnn.inference.data import check_validation, make_source
from pyrobnn.inference.defaults import choose, settled
from pyrobnn.inference.method import Engine, Run, guide_of, with_guide
from pyrobnn.likelihoods.base import as_likelihood, require_order, with_offset
from pyrobnn.posterior.record import ChoiceRecord
from pyrobnn.runs.spec_files import OF_ANY_FIT, DataSpec, apply_overrides, data_of, read_section, read_spec
from pyrobnn.tables.schema import Task
from pyrobnn.tables.table import FEWEST_ROWS

_PARTS = ("net", "prior", "likelihood", "guide")  # with a section each


def optional(part: str) -> BeforeValidator:
    """Return the reader of a part that may be left out."""
    return BeforeValidator(lambda value: None if value is None else parts.PARTS[part].resolve(value))


@setting
class FitSpec:
    """How to fit. Device and engine are as in `fit`.

    A `method` has its guide. Without one that of the estimators is taken, with `guide` and `settings` for its own.
    """

    error_prefix: ClassVar[str] = ""  # `read_section` names the section
    method: Annotated[Any, optional("method")] = None
    guide: Annotated[Any, optional("guide")] = None
    settings: Options = FrozenDict()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    device: str = "auto"
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        if self.method is not None and (self.guide is not None or self.settings):
            raise InputError("`guide` and `settings` are for the default method: set them in the `method`.")

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "FitSpec":
        """Return the section that a table stands for: the settings of the method of that `type`, and those above."""
        common = {key: value for key, value in table.items() if key in OF_ANY_FIT}
        options = {key: value for key, value in table.items() if key not in OF_ANY_FIT}
        method = parts.method_from_table(options, also=OF_ANY_FIT)
        return cls(method=method, **common) if "type" in options else cls(settings=options, **common)

    def trains(self, guide: Any) -> "FitSpec":
        """Return the section with a guide, in the method where there is one."""
        if self.method is None or guide is None:
            return dataclasses.replace(self, guide=guide)
        try:
            return dataclasses.replace(self, method=with_guide(self.method, guide))
        except InputError as error:
            raise InputError(f"[guide] {error}") from None

    def as_dict(self) -> dict[str, Any]:
        """Return the table of this section, without the guide, which has its own."""
        method = dict(self.settings) if self.method is None else parts.method_to_table(self.method)
        return method | {key: getattr(self, key) for key in OF_ANY_FIT}

    def run(self, **more: Any) -> Run:
        """Return how a fit is to run, by this section and more."""
        return Run(seed=self.seed, device=self.device, engine=self.engine, **more)


@setting
class PredictSpec:
    """How to predict: the number of posterior draws."""

    error_prefix: ClassVar[str] = ""  # likewise
    num_draws: Count = 500


@setting
class RunSpec:
    """All settings of a run, a section each. Omitted sections are as in the estimators (`inference.defaults`).

    A likelihood decides whether the integers of a table are numbers or classes. Chains take no guide.
    """

    error_prefix: ClassVar[str] = ""  # messages name the section
    data: DataSpec
    net: Annotated[Any, optional("net")] = None
    prior: Annotated[Any, optional("prior")] = None
    likelihood: Annotated[Any, optional("likelihood")] = None
    fit: FitSpec = FitSpec()
    predict: PredictSpec = PredictSpec()

    def __post_init__(self) -> None:
        method = self.fit.method
        copies = (method or Ensemble()).offer().copies  # without a method it may be an ensemble
        if self.predict.num_draws < copies:
            whose = "one of each member or chain" + (" that the default may have" if method is None else "")
            raise InputError(f"[predict] `num_draws` must be at least {copies}, {whose}, got {self.predict.num_draws}.")
        if method is not None and self.data.validation is not None and not method.offer().follows_validation:
            follows = f"is followed along the steps of svi, and [fit] has {to_dict(method)['type']}: leave it out."
            raise InputError(f"[data] `validation` {follows}")

    @property
    def guide(self) -> Any:
        """The guide of the method, or the one given for the default; None if none is trained, or it is open."""
        return self.fit.guide if self.fit.method is None else guide_of(self.fit.method)

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> "RunSpec":
        """Read a spec file, with changes such as "guide.type=map" or "fit.seed=1"."""
        return cls.from_dict(apply_overrides(read_spec(path), overrides))

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "RunSpec":
        """Return the spec that tables stand for, as `as_dict` returns them."""
        data = data_of(tables)
        sections = {name: _read(name, table) for name, table in tables.items() if name != "data"}
        fit = sections.pop("fit", FitSpec()).trains(sections.pop("guide", None))
        return cls(data=data, fit=fit, **sections)

    def as_dict(self) -> dict[str, Any]:
        """Return the sections as tables."""
        sections = {name: getattr(self, name) for name in ("data", *_PARTS, "fit", "predict")}
        tables = {name: to_dict(section) for name, section in sections.items() if section is not None}
        del tables["data"]["type"], tables["predict"]["type"]
        return tables

    def to_toml(self) -> str:
        """Return the text of a spec file that reads back as this spec; a part that is not a setting is refused."""
        import tomli_w

        return tomli_w.dumps(self.as_dict())

    def prepare(self, tell: Callable[[str], object] = lambda _: None, *, progress: bool = False) -> "Prepared":
        """Load the data, choose the parts that are open, build the model, and refuse parts that do not fit.

        That is `_load`, then `choose` and `settled`, then `Prepared.of`, then `check_validation`. `tell` takes lines on
        the data as they were read, and before a fit that may be long, or that shows no progress.
        """
        resolve_device(self.fit.device)
        dataset = self._load()
        train, test = dataset.split(self.data.split)
        for line in (_as_read(dataset, len(test)), *dataset.notes, *dataset.doubts):
            tell(line)
        own: dict[str, Any] = {name: getattr(self, name) for name in _PARTS}
        given = parts.Given(**own, method=self.fit.method, inputs=self.data.inputs, settings=self.fit.settings)
        try:
            facts = parts.Facts.of(dataset.task, train, given, num_classes=len(dataset.class_names) or None)
            choice = choose(facts)
            _tell_of_the_fit(choice.candidates[0].method, tell, progress=progress)
            chosen_parts, record = settled(choice, train, self.fit.run(progress=progress))
            train, whole = (each.with_inputs(chosen_parts.inputs) for each in (train, dataset.data))
            dataset = dataclasses.replace(dataset, data=whole)
            prepared = Prepared.of(self._filled(chosen_parts, dataset), dataset, train, test, record)
            prepared.spec.to_toml()  # a file can hold it
            check_validation(whole, prepared.bnn, make_source(train, prepared.bnn, None, seed=0), seed=0)
        except InputError as error:
            raise InputError(f"{dataset.name}: {error}") from None
        return prepared

    def _filled(self, chosen: parts.Parts, dataset: Dataset) -> "RunSpec":
        """Return the spec with the parts that were chosen and what follows from the data."""
        is_drawn = self.data.path is not None and self.data.test_last is None
        share = dataset.test if is_drawn else self.data.test
        return dataclasses.replace(
            self,
            data=dataclasses.replace(self.data, test=share, inputs=chosen.inputs),
            net=parts.with_width(chosen.net, "in_features", with_offset(chosen.likelihood, dataset.data).num_inputs),
            prior=chosen.prior,
            likelihood=chosen.likelihood,
            fit=dataclasses.replace(self.fit, method=chosen.method, guide=None, settings={}),
        )

    def _load(self) -> Dataset:
        """Return the data, of the task of the likelihood, if there are enough, and in an order if it needs one."""
        implied: Task | None = None
        if self.likelihood is not None:
            implied = "classification" if parts.predicts_classes(self.likelihood, torch.zeros(1)) else "regression"
        dataset = self.data.load(implied)
        if self.data.path is not None and len(dataset.data) < FEWEST_ROWS:
            has = f"{self.data.path} has {counted(len(dataset.data), 'row')} with a target"
            raise InputError(f"{has}, and a fit needs at least {FEWEST_ROWS}, some to be scored on: collect more.")
        if dataset.task == "classification":
            num = as_likelihood(self.likelihood).num_ordered
            require_order(dataset.class_names, num, is_ordered=dataset.is_ordered)
        return dataset


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A spec that was checked against its data, with all defaults filled in; `choice` says how they were chosen."""

    spec: RunSpec
    dataset: Dataset
    train: Data
    validation: Data | None
    test: Data
    bnn: BNN
    choice: ChoiceRecord

    @classmethod
    def of(cls, spec: RunSpec, dataset: Dataset, train: Data, test: Data, choice: ChoiceRecord) -> "Prepared":
        """Make the model of a spec, and hold out validation data."""
        validation, bnn = None, BNN(spec.net, prior=spec.prior, likelihood=spec.likelihood)
        if spec.data.validation is not None:
            train, validation = train.split(spec.data.validation, seed=spec.fit.seed)
        return cls(spec, dataset, train, validation, test, bnn, choice)


def _as_read(dataset: Dataset, held_out: int) -> str:
    """Return a line on the data: their rows, the task and its reason, and the columns by their kind."""
    data, source = dataset.data, dataset.name if dataset.encoder is None else dataset.source
    task = f"A {dataset.task} of {data.target_name!r}{f' ({dataset.reason})' if dataset.reason else ''}"
    inputs = dataset.described or counted(data.num_inputs, "input")
    return f"{source}: {counted(len(data), 'row')}. {task} on {inputs}. {held_out} held out."


def _tell_of_the_fit(method: Any, tell: Callable[[str], object], *, progress: bool) -> None:
    """Tell that a fit begins: that it ends when it has converged, or, without progress, that it runs."""
    guide, settings = guide_of(method), to_dict(method.offer().inner or method)
    if guide is not None and not as_guide(guide).seeks_mode and {"steps", "epochs"}.isdisjoint(settings):
        tell(f"{advised('fitting until it has converged, or for some steps', 'fit.steps=5000')} ...")
    elif not progress:
        tell("fitting ...")


def _read(name: str, table: Any) -> Any:
    if name == "net" and isinstance(table, dict):
        table = {"type": "mlp"} | table
    readers = {"fit": FitSpec.from_table, "predict": lambda section: PredictSpec(**section)}
    return read_section(name, table, readers.get(name) or parts.PARTS[name].resolve, takes_text=name in _PARTS)
