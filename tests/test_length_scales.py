"""Starts of the evidence framework from a Gaussian process with a length scale for each input."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import pyrobnn as bnn
from pyrobnn.inference.scales.tuned_mode import _Process, gaussian_process


def wave(num=80, seed=0, columns=6):
    """Return a wave along the first of several inputs, and noise of 0.3."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (num, columns))
    return x, np.sin(3 * x[:, 0]) + 0.3 * rng.normal(size=num)


def test_it_is_the_process_of_largest_evidence():
    x, y = wave(columns=3)
    y = y + np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] ** 2
    found = gaussian_process(torch.tensor(5 + 2 * x), torch.tensor(7 * y)[:, None], torch.ones(80), seed=0)
    kernel = ConstantKernel() * RBF(np.ones(3), (1e-3, 1e3)) + WhiteKernel()
    expected = GaussianProcessRegressor(kernel, n_restarts_optimizer=5, random_state=0)
    unit, spread = x.std(0, ddof=1), y.std(ddof=1)
    expected.fit(x / unit, (y - y.mean()) / spread)
    lengths = found.lengths.numpy() / (2 * unit)
    np.testing.assert_allclose(lengths, expected.kernel_.k1.k2.length_scale, rtol=0.02)
    parts = expected.kernel_.k1(x / unit)
    total = parts + expected.kernel_.k2.noise_level * np.eye(len(x))
    mean = parts @ np.linalg.solve(total, (y - y.mean()) / spread) * spread + y.mean()
    variance = np.diag(parts - parts @ np.linalg.solve(total, parts)) * spread**2
    np.testing.assert_allclose(found.mean[:, 0].numpy() / 7, mean, atol=0.02)
    np.testing.assert_allclose(found.variance[:, 0].numpy() / 49, variance, rtol=0.1)


@pytest.mark.parametrize("width", [1, 2])
def test_columns_of_targets_share_it_and_its_slope_is_that_of_its_value(width):
    x, y = (torch.tensor(value) for value in wave(30, columns=3))
    weights = torch.linspace(0.5, 3.0, 30, dtype=torch.float64)
    process = _Process(x, torch.stack([y, y**2], 1)[:, :width], weights)
    logs = torch.tensor([0.1, 0.5, 1.0, 0.3, -0.7], dtype=torch.float64)
    values = [[float(process.slope(logs + sign * 1e-5 * e)[0]) for sign in (1, -1)] for e in torch.eye(5).double()]
    slopes = [(above - below) / 2e-5 for above, below in values]
    np.testing.assert_allclose(process.slope(logs)[1:].numpy(), slopes, rtol=1e-6, atol=1e-6)


def test_targets_without_spread_have_none():
    assert gaussian_process(torch.randn(10, 2), torch.ones(10, 1), torch.ones(10), seed=0) is None
    assert gaussian_process(torch.randn(1, 2), torch.ones(1, 1), torch.ones(1), seed=0) is None


def test_a_length_scale_is_not_so_short_that_the_process_is_noise():
    """Without a bound it is 0.015 standard deviations here."""
    generator = torch.Generator().manual_seed(7)
    x = torch.rand(20, 1, dtype=torch.float64, generator=generator)
    y = torch.randn(20, 1, dtype=torch.float64, generator=generator)
    lengths = [gaussian_process(x * unit, y, torch.ones(20), seed=0).lengths / unit for unit in (1.0, 1e4)]
    assert float(lengths[0]) > 0.0499 * float(x.std(correction=0))
    torch.testing.assert_close(lengths[0], lengths[1], rtol=1e-3, atol=0.0)


def test_a_row_of_weight_two_is_a_row_twice():
    x, y = (torch.tensor(value) for value in wave(40, columns=2))
    weights = torch.arange(40) % 4
    weighted = gaussian_process(x, y[:, None], weights, seed=0)
    repeated = gaussian_process(
        x.repeat_interleave(weights, 0), y.repeat_interleave(weights)[:, None], torch.ones(60), 0
    )
    torch.testing.assert_close(weighted.lengths, repeated.lengths, rtol=1e-3, atol=1e-3)
    for name in ("mean", "variance"):
        ours, theirs = getattr(weighted, name).repeat_interleave(weights, 0), getattr(repeated, name)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("likelihood", ["gaussian", "log_normal"])
def test_a_bend_along_one_of_several_inputs_is_found_also_by_amounts(likelihood):
    """Starts from noise alone have a log score of -1.1 here, as a constant; a Gaussian process, of logs, has -0.3."""
    (x, y), (new_x, new_y) = wave(), wave(500, seed=1)
    is_log, of_y = likelihood == "log_normal", np.exp if likelihood == "log_normal" else np.asarray
    net = bnn.MLP(6, [50], 1, activation="silu", dtype="float64")
    model = bnn.BNN(net, prior=bnn.priors.Normal("fan_in"), likelihood=likelihood)
    data, method = bnn.Data(x, of_y(y), standardize=True), bnn.EvidenceFramework(starts=2 - is_log)
    posterior = bnn.fit(model, data, method, seed=0, progress=False)
    assert float((posterior.predict(new_x).log_prob(of_y(new_y)) + is_log * torch.tensor(new_y)).mean()) > -0.7
    assert [start.noise for start in posterior.record.evidence.starts] == [None, 1.0][: 2 - is_log]
