"""The memory of a process that fits again and again."""

import subprocess
import sys

import pytest

FITS = """
import ctypes
import gc
import warnings
from pathlib import Path

import torch

import pyrobnn as bnn

warnings.simplefilter("ignore")
generator = torch.Generator().manual_seed(0)
METHODS = [
    bnn.SVI(steps=300),
    bnn.SVI(guide="laplace", steps=300),
    bnn.EvidenceFramework(starts=1),
    bnn.Ensemble(bnn.SVI(guide="map", steps=100), 3),
    bnn.NUTS(num_draws=20, warmup=20, num_chains=2),
    None,
]


def whole(least, most):
    return int(torch.randint(least, most, (), generator=generator))


for turn in range(40):
    num_data, columns, units = whole(40, 1500), whole(1, 9), whole(5, 100)
    x = torch.randn(num_data, columns, generator=generator)
    y = x[:, 0].sin() + 0.3 * torch.randn(num_data, generator=generator)
    method = METHODS[turn % len(METHODS)]
    few = slice(None) if turn % len(METHODS) in (0, 1, 3) else slice(100)
    fitted = bnn.fit(bnn.BNN(bnn.MLP(columns, [units], 1)), (x[few], y[few]), method, progress=False)
    fitted.predict(x)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for reuse is no leak
    status = Path("/proc/self/status").read_text()
    print(int(status.partition("VmRSS:")[2].split()[0]) / 1024, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_forty_fits_of_changing_shapes_take_no_more_memory_than_five():
    run = subprocess.run([sys.executable, "-c", FITS], capture_output=True, text=True, check=True)
    sizes = [float(line) for line in run.stdout.split()]
    assert len(sizes) == 40
    assert max(sizes[-10:]) < max(sizes[:5]) + 60  # MiB
