import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import full_disk
from typer.main import get_command
from typer.testing import CliRunner

import pyrobnn
from pyrobnn._core import folders
from pyrobnn.cli import app
from pyrobnn.inference.training import loop
from pyrobnn.runs import run as runs
from pyrobnn.runs.folder import CHECKPOINT, UNFINISHED, FittedData, Manifest, write_json

SPEC = """
[data]
name = "sinusoid"
[net]
hidden = [4]
[fit]
type = "svi"
steps = 3
device = "cpu"
[predict]
num_draws = 5
"""


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, no_report):
    """Run in an empty folder with a spec file, without pictures, which take seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "spec.toml").write_text(SPEC, encoding="utf-8")
    return tmp_path


def test_version_and_help():
    assert invoke("--version").output == f"pyrobnn {pyrobnn.__version__}\n"
    assert all(command in invoke("--help").output for command in ("demo", "fit", "predict"))


def words_of(command, path=()):
    """Yield the words that call each command, and those of groups too."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from words_of(below, (*path, name))


@pytest.mark.parametrize("path", [*words_of(get_command(app))], ids=lambda path: " ".join(path) or "pyrobnn")
def test_each_help_ends_with_examples_that_commands_take(path):
    said = invoke(*path, "--help").output
    title, *lines = [line.strip() for line in said.rpartition("╯")[2].splitlines() if line.strip()]
    assert title == "For example:"
    for line in lines:
        first, *words = shlex.split(line)
        assert first == "pyrobnn"
        assert tuple(words[: len(path)]) == path
        at, rest = get_command(app), words
        while hasattr(at, "commands"):
            at, rest = at.commands[rest[0]], rest[1:]
        at.make_context(at.name, list(rest)).close()  # refuses unknown options and missing arguments


@pytest.mark.slow
def test_fit_writes_a_run_folder_and_predict_reads_it(here):
    done = invoke("fit", "spec.toml", "--set", "fit.seed=3", "--set", "guide.type=map")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("sinusoid: 232 rows. A regression of 'y' on 1 input. 200 held out.")
    assert re.search(r"^typical error \(RMSE\) ↓ +\d.* ± ", done.output, re.MULTILINE)
    assert done.output.endswith("Folder: runs/spec, with report.html and held_out.csv\n")
    assert 'type = "map"' in (here / "runs/spec/spec.toml").read_text()
    (here / "new.csv").write_text("x0\n0.1\n0.2\n", encoding="utf-8")
    assert invoke("predict", "runs/spec", "new.csv", "--out", "p.csv").exit_code == 0
    assert list(pd.read_csv("p.csv"))[:3] == ["row", "mean", "std"]
    assert pd.read_csv("p.csv")["row"].tolist() == [1, 2]
    predicted = invoke("predict", "runs/spec", "new.csv")
    assert predicted.stdout == (here / "p.csv").read_text()
    assert predicted.stderr.startswith("runs/spec: Do not trust it yet: ")
    care = {"name": "few held-out data", "severity": "care", "facts": {"examples": "9 examples"}}
    (here / "runs/spec/diagnosis.json").write_text(json.dumps({"findings": [care], "false_alarm_rate": 0.05}))
    assert invoke("predict", "runs/spec", "new.csv").stderr.startswith("runs/spec: Use it with care: ")
    assert invoke("fit", "spec.toml").exit_code == 2
    assert invoke("fit", "spec.toml", "--overwrite").exit_code == 0
    assert "Folder: runs/spec-2," in invoke("fit", "runs/spec/spec.toml").output
    assert "By log score " in invoke("compare", "runs/spec", "runs/spec-2").output


@pytest.mark.slow
def test_the_demo_shows_what_a_bayesian_network_is_for(here):
    """No check warns, straight lines lose, and epistemic uncertainty grows tenfold away from the data."""
    done = invoke("demo")
    assert done.exit_code == 0, done.output
    assert done.output.count("It can be trusted for data like these") == 3
    for name in ("gap", "friedman", "moons"):
        metrics = json.loads((here / "runs" / "demo" / name / "metrics.json").read_text())
        ours, linear = (each["log_likelihood"]["value"] for each in (metrics["scores"], metrics["baselines"]["linear"]))
        assert ours > linear + 0.2
    posterior = pyrobnn.load(here / "runs/demo/gap/posterior")
    near, gap, far = (
        posterior.predict(torch.linspace(*ends, 50)[:, None].double()).epistemic_std.mean()
        for ends in ((0.35, 1.0), (-0.35, 0.35), (2.0, 3.0))
    )
    assert min(gap, far) > 10 * near


