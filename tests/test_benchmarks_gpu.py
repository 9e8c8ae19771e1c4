"""Measures of a GPU: the noise that they share, and a rehearsal of all of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import SECONDS
from benchmarks.noise import SameNoise

ROOT = Path(__file__).parents[1]


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
