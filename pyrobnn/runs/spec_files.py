"""Spec files and their section [data], read and looked through without torch, so that a mistake is named at once."""

import dataclasses
import hashlib
import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pyrobnn._core.errors import InputError, counted, did_you_mean, listed
from pyrobnn._core.settings import setting
from pyrobnn.data import InputColumns
from pyrobnn.tables.cells import NAMELESS, teaches_nothing
from pyrobnn.tables.files import ENDINGS, check_names, column_names, ending, looks_like_data, read_sheet
from pyrobnn.tables.reading import Task

if TYPE_CHECKING:
    from pyrobnn.datasets import Dataset


_FEWEST_ROWS = 10
SECTIONS = ("data", "net", "prior", "likelihood", "guide", "fit", "predict")
_NUM_TEST = 200


@setting
class DataSpec:
    """The data, and the part of them to train on.

    Attributes:
        name: a data set by name: a set of `pyrobnn.datasets`, or "sinusoid" or "quartic", whose test part is
            200 new noisy points in the range of the training part.
        path: a CSV, Excel or Parquet file instead, relative to the working directory.
        target: the target column of that file.
        task: "regression" or "classification", if the target column leaves it open.
        id: a column of that file that names the rows: it is not a feature, and predictions include it.
        drop: other columns of that file that are not features.
        categories: how columns of text become numbers, "onehot" or "ordinal".
        missing: "raise" refuses missing values, "impute" leaves rows without a target out, draws other values that are
            missing several times, given the other columns, and adds indicator columns.
        split: number of the train/test split.
        test: share of the rows to test on, for data without published splits. If not given, a tenth of a data set by
            name; of a file a fifth up to 1,000 rows, or more (`pyrobnn.datasets.load_table`).
        standardize: centre and scale inputs, and real-valued targets, by the training part; inputs with a natural
            scale, such as pixels, are left unchanged.
        inputs: "ranks" or "waves" gives the network ranks of the inputs too, as in `pyrobnn.Data`; "plain" does
            not. None leaves it to the rules of defaults.
        validation: share of the training part that is held out to follow the fit, or None.
    """

    name: str | None = None
    path: str | None = None
    target: str | None = None
    task: Task | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()
    categories: Literal["onehot", "ordinal"] = "onehot"
    missing: Literal["raise", "impute"] = "raise"
    split: Annotated[int, Field(ge=0)] = 0
    test: Annotated[float, Field(gt=0, lt=1)] | None = None
    standardize: bool = True
    inputs: InputColumns | None = None
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse data with two sources or none."""
        if (self.name is None) == (self.path is None):
            raise InputError("[data] needs a `name`, or a `path` with a `target`, not both.")
        if self.path is not None and self.target is None:
            raise InputError("[data] `path` needs `target`, the name of the target column.")
        if self.target is not None and self.target in self.drop:
            raise InputError(f"[data] `drop` names the target {self.target!r}: leave it out of `drop`.")
        if self.name is not None and (self.drop or {self.target, self.task, self.id} != {None}):
            raise InputError(
                "[data] `target`, `task`, `id` and `drop` belong to a `path`; a data set by `name` knows its own."
            )

    def load(self, implied: Task | None = None, *, all_rows: bool = False) -> "Dataset":
        """Return the data set, standardised or not as asked.

        Args:
            implied: the task of a table that does not say it, from the likelihood.
            all_rows: learn the columns of a table from all rows, not only from those of the training part.
        """
        from pyrobnn import datasets
        from pyrobnn.data.in_memory import Data

        if self.path is not None and self.target is not None:
            dataset = datasets.load_table(
                self.path,
                self.target,
                task=self.task or implied,
                id=self.id,
                drop=self.drop,
                categories=self.categories,
                missing=self.missing,
                split=self.split,
                test=self.test,
                all_rows=all_rows,
            )
        elif self.name in ("sinusoid", "quartic"):
            dataset = _toy(self.name)
        else:
            dataset = datasets.load(str(self.name))
        if self.test is not None:
            if dataset.splits:
                raise InputError(
                    f"[data] `test` draws another split, and {dataset.name} has its own: leave `test` out, and choose "
                    f"one of them by `split`, 0 to {dataset.num_splits - 1}."
                )
            dataset = dataclasses.replace(dataset, test=self.test)
        raw = dataset.data
        if raw.standardize and not self.standardize:
            raw = Data(raw.x, raw.y, feature_names=raw.feature_names, target_name=raw.target_name)
        return dataclasses.replace(dataset, data=raw.with_inputs(self.inputs or "plain"))


def _toy(name: str) -> "Dataset":
    import numpy as np
    import torch

    from pyrobnn import datasets
    from pyrobnn._torch.inputs import single
    from pyrobnn.data.in_memory import Data

    make = {"sinusoid": datasets.sinusoid, "quartic": datasets.quartic}[name]
    train, test = make(), make(_NUM_TEST, seed=1)
    x = torch.cat([single(part.x, "A toy") for part in (train, test)])
    data = Data(x, torch.cat([train.y, test.y]), standardize=True)
    splits = ((np.arange(len(train)), np.arange(len(train), len(data))),)
    checksum = hashlib.sha256(x.numpy().tobytes() + data.y.numpy().tobytes()).hexdigest()
    return datasets.Dataset(name, "regression", data, splits, (), "generated", "none", checksum)


def read_spec(path: str | Path) -> dict[str, Any]:
    """Return the sections of a spec file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The spec file {path} cannot be read ({error.strerror}): check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        endings = ", ".join(ENDINGS)
        raise InputError(f"{path} is no table ({endings}), and is not valid TOML, as a spec is: {error}.") from None


