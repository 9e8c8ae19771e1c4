import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import outcome
from typer.testing import CliRunner

from pyrobnn import InputError
from pyrobnn.cli import app
from pyrobnn.inference.training import loop
from pyrobnn.inference.training.checkpoint import FILE
from pyrobnn.runs import run as runs
from pyrobnn.runs.spec import RunSpec

TABLES = {
    "data": {"name": "sinusoid"},
    "net": {"type": "mlp", "hidden": [4]},
    "fit": {"type": "svi", "steps": 30, "engine": "eager", "batch_size": 16},
    "predict": {"num_draws": 20},
}


def spec(**sections):
    return RunSpec.from_dict(TABLES | sections)


class Killed(BaseException):
    """An end without warning."""


pytestmark = pytest.mark.usefixtures("no_report")


def interrupt_fit(monkeypatch, *, after_checkpoints=1):
    """Let the fit end without warning once it has written so many checkpoints."""
    real, written = loop.Checkpoint.write, []

    def write(self, state, *, finished):
        real(self, state, finished=finished)
        written.append(state["done"])
        if len(written) == after_checkpoints:
            raise Killed

    monkeypatch.setattr(loop.Checkpoint, "write", write)


def interrupted(monkeypatch, path, settings=None, **arguments):
    with monkeypatch.context() as patch:
        patch.setattr(runs, "CHECKPOINT_EVERY", 10)
        interrupt_fit(patch)
        with pytest.raises(Killed):
            runs.run(settings or spec(), path, progress=False, **arguments)
    assert (runs.unfinished_folder(path) / FILE).is_file()


ENSEMBLE = spec(fit={"type": "ensemble", "members": 2, "engine": "eager", "method": {"steps": 30}})


