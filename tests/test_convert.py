"""The ArviZ DataTree of posteriors: one joint set of draws in every group, original units, a lossless file, and the
functions of ArviZ that serve Bayesian networks."""

import dataclasses
import math
from types import SimpleNamespace

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pyro.distributions as dist
import pytest
import torch
import xarray as xr
from helpers import Net, quick
from pyro.nn import PyroModule, PyroSample
from scipy import stats
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.random import derive
from pyrobnn.diagnostics.monitored import NORM

X = torch.linspace(-1, 1, 24)[:, None] * torch.tensor([1.0, -0.5]) + torch.tensor([0.0, 0.3])
WAVE = torch.sin(3 * X[:, 0]) + 0.1 * torch.randn(24, generator=torch.Generator().manual_seed(0))
S, K = 60, 3
UNIT = bnn.priors.Normal(1.0)
KNOWN, INFERRED = bnn.likelihoods.Gaussian(0.5), bnn.likelihoods.Gaussian({"type": "half_normal", "scale": 1.0})


def model(data, *, outputs=1, likelihood="gaussian", hidden=(4,), prior=UNIT):
    return bnn.BNN(bnn.MLP(data.x.shape[1], hidden, outputs, activation="tanh"), prior=prior, likelihood=likelihood)


def fit(data, *, guide="mean_field", steps=60, seed=3, kl="auto", **parts):
    given = {"steps": steps, "lr": 0.05, "kl": kl, "seed": seed, "engine": "eager", "progress": False}
    return model(data, **parts).fit(data, guide=guide, **given)


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


DRAWN = ["posterior", "posterior_predictive", "log_likelihood", "log_prior", "sample_stats"]
DRAWN += ["prior", "prior_predictive"]


@pytest.mark.one_in(4)
def test_every_group_holds_the_same_draws(case):
    posterior, data, tree = case
    assert set(tree.children) == {*DRAWN, "observed_data", "constant_data"}
    for group in DRAWN:
        for variable in tree[group].data_vars.values():
            assert (variable.dims[:2], variable.shape[:2]) == (("chain", "draw"), (1, S))
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


def test_densities_are_in_original_units(made):
    """The density of y = 40 + 7 z is that of z over the scale: sigma is learned in standard units."""
    posterior, _, tree = made("scaled targets")
    scale = float(posterior.bnn.likelihood.scale.detach()) * SCALED.y.numpy().std()
    expected = stats.norm(tree["posterior_predictive"].mu.values, scale).logpdf(SCALED.y.numpy())
    np.testing.assert_allclose(tree["log_likelihood"].y.values, expected, rtol=1e-3, atol=1e-4)


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


def test_large_network_keeps_small_sites_and_the_norms():
    posterior = fit(PLAIN, hidden=(40, 40))
    draws = posterior.draw(7, seed=2)
    weights = bnn.to_datatree(posterior, PLAIN, num_draws=7, seed=2)["posterior"]
    assert set(weights.data_vars) == {"4.bias", NORM}
    assert weights["4.bias"].dims == ("chain", "draw", "4.out")
    norms = [draws[name].flatten(1).norm(dim=1) for name in posterior.bnn.site_names]
    np.testing.assert_allclose(weights[NORM][0], torch.stack(norms, 1), rtol=1e-6)
    assert list(weights["site"].values) == list(posterior.bnn.site_names)


def test_sizes_that_disagree_and_images_get_names_of_their_own():
    parts = {"weight": nn.Parameter(torch.ones(6, 2)), "bias": nn.Parameter(torch.ones(2))}
    odd = Net(lambda net, x: x.flatten(1) @ net.weight + net.bias, **parts)
    data = bnn.Data(torch.ones(5, 2, 3), torch.zeros(5, 2))
    posterior = quick(bnn.BNN(odd, prior=UNIT), bnn.SVI(steps=2), data)
    tree = bnn.to_datatree(posterior, data, num_draws=4)
    assert tree["posterior"]["weight"].dims[2:] == ("out", "in")
    assert tree["posterior"]["bias"].dims[2:] == ("bias.dim_0",)
    assert tree["constant_data"].x.shape == (5, 2, 3)


