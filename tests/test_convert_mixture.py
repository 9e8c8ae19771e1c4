"""The ArviZ DataTree of mixtures: a chain for each member, with densities under the member's own guide and model."""

import math

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import stats
from torch import nn

import pyrobnn as bnn

X = torch.linspace(-1, 1, 16)[:, None]
DATA = bnn.Data(X, 5 + 3 * torch.sin(3 * X[:, 0]), standardize=True)
K, S = 3, 20


def model():
    return bnn.BNN(bnn.MLP(1, [3], 1, activation="tanh"), likelihood="gaussian", prior=bnn.priors.Normal(1.0))


def fit(guide="mean_field", steps=30):
    return model().fit(DATA, guide=guide, steps=steps, lr=0.05, seed=3, progress=False, engine="eager")


def ensemble(method):
    return bnn.fit(model(), DATA, bnn.Ensemble(method, members=K), seed=0, progress=False, engine="eager")


@pytest.fixture(scope="module")
def mixture():
    return ensemble(bnn.SVI(steps=30, lr=0.05))


@pytest.fixture(scope="module")
def tree(mixture):
    return bnn.to_datatree(mixture, DATA, num_draws=K * S + 2, seed=11)


def test_each_member_is_a_chain_with_its_draws(mixture, tree):
    for group in ("posterior", "posterior_predictive", "log_likelihood", "sample_stats"):
        for variable in tree[group].data_vars.values():
            assert variable.dims[:2] == ("chain", "draw")
            assert variable.shape[:2] == (K, S)
    for chain, draws in enumerate(mixture.split(mixture.draw(K * S, seed=11))):
        for name, values in draws.items():
            np.testing.assert_array_equal(tree["posterior"][name][chain], values)
    assert tree.attrs["num_draws"] == K * S
    assert tree.attrs["inference_method"] == "ENSEMBLE"
    assert tree.attrs["guide"] == "MeanFieldGuide"


def test_its_log_score_is_that_of_the_mixture(mixture, tree):
    log_likelihood = torch.from_numpy(tree["log_likelihood"].y.values).flatten(0, 1)
    expected = mixture.predict(X, draws=mixture.draw(K * S, seed=11)).log_prob(DATA.y)
    torch.testing.assert_close(log_likelihood.logsumexp(0) - math.log(K * S), expected, rtol=1e-5, atol=1e-5)


def test_densities_are_those_of_the_member(mixture, tree):
    y = DATA.y.double().numpy()
    for chain, member in enumerate(mixture.members):
        noise = float(member.bnn.likelihood.scale.detach()) * y.std()
        log_likelihood = stats.norm(tree["posterior_predictive"].mu[chain], noise).logpdf(y).sum(-1)
        log_prior, log_q = np.zeros(S), np.zeros(S)
        for name, (loc, scale) in member.guide.moments().items():
            values = tree["posterior"][name].values[chain].astype(float)
            log_prior += stats.norm.logpdf(values).reshape(S, -1).sum(1)
            log_q += stats.norm(loc.numpy(), scale.numpy()).logpdf(values).reshape(S, -1).sum(1)
        np.testing.assert_allclose(tree["sample_stats"].lp[chain], log_prior + log_likelihood, rtol=1e-4)
        np.testing.assert_allclose(tree["sample_stats"].log_q[chain], log_q, rtol=1e-4)


def test_noise_differs_between_members(tree):
    noise = (tree["posterior_predictive"].y - tree["posterior_predictive"].mu).values
    standard = noise / noise.std((1, 2), keepdims=True)
    correlations = np.corrcoef(standard.reshape(K, -1))[np.triu_indices(K, 1)]
    assert np.abs(correlations).max() < 4 / math.sqrt(S * len(X))


def test_each_fit_is_recorded(mixture, tree):
    assert tree["svi"].elbo.dims == ("chain", "step")
    for chain, member in enumerate(mixture.members):
        np.testing.assert_array_equal(tree["svi"].kl[chain], member.history.kl)
    np.testing.assert_allclose(mixture.history.elbo, tree["svi"].elbo.mean("chain"), rtol=1e-12)


def test_a_loaded_mixture_keeps_the_record_of_the_fit(mixture, tree, tmp_path):
    loaded = bnn.load(bnn.save(mixture, tmp_path / "mixture"))
    again = bnn.to_datatree(loaded, DATA, num_draws=K * S + 2, seed=11)
    xr.testing.assert_equal(again["svi"].to_dataset(), tree["svi"].to_dataset())
    xr.testing.assert_equal(again["sample_stats"].to_dataset(), tree["sample_stats"].to_dataset())


def test_points_have_no_density():
    tree = bnn.to_datatree(ensemble(bnn.SVI(guide="map", steps=3)), DATA, num_draws=2 * K)
    assert set(tree["sample_stats"].data_vars) == {"lp"}
    weights = tree["posterior"]["0.weight"].values
    np.testing.assert_array_equal(weights[:, 0], weights[:, 1])
    assert len(np.unique(weights[:, 0, 0])) == K
    single = bnn.to_datatree(fit("map", steps=2), DATA, num_draws=4)
    assert set(single["sample_stats"].data_vars) == {"lp"}


