"""Functions of ArviZ that serve Bayesian networks, each in one line on a tree of ours: they run and return numbers."""

import warnings

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import pyrobnn as bnn

X = torch.linspace(-1, 1, 24)[:, None]
WAVE = torch.sin(3 * X[:, 0]) + 0.2 * torch.randn(24, generator=torch.Generator().manual_seed(0))
PLANE = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
DATA = bnn.Data(X, WAVE)
CLASSES = bnn.Data(PLANE, (PLANE[:, 0] > 0).long() + (PLANE[:, 1] > 0.5).long())
BINARY = bnn.Data(PLANE, (PLANE[:, 0] > 0).long())
GRID = torch.linspace(-1.2, 1.2, 5)[:, None]


def fits(data, outputs, likelihood, count=2):
    model = bnn.BNN(
        bnn.MLP(data.x.shape[1], [3], outputs, activation="tanh"), likelihood=likelihood, prior=bnn.priors.Normal(1.0)
    )
    return [model.fit(data, steps=40, lr=0.05, seed=s, engine="eager", progress=False) for s in range(count)]


class Trees:
    """Trees of a regression, of a classifier, of two seeds of each, and of held-out data."""

    def __init__(self):
        noise = bnn.likelihoods.Gaussian(scale=0.3)
        first, second = fits(DATA, 1, noise)
        self.real = bnn.to_datatree(first, DATA, x_pred=GRID, num_draws=100)
        self.other = bnn.to_datatree(second, DATA, x_pred=GRID, num_draws=100)
        self.two = bnn.to_datatree([first, second], DATA, x_pred=GRID, num_draws=200, prior=False)
        self.named = bnn.to_datatree({"one": first, "two": second}, DATA, x_pred=GRID, num_draws=200, prior=False)
        self.test = bnn.eval_datatree(first, bnn.Data(X[::2], WAVE[::2]), num_draws=100)
        classifier, again = fits(CLASSES, 3, "categorical")
        self.classes = bnn.to_datatree(classifier, CLASSES, x_pred=PLANE[:2], num_draws=100)
        self.two_classes = bnn.to_datatree([classifier, again], CLASSES, num_draws=200, prior=False)
        self.test_classes = bnn.eval_datatree(classifier, CLASSES[::2], num_draws=100)
        self.binary = bnn.to_datatree(fits(BINARY, 1, "bernoulli", 1)[0], BINARY, num_draws=100)


@pytest.fixture(scope="module")
def trees():
    return Trees()


