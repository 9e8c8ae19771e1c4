"""Contracts of every method: the same bits from a seed, nothing global touched, the same after a file and an interrupt.

A row is a way to fit, and each test a promise that all rows keep.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyro
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn

X = torch.linspace(-1, 1, 24)[:, None]
Y = (3 * X).sin()[:, 0]
EVERY = 10


class Row(NamedTuple):
    """A method, the parts of the model that it is for, and data other than rows in memory that count once each."""

    method: Callable[[], Any]
    parts: dict[str, Any] = {}  # noqa: RUF012 - never changed
    data: Callable[[], Any] = lambda: (X, Y)


def svi(**settings):
    return lambda: bnn.SVI(**({"steps": 30, "batch_size": 8} | settings))


STEPPED = {
    "mean field": Row(svi(guide="mean_field", lr=0.02, schedule="cosine_annealing_lr", kl_warmup=10)),
    "local noise": Row(svi(guide=bnn.guides.MeanField(noise="local"))),
    "low rank": Row(svi(guide=bnn.guides.LowRank(2), optimizer="adamw")),
    "dropout": Row(svi(guide=bnn.guides.Dropout(0.2, learned=True)), {"prior": "normal"}),
    "learned mixture": Row(svi(), {"prior": bnn.priors.ScaleMixture(learnable=True)}),
    "student, quadrature": Row(svi(kl="quadrature"), {"prior": "student_t"}),
    "weighted rows": Row(svi(guide="map"), data=lambda: bnn.Data(X, Y, weights=torch.arange(24) % 4 + 1)),
    "loader": Row(svi(batch_size=None), data=lambda: DataLoader(TensorDataset(X, Y), 7, shuffle=True)),
    "ivon": Row(lambda: bnn.IVON(steps=30, batch_size=8)),
}
OTHERS = {
    "laplace": Row(svi(guide=bnn.guides.Laplace(structure="full"))),
    "ensemble": Row(lambda: bnn.Ensemble(bnn.SVI(guide="map", steps=30, batch_size=8), members=2, anchored=True)),
    "swag": Row(lambda: bnn.SWAG(bnn.SVI(guide="map", steps=10, batch_size=8), steps=12, every=3, rank=2)),
    "evidence": Row(lambda: bnn.EvidenceFramework(starts=2, rounds=1, iterations=10)),
    "nuts": Row(lambda: bnn.NUTS(num_draws=5, warmup=5, num_chains=2, max_tree_depth=3)),
    "mclmc": Row(lambda: bnn.MCLMC(num_draws=5, warmup=20, num_chains=2)),
    "sgld": Row(lambda: bnn.SGLD(1e-4, num_draws=5, burn_in=5, num_chains=2)),
}
ALL = STEPPED | OTHERS
rows = pytest.mark.parametrize
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in ("nuts", "mclmc", "sgld") else name for name in ALL]
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")


def fit(name, *, seed=0, **settings):
    row = ALL[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = bnn.BNN(bnn.MLP(1, [4], 1), likelihood="gaussian", **row.parts)
    return bnn.fit(model, row.data(), row.method(), **({"seed": seed, "engine": "eager", "progress": False} | settings))


def numbers(posterior):
    """All numbers of a posterior that are learned or drawn."""
    parts = [part.state_dict() for member in posterior.members for part in (member.guide, member.bnn)]
    return torch.cat([value.double().flatten() for state in parts for value in state.values()])


def mean(posterior):
    return posterior.predict(X, num_draws=4, seed=1).mean


def states():
    """The state of Python's own generator is left out: type checks draw from it."""
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), len(pyro.get_param_store())


@rows("name", NAMES)
def test_a_seed_gives_the_same_bits_and_leaves_global_states(name):
    before = states()
    first, again, other = (fit(name, seed=seed) for seed in (-1, -1, 2**40))
    assert torch.equal(numbers(first), numbers(again))
    assert torch.equal(mean(first), mean(again))
    assert not torch.equal(mean(first), mean(other))
    if name == "mean field":
        bnn.elbo_report(first, bnn.Data(X, Y), num_draws=10)
    assert states() == before


@pytest.mark.slow
@rows("name", ["automatic", *(name for name, row in ALL.items() if row.method().offer().wants_measured_scales)])
def test_fits_that_measure_scales_and_their_judgements_leave_global_states(name):
    data, model = bnn.Data(X, Y), bnn.BNN(bnn.MLP(1, [4], 1))
    before = states()
    method = None if name == "automatic" else ALL[name].method()
    posterior = bnn.fit(model, data, method, seed=0, engine="eager", progress=False)
    bnn.diagnose(posterior, data)
    posterior.predict(X).sample(seed=1)
    model.fit(X, Y, max_steps=100, replicates=2, seed=0, progress=False)
    assert states() == before


def test_a_method_that_draws_without_a_seed_leaves_global_states():
    class Careless(bnn.inference.BaseMethod):
        def infer(self, model, data, run):
            torch.randn(1), np.random.normal()
            return bnn.SVI(steps=1).infer(model, data, run)

    model, before = bnn.BNN(bnn.MLP(1, [4], 1)), states()
    bnn.fit(model, bnn.Data(X, Y), Careless(), seed=0, progress=False)
    assert states() == before


@rows("name", NAMES)
def test_a_file_gives_the_same_predictions(name, tmp_path):
    posterior = fit(name)
    loaded = bnn.load(bnn.save(posterior, tmp_path / "posterior"))
    assert torch.equal(mean(loaded), mean(posterior))
    assert loaded.record == posterior.record


class Stop(Exception):
    """Ends a fit."""


def stop(progress):
    if progress.step > EVERY:
        raise Stop


@rows("engine", ["eager", pytest.param("captured", marks=pytest.mark.slow)])
@rows("name", [name for name, row in ALL.items() if row.method().offer().resumable])
def test_an_interrupted_fit_goes_on_to_the_same_bits(name, engine, tmp_path):
    settings = {"engine": engine, "checkpoint": tmp_path, "every": EVERY}
    with pytest.raises(Stop):
        fit(name, callbacks=[stop], **settings)
    resumed, whole = fit(name, **settings), fit(name, engine=engine)
    assert torch.equal(numbers(resumed), numbers(whole))
    for one, other in zip(resumed.members, whole.members, strict=True):
        assert one.history is None or (one.history.elbo == other.history.elbo).all()


@rows("name", STEPPED)
def test_a_captured_fit_is_the_eager_fit(name):
    eager, captured = (fit(name, engine=engine) for engine in ("eager", "captured"))
    assert captured.record.engine.used == "captured"
    torch.testing.assert_close(numbers(captured), numbers(eager), rtol=1e-3, atol=1e-4)
