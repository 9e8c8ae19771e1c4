"""Spec files and their section [data], read and looked through without torch, so that a mistake is named at once."""

import copy
import csv
import dataclasses
import json
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pyrobnn._core.errors import InputError, did_you_mean, listed
from pyrobnn._core.remedies import options
from pyrobnn._core.settings import fields_of, setting
from pyrobnn.data import InputColumns
from pyrobnn.tables.column_reader import teaches_nothing
from pyrobnn.tables.reading import ENDINGS, NAMELESS, check_names, column_names, ending, read_file
from pyrobnn.tables.schema import Reading, Task

if TYPE_CHECKING:
    from pyrobnn.datasets import Dataset


SECTIONS = ("data", "net", "prior", "likelihood", "guide", "fit", "predict")
_OTHER_SPLITS = {"test_last": ("test", "groups", "split"), "groups": ("test_last",), "test": ("test_last",)}
"""Settings of [data] that hold rows out, with those that they exclude."""
_OF_A_TABLE = ("path", *fields_of(Reading))
OF_ANY_FIT = ("seed", "device", "engine")  # keys of [fit] that do not belong to the method


@setting
class FileSpec:
    """The file of the data, which a spec names before it says how to read it."""

    path: str | None = None


@setting
class DataSpec(Reading, FileSpec):
    """The data, a file that is read as a table or a data set by name, and the part of them to train on.

    Attributes:
        name: a data set of `pyrobnn.datasets`, in place of a `path`, which is relative to the working directory.
        split: number of the train/test split.
        test: share of the rows to test on, for data without published splits; as `Dataset.test` if not given.
        test_last: share of the rows of a file to test on in place of `test`, the last ones.
        standardize: centre and scale inputs without a natural scale, and real-valued targets, by the training part.
        inputs: "ranks", "waves" or "plain", as in `pyrobnn.Data`. None leaves it to the rules of defaults.
        validation: share of the training part that is held out to follow the fit, or None.
    """

    name: str | None = None
    split: Annotated[int, Field(ge=0)] = 0
    test: Annotated[float, Field(gt=0, lt=1)] | None = None
    test_last: Annotated[float, Field(gt=0, lt=1)] | None = None
    standardize: bool = True
    inputs: InputColumns | None = None
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None) or (self.path is not None and self.target is None):
            raise InputError("needs a `name`, or a `path` with a `target`, not both.")
        if self.target is not None and self.target in (*self.drop, self.groups):
            raise InputError(f"`drop` or `groups` names the target {self.target!r}: leave it out there.")
        if self.name is not None and (of_a_file := self._given(*_OF_A_TABLE, "test_last")):
            raise InputError(f"`{of_a_file[0]}` belongs to a `path`; a data set by `name` knows its own.")
        if self.test_last is not None and self._given(*_OTHER_SPLITS["test_last"]):
            *others, last = (f"`{name}`" for name in _OTHER_SPLITS["test_last"])
            raise InputError(f"`test_last` holds the last rows out: leave out {', '.join(others)} and {last}.")

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) != fields_of(DataSpec)[name].default]

    def load(self, implied: Task | None = None, *, all_rows: bool = False) -> "Dataset":
        """Return the data set, a table of the task `implied` if it leaves it open; `all_rows` as in `load_table`."""
        from pyrobnn import datasets
        from pyrobnn.data.in_memory import Data
        from pyrobnn.datasets.table import dataset_of

        if self.path is not None:
            reading = dataclasses.replace(self, task=self.task or implied)
            held_out: dict[str, Any] = {name: getattr(self, name) for name in ("split", "test", "test_last")}
            dataset = dataset_of(self.path, reading, **held_out, all_rows=all_rows)
        else:
            dataset = datasets.load(str(self.name))
        if self.test is not None:
            if dataset.splits:
                choice = f"leave it out, and choose a `split`, 0 to {dataset.num_splits - 1}."
                raise InputError(f"[data] `test` draws another split, and {dataset.name} has its own: {choice}")
            dataset = dataclasses.replace(dataset, test=self.test)
        raw = dataset.data
        if raw.standardize and not self.standardize:
            raw = Data(raw.x, raw.y, feature_names=raw.feature_names, target_name=raw.target_name, groups=raw.groups)
        return dataclasses.replace(dataset, data=raw.with_inputs(self.inputs or "plain"))


