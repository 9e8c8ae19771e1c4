"""Specs and files at random: each is fitted or read, or refused in one line."""

import atexit
import datetime
import functools
import gzip
import math
import shutil
import tempfile
import tomllib
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pyrobnn import InputError, guides, likelihoods, priors
from pyrobnn.cli import app
from pyrobnn.datasets import load_features, load_table
from pyrobnn.inference import tables as methods
from pyrobnn.runs.spec import RunSpec

pytestmark = pytest.mark.filterwarnings("ignore")
ONE_LINE = (InputError, OSError, FloatingPointError)
"""What the command line turns into one line."""
_MOST_WEIGHTS = 2000
_STEPS = 2


@functools.cache
def workplace():
    """A folder for files, with a table and a finished run in it; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pyrobnn-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    values = np.random.default_rng(0).normal(size=(30, 2)).round(3)
    frame = pd.DataFrame({"a": values[:, 0], "b": values[:, 1], "y": values.sum(1), "c": ["u", "v", "w"] * 10})
    frame.drop(columns="c").to_csv(folder / "numbers.csv", index=False)
    frame.drop(columns="y").to_csv(folder / "classes.csv", index=False)
    return folder


# Values


NUMBERS = st.one_of(
    st.integers(-3, 60),
    st.sampled_from([0, -1, 10**9, -(10**9), 10**18, 2**63, -(2**63), 10**40]),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-320, 1e-30, 1e30, 1e308, math.nan, math.inf, -math.inf]),
    st.floats(-5, 5),
)
_WORDS = """
mlp none fan_in he learned heteroscedastic prior net adam sgd cosine_annealing_lr half_normal gamma half_cauchy kron
full diag low_rank last_layer relu tanh mc AutoNormal AutoDelta AutoIAFNormal AutoStructured eager captured auto cpu
cuda cuda:9 sinusoid quartic regression classification exact quadrature local flipout
"""
REGISTRIES = (priors.registry, likelihoods.registry, guides.registry, methods.registry)
NAMES = st.sampled_from(sorted({*_WORDS.split(), *(name for registry in REGISTRIES for name in registry.names)}))
ODD_TEXTS = [
    "",
    " ",
    "*",
    "*.bias",
    "0.*",
    "nothing.*",
    "[",
    "../x",
    "\0",
    "\x1b[31m",
    "é\u202e",
    "a" * 300,
    "self",
    "type",
]
TEXT = st.one_of(NAMES, st.sampled_from(ODD_TEXTS), st.text(max_size=8))
SCALARS = st.one_of(
    NUMBERS, TEXT, st.booleans(), st.just(datetime.date(2020, 1, 1)), st.just(datetime.datetime(2020, 1, 1))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


# Specs


DATA = [
    {"name": "sinusoid"},
    {"path": "numbers.csv", "target": "y"},
    {"path": "numbers.csv", "target": "y", "standardize": False, "split": 3, "validation": 0.2},
    {"path": "classes.csv", "target": "c"},
    {"path": "classes.csv", "target": "c", "task": "classification"},
]
NETS = [{"hidden": [3]}, {"hidden": []}, {"type": "mlp", "hidden": [2, 2], "activation": "tanh", "bias": False}]
PRIORS = [
    {"type": "normal", "scale": "fan_in"},
    {"type": "scale_mixture", "pi": 0.5, "learnable": True},
    {"type": "horseshoe"},
    {"type": "anchored", "prior": {"type": "normal", "scale": 0.5}},
    {"*.bias": {"type": "none"}, "0.*": {"type": "student_t", "df": 4.0}, "*": {"type": "laplace"}},
]
OF_NUMBERS = [
    {"type": "gaussian", "scale": "learned"},
    {"type": "gaussian", "scale": 0.5},
    {"type": "gaussian", "scale": {"type": "half_normal", "scale": 1.0}},
    {"type": "student_t"},
    {"type": "laplace", "scale": "heteroscedastic"},
    {"type": "censored_gaussian", "lower": -2.0},
]
OF_CLASSES = [{"type": "categorical"}, {"type": "ordinal", "num_classes": 3}]
GUIDES = [
    {"type": "mean_field", "init_rho": -3.0},
    {"type": "low_rank", "rank": 2},
    {"type": "auto", "name": "AutoLowRankMultivariateNormal", "options": {"rank": 2}},
    {"type": "laplace", "structure": "diag"},
    {"type": "dropout", "rate": 0.2},
    {"type": "flow"},
    {"*.bias": {"type": "map"}, "*": {"type": "mean_field"}},
    {"type": "map"},
]
FITS = [
    {"type": "svi", "steps": _STEPS, "lr": 0.01, "batch_size": 8, "seed": 1},
    {"steps": _STEPS, "optimizer": {"type": "sgd", "momentum": 0.9}, "schedule": {"type": "cosine_annealing_lr"}},
    {"type": "ensemble", "members": 2, "method": {"steps": _STEPS}},
    {"type": "swag", "steps": 4, "every": 1, "rank": 2, "method": {"steps": _STEPS}},
    {"type": "nuts", "num_draws": 2, "warmup": 2, "num_chains": 1, "max_tree_depth": 2},
    {"type": "mclmc", "num_draws": 2, "warmup": 1, "num_chains": 2, "thinning": 1},
    {"type": "sgld", "num_draws": 2, "burn_in": 1, "thinning": 1, "num_chains": 1, "step_size": 1e-4},
]
for table in FITS:
    table["engine"] = "eager"


@st.composite
def valid_specs(draw):
    """Sections that are sound one by one, and mostly together."""
    tables = {"data": draw(st.sampled_from(DATA)), "fit": draw(st.sampled_from(FITS))}
    fitting = OF_CLASSES if tables["data"].get("target") == "c" else OF_NUMBERS
    choices = {"net": NETS, "prior": PRIORS, "likelihood": [*fitting, *fitting, *OF_CLASSES, *OF_NUMBERS]}
    if tables["fit"].get("type", "svi") == "svi":
        choices["guide"] = GUIDES
    for name, known in choices.items():
        if draw(st.booleans()):
            tables[name] = draw(st.sampled_from(known))
    return _copied(tables | {"predict": {"num_draws": 3}})


def _copied(value):
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _places(value, place=()):
    """Every place in nested tables and lists, as the keys that lead there."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*place, key))


