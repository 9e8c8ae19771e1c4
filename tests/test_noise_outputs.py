"""Normal noise that is an output, in the evidence framework: what its locations leave open, and its mean."""

import numpy as np
import pytest
import torch

import pyrobnn as bnn
from pyrobnn.inference.scales.fixed_point import NoiseOutputs, Rows, known_noise
from pyrobnn.inference.scales.tuned_mode import TunedMode

VARYING = bnn.likelihoods.Gaussian("heteroscedastic")


def outputs(num, columns):
    """Return weights of a last layer of 2 columns, outputs of rows, and covariances of these."""
    generator = torch.Generator().manual_seed(0)
    like = {"generator": generator, "dtype": torch.float64}
    weights = {"first": torch.randn(5, 3, **like), "last": torch.randn(2 * columns, 5, **like)}
    weights |= {"bias": torch.randn(2 * columns, **like)}
    roots = 0.3 * torch.randn(num, 2 * columns, 2 * columns, **like)
    return weights, torch.randn(num, 2 * columns, **like), roots @ roots.mT


@pytest.mark.parametrize("columns", [1, 2])
def test_the_mean_over_locations_is_that_of_normal_outputs(columns):
    """E log N(y; f, s^2) over f ~ N(m, v) is log N(y; m, s^2) - v / (2 s^2), in each column."""
    weights, f, covariance = outputs(6, columns)
    y = torch.randn(6, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    varying = NoiseOutputs(weights, Rows(y, (y,)), extra=0.0)
    noise = torch.nn.functional.softplus(f[:, columns:]) + 1e-3
    variance = covariance.diagonal(dim1=1, dim2=2)[:, :columns]

    def log_prob(values):
        law = torch.distributions.Normal(values[:, :columns], torch.nn.functional.softplus(values[:, columns:]) + 1e-3)
        return law.log_prob(y).sum()

    assert torch.allclose(varying.look(covariance), variance)
    exact = log_prob(f) - (variance / (2 * noise.square())).sum()
    assert float(varying.log_prob(log_prob, f)) == pytest.approx(float(exact), rel=1e-12)


def test_noise_that_is_held_has_its_scale_in_all_rows():
    weights, f, _ = outputs(4, 2)
    scale, y = torch.tensor([0.2, 3.0], dtype=torch.float64), f[:, :2]
    varying = NoiseOutputs(weights, Rows(y, (y,)), extra=0.0)
    assert varying.belongs.tolist() == [False] * 15 + [False] * 10 + [True] * 10 + [False, False, True, True]
    assert torch.equal(varying.free(f.new_ones(39)), f.new_ones(39))
    varying.hold(weights, scale)
    raised = weights["last"] @ torch.randn(5, dtype=torch.float64) + weights["bias"]
    assert torch.allclose(torch.nn.functional.softplus(raised[2:]) + 1e-3, scale)
    assert torch.equal(varying.free(f.new_ones(39)), (~varying.belongs).double())
    varying.release()
    assert torch.equal(varying.free(f.new_ones(39)), f.new_ones(39))


@pytest.mark.slow
def test_noise_that_stays_alike_is_tuned_as_one_number_is(monkeypatch):
    """In a linear model both have one mode, and one fixed point of the scales."""
    judge, modes = TunedMode.judge, []
    monkeypatch.setattr(TunedMode, "judge", lambda mode: modes.append(mode) or judge(mode))
    monkeypatch.setattr(NoiseOutputs, "release", lambda noise: None)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = x @ [1.0, -0.5, 0.0] + 0.3 * rng.normal(size=40)
    for likelihood, width in ((bnn.likelihoods.Gaussian(), 1), (VARYING, 2)):
        model = bnn.BNN(bnn.MLP(3, [], width, dtype="float64"), prior=bnn.priors.Normal(1.0), likelihood=likelihood)
        bnn.fit(model, (x, y), bnn.EvidenceFramework(starts=1, rounds=60), seed=0, progress=False)
    plain, varying = modes[0], modes[-1]
    for name, value in plain.weights.items():
        assert torch.allclose(varying.weights[name][:1], value, atol=1e-4)
        assert torch.allclose(varying.prior.by_site()[name][:1], plain.prior.by_site()[name], rtol=0.01)
    (bias,) = (value for value in varying.weights.values() if value.ndim == 1)
    assert torch.allclose(torch.nn.functional.softplus(bias[1]) + 1e-3, known_noise(plain.bnn), rtol=1e-4)


@pytest.mark.parametrize("last", [{"2.weight": (2, 2)}, {"2.weight": (2, 2), "2.bias": (2,)}], ids=list)
def test_noise_is_held_by_the_last_layer_alone(last):
    """A hidden layer has as many units as the last; its bias is no noise."""
    weights = {name: torch.ones(size) for name, size in ({"0.weight": (2, 3), "0.bias": (2,)} | last).items()}
    y = torch.arange(4.0)[:, None]
    noise = NoiseOutputs(weights, Rows(y, (y,)), 0.0)
    noise.begin(weights, 1.0)
    moved = {name for name, value in weights.items() if not torch.equal(value, torch.ones_like(value))}
    assert (noise.held is not None, moved) == (len(last) > 1, {*last} if len(last) > 1 else set())
    assert noise.belongs.nonzero().flatten().tolist() == [10, 11, *([13] if len(last) > 1 else [])]
