"""The DataTree beside its core: prior, predictions, several posteriors, monitored sites, held-out data, files, size."""

import dataclasses
import subprocess
import sys

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr
from pyro.nn import PyroModule
from scipy import stats
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.random import derive
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.diagnostics.monitored import NORM

X = torch.linspace(-1, 1, 16)[:, None] * torch.tensor([1.0, -0.5])
WAVE = torch.sin(3 * X[:, 0])
DATA = bnn.Data(X, 5 + 3 * WAVE, standardize=True, feature_names=["height", "weight"])
CLASSES = bnn.Data(X, torch.arange(16) % 3)
S = 30


def fit(data=DATA, *, outputs=1, seed=0, guide="mean_field", steps=3, **options):
    options = {"likelihood": bnn.likelihoods.Gaussian(scale=0.5)} | options
    model = bnn.BNN(bnn.MLP(2, [3], outputs, activation="tanh"), **options)
    return model.fit(data, guide=guide, steps=steps, seed=seed, engine="eager", progress=False)


@pytest.fixture(scope="module")
def pair():
    return fit(), fit(seed=1)


@pytest.fixture(scope="module")
def tree(pair):
    return bnn.to_datatree(pair[0], DATA, x_pred=X[:4] + 0.1, num_draws=S, seed=11)


# Prior


def test_prior_groups_are_those_of_the_prior_predictive_distribution(pair, tree):
    """Bit for bit what `BNN.sample_prior_predictive` draws with the same seed, and its weights."""
    expected = pair[0].bnn.sample_prior_predictive(DATA, num_draws=S, seed=derive(11, "prior"))
    np.testing.assert_allclose(tree["prior_predictive"].mu[0], expected.draw_means, rtol=1e-5, atol=1e-5)
    draws = {name: torch.from_numpy(values.values[0]) for name, values in tree["prior"].data_vars.items()}
    recomputed = pair[0].predict(X, draws=draws).draw_means
    np.testing.assert_allclose(tree["prior_predictive"].mu[0], recomputed, rtol=1e-5, atol=1e-5)


def test_weights_of_the_prior_have_its_law():
    """Kolmogorov-Smirnov, p > 0.001 at seed 0, for N(0, 2^2)."""
    posterior = fit(prior=bnn.priors.Normal(2.0))
    weights = bnn.to_datatree(posterior, DATA, num_draws=300, seed=0)["prior"]["0.weight"].values
    assert stats.kstest(weights.ravel(), stats.norm(0, 2).cdf).pvalue > 0.001


@dataclasses.dataclass(frozen=True)
class Flat:
    """An improper prior."""

    def build(self, values):
        return FlatModule()


class FlatModule(PyroModule):
    def forward(self, name, value):
        return dist.ImproperUniform(dist.constraints.real, (), value.shape)


class Narrow(PyroModule):
    """A handwritten guide."""

    def __init__(self, model):
        super().__init__()
        self.names = list(model.initial_values)
        self.points = nn.ParameterList(model.initial_values.values())

    def forward(self, *args):
        for name, value in zip(self.names, self.points, strict=True):
            pyro.sample(name, dist.Normal(value, 0.1).to_event(value.ndim))


def test_a_prior_that_cannot_be_drawn_from_is_left_out_with_the_reason(pair):
    model = bnn.BNN(bnn.MLP(2, [3], 1), prior=Flat(), likelihood=bnn.likelihoods.Gaussian(scale=0.5))
    units = {name: getattr(pair[0], name) for name in ("example", "x_scaler", "y_scaler")}
    with local_parameters():
        guide = Narrow(model)
    tree = bnn.to_datatree(bnn.Posterior(model, guide, seed=0, **units), DATA, num_draws=4)
    assert not {"prior", "prior_predictive"} & set(tree.children)
    assert tree.attrs["prior_left_out"].startswith("the prior cannot be drawn from")
    assert np.isfinite(tree["log_likelihood"].y).all()


