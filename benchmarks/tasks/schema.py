"""What suites may say: types, defaults and refusals of their settings, [[entries]] and grids, for all tasks."""

import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Annotated, Any, TypedDict

import pydantic
from pydantic import Field

import pyrobnn as bnn
from pyrobnn.runs.spec import DataSpec, RunSpec

Fitted = bnn.Posterior | bnn.Mixture
Count = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Seeds = Annotated[list[Seed], Field(min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
NOT_SHARED = Field(exclude=True)
"""Marks a key of a suite that is no setting of all jobs, such as [[entries]]."""
Tables = Annotated[list[dict[str, Any]], NOT_SHARED]
Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]
"""Values to choose among, by paths such as `prior.scale`."""


class Method(TypedDict, total=False):
    """An entry: a guide, a prior, and the number of members if it is an ensemble."""

    name: str
    guide: Any
    prior: Any
    members: Count


METHOD: dict[str, Any] = {"guide": {"type": "map"}, "prior": {"type": "normal", "scale": 1.0}, "members": 1}
"""Defaults of an entry."""
_SAID_ELSEWHERE = {
    "seed": "seeds are those of the suite",
    "device": "fits are done on the CPU; the task mnist has a `device` of the suite",
    "engine": "the suite has an `engine`",
}


def check_keys(where: str, table: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse keys that are not known."""
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise bnn.InputError(f"Unknown key `{unknown[0]}` in {where}. Known: {', '.join(sorted(known))}.")


def check_table(where: str, table: dict[str, Any], kind: type) -> None:
    """Refuse keys that are not known, and values of another type or beyond their bounds.

    Args:
        where: what the table is called in the message.
        table: the table.
        kind: the TypedDict with its keys and types.

    Raises:
        InputError: with the first of them, and what was expected.
    """
    check_keys(where, table, kind.__annotations__)
    with _refused_in(where):
        pydantic.TypeAdapter(kind).validate_python(table, strict=True)


@contextmanager
def _refused_in(where: str) -> Iterator[None]:
    """Turn the first mistake that pydantic finds in the block into a refusal."""
    try:
        yield
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise bnn.InputError(f"`{path}` in {where}: {first['msg']}, got {first['input']!r}.") from None


def check_suite(suite: dict[str, Any], kind: type[pydantic.BaseModel]) -> dict[str, Any]:
    """Return the settings that the jobs of a suite share, with defaults for those that it leaves out.

    Args:
        suite: the tables of the suite.
        kind: what a suite of the task may have; fields that are `NOT_SHARED` are checked and left out.

    Raises:
        InputError: an unknown key, or a value of another type or beyond its bounds.
    """
    check_keys("the suite", suite, kind.model_fields)
    with _refused_in("the suite"):
        settings = kind.model_validate(suite, strict=True).model_dump()
    if "engine" in settings:
        check_engine(settings["engine"])
    return settings | {key: suite[key] for key in settings if key in suite}


def check_engine(engine: Any) -> None:
    """Refuse an engine that is not captured or eager: others depend on the machine."""
    if engine not in ("captured", "eager"):
        raise bnn.InputError(f"`engine` must be captured or eager, so that bits repeat; got {engine!r}.")


def check_entries(suite: dict[str, Any], kind: type) -> None:
    """Refuse a suite without [[entries]], or entries that are no `kind`, without a name, or with the same name."""
    if not suite.get("entries"):
        raise bnn.InputError("The suite needs [[entries]], each with a `name`.")
    for entry in suite["entries"]:
        check_table(f"entry {entry.get('name')}", entry, kind)
        if not entry.get("name"):
            raise bnn.InputError(f"Each entry needs a `name`, got {entry}.")
    check_names(entry["name"] for entry in suite["entries"])


def check_names(names: Iterable[str], what: str = "entries") -> None:
    """Refuse a name that comes twice."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise bnn.InputError(f"Two {what} are called {repeated[0]!r}, and reports go by the name: give each its own.")


def tables_by_name(data: list[Any]) -> dict[str, dict[str, Any]]:
    """Return the section [data] of each table beside the suite by the stem of its file, of a set by name an empty one.

    Raises:
        InputError: a table with another key, or with a file that is not beside the suite, or two of one name.
    """
    named = []
    for one in data:
        table = {} if isinstance(one, str) else {("path" if key == "file" else key): one[key] for key in one}
        path = PurePath(table.get("path", ""))
        if path.is_absolute() or ".." in path.parts:
            raise bnn.InputError(f"`file` in `data` must lie beside the suite file or in a folder there, got {path}.")
        named.append((path.name.partition(".")[0] if table and DataSpec(**table) else one, table))
    check_names((name for name, _ in named), "data sets")
    return dict(named)


def check_fit(name: str, tables: dict[str, Any], *more: str) -> None:
    """Refuse settings of [fit] that the suite sets for all entries: `seed`, `device`, and more that the task names."""
    for key in ("seed", "device", *more):
        if key in tables.get("fit", {}):
            raise bnn.InputError(f"`fit.{key}` in entry {name} has no effect ({_SAID_ELSEWHERE[key]}): leave it out.")


def make_spec(sections: dict[str, Any], data: str, **more: Any) -> RunSpec:
    """Return a spec. Settings that it leaves out stay as they are here, whatever the defaults of a run become."""
    fit = {"type": "svi"} | sections.get("fit", {})
    plain = {"net": {"type": "mlp"}, "prior": {"type": "normal", "scale": 1.0}}
    return RunSpec.from_dict(plain | sections | {"fit": fit, "data": {"name": data}} | more)


def data_info(name: str, task: str = "") -> bnn.datasets.DatasetInfo:
    """Return the description of a data set, without reading the data.

    Args:
        name: its name.
        task: "regression" or "classification", which it must be for; either if not given.

    Raises:
        InputError: an unknown name, or data for another task.
    """
    known = {info.name: info for info in bnn.datasets.info()}
    if name not in known:
        raise bnn.InputError(f"Unknown data set {name!r}. Known: {', '.join(known)}.")
    if task and known[name].task != task:
        raise bnn.InputError(f"The suite needs data for {task}, and {name} is for {known[name].task}: choose others.")
    return known[name]


def datasets(settings: Any) -> tuple[str, ...]:
    """Return the data set of a job that reads no other."""
    return (settings.data,)


def merged(tables: Iterable[dict[str, Any]], sections: Iterable[str]) -> dict[str, Any]:
    """Return these sections of all tables, joined; a part of another type replaces the whole earlier part."""
    joined: dict[str, Any] = {}
    for table, section in itertools.product(tables, sections):
        if section in table:
            joined[section] = _joined(joined.get(section), copy.deepcopy(table[section]))
    return joined


def _joined(earlier: Any, value: Any) -> Any:
    both = isinstance(value, dict) and isinstance(earlier, dict)
    same = both and value.get("type", earlier.get("type")) == earlier.get("type")
    return earlier | value if same else value


def candidates(tables: dict[str, Any], grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return tables with each combination of the values of a grid, whose keys are paths such as `prior.scale`."""
    return [changed(tables, dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]


def changed(tables: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    """Return tables with the values of paths such as `prior.scale` in their places."""
    new = copy.deepcopy(tables)
    for path, value in choice.items():
        *sections, key = path.split(".")
        place = new
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return new


def values_at(tables: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the values at paths such as `prior.scale`."""
    values: dict[str, Any] = {}
    for path in paths:
        value: Any = tables
        for key in path.split("."):
            value = value[key]
        values[path] = value
    return values


def entry_settings(suite: dict[str, Any], kind: type = Method, **more: Any) -> list[dict[str, Any]]:
    """Return the settings of each of [[entries]], complete, with its name as "entry".

    Args:
        suite: the tables of a suite.
        kind: what an entry may have.
        more: defaults of what the task has beside `METHOD`.

    Raises:
        InputError: no entries, a key or value that `kind` does not have, or an unknown guide or prior.
    """
    check_entries(suite, kind)
    return [_method(entry, METHOD | more) for entry in suite["entries"]]


def _method(entry: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    settings = defaults | {key: value for key, value in entry.items() if key != "name"}
    bnn.guides.resolve(settings["guide"])
    bnn.priors.resolve(settings["prior"])
    return {"entry": entry["name"], **settings}


def model_of(settings: Any, inputs: int, outputs: int, likelihood: Any) -> bnn.BNN:
    """Return the network of a job, with the prior that its entry has."""
    net = bnn.MLP(inputs, settings.hidden, outputs)
    return bnn.BNN(net, prior=bnn.priors.resolve(settings.prior), likelihood=likelihood)


def svi_settings(settings: Any) -> dict[str, Any]:
    """Return the settings of SVI that a job has beside its guide."""
    return {key: getattr(settings, key) for key in ("steps", "lr", "batch_size")} | {"schedule": "cosine_annealing_lr"}


def mixed(fits: Sequence[bnn.Posterior], members: int) -> list[Fitted]:
    """Return mixtures of `members` fits that follow each other; the fits themselves if `members` is 1."""
    return list(fits) if members == 1 else [bnn.Mixture(group) for group in itertools.batched(fits, members)]


def num_draws(settings: Any) -> int:
    """Return how many draws to predict with: `draws`, or the number of members where these are points."""
    is_point = isinstance(bnn.guides.resolve(settings.guide), bnn.guides.Map)
    return settings.members if is_point else settings.draws
