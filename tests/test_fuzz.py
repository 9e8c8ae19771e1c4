"""Specs and files at random: each is fitted or read, or refused in one line."""

import atexit
import copy
import datetime
import functools
import gzip
import math
import shutil
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_conformance import GUIDES, LIKELIHOODS, PRIORS
from typer.testing import CliRunner

from pyrobnn import InputError, guides, likelihoods, priors
from pyrobnn._core.settings import to_dict
from pyrobnn.cli import app
from pyrobnn.datasets import load_table
from pyrobnn.inference import method as methods
from pyrobnn.runs.spec import RunSpec
from pyrobnn.tables.encoder import Encoder

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("quick_check")]
ONE_LINE = (InputError, OSError, FloatingPointError)
"""What the command line turns into one line."""
few = functools.partial(settings, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck])


@functools.cache
def workplace():
    """A folder for files, with two tables in it; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pyrobnn-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    values = np.random.default_rng(0).normal(size=(30, 2)).round(3)
    frame = pd.DataFrame({"a": values[:, 0], "b": values[:, 1], "y": values.sum(1), "c": ["u", "v", "w"] * 10})
    frame.drop(columns="c").to_csv(folder / "numbers.csv", index=False)
    frame.drop(columns="y").to_csv(folder / "classes.csv", index=False)
    return folder


NUMBERS = st.one_of(
    st.integers(-3, 60),
    st.sampled_from([0, -1, 10**9, -(10**9), 10**18, 2**63, -(2**63), 10**40]),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-320, 1e-30, 1e30, 1e308, math.nan, math.inf, -math.inf]),
    st.floats(-5, 5),
)
_WORDS = """
mlp none fan_in he learned heteroscedastic prior net adam sgd cosine_annealing_lr half_normal kron full last_layer tanh
mc AutoNormal AutoIAFNormal eager captured auto cpu cuda cuda:9 sinusoid regression classification exact local
"""
REGISTRIES = (priors.registry, likelihoods.registry, guides.registry, methods.registry)
NAMES = sorted({*_WORDS.split(), *(name for registry in REGISTRIES for name in registry.names)})
ODD_TEXTS = [
    "", " ", "*", "*.bias", "0.*", "nothing.*", "[", "../x", "\0", "\x1b[31m", "é\u202e", "a" * 300, "type", "a.1",
    "1,5", "nan", "inf", "1e999", "9" * 30, "2020-01-01", "12:30", "NULL", '"', '"a', 'a"b', "0x1F", "1_000",
    " 1", "a\nb",
]  # fmt: skip
TEXT = st.one_of(st.sampled_from(NAMES), st.sampled_from(ODD_TEXTS), st.text(max_size=8))
SCALARS = st.one_of(NUMBERS, TEXT, st.booleans(), st.sampled_from([datetime.date(2020, 1, 1)]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
_STEPS = 2
TABLE, LABELS = {"path": "numbers.csv", "target": "y"}, {"path": "classes.csv", "target": "c"}
DATA = [{"name": "sinusoid"}, TABLE, TABLE | {"standardize": False, "split": 3, "validation": 0.2}]
DATA += [LABELS, LABELS | {"task": "classification"}]
NETS = [{"hidden": [3]}, {"hidden": []}, {"type": "mlp", "hidden": [2, 2], "activation": "tanh", "bias": False}]
FITS = [
    {"type": "svi", "steps": _STEPS, "lr": 0.01, "batch_size": 8, "seed": 1},
    {"steps": _STEPS, "optimizer": {"type": "sgd", "momentum": 0.9}, "schedule": {"type": "cosine_annealing_lr"}},
    {"type": "ensemble", "members": 2, "method": {"steps": _STEPS}},
    {"type": "swag", "steps": 4, "every": 1, "rank": 2, "method": {"steps": _STEPS}},
    {"type": "nuts", "num_draws": 2, "warmup": 2, "num_chains": 1, "max_tree_depth": 2},
    {"type": "mclmc", "num_draws": 2, "warmup": 1, "num_chains": 2, "thinning": 1},
    {"type": "sgld", "num_draws": 2, "burn_in": 1, "thinning": 1, "num_chains": 1, "step_size": 1e-4},
]
KNOWN = {"data": DATA, "net": NETS, "fit": [fit | {"engine": "eager"} for fit in FITS]}
KNOWN |= {
    name: list(map(to_dict, parts))
    for name, parts in {"prior": PRIORS, "likelihood": LIKELIHOODS, "guide": GUIDES}.items()
}
FITTING = {
    kind: [to_dict(part) for part in LIKELIHOODS if isinstance(part, classes)]
    for kind, classes in {
        "y": (likelihoods.Gaussian, likelihoods.StudentT, likelihoods.Laplace, likelihoods.MixtureDensity),
        "c": (likelihoods.Categorical, likelihoods.Ordinal),
    }.items()
}


@st.composite
def specs(draw):
    """Sections that are sound one by one, mostly with one to three changes at random."""
    names = ["data", "fit", *(name for name in ("net", "prior") if draw(st.booleans()))]
    tables = {name: copy.deepcopy(draw(st.sampled_from(KNOWN[name]))) for name in names}
    if draw(st.booleans()):
        fitting = FITTING[tables["data"].get("target", "y")]
        tables["likelihood"] = copy.deepcopy(draw(st.sampled_from(fitting) | st.sampled_from(KNOWN["likelihood"])))
    if tables["fit"].get("type", "svi") == "svi" and draw(st.booleans()):
        tables["guide"] = copy.deepcopy(draw(st.sampled_from(KNOWN["guide"])))
    tables["predict"] = {"num_draws": 5}
    change_some(draw, tables, 3)
    return tables


def places(value, place=()):
    """Every place in nested tables and lists, as the keys that lead there."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*place, key))


