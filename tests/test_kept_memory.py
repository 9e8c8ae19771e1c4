"""Memory that stays with the process while a fit runs."""

import platform
import resource
import threading

import pytest
import torch

import pyrobnn as bnn
from pyrobnn._torch.kept_memory import kept_memory

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems have no such thresholds")


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


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


def test_the_last_of_several_blocks_gives_memory_back():
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
    before = faults()
    turn()
    assert faults() - before < 1000
    leave.set()
    other.join()
    before = faults()
    turn()
    assert faults() - before > 2048


@pytest.mark.slow
def test_a_captured_step_of_a_wide_network_has_few_page_faults():
    """It had 8,000."""
    seen = []
    x, y = torch.randn(1280, 784), torch.randint(0, 10, (1280,))
    model = bnn.BNN(bnn.MLP(784, [1200, 1200], 10), prior=bnn.priors.Normal(1.0), likelihood="categorical")
    method = bnn.SVI(steps=200, batch_size=128)
    options = {"engine": "captured", "progress": False, "callbacks": [lambda p: seen.append((p.step, faults()))]}
    bnn.fit(model, method, bnn.Data(x, y), seed=0, **options)
    (first, before), (last, after) = seen[1], seen[-1]
    assert (after - before) / (last - first) < 200