@pytest.mark.slow
def test_the_terminal_says_what_the_report_says_and_names_its_own_options(here):
    """A fit that its noise keeps at a constant: the verdict by held-out rows, and no call of Python."""
    g = np.random.default_rng(0)
    x = g.normal(size=(100, 2))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] + 0.1 * g.normal(size=100)}).to_csv("t.csv", index=False)
    quick = [*QUICK, "--set", "likelihood.type=gaussian", "--set", "likelihood.scale=9.0"]
    done = invoke("fit", "t.csv", "--target", "y", *quick)
    assert done.exit_code == 0, done.output
    first, *_ = done.stdout.splitlines()
    assert first.startswith("t.csv: 100 rows. A regression of 'y' (real numbers) on numbers: a, b. 20 held out.")
    told = "Do not trust it yet: "
    assert told in done.stdout
    step = "Next: train longer: pyrobnn fit runs/t/spec.toml --set fit.steps=12 --out runs/t-2\n"
    assert step in done.stdout
    phases = [line for line in done.stdout.splitlines() if line.endswith(" ...")]
    assert phases[0] == "fitting ..."
    assert len(phases) == 4
    assert len(done.stdout.splitlines()) <= 10 + len(phases)
    assert max(map(len, done.stdout.splitlines())) <= 100
    findings = invoke("diagnose", "runs/t").output.replace("\n", " ")
    assert findings.startswith(told)
    assert step.strip() in findings
    assert "train longer (--set fit.steps=12)" in findings


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Encountered NaN")
def test_a_fit_that_diverges_says_so(here):
    done = invoke("fit", "spec.toml", "--set", "fit.lr=1e30", "--set", "fit.steps=60", "--out", "r")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: The ELBO became")
    assert not (here / "r").exists()


TABLE = "a,city,name,y\n" + "".join(f"{i / 9},{('Rome', 'Oslo')[i % 2]},p{i},{i % 7 + i / 50}\n" for i in range(40))
QUICK = ("--set", "fit.type=svi", "--set", "fit.steps=3", "--set", "fit.device=cpu", "--set", "predict.num_draws=5")


@pytest.mark.slow
def test_a_table_with_gaps_a_saved_index_and_names_is_fitted_as_it_is_in_one_line_each(here):
    """The same as a spec that says all of it."""
    lines = TABLE.replace("1.0,", ",", 1).splitlines()
    rows = [f"{number},{line}," for number, line in enumerate(lines[1:])]
    (here / "my.csv").write_text("\n".join([f",{lines[0]},empty", *rows]), encoding="utf-8")
    done = invoke("fit", "my.csv", "--target", "y", *QUICK)
    assert done.exit_code == 0, done.output
    told = [line for line in done.output.splitlines() if "left out" in line]
    assert told == [
        "column 'Unnamed: 0': it has no name, as a saved index: left out",
        "column 'name': a text of its own in each of 40 rows: left out, and it names the rows of predictions",
        "column 'empty': no value in any row: left out",
    ]
    said = [f"data.drop={json.dumps(['Unnamed: 0', 'empty'])}", "data.id=name", "data.missing=impute"]
    given = [word for one in said for word in ("--set", one)]
    assert invoke("fit", "my.csv", "--target", "y", *given, *QUICK, "--out", "said").exit_code == 0
    assert (here / "said/metrics.json").read_text() == (here / "runs/my/metrics.json").read_text()
    assert invoke("predict", "runs/my", "my.csv", "--out", "p.csv").exit_code == 0
    assert pd.read_csv("p.csv")["name"].tolist() == [f"p{i}" for i in range(40)]
    refused = invoke("fit", "my.csv", "--target", "y", "--set", "data.missing=raise", "--out", "r")
    assert "Column 'a' has 1 missing value (NaN), in row 10" in refused.stderr