def change_some(draw, tables, most):
    for _ in range(draw(st.integers(0, most))):
        known = [place for place in places(tables) if place]
        if known:
            *path, last = draw(st.sampled_from(known))
            change(draw, functools.reduce(lambda value, key: value[key], path, tables), last)


def change(draw, holder, key):
    """Change an entry of a table or list: to another of its kind, or to anything."""
    value = holder[key]
    action = draw(st.sampled_from(["like", "like", "like", "set", "add", "drop", "wrap"]))
    if action == "drop":
        del holder[key]
    elif action == "set":
        holder[key] = copy.deepcopy(draw(VALUES))
    elif action == "wrap":
        holder[key] = draw(st.sampled_from([[value], {"type": value}, {"a": {"b": value}}]))
    elif action == "add" and isinstance(value, dict):
        value[draw(TEXT)] = copy.deepcopy(draw(VALUES))
    elif isinstance(value, dict):
        holder[key] = copy.deepcopy(draw(st.sampled_from(KNOWN.get(key, [{}]))))
    elif isinstance(value, list):
        holder[key] = [*value, *draw(st.lists(NUMBERS, max_size=2))]
    else:
        holder[key] = draw(TEXT if isinstance(value, str) else st.booleans() if isinstance(value, bool) else NUMBERS)


def written(tables):
    """Sections as a spec file, with the path of the data in the workplace; what TOML does not have is left out."""
    data, path = tables.get("data"), workplace() / "cli.toml"
    if isinstance(data, dict) and data.get("path") in ("numbers.csv", "classes.csv"):
        tables = tables | {"data": data | {"path": str(workplace() / data["path"])}}
    try:
        path.write_text(tomli_w.dumps(tables), encoding="utf-8")
        tomllib.loads(path.read_text(encoding="utf-8"))
    except (TypeError, ValueError):
        path.write_text("[data]", encoding="utf-8")
    return path


def is_long(path):
    """Whether a fit would take long; what is refused does not."""
    try:
        prepared = RunSpec.from_toml(path).prepare()
    except Exception:
        return False
    found = prepared.spec.as_dict()
    numbers = {place: functools.reduce(lambda value, key: value[key], place, found) for place in places(found)}
    most = max(
        abs(number)
        for place, number in numbers.items()
        if isinstance(number, int) and not (place[-1] == "max_steps" and numbers.get((*place[:-1], "steps")))
    )
    return most > 2000 or prepared.bnn.num_weights > 2000 or prepared.spec.fit.engine != "eager"


