"""What is done with the weights of a posterior: tables, pruning, functions, and learning on."""

import numpy as np
import pytest
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn._errors import InputError


def problem():
    x = torch.linspace(-1, 1, 20)[:, None]
    return x, torch.sin(3 * x[:, 0])


@pytest.fixture(scope="module")
def posterior():
    return bnn.BNN(bnn.MLP(1, [8], 1)).fit(*problem(), seed=0, steps=60, lr=0.05, progress=False)


def test_the_table_has_a_row_for_every_weight(posterior):
    table = bnn.weight_table(posterior)
    moments = posterior.guide.moments()
    assert len(table) == posterior.bnn.num_weights == 25
    row = table[(table.site == "2.weight") & (table["index"] == (0, 3))].iloc[0]
    loc, scale = (float(value[0, 3]) for value in moments["2.weight"])
    assert (row["mean"], row["std"]) == (pytest.approx(loc), pytest.approx(scale))
    assert row.snr == pytest.approx(abs(loc) / scale)


def test_moments_without_a_formula_come_from_draws(posterior):
    model = bnn.BNN(bnn.MLP(1, [8], 1))
    flow = model.fit(*problem(), seed=0, steps=5, guide="AutoIAFNormal", progress=False)
    table = bnn.weight_table(flow)
    draws = flow.draw(1000)["2.weight"]
    found = table[table.site == "2.weight"]
    np.testing.assert_allclose(found["mean"], draws.mean(0)[0], atol=1e-5)
    np.testing.assert_allclose(found["std"], draws.std(0, unbiased=False)[0], rtol=1e-3)


@pytest.mark.parametrize("fraction", [0.0, 0.4, 0.96])
def test_pruning_removes_the_weights_of_least_signal(posterior, fraction):
    pruned = bnn.prune(posterior, fraction)
    draws, kept = pruned.draw(20), posterior.draw(20)
    zero = torch.cat([(value == 0).all(0).flatten() for value in draws.values()]).numpy()
    snr = bnn.weight_table(posterior).snr.to_numpy()
    assert zero.sum() == round(fraction * 25)
    if fraction > 0:
        assert snr[zero].max() <= snr[~zero].min()
    for name, value in draws.items():
        alive = (value != 0).all(0)
        torch.testing.assert_close(value[:, alive], kept[name][:, alive])
    assert bnn.weight_table(pruned)["std"].eq(0).sum() == zero.sum()
    x, _ = problem()
    torch.testing.assert_close(pruned.predict(x, num_draws=20).mean, posterior.predict(x, draws=draws).mean)
    assert not hasattr(posterior.guide, "mask_0")


def test_a_pruned_posterior_saves_and_loads(posterior, tmp_path):
    pruned = bnn.prune(posterior, 0.5)
    loaded = bnn.load(bnn.save(pruned, tmp_path / "pruned"))
    for name, value in pruned.draw(5).items():
        assert torch.equal(loaded.draw(5)[name], value)


def test_a_pruned_guide_made_of_several_saves_and_loads(tmp_path):
    guide = {"*.bias": "map", "*": "mean_field"}
    model = bnn.BNN(bnn.MLP(1, [4], 1), prior="hierarchical")
    fitted = model.fit(*problem(), seed=0, steps=5, guide=guide, progress=False)
    pruned = bnn.prune(fitted, 0.3)
    loaded = bnn.load(bnn.save(pruned, tmp_path / "pruned"))
    for name, value in pruned.draw(5).items():
        assert torch.equal(loaded.draw(5)[name], value)


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_pruning_refuses_fractions_outside_the_range(posterior, fraction):
    with pytest.raises(InputError, match="at least 0 and below 1"):
        bnn.prune(posterior, fraction)


def test_a_drawn_function_is_the_same_at_every_call(posterior):
    x, _ = problem()
    function, other = (bnn.sample_function(posterior, seed=seed) for seed in (0, 1))
    assert torch.equal(function(x)[:3], function(x[:3]))
    assert not torch.allclose(function(x), other(x))
    means = torch.stack([bnn.sample_function(posterior, seed=seed)(x) for seed in range(40)])
    spread = posterior.predict(x, num_draws=2000).epistemic_std
    ratio = means.std(0) / spread
    assert bool(((ratio > 0.6) & (ratio < 1.5)).all())  # five standard errors of 40 draws


def test_learning_in_two_parts_is_learning_at_once():
    """Orthogonal inputs make the posterior a product of normals, which mean-field holds exactly."""
    x = torch.eye(2).repeat(10, 1).double()
    y = (
        x @ torch.tensor([1.0, -0.5]).double()
        + 0.3 * torch.randn(20, generator=torch.Generator().manual_seed(0)).double()
    )
    model = bnn.BNN(
        nn.Linear(2, 1, bias=False).double(), prior=bnn.priors.Normal(0.7), likelihood=bnn.likelihoods.Gaussian(0.5)
    )
    settings = {
        "seed": 0,
        "steps": 600,
        "lr": 0.05,
        "kl": "analytic",
        "num_particles": 4,
        "schedule": {"type": "exponential_lr", "gamma": 0.992},
        "progress": False,
    }
    first = model.fit(x[:10], y[:10], **settings)
    second = bnn.update_prior(first).fit(x[10:], y[10:], **settings)
    loc, scale = second.guide.moments()["weight"]
    precision = 1 / 0.7**2 + 10 / 0.25
    torch.testing.assert_close(loc[0], (x.T @ y) / 0.25 / precision, rtol=0, atol=0.02)
    torch.testing.assert_close(scale[0], torch.full((2,), precision**-0.5).double(), rtol=0.1, atol=0)


def test_a_posterior_under_an_updated_prior_saves_and_loads(posterior, tmp_path):
    x, y = problem()
    second = bnn.update_prior(posterior).fit(x, y, seed=1, steps=5, progress=False)
    loaded = bnn.load(bnn.save(second, tmp_path / "second"))
    torch.testing.assert_close(loaded.predict(x, num_draws=5).mean, second.predict(x, num_draws=5).mean)
    own, other = (p.bnn.prior("0.weight", torch.zeros(8, 1)).base_dist.loc for p in (second, loaded))
    torch.testing.assert_close(own, other)


def test_an_updated_prior_refuses_another_network(posterior):
    prior = bnn.update_prior(posterior).settings["prior"]
    with pytest.raises(InputError, match=r"'0.weight' has shape \(5, 1\), the posterior has \(8, 1\)"):
        bnn.BNN(bnn.MLP(1, [5], 1), prior=prior)