NAMED = bnn.Data(X, 5 + 3 * WAVE, standardize=True, feature_names=["height", "weight"])


@pytest.fixture(scope="module")
def pair():
    return tuple(fit(NAMED, likelihood=KNOWN, steps=3, seed=seed) for seed in (0, 1))


def test_prior_groups_are_those_of_the_prior_predictive_distribution(pair):
    """Bit for bit what `BNN.sample_prior_predictive` draws with the same seed, and its weights."""
    tree = bnn.to_datatree(pair[0], NAMED, x_pred=X[:4] + 0.1, num_draws=S, seed=11)
    expected = pair[0].bnn.sample_prior_predictive(NAMED, num_draws=S, seed=derive(11, "prior"))
    np.testing.assert_allclose(tree["prior_predictive"].mu[0], expected.draw_means, rtol=1e-5, atol=1e-5)
    draws = {name: torch.from_numpy(values.values[0]) for name, values in tree["prior"].data_vars.items()}
    recomputed = pair[0].predict(X, draws=draws).draw_means
    np.testing.assert_allclose(tree["prior_predictive"].mu[0], recomputed, rtol=1e-5, atol=1e-5)


class Flat(bnn.priors.SitePrior):
    """An improper prior."""

    def site(self, name, value):
        return dist.ImproperUniform(dist.constraints.real, (), value.shape)


def test_a_prior_that_cannot_be_drawn_from_is_left_out_with_the_reason():
    posterior = fit(NAMED, likelihood=KNOWN, guide="map", steps=3)
    posterior.bnn.prior = Flat().build(posterior.bnn.initial_values)
    tree = bnn.to_datatree(posterior, NAMED, num_draws=4)
    assert not {"prior", "prior_predictive"} & set(tree.children)
    assert tree.attrs["prior_left_out"].startswith("the prior cannot be drawn from")
    assert np.isfinite(tree["log_likelihood"].y).all()


def test_predictions_that_overflow_under_the_prior_are_left_out_with_the_reason():
    posterior = fit(CLASSES, outputs=3, likelihood="categorical", steps=3, prior=bnn.priors.Normal(1e38), kl="mc")
    tree = bnn.to_datatree(posterior, CLASSES, x_pred=X[:2], num_draws=20)
    assert tree["predictions"].probs.dims == ("chain", "draw", "pred_id", "class")
    assert tree["predictions"].y.dtype == np.int64
    assert "prior_predictive" not in tree.children
    assert tree["prior"].sizes["draw"] == 20
    assert "prior_predictive is left out" in tree.attrs["prior_left_out"]


def test_noise_at_new_inputs_is_not_that_at_the_data(pair):
    """At the same inputs the correlation of noise is 0, within 4 standard errors (seed 0, 200 draws of 24 targets)."""
    tree = bnn.to_datatree(pair[0], NAMED, x_pred=X, num_draws=200, seed=0, prior=False)
    assert not {"prior", "prior_predictive"} & set(tree.children)
    assert "prior_left_out" not in tree.attrs
    noises = [(tree[group].y - tree[group].mu).values.ravel() for group in ("posterior_predictive", "predictions")]
    assert abs(np.corrcoef(noises)[0, 1]) < 4 / np.sqrt(200 * 24)


@pytest.fixture(scope="module")
def mixture():
    return quick(model(NAMED), bnn.Ensemble(bnn.SVI(steps=30, lr=0.05), members=K), NAMED)


@pytest.fixture(scope="module")
def of_mixture(mixture):
    return bnn.to_datatree(mixture, NAMED, num_draws=K * S + 2, seed=11)


def test_each_member_is_a_chain_with_its_draws(mixture, of_mixture):
    for group in ("posterior", "posterior_predictive", "log_likelihood", "sample_stats"):
        for variable in of_mixture[group].data_vars.values():
            assert (variable.dims[:2], variable.shape[:2]) == (("chain", "draw"), (K, S))
    for chain, draws in enumerate(mixture.split(mixture.draw(K * S, seed=11))):
        for name, values in draws.items():
            np.testing.assert_array_equal(of_mixture["posterior"][name][chain], values)
    assert of_mixture.attrs["num_draws"] == K * S
    assert of_mixture.attrs["inference_method"] == "ENSEMBLE"
    assert of_mixture.attrs["guide"] == "MeanFieldGuide"