def test_predictions_that_overflow_under_the_prior_are_left_out_with_the_reason():
    posterior = fit(CLASSES, outputs=3, likelihood="categorical", prior=bnn.priors.Normal(1e38))
    tree = bnn.to_datatree(posterior, CLASSES, x_pred=X[:2], num_draws=20)
    assert tree["predictions"].probs.dims == ("chain", "draw", "pred_id", "class")
    assert tree["predictions"].y.dtype == np.int64
    assert "prior_predictive" not in tree.children
    assert tree["prior"].sizes["draw"] == 20
    assert "prior_predictive is left out" in tree.attrs["prior_left_out"]


# Predictions


def test_predictions_are_those_of_the_same_draws(pair, tree):
    prediction = pair[0].predict(X[:4] + 0.1, draws=pair[0].draw(S, seed=11))
    np.testing.assert_array_equal(tree["predictions"].mu[0], prediction.draw_means)
    assert tree["predictions"].y.dims == ("chain", "draw", "pred_id")
    assert tree["predictions_constant_data"].x.dims == ("pred_id", "feature")
    np.testing.assert_array_equal(tree["predictions_constant_data"].x, X[:4] + 0.1)


def test_noise_at_new_inputs_is_not_that_at_the_data(pair):
    """At the same inputs the correlation of noise is 0, within 4 standard errors (seed 0, 200 draws of 16 targets)."""
    tree = bnn.to_datatree(pair[0], DATA, x_pred=X, num_draws=200, seed=0, prior=False)
    assert not {"prior", "prior_predictive"} & set(tree.children)
    assert "prior_left_out" not in tree.attrs
    noises = [(tree[group].y - tree[group].mu).values.ravel() for group in ("posterior_predictive", "predictions")]
    assert abs(np.corrcoef(noises)[0, 1]) < 4 / np.sqrt(200 * 16)


# Variational parameters


def test_guide_params_are_the_moments_of_each_site(pair, tree):
    for name, (loc, scale) in pair[0].guide.moments().items():
        np.testing.assert_array_equal(tree["guide_params"][f"{name}.loc"][0], loc)
        np.testing.assert_array_equal(tree["guide_params"][f"{name}.scale"][0], scale)
    assert tree["guide_params"]["0.weight.loc"].dims == ("chain", "0.out", "0.in")
    assert list(tree["guide_params"]["0.in"].values) == ["height", "weight"]


def test_guide_params_of_constrained_sites():
    posterior = fit(likelihood=bnn.likelihoods.Gaussian(scale={"type": "half_normal", "scale": 1.0}))
    tree = bnn.to_datatree(posterior, DATA, num_draws=4, prior=False)
    loc, _ = posterior.guide.moments()["likelihood.scale"]
    assert float(tree["guide_params"]["likelihood.scale.loc"][0]) == pytest.approx(float(loc))
    assert (tree["posterior"]["likelihood.scale"] > 0).all()


# Several posteriors


def test_a_dict_names_the_chains(pair):
    named = bnn.to_datatree({"one": pair[0], "two": pair[1]}, DATA, x_pred=X[:3], num_draws=2 * S, seed=3)
    listed = bnn.to_datatree(list(pair), DATA, x_pred=X[:3], num_draws=2 * S, seed=3)
    mixture = bnn.to_datatree(bnn.Mixture(pair), DATA, x_pred=X[:3], num_draws=2 * S, seed=3)
    for group in ("posterior", "prior", "predictions", "log_prior", "svi", "guide_params"):
        assert list(named[group].chain.values) == ["one", "two"]
        xr.testing.assert_equal(listed[group].to_dataset(), mixture[group].to_dataset())
        other = listed[group].to_dataset().assign_coords(chain=["one", "two"])
        xr.testing.assert_equal(named[group].to_dataset(), other)
    np.testing.assert_array_equal(listed["guide_params"]["2.bias.loc"][1], pair[1].guide.moments()["2.bias"][0])


