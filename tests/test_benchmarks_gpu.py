"""The GPU kit: what fails leaves its row and stops nothing, and a run goes on where it ended."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.noise import SameNoise
from benchmarks.gpu.runner import PARTS, WHOLE, Part, run_parts

ROOT = Path(__file__).parents[1]
GOOD = Part("tests.bench_tasks.gpu_part", 60, 60)
ENDS = Part("tests.bench_tasks.gpu_part_ends", 60, 60)


def run(parts, out, *, resume=False, **settings):
    """Rehearse parts, and return failures and the rows on file."""
    failures = run_parts(parts, out, device="cpu", rehearse=True, resume=resume, **settings)
    return failures, json.loads(out.with_suffix(".json").read_text())["rows"]


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    monkeypatch.setenv("GPU_PART_LOG", str(path))
    return path


def test_a_part_that_fails_leaves_its_row_and_the_rest_goes_on(tmp_path, log):
    failures, rows = run({"ends": ENDS, "good": GOOD}, tmp_path / "gpu-x")
    assert failures == 3
    status = {(row["part"], row["name"]): row["status"] for row in rows}
    assert status == {
        ("ends", "first"): "ok",
        ("ends", WHOLE): "failed",
        ("good", "good"): "ok",
        ("good", "bad"): "wrong",
        ("good", "raises"): "failed",
        ("good", "absent"): "not here",
        ("good", "sized"): "ok",
    }
    by_name = {row["name"]: row for row in rows}
    assert "the process ended with 3: the device is lost" in by_name[WHOLE]["error"]
    assert by_name["raises"]["error"] == "ZeroDivisionError: made to fail"
    assert by_name["sized"]["size"] == 3
    assert by_name["sized"]["device"] == "cpu"
    page = (tmp_path / "gpu-x.md").read_text()
    assert "| good | ok | 1.5 |" in page
    assert "no such / package" in page


@pytest.mark.slow
def test_a_part_that_hangs_is_ended(tmp_path, log, monkeypatch):
    monkeypatch.setenv("GPU_PART_HANGS", "1")
    began = time.perf_counter()
    failures, rows = run({"ends": Part(ENDS.module, 0, 3.0), "good": GOOD}, tmp_path / "gpu-x", grace=3.0)
    assert failures == 3
    assert [row["name"] for row in rows][:2] == ["first", WHOLE]
    assert rows[1]["error"] == "it was not done after 6 s"
    assert time.perf_counter() - began < 60


def test_resume_does_again_what_failed_alone_while_time_is_left(tmp_path, log):
    run({"good": GOOD}, tmp_path / "gpu-x")
    log.write_text("")
    failures, rows = run({"good": GOOD}, tmp_path / "gpu-x", resume=True)
    assert log.read_text().split() == ["bad", "raises"]
    assert failures == 2
    assert len(rows) == 5
    failures, rows = run({"other": Part(GOOD.module, 0, -1.0)}, tmp_path / "gpu-x", grace=30.0)
    assert failures == 0
    assert len(rows) == 10
    assert {row["status"] for row in rows if row["part"] == "other"} == {"no time"}


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cpu"], "add --rehearse"),
        (["--device", "cpu", "--rehearse", "--only", "nothing"], "invalid choice"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.nightly
def test_the_rehearsal_runs_every_part(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = json.loads((tmp_path / "gpu-cpu-rehearsal.json").read_text())["rows"]
    assert [row for row in rows if row["status"] in ("failed", "wrong")] == [], done.stderr[-2000:]
    assert done.returncode == 0
    assert {row["part"] for row in rows if row["status"] == "ok"} == set(PARTS)
