"""What is done with the weights of a posterior: tables, pruning, functions, and learning on."""

import numpy as np
import pytest
import torch
from exact import linear_posterior, with_ones
from helpers import quick
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.errors import InputError


def problem():
    x = torch.linspace(-1, 1, 20)[:, None]
    return x, torch.sin(3 * x[:, 0])


@pytest.fixture(scope="module")
def posterior():
    return quick(bnn.BNN(bnn.MLP(1, [8], 1), prior=bnn.priors.Normal(1.0)), bnn.SVI(steps=40, lr=0.05), problem())


def test_the_table_has_a_row_for_every_weight(posterior):
    table = bnn.weight_table(posterior)
    moments = posterior.guide.moments()
    assert len(table) == posterior.bnn.num_weights == 25
    row = table[(table.site == "2.weight") & (table["index"] == (0, 3))].iloc[0]
    loc, scale = (float(value[0, 3]) for value in moments["2.weight"])
    assert (row["mean"], row["std"]) == (pytest.approx(loc), pytest.approx(scale))
    assert row.snr == pytest.approx(abs(loc) / scale)


@pytest.mark.slow
def test_moments_without_a_formula_come_from_draws(posterior):
    model = bnn.BNN(bnn.MLP(1, [8], 1), prior=bnn.priors.Normal(1.0))
    flow = quick(model, bnn.SVI(steps=2, guide="AutoIAFNormal"), problem())
    table = bnn.weight_table(flow)
    draws = flow.draw(1000)["2.weight"]
    found = table[table.site == "2.weight"]
    np.testing.assert_allclose(found["mean"], draws.mean(0)[0], atol=1e-5)
    np.testing.assert_allclose(found["std"], draws.std(0, unbiased=False)[0], rtol=1e-3)


def test_pruning_removes_the_weights_of_least_signal(posterior):
    pruned = bnn.prune(posterior, 0.4)
    draws, kept = pruned.draw(20), posterior.draw(20)
    zero = torch.cat([(value == 0).all(0).flatten() for value in draws.values()]).numpy()
    snr = bnn.weight_table(posterior).snr.to_numpy()
    assert zero.sum() == 10
    assert snr[zero].max() <= snr[~zero].min()
    for name, value in draws.items():
        alive = (value != 0).all(0)
        torch.testing.assert_close(value[:, alive], kept[name][:, alive])
    assert bnn.weight_table(pruned)["std"].eq(0).sum() == zero.sum()
    x, _ = problem()
    torch.testing.assert_close(pruned.predict(x, num_draws=20).mean, posterior.predict(x, draws=draws).mean)
    assert not hasattr(posterior.guide, "mask_0")


@pytest.mark.slow
def test_pruned_chains_are_chains_with_weights_at_zero(tmp_path):
    x, y = problem()
    model = bnn.BNN(bnn.MLP(1, [4], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.1))
    chains = quick(model, bnn.NUTS(num_draws=10, warmup=5, num_chains=2, max_tree_depth=2), (x, y))
    pruned = bnn.prune(chains, 0.5)
    draws, kept = pruned.draw(20), chains.draw(20)
    alive = {name: (value != 0).all(0) for name, value in draws.items()}
    assert sum(int(mask.sum()) for mask in alive.values()) == 13 - round(0.5 * 13)
    for name, value in draws.items():
        torch.testing.assert_close(value, kept[name] * alive[name], rtol=0, atol=0)
    prediction = pruned.predict(x)
    torch.testing.assert_close(prediction.mean, chains.predict(x, draws=draws).mean)
    bnn.save(pruned, tmp_path / "pruned")
    assert torch.equal(bnn.load(tmp_path / "pruned").predict(x).mean, prediction.mean)
    assert bnn.function_rhat(pruned, x).rhat.shape == (20,)
    with pytest.raises(InputError, match="have no density"):
        bnn.importance_weights(pruned, (x, y))


@pytest.mark.parametrize(
    "function",
    [
        bnn.weight_table,
        lambda mixture: bnn.prune(mixture, 0.5),
        bnn.update_prior,
        lambda mixture: bnn.functional(mixture, problem()[0]),
        lambda mixture: bnn.tune_prior(mixture, problem()),
    ],
    ids=["weight_table", "prune", "update_prior", "functional", "tune_prior"],
)
def test_functions_of_one_posterior_refuse_a_mixture(function, posterior, request):
    name = request.node.callspec.id
    with pytest.raises(InputError, match=f"`{name}` takes one posterior, got a mixture of 2: pass its `members`"):
        function(bnn.Mixture([posterior, posterior]))


def test_other_fractions_and_networks_are_refused(posterior):
    for fraction in (-0.1, 1.0):
        with pytest.raises(InputError, match="at least 0 and below 1"):
            bnn.prune(posterior, fraction)
    prior = bnn.update_prior(posterior).settings["prior"]
    with pytest.raises(InputError, match=r"'0.weight' has shape \(5, 1\), the posterior has \(8, 1\)"):
        bnn.BNN(bnn.MLP(1, [5], 1), prior=prior)


def to_the_mode(**settings):
    decay = {"type": "exponential_lr", "gamma": 0.97}
    return {"seed": 0, "steps": 250, "lr": 0.1, "schedule": decay, "engine": "eager", "progress": False} | settings


