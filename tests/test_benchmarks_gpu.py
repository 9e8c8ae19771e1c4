"""Measures of a GPU: what fails leaves its row and stops nothing, and a run goes on where it ended."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import SECONDS, measure_of, size
from benchmarks.measures import harness
from benchmarks.noise import SameNoise

ROOT = Path(__file__).parents[1]


class Kit:
    """A measure of a GPU whose rows come out in every way; it notes what it did."""

    done: list = []  # noqa: RUF012 emptied by the fixture

    @staticmethod
    def checks(options):
        yield "good", lambda: Kit.do("good", {"ms": 1.5, "holds": True})
        yield "bad", lambda: Kit.do("bad", {"holds": False})
        yield "raises", lambda: Kit.do("raises", {})["ms"]
        yield "sized", lambda: Kit.do("sized", {"size": size(options, 10, 3)})

    @staticmethod
    def do(name, columns):
        Kit.done.append(name)
        return columns


Kit.KEY, Kit.OPTIONS, *functions = measure_of("The kit", Kit.checks)
Kit.jobs, Kit.run, Kit.page = map(staticmethod, functions)


@pytest.fixture
def done(monkeypatch):
    monkeypatch.setattr(harness, "load_measure", lambda name: Kit)
    monkeypatch.setattr(Kit, "done", [])
    return Kit.done


def rehearse(folder, *arguments):
    return harness.run_measure("gpu_kit", ["--device", "cpu", "--rehearse", "--out", str(folder), *arguments])


@pytest.mark.slow
def test_a_check_that_fails_leaves_its_row_and_the_rest_goes_on(tmp_path, done, capsys):
    assert not rehearse(tmp_path)
    rows = {row["name"]: row for row in map(json.loads, (tmp_path / "gpu-kit.jsonl").read_text().splitlines())}
    assert list(rows) == ["good", "bad", "raises", "sized"]
    assert {row["device"] for row in rows.values()} == {"cpu, rehearsal"}
    assert rows["sized"]["size"] == 3
    assert rows["raises"]["failed"] == "KeyError: 'ms'"
    page = (tmp_path / "gpu-kit.md").read_text()
    assert "| cpu, rehearsal | good | 1.5 | True |" in page
    assert "- cpu, rehearsal, raises, KeyError: 'ms'" in page
    assert "Traceback" in capsys.readouterr().err


def test_every_request_for_noise_gets_the_same_numbers_rounded():
    with SameNoise("cpu"):
        values = [
            torch.randn_like(torch.empty(5)),
            torch.randn(5, dtype=torch.float64),
            torch.empty(5).normal_(),
            torch.empty(5).normal_(2.0, std=3.0),
        ]
        uniform = torch.empty(1000).uniform_(-1, 1)
    torch.testing.assert_close(values[0].double(), values[1], rtol=1e-6, atol=0)
    assert torch.equal(values[0], values[2])
    torch.testing.assert_close(values[3], 3 * values[0] + 2)
    assert -1 < float(uniform.min()) < -0.99
    assert 0.99 < float(uniform.max()) < 1


@pytest.mark.nightly
def test_the_rehearsal_runs_every_measure(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--rehearse", "--out", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    assert {path.stem for path in tmp_path.glob("*.jsonl")} == {f"gpu-{name}" for name in SECONDS}
    assert {path.stem for path in tmp_path.glob("*.md")} == {f"gpu-{name}" for name in SECONDS}