TABLES = ("my.csv", "--target", "y")
OTHER = ("--drop", "a", "--decimal", ",", "--set", "fit.steps=9", "--out", "r", "--overwrite")
ERRORS = {
    "missing spec": (("fit", "none.toml"), "spec file none.toml cannot be read"),
    "no place": (("fit", "spec.toml", "--out", "spec.toml/run"), "cannot be made"),
    "taken": (("fit", "spec.toml", "--out", "."), "exists already"),
    "not ours": (("fit", "spec.toml", "--out", ".", "--overwrite"), "not a run folder"),
    "no run": (("predict", "nowhere", "new.csv"), "nowhere is not a run folder"),
    "demo taken": (("demo", "--out", "taken"), "not a run folder"),
    "no target": (
        ("fit", "my.csv"),
        "is a table: name the column to predict with --target. Its columns: a, city, name",
    ),
    "no target, a command": (
        ("fit", "my.csv", *OTHER),
        f"To predict 'y':\n  pyrobnn fit my.csv --target y {' '.join(OTHER)}\n",
    ),
    "no file": (("fit", "mine.csv", "--target", "y"), "There is no file mine.csv"),
    "no column": (
        ("fit", "my.csv", "--target", "z"),
        "my.csv has no column 'z'. The columns of its first line: a, city",
    ),
    "no group": (("fit", *TABLES, "--groups", "nam"), "my.csv has no column 'nam'. Did you mean 'name'?"),
    "no task": (("fit", *TABLES, "--task", "count"), "[data] `task` must be 'regression' or 'classific"),
    "no share": (("fit", *TABLES, "--test-last", "2"), "[data] `test_last` must be less than 1, got 2"),
    "section": (("fit", *TABLES, "--set", "dat.id=name"), "Unknown section [dat]"),
    "target of a spec": (("fit", "spec.toml", "--target", "y"), "--target is for a table, and spec.toml is a spec"),
    "no file to predict": (("predict", "run", "gone.csv"), "There is no file gone.csv"),
    "no feature": (("predict", "run", "few.csv"), "has no column 'a'"),
    "not CSV": (("predict", "run", "my.csv", "--out", "p.xlsx"), "ends in .xlsx, and predictions are written as CSV"),
    "itself": (("predict", "run", "my.csv", "--out", "./my.csv"), "--out my.csv is the table to predict for"),
    "other file": (("predict", "run", "my.csv", "--out", "gen.py"), "--out gen.py is there already, and is no table"),
    "no folder": (("predict", "run", "my.csv", "--out", "none/p.csv"), "is in no folder, none is not there"),
}
VALUE_ERRORS = {
    "no target in any row": (("fit", "none.csv", "--target", "y"), "Target column 'y' has no value in any row"),
    "many names": (("fit", "street.csv", "--target", "y"), "'street' holds 39 different texts in 40 rows, such as"),
}


@pytest.mark.parametrize(("arguments", "message"), [*ERRORS.values(), *VALUE_ERRORS.values()])
def test_mistakes_are_one_line_those_of_names_before_torch_is_imported(arguments, message, here, monkeypatch):
    written_run(here)
    (here / "taken" / "moons").mkdir(parents=True)
    (here / "gen.py").write_text("print()\n", encoding="utf-8")
    frame = pd.read_csv("my.csv").assign(name=1, street=[*(f"p{i}" for i in range(39)), "p0"])
    frame.to_csv("street.csv", index=False)
    frame.drop(columns="street").assign(y="").to_csv("none.csv", index=False)
    before = {path: path.is_file() and path.read_bytes() for path in here.rglob("*")}
    is_light = (arguments, message) in ERRORS.values() and arguments[0] in ("fit", "predict")
    for module in ("pyrobnn.runs.run", "pyrobnn.runs.spec", "pyrobnn.runs.predict") if is_light else ():
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    done = invoke(*arguments)
    assert (done.exit_code, message in done.stderr) == (2, True), done.output
    assert (done.stdout, done.stderr[:7]) == ("", "error: ")
    assert done.stderr.count("\n") == 1 + done.stderr.count("\n  pyrobnn fit ")
    assert {path: path.is_file() and path.read_bytes() for path in here.rglob("*")} == before