MU = {"group": "predictions", "var_names": "mu"}
WEIGHT = {"var_names": "2.bias"}
STATISTICS = {
    "summary": lambda t: az.summary(t.real, kind="stats"),
    "summary of classes": lambda t: az.summary(t.two_classes, kind="stats"),
    "loo": lambda t: az.loo(t.real, reff=1.0).elpd,
    "loo of classes": lambda t: az.loo(t.classes, reff=1.0).elpd,
    "loo of seeds": lambda t: az.loo(t.named, reff=1.0).elpd,
    "loo of test data": lambda t: az.loo(t.test, reff=1.0).elpd,
    "loo_approximate_posterior": lambda t: (
        az.loo_approximate_posterior(t.real, log_p=t.real.sample_stats["lp"], log_q=t.real.sample_stats["log_q"]).elpd
    ),
    "loo_subsample": lambda t: az.loo_subsample(t.real, observations=8, reff=1.0).elpd,
    "compare": lambda t: az.compare({"a": az.loo(t.real, reff=1.0), "b": az.loo(t.other, reff=1.0)})["elpd"],
    "loo_pit": lambda t: az.loo_pit(t.real)["y"],
    "loo_expectations": lambda t: az.loo_expectations(t.real, var_name="y", kind="quantile", probs=[0.1, 0.9])[0],
    "loo_influence": lambda t: az.loo_influence(t.real, var_names="y")[0]["y"],
    "loo_score": lambda t: az.loo_score(t.real, kind="crps").mean,
    "metrics": lambda t: az.metrics(t.real, kind="rmse").mean,
    "metrics of test data": lambda t: az.metrics(t.test, kind="mae").mean,
    "residual_r2": lambda t: az.residual_r2(t.real, pred_mean="mu", obs_name="y", group="posterior_predictive").mean,
    "bayesian_r2": lambda t: az.bayesian_r2(t.binary, pred_mean="probs", scale=None, group="posterior_predictive").mean,
    "psense": lambda t: az.psense(t.real)["2.bias"],
    "rhat": lambda t: az.rhat(t.two, **MU)["mu"],
    "kl_divergence": lambda t: az.kl_divergence(t.real, t.other, num_samples=100, **MU),
    "weight_predictions": lambda t: (
        az.weight_predictions([t.real, t.other], weights=[0.4, 0.6])["posterior_predictive"].mu
    ),
    "hdi": lambda t: az.hdi(t.real, **MU)["mu"],
    "eti": lambda t: az.eti(t.real.predictions["mu"], prob=0.9),
    "std": lambda t: az.std(t.real, **MU)["mu"],
    "kde2d": lambda t: az.kde2d(*(t.real.predictions["mu"][..., i] for i in (0, 1))).density,
    "hexbin": lambda t: az.hexbin(*t.real.predictions["mu"].stack(s=("chain", "draw"))[:2], dim="s")["values"],
    "thin": lambda t: az.thin(t.real, factor=2)["2.bias"],
    "get_log_likelihood": lambda t: az.get_log_likelihood(t.real),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics(name, trees):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Estimated shape parameter", category=UserWarning)
        value = STATISTICS[name](trees)
    numbers = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    assert numbers.size
    assert np.isfinite(numbers.astype(float)).all()


LINES = {"x": "x", "y_obs": "y", "group": "predictions", "plot_dim": "pred_id", "smooth": False}
PLOTS = {
    "plot_lm of means": lambda t: az.plot_lm(t.real, y="mu", ci_prob=(0.5, 0.9), **LINES),
    "plot_lm of targets": lambda t: az.plot_lm(t.real, y="y", **LINES),
    "plot_ppc_dist": lambda t: az.plot_ppc_dist(t.real),
    "plot_ppc_dist of the prior": lambda t: az.plot_ppc_dist(t.real, group="prior_predictive", kind="ecdf"),
    "plot_ppc_pit": lambda t: az.plot_ppc_pit(t.real),
    "plot_ppc_pit of test data": lambda t: az.plot_ppc_pit(t.test, coverage=True),
    "plot_loo_pit": lambda t: az.plot_loo_pit(t.real),
    "plot_ppc_interval": lambda t: az.plot_ppc_interval(t.real),
    "plot_loo_interval": lambda t: az.plot_loo_interval(t.real),
    "plot_ppc_tstat": lambda t: az.plot_ppc_tstat(t.real, t_stat="std"),
    "plot_ppc_pava": lambda t: az.plot_ppc_pava(t.classes, data_type="categorical", var_names="y"),
    "plot_ppc_pava of two classes": lambda t: az.plot_ppc_pava(t.binary, data_type="binary"),
    "plot_ppc_pava_residuals": lambda t: az.plot_ppc_pava_residuals(
        t.classes, data_type="categorical", x_var=PLANE[:, 0].numpy()
    ),
    "plot_loo_pava": lambda t: az.plot_loo_pava(t.classes, data_type="categorical"),
    "plot_ppc_rootogram": lambda t: az.plot_ppc_rootogram(t.classes, var_names="y"),
    "plot_forest": lambda t: az.plot_forest(t.real, combined=True, **MU),
    "plot_dist": lambda t: az.plot_dist(t.real, **WEIGHT),
    "plot_dist of class probabilities": lambda t: az.plot_dist(
        t.classes, group="predictions", var_names="probs", coords={"pred_id": [0]}
    ),
    "plot_rank": lambda t: az.plot_rank(t.named, **WEIGHT),
    "plot_convergence_dist": lambda t: az.plot_convergence_dist(t.named, **MU),
    "plot_trace of the ELBO": lambda t: az.plot_trace(
        t.named, group="svi", var_names="elbo", sample_dims=["chain", "step"]
    ),
    "plot_khat": lambda t: az.plot_khat(az.loo(t.real, reff=1.0, pointwise=True)),
    "plot_compare": lambda t: az.plot_compare(
        az.compare({"a": az.loo(t.real, reff=1.0), "b": az.loo(t.other, reff=1.0)})
    ),
    "plot_prior_posterior": lambda t: az.plot_prior_posterior(t.real, **WEIGHT),
    "plot_psense_dist": lambda t: az.plot_psense_dist(t.real, **WEIGHT),
    "combine_plots": lambda t: az.combine_plots(
        t.real, [(az.plot_ppc_pit, {}), (az.plot_ppc_tstat, {})], group="posterior_predictive", var_names="y"
    ),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", PLOTS)
def test_plots(name, trees, tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Estimated shape parameter", category=UserWarning)
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer", category=UserWarning)
        plot = PLOTS[name](trees)
    assert plot.viz["figure"].item().axes
    plt.close("all")


def test_reliability_diagrams_get_labels(trees):
    """With probabilities for draws their bands would be too narrow."""
    for tree in (trees.classes, trees.test_classes):
        labels = tree["posterior_predictive"].y
        assert labels.dtype == tree["observed_data"].y.dtype == np.int64
        assert set(np.unique(labels)) <= {0, 1, 2}


def test_a_single_chain_has_no_rhat_in_the_tables_that_are_shown(trees):
    """`kind="stats"` is the table for independent draws; the library shows no R-hat of a single guide."""
    assert not {"r_hat", "ess_bulk"} & set(az.summary(trees.real, kind="stats").columns)
    posterior = fits(DATA, 1, bnn.likelihoods.Gaussian(scale=0.3), 1)[0]
    with pytest.raises(bnn.InputError, match="R-hat compares Markov chains"):
        bnn.function_rhat(posterior, GRID)


def test_calibration_over_many_draws_of_the_prior_is_uniform():
    """plot_ecdf_pit on a group of simulations: ranks of prior draws among others are uniform (p > 0.001, seed 0)."""
    ranks = np.random.default_rng(0).uniform(size=(200, 1))
    tree = az.from_dict({"prior_sbc": {"mu": ranks}}, sample_dims=["simulation"])
    az.plot_ecdf_pit(tree, group="prior_sbc", sample_dims=["simulation"])
    plt.close("all")