def _inner(value, place):
    for key in place:
        value = value[key]
    return value


def mutated(draw, tables):
    """Change nested tables at random in one to three places."""
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in _places(tables) if place]
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        _change(draw, _inner(tables, path), last)
    return tables


def _change(draw, holder, key):
    """Change an entry of a table or list: to another of its kind, or to anything."""
    value = holder[key]
    action = draw(st.sampled_from(["like", "like", "like", "set", "add", "drop", "wrap"]))
    if action == "drop":
        del holder[key]
    elif action == "set":
        holder[key] = _copied(draw(VALUES))
    elif action == "wrap":
        holder[key] = draw(st.sampled_from([[value], {"type": value}, {"a": {"b": value}}]))
    elif action == "add" and isinstance(value, dict):
        value[draw(TEXT)] = _copied(draw(VALUES))
    elif isinstance(value, dict):
        holder[key] = _copied(draw(st.sampled_from(ALIKE.get(key, [{}]))))
    elif isinstance(value, str):
        holder[key] = draw(st.sampled_from(_other_names(key, value))) if key == "type" else draw(TEXT)
    elif isinstance(value, list):
        holder[key] = [*value, *draw(st.lists(NUMBERS, max_size=2))]
    else:
        holder[key] = draw(st.booleans() if isinstance(value, bool) else NUMBERS)


ALIKE = {"prior": PRIORS, "likelihood": [*OF_NUMBERS, *OF_CLASSES], "guide": GUIDES, "net": NETS, "fit": FITS}


def _other_names(key, name):
    """The names known beside this one, or all of them."""
    return next((registry.names for registry in REGISTRIES if name in registry.names), ["mlp", name, "adam"])


@st.composite
def specs(draw):
    """Sections with something wrong in them, and now and then nothing."""
    tables = draw(valid_specs())
    return tables if draw(st.integers(0, 9)) == 0 else mutated(draw, tables)


def _placed(tables):
    """Sections with the path of the data made one into the workplace."""
    data = tables.get("data")
    if not isinstance(data, dict) or data.get("path") not in ("numbers.csv", "classes.csv"):
        return tables
    return tables | {"data": data | {"path": str(workplace() / data["path"])}}


def _is_small(spec, num_weights):
    numbers = list(_numbers(spec.as_dict()))
    return num_weights <= _MOST_WEIGHTS and all(abs(number) <= 100 for number in numbers)


def _numbers(value):
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


# Tables


ODD_CELLS = [
    *("", "nan", "NaN", "inf", "-inf", "1e999", "9" * 30, "True", "false", "2020-01-01", "12:30", "x", "é", "NULL"),
    *('"', '"a', 'a"b', "0x1F", "1_000", "1e-400", " 1", "\0", "\x1b[31m", "a\nb", "-0.0", "$x_$", "-" * 40, "1,5"),
]
CELLS = st.one_of(st.floats(-9, 9).map("{:.3g}".format), st.sampled_from(ODD_CELLS), st.text(max_size=3))
COLUMNS = st.one_of(
    st.sampled_from(["a", "b", "y", "a", "", "Unnamed: 0", "a.1", "../x", "<b>", "\0", "é", "1", "a,b", "\n", "type"]),
    st.text(max_size=3),
)
NUMERALS = st.one_of(st.floats(-9, 9).map("{:.3g}".format), st.integers(-3, 3).map(str))
TEXTS = st.sampled_from(["u", "v", "w"])
KINDS_OF_TARGET = [NUMERALS, st.integers(0, 2).map(str), TEXTS, st.sampled_from(["True", "False"])]


