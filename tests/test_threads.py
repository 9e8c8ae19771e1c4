"""Threads take turns where Pyro and random states are global: each gets the bits that it gets alone."""

import itertools
import math
import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pyro
import pytest
import torch
from helpers import quick
from pyro.poutine.runtime import _PYRO_STACK

import pyrobnn as bnn
from pyrobnn._core.lock import ONE_THREAD

X = torch.linspace(-1, 1, 20)[:, None]
MODEL = bnn.BNN(bnn.MLP(1, [4], 1), prior=bnn.priors.Normal(1.0))
NOISE = bnn.likelihoods.Gaussian(0.2)


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
    posterior, seeds = fit(0), list(range(3)) * 3
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
    model = bnn.BNN(Waits(torch.nn.Linear(1, 1)), prior=bnn.priors.Normal(1.0))
    posterior = quick(model, bnn.SVI(steps=2), (X, X[:, 0]))
    monkeypatch.setattr(Waits, "runs_slowly", True)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(posterior.predict, X, num_draws=3, seed=0)
        assert Waits.runs.wait(30)
        other = pool.submit(posterior.inputs, X)
        time.sleep(0.5)
        Waits.goes_on.set()
        slow.result(30)
        assert torch.equal(other.result(30), X)


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


def test_a_callback_waits_for_predictions_and_fits_of_another_thread():
    """Fits in a callback have callbacks that wait themselves; settings and random states are those of each thread."""
    posterior, seen = fit(0), []
    wanted, alone, fitted = predictions(posterior, 1), fit(3).history.elbo, fit(7).history.elbo

    def in_another_thread(work):
        pool = ThreadPoolExecutor(1)
        found = pool.submit(work)
        pool.shutdown(wait=False)  # where it waits for the fit, the fit is to end with the error of the next line
        return found.result(60)

    def inner(progress):
        assert torch.equal(in_another_thread(lambda: predictions(posterior, 1)), wanted)

    def outer(progress):
        state = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), pyro.settings.get()
        found = in_another_thread(lambda: fit(7, callbacks=[inner])).history.elbo
        np.testing.assert_array_equal(found, fitted)
        torch.rand(3), np.random.rand(2)  # noise of the callback's own
        seen.append(state)

    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), pyro.settings.get()
    np.testing.assert_array_equal(fit(3, callbacks=[outer]).history.elbo, alone)
    assert len(seen) == 1
    assert torch.equal(seen[0][0], before[0])
    assert seen[0][1:] == before[1:]
    assert pyro.settings.get() == before[2]


class Asks(torch.nn.Sequential):
    """A layer that asks another thread to predict when it runs, and notes when the answer came before it ran again."""

    posterior, pool, answer, answered = None, None, None, False

    def forward(self, x):
        cls = type(self)
        if cls.pool is not None and cls.answer is None:
            cls.answer = cls.pool.submit(cls.posterior.predict, X, num_draws=5, seed=1)
            while not ONE_THREAD._turnstile.locked():
                time.sleep(0.001)
        elif cls.answer is not None and not cls.answered:
            cls.answered = bool(wait([cls.answer], 0.01).done)
        return super().forward(x)


SAMPLES = {"num_chains": 1, "num_draws": 10}
METHODS = {
    "svi": bnn.SVI(steps=60),
    "nuts": bnn.NUTS(warmup=10, max_tree_depth=3, **SAMPLES),
    "mclmc": bnn.MCLMC(warmup=40, thinning=2, **SAMPLES),
    "sgld": bnn.SGLD(step_size=1e-4, burn_in=10, thinning=1, **SAMPLES),
    "laplace": bnn.SVI(guide=bnn.guides.Laplace(structure="diag", batch_size=4), steps=2),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", METHODS)
def test_another_thread_predicts_while_a_method_runs(name, monkeypatch):
    """It gets the bits that it gets alone, before the method ends, and the method the bits that it has alone."""
    posterior, method = fit(0), METHODS[name]
    wanted = posterior.predict(X, num_draws=5, seed=1).mean
    net = Asks(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    model = bnn.BNN(net, likelihood=NOISE, prior=bnn.priors.Normal(1.0))

    def run():
        return quick(model, method, (X, X[:, 0]), seed=2).draw(20)

    alone = run()
    with ThreadPoolExecutor(1) as pool:
        for attribute, value in {"posterior": posterior, "pool": pool, "answer": None, "answered": False}.items():
            monkeypatch.setattr(Asks, attribute, value)
        drawn = run()
        assert Asks.answered
        assert torch.equal(Asks.answer.result().mean, wanted)
    for site, values in alone.items():
        assert torch.equal(drawn[site], values)


def process_state():
    """What a fit changes in the process; beartype draws from Python's random numbers, which are put back as torch's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flushed = float(torch.tensor(1e-40) * 1.0) == 0.0
    return {
        "torch": torch.random.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "threads": torch.get_num_threads(),
        "denormals": flushed,
        "settings": pyro.settings.get(),
        "validation": [part.is_validation_enabled() for part in (pyro.distributions, pyro.infer, pyro.poutine)],
        "handlers": [*_PYRO_STACK],
        "warnings": [*warnings.filters],
        "lock": (ONE_THREAD._owner, ONE_THREAD._depth, ONE_THREAD._changes, ONE_THREAD._lock.locked()),
    }


@pytest.mark.one_in(2, 3)
@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("name", [*METHODS, "captured", "evidence"])
def test_an_interrupt_leaves_the_process_as_it_was(name, share, monkeypatch):
    """It comes when the network runs: in a step, while one is recorded, in a chain, in a sweep over the data."""
    method = (METHODS | {"captured": bnn.SVI(steps=60), "evidence": bnn.EvidenceFramework(starts=1, rounds=1)})[name]
    net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    model = bnn.BNN(net, likelihood=NOISE, prior=bnn.priors.Normal(1.0))

    def run(at=None):
        num_runs = itertools.count(1)
        monkeypatch.setattr(torch.nn.Tanh, "forward", lambda _, x: interrupted(x) if next(num_runs) == at else x.tanh())
        engine = "captured" if name == "captured" else "eager"
        bnn.fit(model, (X, X[:, 0]), method, seed=2, engine=engine, progress=False)
        return next(num_runs) - 1

    def interrupted(x):
        raise KeyboardInterrupt

    at = math.ceil(share * run())
    before = process_state()
    with pytest.raises(KeyboardInterrupt):
        run(at)
    assert process_state() == before
