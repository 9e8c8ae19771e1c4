"""Memory that stays with the process while a fit runs, and after it."""

import ctypes
import gc
import linecache
import platform
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import pyrobnn as bnn
from pyrobnn._torch.devices import kept_memory
from pyrobnn._torch.private import sources_forgotten
from pyrobnn.inference.capture.graph import make_loop, record, recorded_slope

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems have no such thresholds")


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident():
    """Return MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def resident_at_rest():
    """Return the MiB left once free memory has gone back to the system, so that gaps in the heap do not count."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


def turn():
    return [torch.zeros(2**21) for _ in range(3)]  # 8 MiB each, 2,048 pages


def settle():
    for _ in range(10):
        turn()


def test_freed_memory_is_used_again():
    """In the block the heap grows for some turns, and then no page has to be mapped."""
    with kept_memory():
        settle()
        before = faults()
        for _ in range(5):
            turn()
        assert faults() - before < 1000


def last_block_gives_back():
    entered, leave = threading.Event(), threading.Event()

    def wait():
        with kept_memory():
            entered.set()
            leave.wait(10)

    other = threading.Thread(target=wait)
    with kept_memory():
        other.start()
        entered.wait(10)
        settle()
    kept = resident()
    turn()
    assert abs(resident() - kept) < 4
    leave.set()
    other.join()
    assert resident() < kept - 16  # of the 24 MiB of a turn; page faults would not count where pages are huge


@pytest.mark.slow
def test_the_last_of_several_blocks_gives_memory_back():
    """In a process of its own: in a large heap, glibc may have to keep the top, where others' memory lies above it."""
    code = "from tests.test_kept_memory import last_block_gives_back as test; test()"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=Path(__file__).parents[1])


@pytest.mark.slow
def test_a_captured_step_of_a_wide_network_has_few_page_faults():
    """It had 8,000."""
    seen = []
    x, y = torch.randn(1280, 784), torch.randint(0, 10, (1280,))
    model = bnn.BNN(bnn.MLP(784, [1200, 1200], 10), prior=bnn.priors.Normal(1.0), likelihood="categorical")
    method = bnn.SVI(steps=200, batch_size=128)
    options = {"engine": "captured", "progress": False, "callbacks": [lambda p: seen.append((p.step, faults()))]}
    bnn.fit(model, bnn.Data(x, y), method, seed=0, **options)
    (first, before), (last, after) = seen[1], seen[-1]
    assert (after - before) / (last - first) < 200


def wave(x):
    for _ in range(40):
        x = torch.tanh(x) + x
    return x


def runs_a_graph():
    x = torch.ones(3)
    with sources_forgotten():
        graph = record(lambda x: (x.copy_(wave(x)), ())[1], [x])
        run = make_loop(graph, [x])
    for _ in range(2):
        run(1)


def runs_a_slope():
    slope = recorded_slope(lambda values: wave(values["w"]), {"w": torch.ones(3)})
    for _ in range(2):
        slope()


@pytest.mark.slow
@pytest.mark.parametrize("work", [runs_a_graph, runs_a_slope])
def test_what_was_recorded_is_freed(work):
    """Torch keeps traces, a MiB or more of each of these, and the source of graphs, until the process ends."""
    for _ in range(3):
        work()
    before, sources = resident_at_rest(), len(linecache.cache)
    for _ in range(5):
        work()
    assert resident_at_rest() - before < 1.0
    assert len(linecache.cache) == sources


GROWTH = """
import sys
import numpy as np
import pyrobnn as bnn
from tests.test_kept_memory import resident_at_rest

known = {"prior": bnn.priors.Normal(1.0), "likelihood": bnn.likelihoods.Gaussian(0.1)}
chains = bnn.NUTS(num_draws=10, warmup=10, num_chains=1, max_tree_depth=3)
methods = {
    "steps": (bnn.SVI(steps=1000), known),
    "mode": (bnn.SVI(guide="map", max_steps=2000), known),
    "replicates": (bnn.Ensemble(bnn.SVI(steps=1000), members=2), known),
    "evidence": (bnn.EvidenceFramework(starts=2, rounds=4), {}),
    "chains": (chains, {}),
}

def fit(kind, number, width):
    x = np.random.default_rng(number).uniform(-2, 2, (30 + width, 2))
    y = np.sin(x[:, 0])
    if kind == "estimator":
        bnn.BNNRegressor(random_state=number).fit(x, y)
    else:
        method, parts = methods[kind]
        bnn.fit(bnn.BNN(bnn.MLP(2, [5 + width], 1), **parts), (x, y), method, seed=number, progress=False)

kind, shapes = sys.argv[1:]
sizes = []
for number in range(30):
    fit(kind, number, number if shapes == "shapes" else 0)
    sizes.append(resident_at_rest())
print((sizes[-1] - sizes[5]) / 24)
"""
ONE_SHAPE = [(kind, "one shape") for kind in ("steps", "mode", "replicates", "evidence", "chains", "estimator")]


@pytest.mark.one_in(0, 7)
@pytest.mark.parametrize(("kind", "shapes"), [("steps", "shapes"), *ONE_SHAPE])
def test_fits_leave_nothing_in_memory(kind, shapes):
    """From 1 to 6 MiB a fit stayed. The first fits load modules, and fill caches that have bounds."""
    command = [sys.executable, "-W", "ignore", "-c", GROWTH, kind, shapes]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    assert float(found.stdout) < 0.1
