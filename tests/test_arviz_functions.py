"""Functions of ArviZ that serve Bayesian networks, each in one line on a tree of ours: they run and return numbers."""

from types import SimpleNamespace

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from helpers import quick

import pyrobnn as bnn

X = torch.linspace(-1, 1, 24)[:, None]
WAVE = torch.sin(3 * X[:, 0]) + 0.2 * torch.randn(24, generator=torch.Generator().manual_seed(0))
PLANE = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
DATA = bnn.Data(X, WAVE)
CLASSES = bnn.Data(PLANE, (PLANE[:, 0] > 0).long() + (PLANE[:, 1] > 0.5).long())
BINARY = bnn.Data(PLANE, (PLANE[:, 0] > 0).long())
GRID = torch.linspace(-1.2, 1.2, 5)[:, None]


def fits(data, outputs, likelihood, count=1):
    net = bnn.MLP(data.x.shape[1], [3], outputs, activation="tanh")
    model = bnn.BNN(net, likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    return [quick(model, bnn.SVI(steps=40, lr=0.05), data, seed=seed) for seed in range(count)]


@pytest.fixture(scope="module")
def trees():
    """Trees of a regression, of a classifier, of two seeds of each, and of held-out data."""
    first, second = fits(DATA, 1, bnn.likelihoods.Gaussian(scale=0.3), 2)
    (classifier,) = fits(CLASSES, 3, "categorical")
    two = {"x_pred": GRID, "num_draws": 200, "prior": False}
    return SimpleNamespace(
        real=bnn.to_datatree(first, DATA, x_pred=GRID, num_draws=100),
        other=bnn.to_datatree(second, DATA, x_pred=GRID, num_draws=100),
        two=bnn.to_datatree([first, second], DATA, **two),
        named=bnn.to_datatree({"one": first, "two": second}, DATA, **two),
        classes=bnn.to_datatree(classifier, CLASSES, x_pred=PLANE[:2], num_draws=100),
        test_classes=bnn.eval_datatree(classifier, CLASSES[::2], num_draws=100),
        binary=bnn.to_datatree(*fits(BINARY, 1, "bernoulli"), BINARY, num_draws=100),
    )


MU = {"group": "predictions", "var_names": "mu"}
WEIGHT = {"var_names": "2.bias"}
STATISTICS = {
    "summary": lambda t: az.summary(t.real, kind="stats"),
    "loo": lambda t: az.loo(t.real, reff=1.0).elpd,
    "loo of seeds": lambda t: az.loo(t.named, reff=1.0).elpd,
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
