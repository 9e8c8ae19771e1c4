"""A fit whose training errors are larger than a Gaussian process makes on rows left out is named, and good ones not."""

import dataclasses
import math

import pytest
import torch

import pyrobnn as bnn
from pyrobnn.verdict.comparison import Evaluation
from pyrobnn.verdict.left_out import behind_mode, missed_function
from pyrobnn.verdict.remedies import OF_MISSED_FUNCTION, Fitted, open_to
from pyrobnn.verdict.residuals import errors_left_out, standardised


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
    return Evaluation(fit, data, None, {}, num_draws=2, most_rows=500)


def test_a_line_through_waves_is_named_and_through_a_line_is_not():
    x, y = waves(60, 0)
    data = bnn.Data(x, y, standardize=True)
    found = missed_function(judged(fit_of(0.9, x, y), data))
    assert found is not None
    own = (y - fit_of(0.9, x, y).predict(x).mean.double()).abs().mean()
    assert f"are {float(own):.2g} and " in found.text
    line = x[:, 1] + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slope = float(x[:, 1].std() / line.std())
    assert missed_function(judged(fit_of(slope, x, line), bnn.Data(x, line, standardize=True))) is None
    assert missed_function(judged(fit_of(0.9, x, y), data[:19])) is None


def test_copies_do_not_tell_the_process_the_target():
    """Noise alone: 30 rows twice each, so that a row left out has its copy among the others."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 2, generator=g).repeat(2, 1), torch.randn(30, generator=g).repeat(2)
    assert float(errors_left_out(standardised(x.double()), standardised(y.double())).abs().mean()) < 0.2
    data = bnn.Data(x, y, standardize=True)
    assert missed_function(judged(fit_of(0.0, x, y), data)) is None


def test_diagnose_warns_of_it_where_no_other_check_of_the_predictions_does():
    (x, y), test = waves(60, 0), waves(60, 1)
    for slope, is_missed in ((0.9, True), (0.0, False)):
        fit = fit_of(slope, x, y)
        found = bnn.diagnose(fit, (x, y), test, num_draws=20)
        assert ("missed" in found.names) == is_missed != ("baseline" in found.names)


@pytest.mark.parametrize("what", ["weights", "counts", "columns"])
def test_nothing_is_said_of_other_targets(what):
    x, y = waves(60, 0)
    model = bnn.BNN(
        bnn.MLP(2, [], 2 if what == "columns" else 1), likelihood="poisson" if what == "counts" else "gaussian"
    )
    targets = {"weights": y, "counts": y.abs().round(), "columns": torch.stack([y, y], 1)}[what]
    data = bnn.Data(x, targets, weights=torch.ones(60) if what == "weights" else None)
    fit = model.fit(data, guide="map", steps=1, progress=False)
    assert missed_function(judged(fit, data)) is None


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 2.0])
def test_a_guide_behind_the_mode_that_it_began_at_is_named_and_told_to_take_laplace(share):
    """The left-out score of the mode is moved above and below the guide's own score."""
    x, y = waves(60, 0)
    data, method = bnn.Data(x, y), bnn.EvidenceFramework(guide="map", starts=1, rounds=1)
    model = bnn.BNN(bnn.MLP(2, [5], 1, dtype="float64"), prior=bnn.priors.Normal(1.0))
    fit = bnn.fit(model, data, method, seed=0, progress=False)
    own = fit.predict(x, num_draws=2).log_prob(y).double()
    evidence = fit.record.evidence
    moved = float(own.sum()) + (share - 1) * len(y) * max(5.0 / len(y), float(own.std()) / math.sqrt(len(y))) * 1.1
    starts = [dataclasses.replace(evidence.starts[0], log_left_out=moved)]
    fit.record = dataclasses.replace(fit.record, evidence=dataclasses.replace(evidence, starts=starts))
    found = behind_mode(judged(fit, data))
    assert (found is not None) == (share > 1)
    if found is not None:
        assert f"are {float(own.mean()):.2f} and {moved / len(y):.2f}." in found.text
        assert 'guide="laplace"' in str(open_to(Fitted(fit), OF_MISSED_FUNCTION)[0])
        assert behind_mode(judged(fit, bnn.Data(x, y, weights=torch.ones(60)))) is None
        own_guide = bnn.fit(model, data, dataclasses.replace(method, guide="laplace"), seed=0, progress=False)
        own_guide.record = dataclasses.replace(own_guide.record, evidence=fit.record.evidence)
        assert behind_mode(judged(own_guide, data)) is None