@few(max_examples=10)
@given(specs())
def test_a_spec_is_prepared_or_refused(tables):
    with suppress(*ONE_LINE):
        RunSpec.from_toml(written(tables)).prepare()


@pytest.mark.slow
@few(max_examples=30)
@given(specs())
def test_the_command_line_fits_or_says_why_not(tables):
    """It ends with one line and without a traceback. Pictures are left out."""
    path = written(tables)
    if is_long(path):
        return
    tree = SimpleNamespace(to_netcdf=lambda path, engine: path.write_text(""))
    with (
        patch("pyrobnn.report.render", lambda *args, **kwargs: SimpleNamespace(html="page", figures={})),
        patch("pyrobnn.diagnostics.convert.to_datatree", lambda *args, **kwargs: tree),
    ):
        done = CliRunner().invoke(app, ["fit", str(path), "--out", str(workplace() / "cli"), "--overwrite"])
    if done.exit_code and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in (0, 1, 2), done.exit_code
    assert "Traceback" not in done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.exit_code == 0 or "Usage:" in done.stderr or len(lines) == 1, done.stderr
    assert all(line.isprintable() for line in lines), lines


NUMERALS = st.one_of(st.floats(-9, 9).map("{:.3g}".format), st.integers(-3, 3).map(str))
TARGETS = [NUMERALS, st.integers(0, 2).map(str), st.sampled_from("uvw"), st.sampled_from(["True", "False"])]
OTHER_FORMS = ["quote", "end", "separator", "encoding", "gz", "name", "bytes"]


@st.composite
def csv_files(draw):
    """The name and bytes of a CSV file, and a column that may be in it; at most three things are changed."""
    header = draw(st.sampled_from([["a", "b", "y"], ["y", "b", "a"], ["a", "y"], ["a", "b", "y", "c"]]))
    kinds = [draw(st.sampled_from(TARGETS)) if name == "y" else NUMERALS for name in header]
    rows = [list(header), *draw(st.lists(st.tuples(*kinds).map(list), min_size=1, max_size=12))]
    change_some(draw, rows, 2)
    return *encoded(draw, rows), draw(st.one_of(st.just("y"), st.just("y"), st.just("y"), TEXT))


def encoded(draw, rows):
    """Rows as a file, now and then in an unusual form."""
    form = draw(st.sampled_from([None] * 6 + OTHER_FORMS))
    quote = draw(st.sampled_from(['"{}"', "'{}'"])) if form == "quote" else "{}"
    end = draw(st.sampled_from(["\r\n", "\r", "\n\n"])) if form == "end" else "\n"
    separator = draw(st.sampled_from([";", "\t", " "])) if form == "separator" else ","
    encoding = draw(st.sampled_from(["utf-8-sig", "utf-16", "latin-1", "cp1252"])) if form == "encoding" else "utf-8"
    lines = (row if isinstance(row, list) else [row] for row in rows)
    content = end.join(separator.join(map(quote.format, line)) for line in lines).encode(encoding, "replace")
    if form == "gz":
        return "t.csv.gz", gzip.compress(content)[: draw(st.sampled_from([None, -4, 12, 3]))]
    if form == "bytes":
        return "t.csv", draw(st.binary(max_size=40))
    return draw(st.sampled_from(["t.CSV", "t.parquet", "t.txt", ".csv"])) if form == "name" else "t.csv", content


@pytest.mark.slow
@few(max_examples=60)
@given(csv_files(), st.sampled_from([None, None, "regression", "classification"]))
def test_a_table_is_read_or_refused(file, task):
    """As features alone and with a target."""
    name, content, target = file
    path = workplace() / name
    path.write_bytes(content)
    for read in (lambda: Encoder.stored(None, [target]).transform(path), lambda: load_table(path, target, task=task)):
        with suppress(*ONE_LINE):
            read()
