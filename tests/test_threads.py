"""Threads take turns where Pyro and random states are global: each gets the bits that it gets alone."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import pyrobnn as bnn
from pyrobnn._exclusive import ONE_THREAD

X = torch.linspace(-1, 1, 20)[:, None]
MODEL = bnn.BNN(bnn.MLP(1, [4], 1))


def fit(seed, **settings):
    return MODEL.fit(X, X[:, 0], steps=20, seed=seed, engine="eager", progress=False, **settings)


def predictions(posterior, seed):
    draws = posterior.draw(5, seed=seed)
    drawn = posterior.predict(X, num_draws=5, seed=seed).mean
    given, linear = posterior.predict(X, draws=draws).std, posterior.predict(X, num_draws=3, seed=seed, linearized=True)
    return torch.stack([drawn, given, linear.mean, posterior.predict(X, at_mean=True).mean])


@pytest.fixture(autouse=True)
def _busy_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def side_by_side(work, seeds):
    state = torch.random.get_rng_state()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, seeds))
    assert torch.equal(state, torch.random.get_rng_state())
    return found


def test_eight_threads_predict_from_one_posterior():
    posterior, seeds = fit(0), list(range(3)) * 6
    alone = {seed: predictions(posterior, seed) for seed in set(seeds)}
    for seed, found in zip(seeds, side_by_side(lambda seed: predictions(posterior, seed), seeds), strict=True):
        assert torch.equal(found, alone[seed])


class Waits(torch.nn.Sequential):
    """A layer that tells when it runs, and then waits to be let on."""

    runs, goes_on = threading.Event(), threading.Event()

    def forward(self, x):
        if self.runs_slowly and len(x) > 1:
            self.runs.set()
            self.goes_on.wait(30)
        return super().forward(x)

    runs_slowly = False


def test_weights_swapped_by_another_thread_are_not_seen(monkeypatch):
    posterior = bnn.BNN(Waits(torch.nn.Linear(1, 1))).fit(
        X, X[:, 0], steps=2, seed=0, engine="eager", progress=False, standardize=False
    )
    monkeypatch.setattr(Waits, "runs_slowly", True)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(posterior.predict, X, num_draws=3, seed=0)
        assert Waits.runs.wait(30)
        quick = pool.submit(posterior.inputs, X)
        time.sleep(0.5)
        Waits.goes_on.set()
        slow.result(30)
        assert torch.equal(quick.result(30), X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are of POSIX")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_forked_while_another_thread_works_is_free():
    posterior, holds, ends = fit(0), threading.Event(), threading.Event()

    def hold():
        with ONE_THREAD:
            holds.set()
            ends.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        posterior.predict(X, num_draws=2)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    ends.set()
    thread.join()
    assert status == 0


def test_threads_fit_while_others_predict():
    posterior = fit(0)
    wanted = [predictions(posterior, 1), fit(7).history.elbo]

    def work(index):
        return predictions(posterior, 1) if index % 2 else fit(7).history.elbo

    for index, found in enumerate(side_by_side(work, range(8))):
        assert torch.equal(torch.as_tensor(found), torch.as_tensor(wanted[1 - index % 2]))