def test_its_log_score_is_that_of_the_mixture(mixture, of_mixture):
    log_likelihood = torch.from_numpy(of_mixture["log_likelihood"].y.values).flatten(0, 1)
    expected = mixture.predict(X, draws=mixture.draw(K * S, seed=11)).log_prob(NAMED.y)
    torch.testing.assert_close(log_likelihood.logsumexp(0) - math.log(K * S), expected, rtol=1e-5, atol=1e-5)


def test_densities_are_those_of_the_member(mixture, of_mixture):
    y = NAMED.y.double().numpy()
    for chain, member in enumerate(mixture.members):
        noise = float(member.bnn.likelihood.scale.detach()) * y.std()
        log_likelihood = stats.norm(of_mixture["posterior_predictive"].mu[chain], noise).logpdf(y).sum(-1)
        log_prior, log_q = np.zeros(S), np.zeros(S)
        for name, (loc, scale) in member.guide.moments().items():
            values = of_mixture["posterior"][name].values[chain].astype(float)
            log_prior += stats.norm.logpdf(values).reshape(S, -1).sum(1)
            log_q += stats.norm(loc.numpy(), scale.numpy()).logpdf(values).reshape(S, -1).sum(1)
        np.testing.assert_allclose(of_mixture["sample_stats"].lp[chain], log_prior + log_likelihood, rtol=1e-4)
        np.testing.assert_allclose(of_mixture["sample_stats"].log_q[chain], log_q, rtol=1e-4)


def test_points_have_no_density():
    fits = [fit(NAMED, guide="map", steps=2, seed=seed) for seed in range(2)]
    tree = bnn.to_datatree(bnn.Mixture(fits), NAMED, num_draws=4)
    assert set(tree["sample_stats"].data_vars) == {"lp"}
    weights = tree["posterior"]["0.weight"].values
    np.testing.assert_array_equal(weights[:, 0], weights[:, 1])
    beside = bnn.to_datatree(bnn.Mixture([fits[0], fit(NAMED, steps=3)]), NAMED, num_draws=6)
    assert np.isnan(beside["sample_stats"].log_q.values).all(1).tolist() == [True, False]


def test_dropout_has_the_probability_of_its_masks():
    tree = bnn.to_datatree(fit(NAMED, guide=bnn.guides.Dropout(0.25), steps=2), NAMED, num_draws=30)
    dropped = (tree["posterior"]["2.weight"].values[0, :, 0] == 0).sum(1)
    expected = stats.bernoulli(0.25).logpmf(1) * dropped + stats.bernoulli(0.25).logpmf(0) * (4 - dropped)
    np.testing.assert_allclose(tree["sample_stats"].log_q[0], expected, rtol=1e-5)


def test_members_with_markov_chains_keep_them_in_order():
    linear = bnn.BNN(nn.Linear(2, 1).double(), likelihood=KNOWN, prior=UNIT)
    method = bnn.HMC(step_size=0.05, trajectory_length=0.2, num_draws=6, warmup=2, num_chains=2)
    data = bnn.Data(X.double(), WAVE.double())
    fits = [quick(linear, method, data, seed=seed) for seed in (0, 1)]
    tree = bnn.to_datatree(bnn.Mixture(fits), data, num_draws=18)
    expected = np.concatenate([one.guide.chains()["weight"][:, 2:].numpy() for one in fits])
    np.testing.assert_array_equal(tree["posterior"]["weight"], expected)
    steps = np.concatenate([one.guide.sample_stats()["n_steps"][:, 2:].numpy() for one in fits])
    np.testing.assert_array_equal(tree["sample_stats"]["n_steps"], steps)
    assert "log_q" not in tree["sample_stats"]
    assert bnn.to_datatree(bnn.Mixture(fits), data)["posterior"].sizes["draw"] == 6
    with pytest.raises(bnn.InputError, match="`num_draws` must be at least 4, one for each chain, got 3"):
        bnn.to_datatree(bnn.Mixture(fits), data, num_draws=3)


