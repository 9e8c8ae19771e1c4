"""Gradients averaged over several batches before each step of SVI."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.data import make_source
from pyrobnn.inference.training.start import start

NUM = 48
X = torch.randn(NUM, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1).sin() + 0.1 * torch.randn(NUM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
ENGINES = ("eager", "captured")


def curved():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian("learned"))


def fit(*, data=(X, Y), seed=0, **settings):
    return curved().fit(data, seed=seed, **{"steps": 20, "device": "cpu", "progress": False} | settings)


def numbers(posterior):
    return torch.cat([p.detach().reshape(-1) for p in (*posterior.guide.parameters(), *posterior.bnn.parameters())])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ["adam", {"type": "sgd", "lr": 1e-4, "momentum": 0.9}], ids=["adam", "sgd"])
def test_batches_without_noise_count_as_one_large_batch(engine, optimizer):
    """Of the same rows, since both sizes cut the same order: 4 of 4 and 1 of 16, at rows that divide by both."""
    settings = {"guide": "map", "engine": engine, "optimizer": optimizer, "clip_norm": 50.0, "kl_warmup": 5}
    several, whole = fit(batch_size=4, accumulate=4, **settings), fit(batch_size=16, **settings)
    torch.testing.assert_close(numbers(several), numbers(whole), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*(torch.tensor(p.history.elbo) for p in (several, whole)), rtol=1e-9, atol=1e-9)
    assert several.record.engine.used == engine


@pytest.mark.slow
def test_the_engines_agree_where_a_step_has_more_batches_than_a_block():
    found = [fit(engine=engine, batch_size=8, accumulate=300, steps=2) for engine in ENGINES]
    assert found[1].record.engine.used == "captured"
    torch.testing.assert_close(numbers(found[0]), numbers(found[1]), rtol=1e-8, atol=1e-8)


def test_replicates_accumulate_in_one_graph():
    fits = [fit(guide="map", batch_size=8, accumulate=3, replicates=3, engine=engine) for engine in ENGINES]
    assert fits[1][0].record.engine.used == "captured"
    for one, other in zip(*fits, strict=True):
        torch.testing.assert_close(numbers(one), numbers(other), rtol=1e-8, atol=1e-8)


def linear_fit(accumulate, batch_size):
    """A fit in progress of a linear model with known noise, and the gradient of its loss in closed form."""
    torch.manual_seed(0)
    model = bnn.BNN(
        nn.Linear(3, 1, bias=False, dtype=torch.float64),
        prior=bnn.priors.Normal(1.0),
        likelihood=bnn.likelihoods.Gaussian(0.5),
    )
    method = bnn.SVI(guide="mean_field", steps=10, accumulate=accumulate, batch_size=batch_size, kl="analytic")
    source = make_source(bnn.Data(X, Y), model, batch_size, seed=0)
    with seeded(0), fast_pyro():
        posterior, state = start(model, method, source, 0, "cpu")
    loc, scale = posterior.guide.loc.detach(), nn.functional.softplus(posterior.guide.rho.detach())
    by_loc = -X.T @ (Y - X @ loc) / 0.25 + loc
    by_scale = X.square().sum(0) * scale / 0.25 - 1 / scale + scale
    return state, torch.cat([by_loc, by_scale * torch.sigmoid(posterior.guide.rho.detach())])


def gradients(state, count):
    found = []
    with seeded(5), fast_pyro():
        for _ in range(count):
            state.differentiate(state.next_batches())
            found.append(torch.cat([p.grad for p in state.parameters]))
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [12, NUM])
def test_the_mean_gradient_is_exact_and_each_batch_has_its_own_noise(batch_size):
    """1,000 gradients with seed 5: means within 4 standard errors, and at all data a quarter of the variance.

    The ratio of two variances from 1,000 numbers each is known to 6.3 %.
    """
    state, exact = linear_fit(4, batch_size)
    found = gradients(state, 1000)
    assert ((found.mean(0) - exact).abs() < 4 * found.std(0) / math.sqrt(1000)).all()
    if batch_size == NUM:
        alone = gradients(linear_fit(1, batch_size)[0], 1000)
        assert (found.var(0) / alone.var(0)).tolist() == pytest.approx([0.25] * 6, rel=0.25)


@pytest.mark.parametrize("data", ["memory", "loader"])
def test_an_epoch_is_a_pass_over_the_data(data):
    """Of 48 rows in batches of 8: 4 passes are 24 batches, or 5 steps of 5 batches, the last into a fifth pass."""
    given = {"memory": (X, Y), "loader": DataLoader(TensorDataset(X, Y), 8)}[data]
    size = {"batch_size": 8} if data == "memory" else {}
    counts = {k: len(fit(data=given, steps=None, epochs=4, accumulate=k, **size).history) for k in (1, 4, 5, 100)}
    assert counts == {1: 24, 4: 6, 5: 5, 100: 1}


def test_a_loader_accumulates_eagerly_and_the_record_says_so():
    loader = DataLoader(TensorDataset(X, Y), 8)
    with pytest.warns(UserWarning, match="eagerly, since gradients are accumulated over batches that are not in"):
        found = fit(data=loader, guide="map", accumulate=3, engine="captured")
    assert found.record.engine.reason.startswith("not capturable: gradients are accumulated over batches that are not")
    whole = fit(data=DataLoader(TensorDataset(X, Y), 24), guide="map", engine="eager")
    torch.testing.assert_close(numbers(found), numbers(whole), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("row", [0, 11, 22, 33])
def test_a_fit_that_fails_names_the_site_of_the_batch_at_fault(row):
    """The rows are in three of the four batches of the first step."""
    y = Y.clone()
    y[row] = 1e200
    with pytest.raises(FloatingPointError, match="site 'y' is -inf for 1 of 12 examples"):
        fit(data=(X, y), batch_size=12, accumulate=4, guide="map", engine="eager")
