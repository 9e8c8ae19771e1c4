"""The spec: a whole run as one value, read from and written to a TOML file, and changes to it, as guide.type=map."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.settings import Count, FrozenDict, Options, setting, to_dict
from pyrobnn._torch.devices import resolve_device
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets import Dataset
from pyrobnn.inference import Ensemble
from pyrobnn.inference.data import check_validation, make_source
from pyrobnn.inference.defaults import choose, settled
from pyrobnn.inference.method import Engine, Run, guide_of, with_guide
from pyrobnn.inference.parts import (
    PARTS,
    Facts,
    Given,
    method_from_table,
    method_to_table,
    predicts_classes,
    with_width,
)
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.record import ChoiceRecord
from pyrobnn.runs.spec_files import OF_ANY_FIT, DataSpec, apply_overrides, check_sections, read_section, read_spec
from pyrobnn.tables.cells import require_order
from pyrobnn.tables.reading import Task

_FEWEST_ROWS = 10
_FEW_CLASSES = 5  # whose examples are counted in a line


def optional(part: str) -> BeforeValidator:
    """Return the reader of a part that may be left out."""
    return BeforeValidator(lambda value: None if value is None else PARTS[part].resolve(value))


@setting
class FitSpec:
    """How to fit; the guide has a section of its own. Device and engine are as in `fit`.

    Without a `method` that of the estimators is taken, with `settings` in place of its own.
    """

    method: Annotated[Any, optional("method")] = None
    settings: Options = FrozenDict()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    device: str = "auto"
    engine: Engine = "auto"

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "FitSpec":
        """Return the section that a table stands for: the settings of the method of that `type`, and those above."""
        common = {key: value for key, value in table.items() if key in OF_ANY_FIT}
        options = {key: value for key, value in table.items() if key not in OF_ANY_FIT}
        method = method_from_table(options, also=OF_ANY_FIT)
        return cls(method=method, **common) if "type" in options else cls(settings=options, **common)

    def as_dict(self) -> dict[str, Any]:
        """Return the table of this section."""
        method = dict(self.settings) if self.method is None else method_to_table(self.method)
        return method | {key: getattr(self, key) for key in OF_ANY_FIT}

    def run(self, **more: Any) -> Run:
        """Return how a fit is to run, by this section and more."""
        return Run(seed=self.seed, device=self.device, engine=self.engine, **more)


@setting
class PredictSpec:
    """How to predict: the number of posterior draws."""

    num_draws: Count = 500


@setting
class RunSpec:
    """All settings of a run, a section each. Omitted sections are as in the estimators (`inference.defaults`).

    A likelihood decides whether the integers of a table are numbers or classes. Chains take no guide.
    """

    data: DataSpec
    net: Annotated[Any, optional("net")] = None
    prior: Annotated[Any, optional("prior")] = None
    likelihood: Annotated[Any, optional("likelihood")] = None
    guide: Annotated[Any, optional("guide")] = None
    fit: FitSpec = FitSpec()
    predict: PredictSpec = PredictSpec()

    def __post_init__(self) -> None:
        """Combine the guide and the method, and refuse sections that do not fit each other."""
        method = self.fit.method
        copies = (method or Ensemble()).offer().copies  # without a method it may be an ensemble
        if self.predict.num_draws < copies:
            least = f"{copies}, one of each member or chain {'that the default may have' * (method is None)}".rstrip()
            raise InputError(f"[predict] `num_draws` must be at least {least}, got {self.predict.num_draws}.")
        if method is None:
            return
        if self.guide is not None:
            try:
                method = with_guide(method, self.guide)
            except InputError as error:
                raise InputError(f"[guide] {error}") from None
            object.__setattr__(self, "fit", dataclasses.replace(self.fit, method=method))
        object.__setattr__(self, "guide", guide_of(method))
        if self.data.validation is not None and not method.offer().follows_validation:
            name = to_dict(method)["type"]
            raise InputError(
                f"[data] `validation` is followed along the steps of svi, and [fit] has {name}: leave it out."
            )

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> "RunSpec":
        """Read a spec file, with changes such as "guide.type=map" or "fit.seed=1"."""
        return cls.from_dict(apply_overrides(read_spec(path), overrides))

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "RunSpec":
        """Return the spec that tables stand for, as `as_dict` returns them."""
        check_sections(tables)
        sections = {name: _read(name, table) for name, table in tables.items()}
        try:
            return cls(**sections)
        except InputError as error:
            raise InputError(str(error).removeprefix(f"{cls.__name__}: ")) from None

    def as_dict(self) -> dict[str, Any]:
        """Return the sections as tables."""
        sections = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tables = {name: to_dict(section) for name, section in sections.items() if section is not None}
        for name in ("data", "predict"):
            del tables[name]["type"]
        return tables

    def to_toml(self) -> str:
        """Return the text of a spec file that reads back as this spec; a part that is not a setting is refused."""
        import tomli_w

        return tomli_w.dumps(self.as_dict())

    def prepare(self, tell: Callable[[str], object] = lambda _: None, *, progress: bool = False) -> "Prepared":
        """Load the data, fill in settings that follow from them, build the model, and refuse parts that do not fit.

        `tell` is called with lines on the data as they were read, and without progress before candidates are tried.
        """
        resolve_device(self.fit.device)
        dataset = self._load()
        train, test = dataset.split(self.data.split)
        for line in (as_read(dataset, train, test), *dataset.notes, *dataset.doubts):
            tell(line)
        if not progress:
            tell("fitting ...")
        parts_given = {name: getattr(self.fit if name == "method" else self, name) for name in PARTS}
        given = Given(**parts_given, inputs=self.data.inputs, settings=self.fit.settings)
        is_drawn = self.data.path is not None and self.data.test_last is None
        try:
            facts = Facts.of(dataset.task, train, given, num_classes=len(dataset.class_names) or None)
            parts, record = settled(choose(facts), train, self.fit.run(progress=progress))
            train, whole = (each.with_inputs(parts.inputs) for each in (train, dataset.data))
            dataset = dataclasses.replace(dataset, data=whole)
            share = dataset.test if is_drawn else self.data.test
            spec = dataclasses.replace(
                self,
                data=dataclasses.replace(self.data, test=share, inputs=parts.inputs),
                net=with_width(parts.net, "in_features", train.num_inputs),
                prior=parts.prior,
                likelihood=parts.likelihood,
                fit=dataclasses.replace(self.fit, method=parts.method, settings={}),
            )
            spec.to_toml()
            bnn = BNN(spec.net, prior=spec.prior, likelihood=spec.likelihood)
            check_validation(dataset.data, bnn, make_source(train, bnn, None, seed=0), seed=0)
        except InputError as error:
            raise InputError(f"{dataset.name}: {error}") from None
        validation = None
        if self.data.validation is not None:
            train, validation = train.split(self.data.validation, seed=self.fit.seed)
        return Prepared(spec, dataset, train, validation, test, bnn, record)

    def _load(self) -> Dataset:
        """Return the data, of the task of the likelihood, if there are enough, and in an order if it needs one."""
        implied: Task | None = None
        if self.likelihood is not None:
            implied = "classification" if predicts_classes(self.likelihood, torch.zeros(1)) else "regression"
        dataset = self.data.load(implied)
        if self.data.path is not None and len(dataset.data) < _FEWEST_ROWS:
            has = f"{self.data.path} has {counted(len(dataset.data), 'row')} with a target"
            raise InputError(f"{has}, and a fit needs at least {_FEWEST_ROWS}, some to be scored on: collect more.")
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


def as_read(dataset: Dataset, train: Data, test: Data) -> str:
    """Return a line on the data: their rows, the task and its reason, the columns by their kind, and both parts."""
    data, names, encoder = dataset.data, dataset.class_names, dataset.encoder
    reason = f" ({dataset.reason})" if dataset.reason else ""
    inputs = dataset.described or counted(data.num_inputs, "input")
    counts = zip(names, train.class_counts(len(names)), test.class_counts(len(names)), strict=True) if names else ()
    classes = ", ".join(f"{one} and {other} of {name!r}" for name, one, other in counts)
    return (
        f"{dataset.name if encoder is None else dataset.source}: {counted(len(data), 'row')}. A {dataset.task} of "
        f"{data.target_name!r}{reason} on {inputs}. {round(train.total_weight)} rows to train on, {len(test)} held out"
        f"{f': {classes}' if 0 < len(names) <= _FEW_CLASSES else ''}."
    )


def _read(name: str, table: Any) -> Any:
    if name == "net" and isinstance(table, dict):
        table = {"type": "mlp"} | table
    readers = {
        "data": lambda section: DataSpec(**section),
        "fit": FitSpec.from_table,
        "predict": lambda section: PredictSpec(**section),
    }
    return read_section(name, table, readers.get(name) or PARTS[name].resolve, takes_text=name in PARTS)