@pytest.fixture(scope="module")
def wide():
    data = bnn.Data(torch.ones(4, 40), torch.zeros(4))
    model = bnn.BNN(bnn.MLP(40, [30], 1), prior=bnn.priors.Horseshoe(local="weight"))
    return quick(model, bnn.SVI(steps=1), data), data


def test_latents_of_a_large_prior_are_capped_too_unless_all_are_asked_for(wide):
    kept = bnn.to_datatree(*wide, num_draws=3, prior=False)["posterior"]
    assert sum(values[0, 0].size for values in kept.data_vars.values()) < 1000
    assert "prior.0.weight.local_scale" not in kept
    assert kept["prior.0.weight.global_scale"].shape == (1, 3)
    tree = bnn.to_datatree(*wide, num_draws=3, monitor="all", prior=False)
    assert tree["posterior"]["0.weight"].shape == (1, 3, 30, 40)
    assert NORM not in tree["posterior"]
    np.testing.assert_array_equal(tree["posterior"]["0.weight"][0], wide[0].draw(3)["0.weight"])


def test_patterns_keep_their_sites_whole_and_the_norms(wide):
    tree = bnn.to_datatree(*wide, num_draws=3, monitor=["2.*", "prior.2.*"])
    names = {"2.weight", "2.bias", "prior.2.weight.global_scale", "prior.2.weight.local_scale", NORM}
    assert set(tree["posterior"].data_vars) == set(tree["prior"].data_vars) == names
    assert tree["posterior"]["2.weight"].shape == (1, 3, 1, 30)
    assert list(tree["posterior"].site.values) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_evaluation_tree_pairs_the_test_data(pair):
    data = bnn.Data(X[:5] + 0.05, NAMED.y[:5])
    tree = bnn.eval_datatree(pair[0], data, num_draws=S, seed=2)
    assert set(tree.children) == {*DRAWN[:3], "observed_data", "constant_data"}
    prediction = pair[0].predict(data.x, draws=pair[0].draw(S, seed=2))
    np.testing.assert_array_equal(tree["posterior_predictive"].mu[0], prediction.draw_means)
    np.testing.assert_array_equal(tree["log_likelihood"].y[0], prediction.draw_log_prob(data.y))
    np.testing.assert_array_equal(tree["observed_data"].y, data.y)
    np.testing.assert_array_equal(tree["posterior"]["2.bias"][0], pair[0].draw(S, seed=2)["2.bias"])


def test_draws_of_a_large_network_are_made_in_blocks(pair, monkeypatch):
    monkeypatch.setattr("pyrobnn._torch.vectorize._WEIGHT_FLOATS_ON_CPU", 10 * pair[0].bnn.num_weights)
    tree = bnn.to_datatree(pair[0], NAMED, num_draws=25, seed=11)
    np.testing.assert_array_equal(tree["posterior"]["2.bias"][0], pair[0].draw(25, seed=11)["2.bias"])
    assert len(np.unique(tree["posterior"]["2.bias"])) == len(np.unique(tree["prior"]["2.bias"])) == 25
    draws = {name: torch.from_numpy(values.values[0]) for name, values in tree["posterior"].data_vars.items()}
    log_likelihood = pair[0].predict(X, draws=draws).draw_log_prob(NAMED.y)
    np.testing.assert_allclose(tree["log_likelihood"].y[0], log_likelihood, rtol=1e-5)


