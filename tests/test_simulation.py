"""Simulation-based calibration: an exact method passes, and each way of being wrong is caught and named."""

import dataclasses

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from helpers import at_normal
from scipy import stats
from torch import nn

import pyrobnn as bnn
from pyrobnn.diagnostics.simulation import _report, _share_below
from pyrobnn.distributions.units import Scaler

NOISE, SCALE = 0.5, 1.2
X = torch.tensor([[1.0, x] for x in (-1.0, -0.6, -0.1, 0.4, 0.9)], dtype=torch.float64)
PROBES = torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)


def linear_model(likelihood=None):
    net = nn.Linear(2, 1, bias=False).double()
    noise = likelihood or bnn.likelihoods.Gaussian(scale=NOISE)
    return bnn.BNN(net, prior=bnn.priors.Normal(SCALE), likelihood=noise)


@dataclasses.dataclass(frozen=True)
class Exact(bnn.inference.BaseMethod):
    """The exact posterior of the linear model, `width` times as wide, and shifted so many deviations at a probe."""

    width: float = 1.0
    shift: float = 0.0

    def infer(self, model, data, run):
        precision = torch.eye(2, dtype=torch.float64) / SCALE**2 + data.x.T @ data.x / NOISE**2
        covariance = torch.linalg.inv(precision)
        towards = covariance @ PROBES[0] / (PROBES[0] @ covariance @ PROBES[0]).sqrt()
        mean = covariance @ data.x.T @ data.y / NOISE**2 + self.shift * towards
        return at_normal(model, data, mean, self.width * torch.linalg.cholesky(covariance), seed=run.seed)


def vsbc(model, method, x, *, probes, num_simulations=20, **settings):
    settings |= {"num_simulations": num_simulations, "probes": probes, "seed": 0, "progress": False}
    return bnn.vsbc(model, x, method, engine="eager", **settings)


def simulated(num_draws=100, num_simulations=300, **settings):
    counts = {"num_simulations": num_simulations, "num_draws": num_draws}
    return vsbc(linear_model(), Exact(**settings), X, probes=PROBES, **counts)


def test_an_exact_method_is_calibrated():
    """At seed 0, M = 300: p > 0.01 of each test, also of scipy's Kolmogorov-Smirnov test of uniformity."""
    exact = simulated()
    assert exact.is_calibrated
    assert (exact.table[["symmetric", "uniform"]] > 0.01).to_numpy().all()
    shares = exact.tree["prior_sbc"].mu
    assert shares.dims == ("simulation", "probe")
    assert shares.shape == (300, 2)
    for probe in range(2):
        assert stats.kstest(shares[:, probe], "uniform").pvalue > 0.01
    assert "nothing speaks against calibration" in str(exact)
    assert list(exact.table.index) == ["mu[0]", "mu[1]"]
    az.plot_ecdf_pit(exact.tree, group="prior_sbc", sample_dims=["simulation"])
    plt.close("all")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("settings", "column"),
    [
        ({"width": 0.5}, "uniform"),
        ({"width": 2.0}, "uniform"),
        ({"shift": 0.7}, "symmetric"),
        ({"shift": -0.7}, "symmetric"),
    ],
)
def test_a_wrong_method_is_caught(settings, column):
    """At seed 0, M = 100."""
    report = simulated(num_simulations=100, **settings)
    assert not report.is_calibrated
    assert report.table.loc["mu[0]", column] < 1e-3
    if "shift" in settings:
        assert (report.table.loc["mu[0]", "mean"] < 0.5) == (settings["shift"] > 0)
    if "width" in settings:
        assert report.table.loc["mu[0]", "symmetric"] > 0.01
        assert (report.table.loc["mu[0]", "spread"] > 1) == (settings["width"] < 1)


def test_data_are_simulated_and_fitted_in_the_units_of_the_model():
    """Units that a model took over from an earlier fit play no part."""
    model, reports = linear_model(), []
    for units in (None, (Scaler(torch.tensor(5.0), torch.tensor(3.0)), Scaler(torch.tensor(1.0), torch.tensor(0.1)))):
        model.units = units
        reports.append(vsbc(model, bnn.SVI(steps=2), X, probes=PROBES, num_draws=20).tree["prior_sbc"].mu)
        assert model.units is units
    np.testing.assert_array_equal(*reports)


@pytest.mark.parametrize("num_draws", [1, 5, 100])
def test_ranks_are_uniform_for_any_number_of_draws(num_draws):
    """Kolmogorov-Smirnov at 20,000 ranks and seed 0; with values that are often equal as well."""
    generator = np.random.default_rng(0)
    for draw in (generator.normal, lambda size: generator.integers(3, size=size)):
        values = draw(size=(num_draws + 1, 20_000))
        shares = _share_below(values[1:], values[0], generator)
        assert stats.kstest(shares, "uniform").pvalue > 0.01
        assert ((shares > 0) & (shares < 1)).all()
    assert (_share_below(np.ones((99, 50)), np.zeros(50), generator) < 0.01).all()
    assert (_share_below(np.zeros((99, 50)), np.ones(50), generator) > 0.99).all()


def test_verdict_counts_all_hypotheses():
    report = _report({"mu": np.random.default_rng(0).uniform(size=(50, 8))}, 100)
    smallest = report.table[["symmetric", "uniform"]].to_numpy().min()
    assert report.p_value == pytest.approx(min(1, 16 * smallest))


def test_variational_fits_end_to_end():
    """A network with noise of its own: every quantity is there, and prior, targets and fits go together."""
    noise = bnn.likelihoods.Gaussian(scale={"type": "half_normal", "scale": 1.0})
    model = bnn.BNN(bnn.MLP(1, [3], 1, activation="tanh"), likelihood=noise, prior=bnn.priors.Normal(1.0))
    x = torch.linspace(-1, 1, 8)[:, None]
    report = vsbc(model, bnn.SVI(steps=2, lr=0.05), x, probes=x[:3], num_draws=50)
    assert list(report.table.index) == ["mu[0]", "mu[1]", "mu[2]", "likelihood.scale"]
    assert report.tree["prior_sbc"]["likelihood.scale"].dims == ("simulation",)
    assert np.isfinite(report.table.to_numpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize(("likelihood", "outputs", "shape"), [("bernoulli", 1, (2,)), ("categorical", 3, (2, 3))])
def test_classes_are_compared_by_their_probabilities(likelihood, outputs, shape):
    model = bnn.BNN(bnn.MLP(1, [2], outputs), likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    x = torch.linspace(-1, 1, 6)[:, None]
    svi = bnn.SVI(guide="mean_field", steps=2)
    method = bnn.Ensemble(svi, members=2) if likelihood == "bernoulli" else svi
    report = vsbc(model, method, x, probes=x[:2], num_draws=10)
    assert report.tree["prior_sbc"].probs.shape == (20, *shape)
    assert len(report.table) == np.prod(shape)


REFUSED = [
    ({"num_simulations": 19}, "`num_simulations` must be at least 20, got 19"),
    ({"num_draws": 0}, "`num_draws` must be a whole number, at least 1, got 0"),
    ({"probes": torch.zeros(2, 3)}, "`probes` must have the columns of `x`, .2,., got .3,."),
    ({"probes": torch.zeros(2)}, "`probes` must have shape"),
    ({"model": linear_model("gaussian")}, "only from a prior, and likelihood.scale would be optimised"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_refusals(given, message):
    with pytest.raises(bnn.InputError, match=message):
        bnn.vsbc(**{"model": linear_model(), "x": X, "method": Exact(), "probes": PROBES} | given)