@st.composite
def csv_files(draw):
    """The name and bytes of a CSV file, and a column that may be in it; at most three things are wrong with it."""
    header = draw(st.sampled_from([["a", "b", "y"], ["y", "b", "a"], ["a", "y"], ["a", "b", "y", "c"]]))
    kinds = [draw(st.sampled_from(KINDS_OF_TARGET)) if name == "y" else NUMERALS for name in header]
    rows = [list(header), *draw(st.lists(st.tuples(*kinds).map(list), min_size=1, max_size=12))]
    defects = draw(st.lists(st.sampled_from(["cell", "cell", "name", "less", "more", "no rows"]), max_size=2))
    for defect in defects:
        row = rows[draw(st.integers(0, len(rows) - 1))]
        if defect == "no rows":
            del rows[1:]
        elif defect == "more":
            row.insert(draw(st.integers(0, len(row))), draw(CELLS))
        elif defect == "name":
            rows[0][draw(st.integers(0, len(rows[0]) - 1))] = draw(COLUMNS)
        elif len(row) > 1:
            at = draw(st.integers(0, len(row) - 1))
            row[at : at + 1] = [] if defect == "less" else [draw(CELLS)]
    name, content = _encode(draw, rows)
    return name, content, draw(st.one_of(st.just("y"), st.just("y"), st.just("y"), COLUMNS))


def _encode(draw, rows):
    """Write rows as a file, now and then in an unusual form."""
    oddity = draw(st.sampled_from([None] * 6 + ["quote", "end", "separator", "encoding", "gz", "name", "bytes"]))
    quote = draw(st.sampled_from(['"{}"', "'{}'"])) if oddity == "quote" else "{}"
    end = draw(st.sampled_from(["\r\n", "\r", "\n\n"])) if oddity == "end" else "\n"
    separator = draw(st.sampled_from([";", "\t", " "])) if oddity == "separator" else ","
    text = end.join(separator.join(quote.format(cell) for cell in row) for row in rows)
    content = text.encode(
        draw(st.sampled_from(["utf-8-sig", "utf-16", "latin-1", "cp1252"])) if oddity == "encoding" else "utf-8",
        "replace",
    )
    if oddity == "gz":
        return "t.csv.gz", gzip.compress(content)[: draw(st.sampled_from([None, -4, 12, 3]))]
    if oddity == "bytes":
        return "t.csv", draw(st.binary(max_size=40))
    return draw(st.sampled_from(["t.CSV", "t.parquet", "t.txt", ".csv"])) if oddity == "name" else "t.csv", content


TASKS = st.sampled_from([None, None, "regression", "classification"])


def _put(name, content):
    path = workplace() / name
    path.write_bytes(content)
    return path


# The command line


def _written(tables):
    """Sections as a spec file; what TOML does not have is left out."""
    path = workplace() / "cli.toml"
    try:
        path.write_text(tomli_w.dumps(_placed(tables)), encoding="utf-8")
        tomllib.loads(path.read_text(encoding="utf-8"))
    except (TypeError, ValueError):
        path.write_text("[data]", encoding="utf-8")
    return path


def _without_pictures():
    """Leave out the report and the tree, which take seconds and come after the fit."""
    rendered = SimpleNamespace(html="page", figures={})
    tree = SimpleNamespace(to_netcdf=lambda path, engine: path.write_text(""))
    stack = ExitStack()
    stack.enter_context(patch("pyrobnn.report.render", lambda *args, **kwargs: rendered))
    stack.enter_context(patch("pyrobnn.diagnostics.convert.to_datatree", lambda *args, **kwargs: tree))
    return stack


def _is_long(path):
    """Whether a fit would take long; what is refused is not large."""
    try:
        spec = RunSpec.from_toml(path)
        prepared = spec.prepare()
    except Exception:
        return False
    return not _is_small(prepared.spec, prepared.bnn.num_weights) or spec.fit.engine != "eager"


few = functools.partial(
    settings, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


def check_command(tables):
    """The command line fits what a spec describes, or ends with one line and without a traceback."""
    path = _written(tables)
    if _is_long(path):
        return
    with _without_pictures():
        done = CliRunner().invoke(app, ["fit", str(path), "--out", str(workplace() / "cli"), "--overwrite"])
    if done.exit_code and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in (0, 1, 2), done.exit_code
    assert "Traceback" not in done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.exit_code == 0 or "Usage:" in done.stderr or len(lines) == 1, done.stderr
    assert all(line.isprintable() for line in lines), lines


@few(max_examples=6)
@given(specs())
def test_the_command_line_fits_or_says_why_not(tables):
    check_command(tables)


@pytest.mark.slow
@few(max_examples=40)
@given(st.one_of(specs(), valid_specs()))
def test_many_specs_are_fitted_or_refused(tables):
    check_command(tables)


@pytest.mark.slow
@few(max_examples=60)
@given(csv_files(), TASKS)
def test_a_table_is_read_or_refused(file, task):
    """As features alone and with a target."""
    name, content, target = file
    path = workplace() / name
    path.write_bytes(content)
    for read in (lambda: load_features(path, [target]), lambda: load_table(path, target, task=task)):
        with suppress(*ONE_LINE):
            read()
