"""The ArviZ DataTree of a posterior: one joint set of draws in every group, original units, and a lossless file."""

import dataclasses
import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
import xarray as xr
from pyro.nn import PyroModule, PyroSample
from scipy import stats

import pyrobnn as bnn
from pyrobnn.diagnostics.monitored import MAX_WHOLE, NORM

X = torch.linspace(-1, 1, 24)[:, None] * torch.tensor([1.0, -0.5]) + torch.tensor([0.0, 0.3])
WAVE = torch.sin(3 * X[:, 0]) + 0.1 * torch.randn(24, generator=torch.Generator().manual_seed(0))
S = 60

UNIT = bnn.priors.Normal(1.0)


def fit(data, *, outputs=1, likelihood="gaussian", guide="mean_field", hidden=(4,), prior=UNIT):
    net = bnn.MLP(data.x.shape[1], hidden, outputs, activation="tanh")
    model = bnn.BNN(net, prior=prior, likelihood=likelihood)
    return model.fit(data, guide=guide, steps=60, lr=0.05, seed=3, progress=False)


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A hierarchical prior: normal weights whose scale is a latent of its own."""

    def build(self, values):
        return ScaledModule()


class ScaledModule(PyroModule):
    def __init__(self):
        super().__init__()
        self.scale = PyroSample(dist.LogNormal(0.0, 0.5))

    def forward(self, name, value):
        return dist.Normal(0.0, self.scale).expand(value.shape).to_event(value.ndim)


PLAIN = bnn.Data(X, WAVE, feature_names=["height", "weight"])
SCALED = bnn.Data(X, 40 + 7 * WAVE, standardize=True)
TWO = bnn.Data(X, torch.stack([WAVE, 100 - 20 * WAVE], 1), standardize=True)
CLASSES = bnn.Data(X, torch.arange(24) % 3)
BINARY = bnn.Data(X, (WAVE > 0).long())
CASES = {
    "plain": (PLAIN, {}),
    "scaled targets": (SCALED, {}),
    "two targets": (TWO, {"outputs": 2}),
    "two targets, noise by input": (TWO, {"outputs": 4, "likelihood": bnn.likelihoods.Gaussian("heteroscedastic")}),
    "classes": (CLASSES, {"outputs": 3, "likelihood": "categorical"}),
    "two classes": (BINARY, {"likelihood": "bernoulli"}),
    "autoguide": (PLAIN, {"guide": "AutoMultivariateNormal"}),
    "autoguide by site": (PLAIN, {"guide": "AutoNormal"}),
    "point": (PLAIN, {"guide": "map"}),
    "latent scale": (PLAIN, {"prior": Scaled()}),
    "last layer": (PLAIN, {"prior": {"2.*": bnn.priors.Normal(1.0), "*": None}}),
}


@pytest.fixture(scope="module")
def made():
    made = {}

    def get(case):
        if case not in made:
            data, options = CASES[case]
            posterior = fit(data, **options)
            made[case] = (posterior, data, bnn.to_datatree(posterior, data, num_draws=S, seed=11))
        return made[case]

    return get


@pytest.fixture(params=CASES)
def case(request, made):
    return made(request.param)


DRAWN = [
    "posterior",
    "posterior_predictive",
    "log_likelihood",
    "log_prior",
    "sample_stats",
    "prior",
    "prior_predictive",
]


@pytest.mark.one_in(4)
def test_every_group_holds_the_same_draws(case):
    posterior, data, tree = case
    others = {"observed_data", "constant_data", "svi"}
    assert set(tree.children) - {"guide_params"} == {*DRAWN, *others}
    assert ("guide_params" in tree.children) is (bnn.guides.built(posterior.guide).moments() is not None)
    for group in DRAWN:
        for variable in tree[group].data_vars.values():
            assert variable.dims[:2] == ("chain", "draw")
            assert variable.shape[:2] == (1, S)
    assert tree["svi"].elbo.dims == ("chain", "step")
    np.testing.assert_array_equal(tree["observed_data"].y, data.y)
    np.testing.assert_array_equal(tree["constant_data"].x, data.x)
    draws = posterior.draw(S, seed=11)
    prediction = posterior.predict(data.x, draws=draws)
    assert set(tree["posterior"].data_vars) == set(draws)
    for name, values in draws.items():
        np.testing.assert_array_equal(tree["posterior"][name][0], values)
    # draws of a point share their memory in one of the two, and are one product there
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(tree["log_likelihood"].y[0], prediction.draw_log_prob(data.y), **close)
    name = "probs" if prediction.is_classification else "mu"
    np.testing.assert_allclose(tree["posterior_predictive"][name][0], prediction.draw_means, **close)


@pytest.mark.one_in(4)
def test_log_prior_is_recomputed_from_the_draws(case):
    _, _, tree = case
    expected = np.zeros(S)
    scale = np.asarray(tree["posterior"]["prior.scale"][0] if "prior.scale" in tree["posterior"] else 1.0)[..., None]
    for name, values in tree["posterior"].data_vars.items():
        flat = values.values[0].reshape(S, -1)
        law = stats.lognorm(0.5) if name == "prior.scale" else stats.norm(0, scale)
        expected += law.logpdf(flat).sum(1)
    np.testing.assert_allclose(tree["log_prior"].lprior[0], expected, rtol=1e-4)
    log_joint = tree["log_prior"].lprior + tree["log_likelihood"].y.astype(float).sum("obs_id")
    np.testing.assert_allclose(tree["sample_stats"].lp, log_joint, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaled targets", "two targets, noise by input", "classes", "two classes"])
def test_predictive_draws_have_the_law_of_the_prediction(name, made):
    posterior, data, _ = made(name)
    tree = bnn.to_datatree(posterior, data, num_draws=2000, seed=5, prior=False)
    y = tree["posterior_predictive"].y.values[0].astype(float)
    prediction = posterior.predict(data.x, num_draws=2000, seed=5)
    if y.ndim == 2 and prediction.mean.ndim == 2 and "probs" in tree["posterior_predictive"]:
        y = np.eye(prediction.mean.shape[-1])[y.astype(int)]
    stderr = np.sqrt(prediction.variance.numpy() / 2000)
    assert (np.abs(y.mean(0) - prediction.mean.numpy()) < 5 * stderr + 1e-6).all()


@pytest.mark.one_in(4)
def test_file_round_trip_is_identical_and_attributes_can_be_written_anywhere(case, tmp_path):
    _, _, tree = case
    tree.to_netcdf(tmp_path / "posterior.nc", engine="h5netcdf")
    xr.testing.assert_equal(tree, xr.open_datatree(tmp_path / "posterior.nc", engine="h5netcdf").load())
    for group in ("/", *tree.children):
        ours = {"inference_library", "guide", "seed", "creation_library", "num_draws", "method"}
        assert ours <= set(tree[group].attrs)
        assert {type(tree[group].attrs[name]) for name in ours} <= {str, int}
    assert (tree.attrs["inference_library"], tree.attrs["creation_library"]) == ("pyro", "pyrobnn")
    assert tree.attrs["seed"] == 11


def test_mean_recomputed_from_the_weights_in_the_tree(made):
    _, _, tree = made("scaled targets")
    draws, x = tree["posterior"], SCALED.x.numpy().astype(float)
    standard = (x - x.mean(0)) / x.std(0)
    hidden = np.tanh(
        np.einsum("sij,nj->sni", draws["0.weight"].values[0], standard) + draws["0.bias"].values[0][:, None]
    )
    f = np.einsum("sij,snj->sni", draws["2.weight"].values[0], hidden) + draws["2.bias"].values[0][:, None]
    y = SCALED.y.numpy().astype(float)
    np.testing.assert_allclose(tree["posterior_predictive"].mu[0], f[..., 0] * y.std() + y.mean(), rtol=1e-4)


def test_densities_are_in_original_units(made):
    """The density of y = 40 + 7 z is that of z over the scale: sigma is learned in standard units."""
    posterior, _, tree = made("scaled targets")
    scale = float(posterior.bnn.likelihood.scale.detach()) * SCALED.y.numpy().std()
    expected = stats.norm(tree["posterior_predictive"].mu.values, scale).logpdf(SCALED.y.numpy())
    np.testing.assert_allclose(tree["log_likelihood"].y.values, expected, rtol=1e-3, atol=1e-4)


def test_log_q_of_an_independent_normal_guide(made):
    posterior, _, tree = made("plain")
    expected = np.zeros(S)
    for name, (loc, scale) in posterior.guide.moments().items():
        law = stats.norm(loc.numpy(), scale.numpy())
        expected += law.logpdf(tree["posterior"][name].values[0]).reshape(S, -1).sum(1)
    np.testing.assert_allclose(tree["sample_stats"].log_q[0], expected, rtol=1e-4)


def test_log_q_of_a_joint_normal_guide(made):
    posterior, _, tree = made("autoguide")
    names = posterior.bnn.site_names
    flat = np.concatenate([tree["posterior"][name].values[0].reshape(S, -1) for name in names], 1)
    law = posterior.guide.get_posterior()
    reference = stats.multivariate_normal(law.loc.detach().numpy(), law.covariance_matrix.detach().double().numpy())
    np.testing.assert_allclose(tree["sample_stats"].log_q[0], reference.logpdf(flat), rtol=1e-3)


def test_dimensions_are_named(made):
    tree = made("plain")[2]
    assert tree["posterior"]["0.weight"].dims[2:] == ("0.out", "0.in")
    assert list(tree["posterior"]["0.in"].values) == ["height", "weight"]
    assert list(tree["constant_data"].feature.values) == ["height", "weight"]
    assert tree["posterior"]["2.bias"].dims[2:] == ("2.out",)
    assert made("two targets")[2]["observed_data"].y.dims == ("obs_id", "target")
    assert made("classes")[2]["posterior_predictive"].probs.dims[2:] == ("obs_id", "class")
    assert set(made("last layer")[2]["posterior"].data_vars) == {"2.weight", "2.bias"}


def test_the_fit_is_recorded_at_each_step(made):
    posterior, _, tree = made("plain")
    np.testing.assert_array_equal(tree["svi"].elbo[0], posterior.history.elbo)
    np.testing.assert_array_equal(tree["svi"].kl[0] + tree["svi"].elbo[0], tree["svi"].log_likelihood[0])


def test_seed_is_that_of_the_fit_by_default(made):
    posterior, data, _ = made("plain")
    first, again = (bnn.to_datatree(posterior, data, num_draws=5) for _ in range(2))
    assert first.attrs["seed"] == posterior.seed
    np.testing.assert_array_equal(first["posterior_predictive"].y, again["posterior_predictive"].y)
    np.testing.assert_array_equal(first["posterior"]["2.weight"][0], posterior.draw(5)["2.weight"])


def test_noise_of_targets_is_independent_of_the_weights(made):
    posterior, data, _ = made("plain")
    tree = bnn.to_datatree(posterior, data, num_draws=4000, seed=0, prior=False)
    noise = (tree["posterior_predictive"].y - tree["posterior_predictive"].mu).values[0]
    weights = tree["posterior"]["0.weight"].values[0].reshape(4000, -1)
    correlations = np.corrcoef(noise.T, weights.T)[: noise.shape[1], noise.shape[1] :]
    assert np.abs(correlations).max() < 5 / math.sqrt(4000)


def test_large_network_keeps_some_weights_and_the_norms():
    posterior = fit(PLAIN, hidden=(40, 40))
    draws = posterior.draw(7, seed=2)
    tree = bnn.to_datatree(posterior, PLAIN, num_draws=7, seed=2)
    weights = tree["posterior"]
    assert sum(v[0, 0].size for v in weights.data_vars.values()) <= MAX_WHOLE
    assert weights["2.weight"].shape == (1, 7, 20)
    assert weights["4.bias"].dims == ("chain", "draw", "4.out")
    for label in weights["2.weight.entry"].values:
        row, column = map(int, label.split(","))
        expected = draws["2.weight"][:, row, column]
        np.testing.assert_array_equal(weights["2.weight"].sel({"2.weight.entry": label})[0], expected)
    norms = [draws[name].flatten(1).norm(dim=1) for name in posterior.bnn.site_names]
    np.testing.assert_allclose(weights[NORM][0], torch.stack(norms, 1), rtol=1e-6)
    assert list(weights["site"].values) == list(posterior.bnn.site_names)


@pytest.mark.slow
def test_many_sites_share_the_cap():
    net = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in range(60)], torch.nn.Linear(6, 1))
    data = bnn.Data(torch.ones(5, 6), torch.zeros(5))
    posterior = bnn.BNN(net, prior=bnn.priors.Normal(1.0)).fit(data, steps=2, seed=0, progress=False)
    kept = bnn.to_datatree(posterior, data, num_draws=3)["posterior"].data_vars
    assert sum(v[0, 0].size for name, v in kept.items() if name != NORM) <= MAX_WHOLE


def test_blocks_of_draws_are_one_set_of_draws(made, monkeypatch):
    posterior, data, whole = made("plain")
    monkeypatch.setattr("pyrobnn.posterior.posterior.draws_at_once", lambda num_weights, device: 25)
    tree = bnn.to_datatree(posterior, data, num_draws=S, seed=11)
    draws = posterior.draw(S, seed=11)
    assert tree["posterior"].sizes == whole["posterior"].sizes
    np.testing.assert_array_equal(tree["posterior"]["0.weight"][0], draws["0.weight"])
    noise = (tree["posterior_predictive"].y - tree["posterior_predictive"].mu).values[0]
    assert not np.allclose(noise[:10], noise[25:35])


def test_sizes_that_disagree_and_images_get_names_of_their_own():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(6, 2))
            self.bias = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x.flatten(1) @ self.weight + self.bias

    data = bnn.Data(torch.ones(5, 2, 3), torch.zeros(5, 2))
    posterior = bnn.BNN(Odd(), prior=bnn.priors.Normal(1.0)).fit(data, steps=2, seed=0, progress=False)
    tree = bnn.to_datatree(posterior, data, num_draws=4)
    assert tree["posterior"]["weight"].dims[2:] == ("out", "in")
    assert tree["posterior"]["bias"].dims[2:] == ("bias.dim_0",)
    assert tree["constant_data"].x.shape == (5, 2, 3)


def test_refuses_data_that_do_not_fit(made):
    posterior, _, _ = made("plain")
    with pytest.raises(bnn.InputError, match="`x` must have shape"):
        bnn.to_datatree(posterior, bnn.Data(torch.ones(3, 5), torch.ones(3)))
    with pytest.raises(bnn.InputError, match="must have the shape of the predictions"):
        bnn.to_datatree(posterior, bnn.Data(torch.ones(3, 2), torch.ones(3, 2)))