def test_what_does_not_go_together_is_refused(pair, mixture):
    learned = fit(NAMED, likelihood=INFERRED, steps=3)
    kinds = bnn.Mixture([fit(BINARY, likelihood="bernoulli", steps=3), fit(BINARY, steps=3)])
    wrong_x, wrong_y = bnn.Data(torch.ones(3, 5), torch.ones(3)), bnn.Data(torch.ones(3, 2), torch.ones(3, 2))
    monitor = "`monitor` must be 'auto', 'all', or a list of patterns"
    unknown = "'9.*' in `monitor` matches no site: it may name any of 0.weight"
    for call, message in (
        (lambda: bnn.to_datatree("text", NAMED), "`posterior` must be a posterior or a mixture, got str"),
        (lambda: bnn.eval_datatree(list(pair), NAMED), "must be a posterior or a mixture, got list"),
        (lambda: bnn.to_datatree(bnn.Mixture([pair[0], learned]), NAMED, num_draws=4), "only some have 'likelihood"),
        (lambda: bnn.to_datatree(kinds, BINARY), "must have the same kind of targets, classes or not"),
        (lambda: bnn.to_datatree(pair[0], wrong_x), "`x` must have shape"),
        (lambda: bnn.to_datatree(pair[0], wrong_y), "must have the shape of the predictions"),
        (lambda: bnn.to_datatree(mixture, NAMED, num_draws=2), "`num_draws` must be at least 3, one for each member"),
        (lambda: bnn.function_rhat(mixture, X), "R-hat compares the Markov chains of one fit, got a mixture of 3"),
        (lambda: bnn.elbo_report(mixture, NAMED), "takes one posterior, got a mixture of 3: pass its `members`"),
        (lambda: bnn.to_datatree(pair[0], NAMED, monitor="most"), monitor),
        (lambda: bnn.to_datatree(pair[0], NAMED, monitor=[]), monitor),
        (lambda: bnn.to_datatree(pair[0], NAMED, monitor=["2.*", "9.*"]), unknown),
    ):
        with pytest.raises(bnn.InputError, match=message):
            call()


LINE = bnn.Data(torch.linspace(-1, 1, 24)[:, None], WAVE)
PLANE = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
ON_PLANE = bnn.Data(PLANE, (PLANE[:, 0] > 0).long() + (PLANE[:, 1] > 0.5).long())
GRID = torch.linspace(-1.2, 1.2, 5)[:, None]


@pytest.fixture(scope="module")
def trees():
    """Trees of a regression, of a classifier, of two seeds of each, and of held-out data."""
    settings = {"steps": 40, "hidden": [3]}
    first, second = (fit(LINE, likelihood=bnn.likelihoods.Gaussian(0.3), seed=seed, **settings) for seed in range(2))
    classifier = fit(ON_PLANE, outputs=3, likelihood="categorical", **settings)
    binary = bnn.Data(PLANE, (PLANE[:, 0] > 0).long())
    two = {"x_pred": GRID, "num_draws": 200, "prior": False}
    return SimpleNamespace(
        real=bnn.to_datatree(first, LINE, x_pred=GRID, num_draws=100),
        other=bnn.to_datatree(second, LINE, x_pred=GRID, num_draws=100),
        two=bnn.to_datatree(bnn.Mixture([first, second]), LINE, **two),
        classes=bnn.to_datatree(classifier, ON_PLANE, x_pred=PLANE[:2], num_draws=100),
        test_classes=bnn.eval_datatree(classifier, ON_PLANE[::2], num_draws=100),
        binary=bnn.to_datatree(fit(binary, likelihood="bernoulli", **settings), binary, num_draws=100),
    )