@pytest.mark.slow
@pytest.mark.parametrize("settings", [spec(), ENSEMBLE], ids=["svi", "ensemble"])
def test_an_interrupted_run_goes_on_to_the_same_bytes(settings, tmp_path, monkeypatch):
    interrupted(monkeypatch, tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()
    resumed = runs.resume(tmp_path / "run", progress=False)
    straight = runs.run(settings, tmp_path / "straight", progress=False)
    assert outcome(resumed.path) == outcome(straight.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "straight"]


@pytest.mark.slow
def test_a_new_run_does_not_trample_on_an_interrupted_one(tmp_path, monkeypatch):
    interrupted(monkeypatch, tmp_path / "run")
    with pytest.raises(InputError, match="was interrupted: go on with `pyrobnn fit --resume .*run`.*overwrite=True"):
        runs.run(spec(), tmp_path / "run", progress=False)
    runs.run(spec(), tmp_path / "run", progress=False, overwrite=True)
    assert not runs.unfinished_folder(tmp_path / "run").exists()


@pytest.mark.slow
def test_an_interrupted_replacement_keeps_the_earlier_run_until_it_is_done(tmp_path, monkeypatch):
    path = tmp_path / "run"
    runs.run(spec(), path, progress=False)
    before = (path / "metrics.json").read_bytes()
    other = spec(fit=TABLES["fit"] | {"seed": 1})
    interrupted(monkeypatch, path, other, overwrite=True)
    assert (path / "metrics.json").read_bytes() == before
    assert json.loads((runs.resume(path, progress=False).path / "manifest.json").read_text())["seed"] == 1


def test_data_that_changed_are_refused_and_nothing_is_lost(tmp_path, monkeypatch):
    table = tmp_path / "t.csv"
    table.write_text("a,y\n" + "\n".join(f"{i},{i * 0.5}" for i in range(40)))
    settings = spec(data={"path": str(table), "target": "y"})
    interrupted(monkeypatch, tmp_path / "run", settings)
    table.write_text(table.read_text().replace(".5\n", ".25\n"))
    with pytest.raises(InputError, match="is of another fit, the data differ"):
        runs.resume(tmp_path / "run", progress=False)
    assert (runs.unfinished_folder(tmp_path / "run") / FILE).is_file()


@pytest.mark.slow
def test_what_is_made_from_a_fit_is_made_again(tmp_path, monkeypatch):
    path = tmp_path / "run"
    whole = runs.run(spec(), path, progress=False)
    before = (path / "metrics.json").read_bytes()
    for name in ("metrics.json", "diagnosis.json"):
        (path / name).unlink()
    assert runs.resume(path, progress=False).scores == whole.scores
    assert (path / "metrics.json").read_bytes() == before
    with pytest.raises(InputError, match="is complete: there is nothing to go on with"):
        runs.resume(path, progress=False)
    with pytest.raises(InputError, match="There is no interrupted run .*unfinished, and no run folder"):
        runs.resume(tmp_path / "other", progress=False)


@pytest.mark.slow
def test_a_method_without_checkpoints_leaves_no_unfinished_run(tmp_path, monkeypatch):
    swag = spec(fit={"type": "swag", "steps": 6, "every": 2, "rank": 2, "engine": "eager", "method": {"steps": 5}})
    path = runs.run(spec(), tmp_path / "run", progress=False).path

    def fail(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runs, "fit_in_silence", fail)
        with pytest.raises(Killed) as caught:
            runs.run(swag, path, progress=False, overwrite=True)
    assert [place.name for place in tmp_path.iterdir()] == ["run"]
    assert not getattr(caught.value, "__notes__", [])


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A function that stops a command by Ctrl-C when its fit has come to a place, and returns what it says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(spec().to_toml())

    def stop(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    def run(*arguments, place):
        with monkeypatch.context() as patch:
            patch.setattr(runs, "CHECKPOINT_EVERY", 10)
            if place == "checkpoint":
                real = loop.Checkpoint.write
                patch.setattr(loop.Checkpoint, "write", lambda *a, **k: (real(*a, **k), stop()))
            else:
                patch.setattr(runs, place, stop)
            done = invoke(*arguments)
        assert done.exit_code == 128 + signal.SIGINT
        assert done.stderr.startswith("error: stopped by SIGINT: ")
        return done.stderr.removeprefix("error: stopped by SIGINT: ").strip()

    return run


NOTHING = "nothing is kept, as there was no result and no checkpoint yet; the same command starts anew."
CHECKPOINT = "the last checkpoint is kept, go on with `pyrobnn fit --resume runs/spec`."
FIT = "the fit is kept, go on with `pyrobnn fit --resume runs/spec`."


@pytest.mark.slow
def test_a_stop_names_the_folder_that_is_there(stopped, tmp_path):
    assert stopped("fit", "spec.toml", place="fit_in_silence") == NOTHING
    assert not (tmp_path / "runs").exists()
    assert stopped("fit", "spec.toml", place="checkpoint") == CHECKPOINT
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["spec.unfinished"]
    assert stopped("fit", "--resume", "runs/spec", place="fit_in_silence") == CHECKPOINT
    assert stopped("fit", "--resume", "runs/spec.unfinished", place="_judge") == FIT
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["spec"]
    assert stopped("fit", "--resume", "runs/spec", place="_judge") == FIT
    done = invoke("fit", "--resume", "runs/spec")
    assert done.exit_code == 0, done.output


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_takes_a_spec_or_a_run(tmp_path):
    neither, both = invoke("fit"), invoke("fit", "spec.toml", "--resume", tmp_path)
    with_changes = invoke("fit", "--resume", tmp_path, "--set", "fit.seed=1")
    assert neither.exit_code == both.exit_code == with_changes.exit_code == 2
    assert "nothing was given" in neither.output
    assert "not both" in both.output
    assert "goes on with the spec of the run: leave out other options" in with_changes.output


@pytest.mark.one_in(0, 2)
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signals_end_a_run_cleanly(number, tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(spec(fit=TABLES["fit"] | {"steps": 1_000_000}).to_toml())
    command = [sys.executable, "-c", "from pyrobnn.cli import main; main()", "fit", str(file), "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run.unfinished" / FILE).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    kept = "the last checkpoint is kept, go on with `pyrobnn fit --resume run`"
    assert error.strip() == f"error: stopped by {number.name}: {kept}."
    assert [path.name for path in (tmp_path / "run.unfinished").iterdir() if path.name.startswith(".")] == []