def test_markov_chains_of_several_fits_have_names_with_numbers():
    model = bnn.BNN(nn.Linear(2, 1), likelihood=bnn.likelihoods.Gaussian(scale=0.5), prior=bnn.priors.Normal(1.0))
    method = bnn.HMC(step_size=0.05, trajectory_length=0.2, num_draws=5, warmup=2, num_chains=2)
    chains = {s: bnn.fit(model, DATA, method, seed=i, progress=False, engine="eager") for i, s in enumerate("ab")}
    tree = bnn.to_datatree(chains, DATA, prior=False)
    assert list(tree["posterior"].chain.values) == ["a.0", "a.1", "b.0", "b.1"]
    assert "guide_params" not in tree.children
    weights = tree["posterior"]["weight"].values
    np.testing.assert_array_equal(weights[2:], chains["b"].guide.chains()["weight"])
    log_prior = stats.norm.logpdf(weights).sum((2, 3)) + stats.norm.logpdf(tree["posterior"]["bias"].values).sum(2)
    np.testing.assert_allclose(tree["log_prior"].lprior, log_prior, rtol=1e-5)


def test_different_guides_and_methods_are_all_named(pair):
    tree = bnn.to_datatree({"vi": pair[0], "point": fit(guide="map")}, DATA, num_draws=4)
    assert tree.attrs["guide"] == "MeanFieldGuide, MapGuide"
    assert tree.attrs["inference_method"] == "SVI"
    assert "guide_params" not in tree.children
    assert np.isnan(tree["sample_stats"].log_q.values[1]).all()


def test_posteriors_that_do_not_go_together_are_refused(pair):
    classes = fit(CLASSES, outputs=3, likelihood="categorical")
    with pytest.raises(
        bnn.InputError, match="must be a posterior, a mixture, or a list or dict of posteriors, got str"
    ):
        bnn.to_datatree("posterior", DATA)
    with pytest.raises(bnn.InputError, match="or a list or dict of posteriors, got list"):
        bnn.eval_datatree([bnn.Mixture(pair)], DATA)
    with pytest.raises(bnn.InputError, match="Members of a mixture must have the same weights"):
        bnn.to_datatree([pair[0], classes], DATA)
    learned = fit(likelihood=bnn.likelihoods.Gaussian(scale={"type": "half_normal", "scale": 1.0}))
    with pytest.raises(bnn.InputError, match="must have the same sites, only some have 'likelihood.scale'"):
        bnn.to_datatree([pair[0], learned], DATA, num_draws=4)
    counts = fit(bnn.Data(X, torch.arange(16) % 2), likelihood="bernoulli")
    plain = fit(bnn.Data(X, torch.arange(16) % 2))
    with pytest.raises(bnn.InputError, match="must have the same kind of targets, classes or not"):
        bnn.to_datatree([counts, plain], bnn.Data(X, torch.arange(16) % 2))


# Monitored sites


@pytest.fixture(scope="module")
def wide():
    data = bnn.Data(torch.ones(4, 40), torch.zeros(4))
    model = bnn.BNN(bnn.MLP(40, [30], 1), prior=bnn.priors.Horseshoe(local="weight"))
    return model.fit(data, steps=1, seed=0, engine="eager", progress=False), data


def test_latents_of_a_large_prior_are_capped_too_unless_all_are_asked_for(wide):
    kept = bnn.to_datatree(*wide, num_draws=3, prior=False)["posterior"]
    assert sum(values[0, 0].size for values in kept.data_vars.values()) < 1000
    assert kept["prior.0.weight.local_scale"].shape == (1, 3, 20)
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


@pytest.mark.parametrize(
    ("monitor", "message"),
    [
        ("most", "`monitor` must be 'auto', 'all', or a list of patterns of site names, got 'most'"),
        ([], "`monitor` must be 'auto', 'all', or a list of patterns"),
        (3, "`monitor` must be 'auto', 'all', or a list of patterns"),
        (["2.*", "9.*"], "The pattern '9.*' in `monitor` matches no site: it may name any of 0.weight"),
    ],
)
def test_unknown_monitors_are_refused(pair, monitor, message):
    with pytest.raises(bnn.InputError, match=message):
        bnn.to_datatree(pair[0], DATA, monitor=monitor)