MU = {"group": "predictions", "var_names": "mu"}
WEIGHT = {"var_names": "2.bias"}
STATISTICS = {
    "summary": lambda t: az.summary(t.real, kind="stats"),
    "loo": lambda t: az.loo(t.real, reff=1.0).elpd,
    "loo of seeds": lambda t: az.loo(t.two, reff=1.0).elpd,
    "loo_approximate_posterior": lambda t: (
        az.loo_approximate_posterior(t.real, log_p=t.real.sample_stats["lp"], log_q=t.real.sample_stats["log_q"]).elpd
    ),
    "compare": lambda t: az.compare({"a": az.loo(t.real, reff=1.0), "b": az.loo(t.other, reff=1.0)})["elpd"],
    "loo_pit": lambda t: az.loo_pit(t.real)["y"],
    "loo_expectations": lambda t: az.loo_expectations(t.real, var_name="y", kind="quantile", probs=[0.1, 0.9])[0],
    "residual_r2": lambda t: az.residual_r2(t.real, pred_mean="mu", obs_name="y", group="posterior_predictive").mean,
    "bayesian_r2": lambda t: az.bayesian_r2(t.binary, pred_mean="probs", scale=None, group="posterior_predictive").mean,
    "rhat": lambda t: az.rhat(t.two, **MU)["mu"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")
def test_statistics(name, trees):
    value = STATISTICS[name](trees)
    numbers = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    assert numbers.size
    assert np.isfinite(numbers.astype(float)).all()


LINES = {"x": "x", "y_obs": "y", "group": "predictions", "plot_dim": "pred_id", "smooth": False}
PLOTS = {
    "plot_lm of means": lambda t: az.plot_lm(t.real, y="mu", ci_prob=(0.5, 0.9), **LINES),
    "plot_ppc_dist": lambda t: az.plot_ppc_dist(t.real),
    "plot_ppc_pit": lambda t: az.plot_ppc_pit(t.real),
    "plot_ppc_pava": lambda t: az.plot_ppc_pava(t.classes, data_type="categorical", var_names="y"),
    "plot_ppc_rootogram": lambda t: az.plot_ppc_rootogram(t.classes, var_names="y"),
    "plot_forest": lambda t: az.plot_forest(t.real, combined=True, **MU),
    "plot_prior_posterior": lambda t: az.plot_prior_posterior(t.real, **WEIGHT),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")
@pytest.mark.filterwarnings("ignore:Found chain dimension to be longer:UserWarning")
def test_plots(name, trees):
    assert PLOTS[name](trees).viz["figure"].item().axes
    plt.close("all")


def test_reliability_diagrams_get_labels(trees):
    """With probabilities for draws their bands would be too narrow."""
    for tree in (trees.classes, trees.test_classes):
        labels = tree["posterior_predictive"].y
        assert labels.dtype == tree["observed_data"].y.dtype == np.int64
        assert set(np.unique(labels)) <= {0, 1, 2}


def test_noise_is_in_original_units_and_columns_have_names():
    """The deviation of a prediction is the root of the mean square of the noise, for the same draws."""
    posterior = fit(TWO, outputs=2, likelihood=INFERRED, steps=5)
    names = {"target": ["height", "price"], "obs_id": [f"row {n}" for n in range(24)]}
    tree = bnn.to_datatree(posterior, TWO, num_draws=40, coords=names, dims={"2.bias": ["column"]})
    noise = posterior.predict(X, draws=posterior.draw(40)).aleatoric_std
    scale = tree["posterior"]["likelihood.scale"]
    np.testing.assert_allclose((scale**2).mean(("chain", "draw")) ** 0.5, noise[0], rtol=1e-5)
    assert scale.dims == ("chain", "draw", "target")
    assert float(tree["prior"]["likelihood.scale"].median()) == pytest.approx(0.674, rel=0.4)  # of |z|, z ~ N(0, 1)
    assert tree["observed_data"].sel(obs_id="row 3", target="price").y == TWO.y[3, 1]
    assert tree["posterior"]["2.bias"].dims[2:] == ("column",)
    assert list(bnn.eval_datatree(posterior, TWO, num_draws=4, coords=names)["observed_data"].target) == names["target"]
    for plot in (az.plot_ppc_pit, az.plot_loo_pit):
        assert plot(tree.sel(target="price")).viz["figure"].item().axes
        plt.close("all")


@pytest.mark.slow
def test_chains_have_energy_and_depth():
    """Of a normal posterior in P dimensions the energy is a constant and half a chi-squared with 2 P degrees."""
    method = bnn.NUTS(num_draws=200, warmup=100, num_chains=2)
    model = bnn.BNN(nn.Linear(2, 1), prior=UNIT, likelihood=KNOWN)
    tree = bnn.to_datatree(bnn.fit(model, PLAIN, method, seed=0, progress=False), PLAIN, prior=False)
    stats_of = tree["sample_stats"]
    assert float(stats_of.energy.var()) == pytest.approx(3.0, rel=0.5)  # the variance of Gamma(P, 1) for P = 3
    np.testing.assert_array_equal(stats_of.tree_depth, np.ceil(np.log2(stats_of.n_steps + 1)))
    assert float(az.bfmi(tree)["energy"].min()) > 0.5
    assert az.plot_energy(tree).viz["figure"].item().axes
    plt.close("all")
