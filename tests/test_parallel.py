"""`prepare` under DistributedDataParallel, in two processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_documentation import OWN_LOOP, blocks

import pyrobnn as bnn

CHECKS = """
def parameters(of):
    return torch.cat([parameter.detach().reshape(-1) for parameter in of.parameters()])


def of_all(values):
    gathered = [torch.empty_like(values) for _ in range(2)]
    dist.all_gather(gathered, values.contiguous())
    return gathered


def moved(together, x, y):
    point = bnn.prepare(model, bnn.SVI(guide="map"), num_data=256, like=(data.x, data.y), seed=0)
    stepped = DistributedDataParallel(point) if together else point
    descent = torch.optim.SGD(point.parameters(), lr=0.01)
    for _ in range(10):
        descent.zero_grad()
        stepped((x, y)).backward()
        descent.step()
    return parameters(point)


first, second = of_all(parameters(fit))
assert torch.equal(first, second)

rank = dist.get_rank()
shares, whole = moved(True, data.x[rank::2], data.y[rank::2]), moved(False, data.x, data.y)
torch.testing.assert_close(shares, whole, rtol=1e-4, atol=1e-5)
assert not torch.allclose(moved(False, data.x[rank::2], data.y[rank::2]), whole, rtol=1e-4, atol=1e-5)

fit.zero_grad()
torch.manual_seed(rank)
wrapped((data.x, data.y)).backward()
averaged = torch.cat([parameter.grad.reshape(-1) for parameter in fit.parameters()])
each = []
for seed in range(2):
    fit.zero_grad()
    torch.manual_seed(seed)
    fit.loss((data.x, data.y)).backward()
    each.append(torch.cat([parameter.grad.reshape(-1) for parameter in fit.parameters()]))
torch.testing.assert_close(averaged, (each[0] + each[1]) / 2, rtol=1e-4, atol=1e-6)
"""
"""Parameters are equal; steps of a point are those with all rows; the gradient is the mean of two draws."""


@pytest.mark.slow
def test_two_processes_take_the_steps_of_all_their_rows(tmp_path):
    (recipe,) = [block.code for block in blocks(OWN_LOOP, "py") if "DistributedDataParallel" in block.code]
    end = "dist.destroy_process_group()\n"
    assert recipe.endswith(end)
    (tmp_path / "train.py").write_text(recipe.removesuffix(end) + CHECKS + end)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(bnn.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    posterior, data = bnn.load(tmp_path / "posterior"), bnn.datasets.sinusoid(256)
    assert posterior.predict(data.x, seed=0).log_prob(data.y).mean() > -2.0  # of N(0, sd of y): -3.4
