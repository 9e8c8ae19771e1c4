"""A fit whose training errors are larger than a Gaussian process makes on rows left out is named, and good ones not."""

import numpy as np
import pytest
import torch

import pyrobnn as bnn
from pyrobnn.diagnostics.checks import error, missed, process_errors
from pyrobnn.verdict.evidence import Budget, Evidence


def waves(num, seed, noise=0.1):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(num, 2, generator=g, dtype=torch.float64) * 4 - 2
    return x, torch.sin(2 * x[:, 0]) + x[:, 1] + noise * torch.randn(num, generator=g, dtype=torch.float64)


def fit_of(weight, x, y):
    """A point at a line through the second input, of this slope in standard units."""
    model = bnn.BNN(bnn.MLP(2, [], 1), likelihood=bnn.likelihoods.Gaussian(0.5), prior=bnn.priors.Normal(1.0))
    weights = {"0.weight": torch.tensor([[0.0, weight]]), "0.bias": torch.zeros(1)}
    return bnn.guides.Map().around(model, bnn.Data(x, y, standardize=True), weights=weights, progress=False)


def judged(fit, data):
    return Evidence(fit, data, budget=Budget(draws=2, rows=500, level=0.0))


def test_a_line_through_waves_is_named_and_through_a_line_is_not():
    x, y = waves(60, 0)
    data = bnn.Data(x, y, standardize=True)
    found = missed(judged(fit_of(0.9, x, y), data))
    own = (y - fit_of(0.9, x, y).predict(x).mean.double()).abs().mean()
    assert found.value == pytest.approx(float(own), rel=1e-4)
    line = x[:, 1] + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slope = float(x[:, 1].std() / line.std())
    assert missed(judged(fit_of(slope, x, line), bnn.Data(x, line, standardize=True))) is None
    assert missed(judged(fit_of(0.9, x, y), data[:19])) is None


def test_copies_do_not_tell_the_process_the_target():
    """Noise alone: 30 rows twice each, so that a row left out has its copy among the others."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 2, generator=g).repeat(2, 1), torch.randn(30, generator=g).repeat(2)
    assert float(process_errors(x.double(), y.double()).abs().mean()) < 0.2 * float(y.std())
    data = bnn.Data(x, y, standardize=True)
    assert missed(judged(fit_of(0.0, x, y), data)) is None


def test_diagnose_warns_of_it_where_no_other_check_of_the_predictions_does():
    (x, y), test = waves(60, 0), waves(60, 1)
    for slope, is_missed in ((0.9, True), (0.0, False)):
        fit = fit_of(slope, x, y)
        found = bnn.diagnose(fit, (x, y), test, num_draws=20)
        assert ("missed" in found.names) == is_missed != bool({"constant", "linear"} & {*found.names})


@pytest.mark.parametrize("what", ["weights", "counts", "columns"])
def test_nothing_is_said_of_other_targets(what):
    x, y = waves(60, 0)
    model = bnn.BNN(
        bnn.MLP(2, [], 2 if what == "columns" else 1), likelihood="poisson" if what == "counts" else "gaussian"
    )
    targets = {"weights": y, "counts": y.abs().round(), "columns": torch.stack([y, y], 1)}[what]
    data = bnn.Data(x, targets, weights=torch.ones(60) if what == "weights" else None)
    fit = model.fit(data, guide="map", steps=1, progress=False)
    assert missed(judged(fit, data)) is None


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_a_mean_that_is_further_from_the_targets_than_a_line_is_named_though_scores_are_good(scale):
    """A line through the logarithm, whose slope is right or far too steep, under noise that takes either."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, generator=g, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(300, generator=g, dtype=torch.float64)).exp()
    train, test = (bnn.Data(x[rows], y[rows], standardize=False) for rows in (slice(200), slice(200, None)))
    model = bnn.BNN(
        bnn.MLP(1, [], 1, dtype="float64"), likelihood=bnn.likelihoods.LogNormal(0.5), prior=bnn.priors.Normal(1.0)
    )
    weights = {"0.weight": torch.tensor([[scale]]), "0.bias": torch.zeros(1)}
    fit = bnn.guides.Map().around(model, train, weights=weights, progress=False)
    evidence = Evidence(fit, train, test, Budget(level=0.0))
    found = error(evidence)
    assert (found is not None) == (scale > 1)
    if found is not None:
        own = (fit.predict(test.x).mean - test.y).square().mean().sqrt()
        assert found.value == pytest.approx(float(own), rel=1e-6)
    # apart from the penalty, of targets that spread by 2
    line = np.polyfit(x[:200, 0], y[:200], 1)
    assert evidence.ordinary.predict(x).mean.reshape(-1).numpy() == pytest.approx(np.polyval(line, x[:, 0]), abs=0.2)