def test_dropout_has_the_probability_of_its_masks():
    guide = bnn.guides.Dropout(0.25)
    tree = bnn.to_datatree(fit(guide, steps=2), DATA, num_draws=30)
    dropped = (tree["posterior"]["2.weight"].values[0, :, 0] == 0).sum(1)
    expected = stats.bernoulli(0.25).logpmf(1) * dropped + stats.bernoulli(0.25).logpmf(0) * (3 - dropped)
    np.testing.assert_allclose(tree["sample_stats"].log_q[0], expected, rtol=1e-5)


def test_multi_swag_converts():
    method = bnn.SWAG(bnn.SVI(guide="map", steps=5), lr=1e-3, steps=10, every=2, rank=2)
    tree = bnn.to_datatree(ensemble(method), DATA, num_draws=2 * K)
    assert dict(tree["posterior"].sizes)["chain"] == K
    assert np.isfinite(tree["sample_stats"].log_q).all()
    assert tree["svi"].sizes["step"] == 5


def test_a_member_without_density_has_nan_and_unequal_records_are_left_out():
    tree = bnn.to_datatree(bnn.Mixture([fit("map", steps=2), fit(steps=3)]), DATA, num_draws=6)
    log_q = tree["sample_stats"].log_q.values
    assert np.isnan(log_q[0]).all()
    assert np.isfinite(log_q[1]).all()
    assert "svi" not in tree.children


@pytest.fixture(scope="module")
def sampled():
    net = nn.Linear(1, 1).double()
    linear = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(scale=0.5), prior=bnn.priors.Normal(1.0))
    method = bnn.HMC(step_size=0.05, trajectory_length=0.2, num_draws=6, warmup=2, num_chains=2)
    data = bnn.Data(X.double(), X[:, 0].double())
    fits = [bnn.fit(linear, data, method, seed=seed, progress=False, engine="eager") for seed in (0, 1)]
    return linear, data, fits


def test_members_with_markov_chains_keep_them_in_order(sampled):
    _, data, fits = sampled
    tree = bnn.to_datatree(bnn.Mixture(fits), data, num_draws=18)
    expected = np.concatenate([one.guide.chains()["weight"][:, 2:].numpy() for one in fits])
    np.testing.assert_array_equal(tree["posterior"]["weight"], expected)
    steps = np.concatenate([one.guide.sample_stats()["n_steps"][:, 2:].numpy() for one in fits])
    np.testing.assert_array_equal(tree["sample_stats"]["n_steps"], steps)
    assert "log_q" not in tree["sample_stats"]
    assert bnn.to_datatree(bnn.Mixture(fits), data)["posterior"].sizes["draw"] == 6
    with pytest.raises(bnn.InputError, match="`num_draws` must be at least 4, one for each chain, got 3"):
        bnn.to_datatree(bnn.Mixture(fits), data, num_draws=3)


def test_chains_beside_a_guide_are_drawn_from(sampled):
    linear, data, fits = sampled
    other = linear.fit(data, steps=2, seed=0, progress=False)
    tree = bnn.to_datatree(bnn.Mixture([fits[0], other]), data, num_draws=20)
    stored = fits[0].guide.chains()["weight"].flatten().numpy()
    assert np.isin(tree["posterior"]["weight"].values[0], stored).all()
    assert np.isnan(tree["sample_stats"].log_q.values).any(1).tolist() == [True, False]


# Audits


def test_the_elbo_of_a_mixture_is_that_of_its_members_and_at_most_log_k_more():
    """Exact for one weight: quadrature of the mixture's ELBO against the members' reports (4 standard errors)."""
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    y = torch.tensor([0.5, 1.4], dtype=torch.float64)
    net = nn.Linear(1, 1, bias=False).double()
    declared = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(scale=0.5), prior=bnn.priors.Normal(1.0))
    guide = bnn.guides.MeanField(init_rho=-2.0)
    steps = (1, 60)
    members = [declared.fit(x, y, guide=guide, steps=n, lr=0.02, seed=0, progress=False) for n in steps]
    w = np.linspace(-6, 6, 40_001)
    log_joint = stats.norm.logpdf(w) + sum(stats.norm(w * a, 0.5).logpdf(b) for a, b in ((1.0, 0.5), (2.0, 1.4)))
    moments = [[float(value) for value in member.guide.moments()["weight"]] for member in members]
    q = np.mean([stats.norm(*pair).pdf(w) for pair in moments], 0)
    elbo = np.trapezoid(q * (log_joint - np.log(np.maximum(q, 1e-300))), w)
    reports = [bnn.elbo_report(member, bnn.Data(x, y), num_draws=20_000).elbo for member in members]
    mean = sum(report.mean for report in reports) / 2
    error = 4 * math.hypot(*(report.stderr for report in reports)) / 2
    assert mean - error < elbo < mean + math.log(2) + error
    with pytest.raises(
        bnn.InputError, match="takes one posterior, got a mixture of 2: pass its `members` .* 0.69 nats"
    ):
        bnn.elbo_report(bnn.Mixture(members), bnn.Data(x, y))


def test_what_has_no_density_no_chains_or_too_few_draws_is_refused(mixture, sampled):
    _, data, fits = sampled
    with pytest.raises(bnn.InputError, match="`num_draws` must be at least 3, one for each member, got 2"):
        bnn.to_datatree(mixture, DATA, num_draws=2)
    with pytest.raises(bnn.InputError, match="Stored draws of Markov chains have no density"):
        bnn.elbo_report(fits[0], data)
    with pytest.raises(bnn.InputError, match="R-hat compares the Markov chains of one fit, got a mixture of 3"):
        bnn.function_rhat(mixture, X)