LIGHT = """
import atexit, sys, time
from pyrobnn.cli import main

@atexit.register
def tell():
    heavy = [name for name in ("torch", "pandas", "sklearn", "pyro") if name in sys.modules]
    print(f"heavy={heavy} seconds={time.process_time():.2f}")

main()
"""


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory):
    """Where processes of this module keep what they compile: without it, compiling takes a second of each."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("bytecode")),
    }


@pytest.mark.parametrize("arguments", [("fit", *TABLES), ("predict", "run", "my.csv")], ids=["fit", "predict"])
def test_a_place_that_takes_no_files_is_refused_before_torch_is_imported(arguments, here, monkeypatch):
    """As those below /proc, and those that permissions forbid, which do not bind the root user."""
    written_run(here)
    for module in ("pyrobnn.runs.run", "pyrobnn.runs.predict"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails

    def refused(*_, **__):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(folders.tempfile, "mkdtemp", refused)
    done = invoke(*arguments, "--out", "out")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "out cannot be made (Permission denied): choose another place.\n" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs limits of the system")
@pytest.mark.parametrize(
    ("most", "left"),
    [(300, ["my.csv"]), (4_000, ["my.csv"]), pytest.param(80_000, ["my.csv", "r.unfinished"], marks=pytest.mark.slow)],
)
def test_a_disk_that_fills_up_during_a_run_ends_it_in_one_line(most, left, here, monkeypatch):
    """At the mark of the run, a checkpoint, the posterior, or what is made from it."""
    page = pyrobnn.report.page.Rendered("page" * 50_000, {})
    monkeypatch.setattr(pyrobnn.report, "render", lambda *args, **kwargs: page)
    (here / "spec.toml").unlink()
    rows = "".join(f"{i / 9},{'' if i % 9 == 0 else i % 4},{i % 7 + i / 50}\n" for i in range(200))
    (here / "my.csv").write_text("a,b,y\n" + rows, encoding="utf-8")
    with full_disk(most):
        done = invoke("fit", "my.csv", "--target", "y", *QUICK, "--out", "r")
    assert done.exit_code == 2, done.output
    *_, said = done.stderr.splitlines()
    assert said.startswith("error: r")
    assert "could not be written (File too large): make room on the disk. Nothing is left of it." in said
    assert ("r.unfinished keeps what was done: the same command goes on" in said) == ("r.unfinished" in left)
    assert "Errno" not in said
    assert sorted(path.name for path in here.iterdir()) == left


def written_run(here):
    """Write what `predict` looks at first, and two tables."""
    (here / "my.csv").write_text(TABLE, encoding="utf-8")
    (here / "few.csv").write_text("city\nOslo\n", encoding="utf-8")
    (here / "run").mkdir()
    (here / "run" / "spec.toml").write_text('[data]\npath = "my.csv"\ntarget = "y"\n', encoding="utf-8")
    write_json(here / "run" / "manifest.json", Manifest(FittedData("0" * 64, (), ("a", "city"), None)))


LIGHT_CALLS = [
    ("--help",),
    ("fit", "mine.csv", "--target", "y"),
    ("predict", "run", "few.csv"),
    ("diagnose", "nowhere"),
]


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("arguments", LIGHT_CALLS, ids=" ".join)
def test_a_mistake_is_named_within_a_second(arguments, here, bytecode):
    written_run(here)
    command = [sys.executable, "-c", LIGHT, *arguments]
    seconds = []
    for _ in range(4):  # the first one compiles
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=bytecode)
        assert "heavy=[] seconds=" in done.stdout, done.stderr
        seconds.append(float(done.stdout.rpartition("=")[2]))
    assert min(seconds[1:]) < 1, seconds  # of the processor; 0.4 where it has a core to itself
    assert "Traceback" not in done.stderr
    assert arguments == ("--help",) or done.stderr.startswith("error: ")


def test_a_command_whose_reader_goes_away_ends_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    child = [sys.executable, "-m", "pyrobnn", "--help"]
    done = subprocess.run(child, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


LONG = SPEC.replace("steps = 3", 'steps = 1_000_000\nengine = "eager"\nbatch_size = 16')


@pytest.mark.slow
@pytest.mark.usefixtures("interrupts_arrive")
def test_a_stop_names_the_command_that_goes_on(here, monkeypatch):
    """After a checkpoint, and after the fit; then the same command completes the run."""
    spec = SPEC.replace("steps = 3", 'steps = 30\nengine = "eager"\nbatch_size = 16')
    (here / "spec.toml").write_text(spec, encoding="utf-8")
    real = loop.Checkpoint.write
    monkeypatch.setattr(runs, "CHECKPOINT_EVERY", 10)

    def stop(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    places = {
        (loop.Checkpoint, "write", lambda *a, **k: (real(*a, **k), stop())): [CHECKPOINT],
        (runs, "_scored", stop): [CHECKPOINT, "manifest.json", "posterior", "spec.toml"],
    }
    for place, files in places.items():
        with monkeypatch.context() as patch:
            patch.setattr(*place)
            done = invoke("fit", "spec.toml")
        assert done.exit_code == 128 + signal.SIGINT
        mark = f"runs/spec.unfinished/{UNFINISHED}"
        keeps = f"runs/spec.unfinished keeps what was done: the same command goes on, or `pyrobnn fit {mark}`."
        assert done.stderr.endswith(f"error: stopped by SIGINT: {keeps}\n")
        assert sorted(path.name for path in (here / "runs/spec.unfinished").iterdir()) == sorted([*files, UNFINISHED])
    done = invoke("fit", mark)
    assert done.exit_code == 0, done.output
    assert [path.name for path in (here / "runs").iterdir()] == ["spec"]
    assert not (here / "runs/spec" / UNFINISHED).exists()


@pytest.mark.one_in(0, 2)
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signals_end_a_run_cleanly(number, here):
    (here / "spec.toml").write_text(LONG, encoding="utf-8")
    command = [sys.executable, "-c", "from pyrobnn.cli import main; main()", "fit", "spec.toml", "--out", "run"]
    process = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any((here / "run.unfinished" / CHECKPOINT).glob("*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    keeps = "keeps what was done: the same command goes on, or `pyrobnn fit run.unfinished/unfinished.toml`."
    assert error == f"error: stopped by {number.name}: run.unfinished {keeps}\n"
    assert [path.name for path in (here / "run.unfinished" / CHECKPOINT).iterdir() if path.name.startswith(".")] == []