# Held-out data


def test_evaluation_tree_pairs_the_test_data(pair):
    data = bnn.Data(X[:5] + 0.05, DATA.y[:5])
    tree = bnn.eval_datatree(pair[0], data, num_draws=S, seed=2)
    groups = {"posterior", "posterior_predictive", "log_likelihood", "observed_data", "constant_data"}
    assert set(tree.children) == groups
    prediction = pair[0].predict(data.x, draws=pair[0].draw(S, seed=2))
    np.testing.assert_array_equal(tree["posterior_predictive"].mu[0], prediction.draw_means)
    np.testing.assert_array_equal(tree["log_likelihood"].y[0], prediction.draw_log_prob(data.y))
    np.testing.assert_array_equal(tree["observed_data"].y, data.y)
    np.testing.assert_array_equal(tree["posterior"]["2.bias"][0], pair[0].draw(S, seed=2)["2.bias"])


# Size


def test_draws_of_a_large_network_are_made_in_parts(pair, monkeypatch):
    monkeypatch.setattr("pyrobnn.diagnostics.groups._BLOCK", 10 * pair[0].bnn.num_weights)
    tree = bnn.to_datatree(pair[0], DATA, num_draws=25, seed=11)
    first = pair[0].draw(10, seed=11)["2.weight"]
    np.testing.assert_array_equal(tree["posterior"]["2.weight"][0, :10], first)
    assert len(np.unique(tree["posterior"]["2.bias"])) == 25
    assert len(np.unique(tree["prior"]["2.bias"])) == 25
    draws = {name: torch.from_numpy(values.values[0]) for name, values in tree["posterior"].data_vars.items()}
    log_likelihood = pair[0].predict(X, draws=draws).draw_log_prob(DATA.y)
    np.testing.assert_allclose(tree["log_likelihood"].y[0], log_likelihood, rtol=1e-5)


LARGE = """
import threading, time, torch, arviz
import pyrobnn as bnn
torch.set_num_threads(1)
data = bnn.Data(torch.rand(20, 784), torch.arange(20) % 10)
def fit(hidden):
    model = bnn.BNN(bnn.MLP(784, hidden, 10), likelihood="categorical")
    return model.fit(data, steps=2, seed=0, engine="eager", progress=False)
bnn.to_datatree(fit([2]), data, num_draws=2)
posterior = fit([1200, 1200])
def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20
before, highest, done = megabytes(), [0.0], threading.Event()
def watch():
    while not done.wait(0.005):
        highest[0] = max(highest[0], megabytes())
watcher = threading.Thread(target=watch)
watcher.start()
started = time.perf_counter()
tree = bnn.to_datatree(posterior, data, num_draws=40)
seconds = time.perf_counter() - started
done.set()
watcher.join()
entries = sum(values[0, 0].size for values in tree["posterior"].data_vars.values())
print(posterior.bnn.num_weights, entries, highest[0] - before, seconds)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_millions_of_weights_take_little_memory():
    """40 draws of 2.4 million weights would be 366 MiB; the variational parameters in the tree are 18."""
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    num_weights, entries, megabytes, seconds = map(float, done.stdout.split())
    assert num_weights == 784 * 1200 + 1200 * 1200 + 1200 * 10 + 2410
    assert entries < 200
    assert megabytes < 300
    assert seconds < 60


@pytest.mark.parametrize(("weights", "draws"), [(0, 500), (10**6, 500), (2_395_210, 224), (10**8, 100)])
def test_large_networks_have_fewer_draws_unless_asked(weights, draws):
    from pyrobnn.diagnostics.groups import _default_draws

    assert _default_draws(weights) == draws