@pytest.mark.slow
def test_learning_in_two_parts_keeps_the_units_of_the_first():
    """Against the closed form for all data: slope and offset are uncorrelated in the first part, which is centred."""
    generator = torch.Generator().manual_seed(3)
    x = torch.cat([5 + torch.randn(12, 1, generator=generator), 9 + 3 * torch.randn(20, 1, generator=generator)])
    x = x.double()
    y = 40 + x[:, 0] + 0.5 * torch.randn(32, generator=generator).double()
    model = bnn.BNN(nn.Linear(1, 1).double(), prior=bnn.priors.Normal(0.7), likelihood=bnn.likelihoods.Gaussian(0.5))
    guide = bnn.guides.Laplace(structure="full")
    first = model.fit(bnn.Data(x[:12], y[:12], standardize=True), guide=guide, **to_the_mode())
    later = bnn.update_prior(first).fit(bnn.Data(x[12:], y[12:], standardize=True), guide=guide, **to_the_mode())

    loc, scale = x[:12].mean(), x[:12].std(correction=0)
    unit = y[:12].std(correction=0)
    exact = linear_posterior(with_ones((x - loc) / scale), (y - y[:12].mean()) / unit, 0.5 / float(unit), 0.7)
    mean, covariance = map(torch.from_numpy, exact)
    assert later.x_scaler is first.x_scaler
    grid = torch.linspace(0.0, 15.0, 7).double()[:, None]
    rows = torch.cat([(grid - loc) / scale, torch.ones(7, 1).double()], 1)
    expected = rows @ mean * unit + y[:12].mean()
    torch.testing.assert_close(later.predict(grid, at_mean=True).mean, expected, rtol=0, atol=1e-3)  # of SVI's mode
    factor = later.guide.blocks[0].factor
    torch.testing.assert_close(factor @ factor.T, covariance)
    assert later.predict(grid, at_mean=True).aleatoric_std[0] == pytest.approx(0.5)


def test_an_updated_prior_carries_over_what_has_none(tmp_path):
    x, y = problem()
    data = bnn.Data(3 * x + 1, 10 * y, standardize=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    model = bnn.BNN(net, prior={"3.*": bnn.priors.Normal(1.0), "*": None}, likelihood=bnn.likelihoods.Gaussian(0.3))
    first = model.fit(data, **to_the_mode(steps=20))
    updated = bnn.update_prior(first)
    assert updated.site_names == ("3.weight", "3.bias")
    trained = first.bnn.net.state_dict()
    names = [name for name in trained if not name.startswith("3")]
    assert len(names) == 7
    for copied in (updated, updated.fresh()):
        assert all(torch.equal(copied.net.state_dict()[name], trained[name]) for name in names)
        torch.testing.assert_close(copied.net.state_dict()["3.weight"], first.mean()["3.weight"])
    later = updated.fit(data, **to_the_mode(steps=1, lr=1e-9))
    torch.testing.assert_close(later.bnn.net[0].weight, first.bnn.net[0].weight)
    loaded = bnn.load(later.save(tmp_path / "later"), net=net)
    for again in (later.bnn.fresh(), loaded.bnn.fresh()):
        distribution = again.prior("3.weight", torch.zeros(1, 4)).base_dist
        mean, std = first.guide.moments()["3.weight"]
        torch.testing.assert_close(distribution.loc, mean)
        torch.testing.assert_close(distribution.scale, std)
        assert torch.equal(again.units[1].scale, first.y_scaler.scale)


@pytest.mark.parametrize("guide", ["map", bnn.guides.Laplace(sites="last_layer"), "pruned"], ids=str)
def test_points_are_no_prior(guide):
    model = bnn.BNN(bnn.MLP(1, [4], 1), prior=bnn.priors.Normal(1.0))
    settings = to_the_mode(steps=2) | ({} if guide == "pruned" else {"guide": guide})
    posterior = model.fit(*problem(), **settings)
    posterior = bnn.prune(posterior, 0.5) if guide == "pruned" else posterior
    with pytest.raises(InputError, match="has weights without a spread under .*Guide: use a guide that covers all"):
        bnn.update_prior(posterior)


def test_a_function_of_a_mixture_is_that_of_one_member():
    x = torch.linspace(-1, 1, 10)[:, None]
    model = bnn.BNN(bnn.MLP(1, [3], 1), likelihood=bnn.likelihoods.Gaussian(scale=0.1), prior=bnn.priors.Normal(1.0))
    mixture = quick(model, bnn.Ensemble(bnn.SVI(guide="map", steps=5), members=3), (x, x[:, 0]))
    curves = [member.predict(x, num_draws=1).mean for member in mixture.members]  # points: all draws are alike
    picked = []
    for seed in range(60):
        function = bnn.sample_function(mixture, seed=seed)
        assert torch.equal(function(x), function(x))
        picked.append(next(k for k, curve in enumerate(curves) if torch.equal(function(x), curve)))
    counts = torch.bincount(torch.tensor(picked), minlength=3).double()
    assert ((counts - 20).abs() < 4 * (60 * 2 / 9) ** 0.5).all()  # four standard errors of a fair draw
