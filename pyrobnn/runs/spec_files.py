"""Spec files and their section [data], read and looked through without torch, so that a mistake is named at once."""

import copy
import dataclasses
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pyrobnn._core.errors import InputError, did_you_mean, listed
from pyrobnn._core.settings import fields_of, setting
from pyrobnn.data import InputColumns
from pyrobnn.tables.cells import teaches_nothing
from pyrobnn.tables.files import ENDINGS, NAMELESS, Dialect, check_names, column_names, ending, read_file
from pyrobnn.tables.reading import Task

if TYPE_CHECKING:
    from pyrobnn.datasets import Dataset


SECTIONS = ("data", "net", "prior", "likelihood", "guide", "fit", "predict")
_OF_A_TABLE = ("target", "task", "id", "drop", "groups", "test_last", "sep", "decimal", "encoding")
_READING = (*_OF_A_TABLE, "categories", "missing", "split", "test")
_OF_COLUMNS = [["data", key] for key in ("drop", "id", "groups", "sep", "decimal", "categories", "missing")]
_OTHER_SPLITS = {"test_last": ("test", "groups", "split"), "groups": ("test_last",), "test": ("test_last",)}
OF_ANY_FIT = ("seed", "device", "engine")  # keys of [fit] that do not belong to the method


@setting
class DataSpec:
    """The data, and the part of them to train on.

    Attributes:
        name: a data set of `pyrobnn.datasets`.
        path: a CSV, Excel or Parquet file instead, relative to the working directory. Of it are target, task, id, drop,
            groups, sep, decimal, encoding, categories, missing and test_last, as in `pyrobnn.datasets.load_table`.
        split: number of the train/test split.
        test: share of the rows to test on, for data without published splits; as `Dataset.test` if not given.
        standardize: centre and scale inputs without a natural scale, and real-valued targets, by the training part.
        inputs: "ranks", "waves" or "plain", as in `pyrobnn.Data`. None leaves it to the rules of defaults.
        validation: share of the training part that is held out to follow the fit, or None.
    """

    name: str | None = None
    path: str | None = None
    target: str | None = None
    task: Task | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()
    groups: str | None = None
    sep: str | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None
    categories: str | tuple[str, ...] = "onehot"
    missing: Literal["raise", "impute"] = "raise"
    split: Annotated[int, Field(ge=0)] = 0
    test: Annotated[float, Field(gt=0, lt=1)] | None = None
    test_last: Annotated[float, Field(gt=0, lt=1)] | None = None
    standardize: bool = True
    inputs: InputColumns | None = None
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse data with two sources or none, and two ways to hold rows out."""
        if (self.name is None) == (self.path is None) or (self.path is not None and self.target is None):
            raise InputError("[data] needs a `name`, or a `path` with a `target`, not both.")
        if self.target is not None and self.target in (*self.drop, self.groups):
            raise InputError(f"[data] `drop` or `groups` names the target {self.target!r}: leave it out there.")
        given = [name for name in _OF_A_TABLE if getattr(self, name) not in (None, ())]
        if self.name is not None and given:
            raise InputError(f"[data] `{given[0]}` belongs to a `path`; a data set by `name` knows its own.")
        if self.test_last is not None and (self.test, self.groups, self.split) != (None, None, 0):
            raise InputError("[data] `test_last` holds the last rows out: leave out `test`, `groups` and `split`.")

    @property
    def dialect(self) -> Dialect:
        """How the file is written."""
        return Dialect(self.sep, self.decimal, self.encoding)

    @property
    def no_features(self) -> list[str]:
        """The columns of a table that are no features."""
        return [name for name in (self.target, self.id, self.groups, *self.drop) if name is not None]

    def load(self, implied: Task | None = None, *, all_rows: bool = False) -> "Dataset":
        """Return the data set; `implied` is the task of a table that does not say it, from the likelihood.

        With `all_rows` the columns of a table are learned from all rows, not only from those of the training part.
        """
        from pyrobnn import datasets
        from pyrobnn.data.in_memory import Data

        if self.path is not None:
            given = {name: getattr(self, name) for name in _READING}
            task = self.task or implied
            dataset = datasets.load_table(self.path, **given | {"task": task}, all_rows=all_rows)
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
        endings = ", ".join(ENDINGS)
        raise InputError(f"{path} is no table ({endings}), and is not valid TOML, as a spec is: {error}.") from None


def sections_of(path: Path, target: str | None, changes: Sequence[str]) -> dict[str, Any]:
    """Return the sections of a spec file, or of a user's table with its target and gaps as they come, with changes.

    The sections, the section [data] and the names of columns are checked.
    """
    is_table = bool(ending(path))
    if target is not None and not is_table:
        raise InputError(f"--target is for a table, and {path} is a spec: name the target in its section [data].")
    data = {"path": str(path), "target": target, "missing": "impute"}
    tables = apply_overrides({"data": data} if is_table else read_spec(path), changes)
    check_sections(tables)
    if is_table and tables["data"]["target"] is None:
        dialect = Dialect(*map(tables["data"].get, Dialect._fields))
        check_names(path, [], dialect)
        names = column_names(path, dialect)
        raise InputError(
            f"{path} is a table: name the column to predict with --target. Its columns: {listed(names)}. To predict "
            f"{names[-1]!r}:\n  pyrobnn fit {shlex.join([str(path), '--target', names[-1]])}"
        )
    section: DataSpec = read_section("data", tables["data"], lambda table: DataSpec(**table))
    if section.path is not None:
        check_names(Path(section.path), section.no_features, section.dialect)
    return tables


def check_sections(tables: Mapping[str, Any]) -> None:
    """Refuse sections that no spec has, and a spec without data."""
    unknown = [name for name in tables if name not in SECTIONS]
    if unknown:
        hint = did_you_mean(unknown[0], SECTIONS)
        raise InputError(f"Unknown section [{unknown[0]}] in the spec.{hint} Known: {', '.join(SECTIONS)}.")
    if "data" not in tables:
        raise InputError('The spec needs a section [data], such as name = "diabetes".')


def parse_change(text: str) -> tuple[list[str], Any]:
    """Return keys and value of a change such as "guide.type=map"; the value is read as TOML, or else as text."""
    key, equals, value = text.partition("=")
    keys: list[str] = []
    try:
        table: Any = tomllib.loads(f"{key} = 0")
        while isinstance(table, dict) and len(table) == 1:
            ((name, table),) = table.items()
            keys.append(name)
    except tomllib.TOMLDecodeError:
        pass
    if not equals or not keys:
        raise InputError(f"A change of the spec must read section.key=value, got {text!r}, such as guide.type=map.")
    try:
        return keys, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return keys, value.strip()


def read_section(name: str, table: Any, read: Callable[[Any], Any], *, takes_text: bool = False) -> Any:
    """Return what a section stands for; errors begin with its name."""
    if not isinstance(table, dict) and not (takes_text and isinstance(table, str)):
        raise InputError(f"[{name}] must be a table in the spec, got {table!r}.")
    try:
        return read(table)
    except InputError as error:
        message = str(error).removeprefix(f"{name.capitalize()}Spec: ").removeprefix(f"[{name}] ")
        raise InputError(message if message.startswith("[") else f"[{name}] {message}") from None


def apply_overrides(tables: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the tables of a spec with "section.key=value" applied: every `type` from outside in, then the rest.

    Another `type` drops the settings beside it, but for those of any fit; a method that trains no guide drops [guide].
    Other columns bring their own number of inputs, another likelihood that of outputs. Another way to hold rows out
    takes the place of the first.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(tables))
    parsed = [parse_change(text) for text in overrides]
    for (*path, last), value in sorted(parsed, key=lambda item: (item[0][-1] != "type", len(item[0]))):
        table: Any = changed
        for key in path:
            if not isinstance(inner := table.get(key), dict):
                table[key] = {} if inner is None else {"type": inner}
            table = table[key]
        if last == "type" and table.get("type") != value:
            kept = {key: table[key] for key in OF_ANY_FIT if path == ["fit"] and key in table}
            table.clear()
            table.update(kept)
            if path == ["fit"] and "guide" in changed and not _trains_a_guide(value):
                del changed["guide"]
        table[last] = value
    keys, net = [keys for keys, _ in parsed], changed.get("net")
    others = [other for name, others in _OTHER_SPLITS.items() if ["data", name] in keys for other in others]
    for other in (other for other in others if ["data", other] not in keys):
        changed["data"].pop(other, None)
    for name, is_other in (
        ("in_features", any(one in _OF_COLUMNS for one in keys)),
        ("out_features", any(one[0] == "likelihood" for one in keys)),
    ):
        if isinstance(net, dict) and is_other and ["net", name] not in keys:
            net.pop(name, None)
    return changed


def _trains_a_guide(method: Any) -> bool:
    from pyrobnn.inference.method import registry

    return not {"guide", "method"}.isdisjoint(fields_of(registry.get(method)))


def leave_out(data: dict[str, Any]) -> list[str]:
    """Leave columns that teach nothing out of the section [data] of a user's own table, and return a line on each.

    The first texts name the rows.
    """
    known = DataSpec(**data)
    frame = read_file(Path(str(known.path)), known.dialect)
    if known.missing == "impute" and frame[known.target].notna().any():  # rows without a target are left out
        frame = frame.dropna(subset=[known.target])
    others = [name for name in map(str, frame) if name not in known.no_features]
    why = {name: reason for name in others if (reason := teaches_nothing(frame[name]))}
    texts = (name for name in why if not (name.startswith(NAMELESS) or frame[name].isna().all()))
    names = next(texts, None) if known.id is None else None
    data["drop"] = [*known.drop, *(name for name in why if name != names)]
    data["id"] = names or known.id
    end = {names: "left out, and it names the rows of predictions"}
    return [f"column {name!r}: {reason}: {end.get(name, 'left out')}" for name, reason in why.items()]