def read_spec(path: str | Path) -> dict[str, Any]:
    """Return the sections of a spec file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The spec file {path} cannot be read ({error.strerror}): check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no table ({', '.join(ENDINGS)}), and is not valid TOML: {error}.") from None


def sections_of(path: Path, given: Mapping[str, Any], changes: Sequence[str], rest: Sequence[str]) -> dict[str, Any]:
    """Return the sections of a spec file, or of a user's table, whose gaps are imputed, with changes.

    `given` are settings of [data], `rest` other words of the command. Sections and names of columns are checked.
    """
    is_table = bool(ending(path))
    if "target" in given and not is_table:
        raise InputError(f"--target is for a table, and {path} is a spec: name the target in its section [data].")
    start = {"data": {"path": str(path), "missing": "impute"}} if is_table else read_spec(path)
    tables = apply_overrides(start, changes, given)
    check_sections(tables)
    if is_table and isinstance(tables["data"], dict) and "target" not in tables["data"]:
        reading = Reading(**{key: value for key, value in tables["data"].items() if key in fields_of(Reading)})
        check_names(path, [], reading)
        names = column_names(path, reading)
        told = (f"data.{key}={json.dumps(value) if isinstance(value, list) else value}" for key, value in given.items())
        words = [shlex.join([str(path), "--target", names[-1]]), options(*told, *changes), shlex.join(rest)]
        said = f"{path} is a table: name the column to predict with --target. Its columns: {listed(names)}."
        raise InputError(f"{said} To predict {names[-1]!r}:\n  pyrobnn fit {' '.join(filter(None, words))}")
    data = data_of(tables)
    if data.path is not None:
        check_names(Path(data.path), data.no_features, data)
    return tables


def data_of(tables: Mapping[str, Any]) -> DataSpec:
    """Return the section [data] of a spec, whose sections are checked."""
    check_sections(tables)
    return read_section("data", tables["data"], lambda table: DataSpec(**table))


def check_sections(tables: Mapping[str, Any]) -> None:
    """Refuse sections that no spec has, and a spec without data."""
    if unknown := [name for name in tables if name not in SECTIONS]:
        hint = did_you_mean(unknown[0], SECTIONS)
        raise InputError(f"Unknown section [{unknown[0]}] in the spec.{hint} Known: {', '.join(SECTIONS)}.")
    if "data" not in tables:
        raise InputError('The spec needs a section [data], such as name = "diabetes".')


def parse_change(text: str) -> tuple[list[str], Any]:
    """Return keys and value of a change such as "guide.type=map"; the value is read as TOML, or else as text."""
    key, equals, value = text.partition("=")
    keys = next(csv.reader([key.strip().replace("'", '"')], delimiter="."), [""])
    if not (equals and all(keys)):
        raise InputError(f"A change of the spec must read section.key=value, got {text!r}, such as guide.type=map.")
    try:
        return keys, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return keys, value.strip()


def read_section[T](name: str, table: Any, read: Callable[[Any], T], *, takes_text: bool = False) -> T:
    """Return what a section stands for; errors begin with its name."""
    if not isinstance(table, dict) and not (takes_text and isinstance(table, str)):
        raise InputError(f"[{name}] must be a table in the spec, got {table!r}.")
    try:
        return read(table)
    except InputError as error:
        raise InputError(f"[{name}] {error}") from None


def apply_overrides(
    tables: Mapping[str, Any], overrides: Sequence[str], data: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the tables of a spec with "section.key=value" applied; `data` are more values for [data]."""
    changes = [*map(parse_change, overrides), *((["data", key], value) for key, value in data.items())]
    new: dict[str, Any] = copy.deepcopy(dict(tables))
    for keys, value in sorted(changes, key=lambda change: (change[0][-1] != "type", len(change[0]))):
        _set(new, keys, value)  # every `type` from outside in, then the rest
    _drop_stale(new, {tuple(keys) for keys, _ in changes})
    return new


def _set(tables: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set a value; another `type` drops the settings beside it but for those of any fit, and a guide not trained."""
    *path, last = keys
    table: Any = tables
    for key in path:
        if not isinstance(inner := table.get(key), dict):
            table[key] = {} if inner is None else {"type": inner}
        table = table[key]
    if last == "type" and table.get("type") != value:
        for key in [key for key in table if path != ["fit"] or key not in OF_ANY_FIT]:
            del table[key]
        if path == ["fit"]:
            from pyrobnn.inference.method import registry

            if {"guide", "method"}.isdisjoint(fields_of(registry.get(value))):
                tables.pop("guide", None)
    table[last] = value


def _drop_stale(tables: Mapping[str, Any], given: set[tuple[str, ...]]) -> None:
    """Drop the other ways to hold rows out, and widths of the network that other columns or a likelihood bring."""
    stale = {("data", other) for name, others in _OTHER_SPLITS.items() if ("data", name) in given for other in others}
    if any(("data", name) in given for name in _OF_A_TABLE):
        stale.add(("net", "in_features"))
    if any(section == "likelihood" for section, *_ in given):
        stale.add(("net", "out_features"))
    for section, key in stale - given:
        if isinstance(tables.get(section), dict):
            tables[section].pop(key, None)


def leave_out(tables: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the sections of a user's own table without the columns that teach nothing, and a line on each of these.

    The first texts name the rows.
    """
    data = data_of(tables)
    frame = read_file(Path(str(data.path)), data)
    if data.missing == "impute" and frame[data.target].notna().any():  # rows without a target are left out
        frame = frame.dropna(subset=[data.target])
    others = [name for name in map(str, frame) if name not in data.no_features]
    why = {name: reason for name in others if (reason := teaches_nothing(frame[name]))}
    texts = (name for name in why if not (name.startswith(NAMELESS) or frame[name].isna().all()))
    names = next(texts, None) if data.id is None else None
    drop = (*data.drop, *(name for name in why if name != names))
    end = {names: "left out, and it names the rows of predictions"}
    lines = [f"column {name!r}: {reason}: {end.get(name, 'left out')}" for name, reason in why.items()]
    return {**tables, "data": {**tables["data"], "drop": drop, "id": names or data.id}}, lines