def sections_of(path: Path, target: str | None) -> dict[str, Any]:
    """Return the sections of a spec file, or for a user's table: its path, its target column, and gaps as they come."""
    if not ending(path):
        tables = read_spec(path)
        if target is not None:
            raise InputError(f"--target is for a table, and {path} is a spec: name the target in its section [data].")
        return tables
    check_names(path, [])
    if target is None:
        names = column_names(path)
        is_open = looks_like_data(names)
        doubt = ", if the first row has names at all, and not data" if is_open else ""
        such = (
            ""
            if is_open
            else f" To predict {names[-1]!r}:\n  pyrobnn fit {shlex.join([str(path), '--target', names[-1]])}"
        )
        raise InputError(
            f"{path} is a table: name the column to predict with --target{doubt}. Its columns: {listed(names)}.{such}"
        )
    return {"data": {"path": str(path), "target": target, "missing": "impute"}}


def target_of(source: Path | None, column: str | None, target: str | None) -> str | None:
    """Return the column to predict: the word after a table, or that of --target."""
    if column is None:
        return target
    if source is None or not ending(source) or target is not None or ending(Path(column)):
        raise InputError(f"`fit` takes one spec file, or a table and its target, got also {column!r}.")
    return column


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
    keys = _keys(key)
    if not equals or not keys:
        raise InputError(f"A change of the spec must read section.key=value, got {text!r}, such as guide.type=map.")
    try:
        return keys, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return keys, value.strip()


def _keys(text: str) -> list[str]:
    """Return the parts of a dotted TOML key; empty for other text."""
    try:
        table: Any = tomllib.loads(f"{text} = 0")
    except tomllib.TOMLDecodeError:
        return []
    keys = []
    while isinstance(table, dict) and len(table) == 1:
        ((key, table),) = table.items()
        keys.append(key)
    return keys


def first_line(tables: Mapping[str, Any], changes: Sequence[str]) -> str:
    """Say which data are to be fitted, after the checks of a changed spec and its file that take no time."""
    data = _section("data", tables, changes)
    if "path" not in data or "target" not in data:
        return f"Data set {data['name']}." if "name" in data else "Reading the spec."
    section = data_section(data)
    names = [data["target"], *section.drop, *([] if section.id is None else [section.id])]
    check_names(Path(data["path"]), names)
    num_inputs = len(column_names(Path(data["path"]))) - len(names)
    return f"{data['path']}: target {data['target']!r}, to be predicted from {num_inputs} other columns."


def data_section(table: Mapping[str, Any]) -> DataSpec:
    """Return the section [data] that a table stands for."""
    try:
        return DataSpec(**table)
    except InputError as error:
        raise InputError("[data] " + str(error).removeprefix("DataSpec: ").removeprefix("[data] ")) from None


def left_out(tables: Mapping[str, Any], changes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return changes that leave out columns of a user's own table that teach nothing, and a line on each.

    The first texts name the rows.
    """
    known = data_section(_section("data", tables, changes))
    sheet = read_sheet(Path(str(known.path)))
    if known.missing == "impute" and sheet.frame[known.target].notna().any():  # rows without a target are left out
        sheet = dataclasses.replace(sheet, frame=sheet.frame.dropna(subset=[known.target]))
    others = [name for name in map(str, sheet.frame) if name not in (known.target, known.id, *known.drop)]
    why = {name: reason for name in others if (reason := teaches_nothing(sheet, name))}
    texts = (name for name in why if not (name.startswith(NAMELESS) or sheet.frame[name].isna().all()))
    names = next(texts, None) if known.id is None else None
    dropped = [name for name in why if name != names]
    changes = [f"data.drop={json.dumps([*known.drop, *dropped])}"] if dropped else []
    changes += [] if names is None else [f"data.id={json.dumps(names)}"]
    end = {names: "left out, and it names the rows of predictions"}
    return changes, [f"column {name!r}: {reason}: {end.get(name, 'left out')}" for name, reason in why.items()]


def check_rows(num: int, path: str) -> None:
    """Refuse a table that is too short to fit and to score."""
    if num < _FEWEST_ROWS:
        raise InputError(
            f"{path} has {counted(num, 'row')} with a target, and a fit needs at least {_FEWEST_ROWS}, some to train "
            "on and some to be scored on: collect more."
        )


def _section(name: str, tables: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return a section with the changes to it, if it is a table at all."""
    parsed = [parse_change(text) for text in changes]
    check_sections(dict(tables) | {keys[0]: None for keys, _ in parsed})
    given = tables[name] if isinstance(tables.get(name), dict) else {}
    return given | {keys[1]: value for keys, value in parsed if keys[0] == name and len(keys) == 2}
