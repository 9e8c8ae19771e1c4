"""Inside the evidence framework: starts from a Gaussian process with a length scale for each input, values and
gradients that are recorded once, and normal noise that is an output."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import pyrobnn as bnn
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.capture.graph import recorded_slope
from pyrobnn.inference.scales.fixed_point import NoiseOutputs, Rows, known_noise
from pyrobnn.inference.scales.tuned_mode import FirstScales, Search, TunedMode, _Process, gaussian_process


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
    repeated = gaussian_process(*(v.repeat_interleave(weights, 0) for v in (x, y[:, None])), torch.ones(60), seed=0)
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


X = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
REAL = X @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
TARGETS = {
    "gaussian": REAL,
    "student_t": REAL,
    "categorical": (REAL > 0).long(),
    "negative_binomial": REAL.exp().round(),
}


def mode(likelihood, energy=None):
    outputs = 2 if likelihood == "categorical" else 1
    net = bnn.MLP(3, [8], outputs, activation="silu").build().double()
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood).fresh().eval()
    weights = {name: value.detach().clone() for name, value in model.initial_values.items()}
    y = model.cast_targets(TARGETS[likelihood], model.like)
    search, first = Search(per="input", rounds=1), FirstScales(0.3)
    return TunedMode(model, weights, Rows(X, (y,)), search, first=first, energy=energy)


@pytest.mark.parametrize("likelihood", TARGETS)
def test_recorded_slope_is_that_of_autograd(likelihood):
    found = mode(likelihood)
    for _ in range(2):
        found.to_mode(5, 0.0)
        found.tune()
    found.to_mode(0, 0.0)  # takes the precisions over
    found.to_mode(3, 0.0)
    energy = found.energy
    assert energy.recorded is not None
    value = energy(energy.places)
    gradients = torch.autograd.grad(value, list(energy.places.values()))
    expected = torch.cat([value.detach().reshape(1), *(gradient.reshape(-1) for gradient in gradients)])
    bound = 1e-7 if likelihood == "negative_binomial" else 1e-10  # large values of lgamma cancel
    torch.testing.assert_close(energy.recorded(), expected, rtol=bound, atol=bound)


def test_a_record_serves_another_start_and_leaves_the_first_as_it_is():
    with fast_pyro():
        first = mode("gaussian")
        start = {name: value.clone() for name, value in first.weights.items()}
        first.to_mode(40, 0.0)
        expected = first.weights
        first.tune()
        first.to_mode(40, 0.0)
        other, scale = mode("gaussian", first.energy), first.bnn.likelihood.scale.clone()
        other.weights = start
        other.to_mode(40, 0.0)
        assert other.energy is first.energy
        assert first.bnn.likelihood.scale.equal(scale)
        assert not scale.equal(other.bnn.likelihood.scale)
    torch.testing.assert_close(other.weights, expected, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (3, 1), (1, 1, 2), (2, 1, 1)])
@pytest.mark.parametrize("order", [1, -1])
def test_parts_of_one_vector_are_told_apart_even_those_of_one_number(sizes, order):
    flat = torch.arange(1.0, 1.0 + sum(sizes), dtype=torch.float64)
    parts = {f"{at}": part for at, part in enumerate(flat.split(sizes))}
    places = {name: parts[name].requires_grad_() for name in list(parts)[::order]}

    def energy(values):
        return torch.stack([float(name) + values[name].square().sum() for name in values]).prod()

    recorded = recorded_slope(energy, places)
    flat.data.mul_(1.5)
    value = energy(places)
    gradients = torch.autograd.grad(value, list(places.values()))
    torch.testing.assert_close(recorded(), torch.cat([value.detach().reshape(1), *gradients]))


@pytest.mark.parametrize("per", ["site", "input"])
def test_a_line_through_one_input_is_found_from_any_start(per):
    """Its weight and its bias are single numbers, in one vector: the mode is that of ridge regression."""
    x, y = X[:, :1], REAL - 3.0
    model = bnn.BNN(bnn.MLP(1, [], 1, dtype="float64"), likelihood=bnn.likelihoods.Gaussian(0.5)).fresh().eval()
    weights = {name: torch.full_like(value, 7.0) for name, value in model.initial_values.items()}
    found = TunedMode(model, weights, Rows(x, (model.cast_targets(y, model.like),)), Search(per=per))
    found.to_mode(50, 0.0)
    precision = torch.cat([value.reshape(-1) for value in found.prior.by_site().values()])
    rows = torch.cat([x, torch.ones_like(x)], 1)
    expected = torch.linalg.solve(rows.T @ rows / 0.25 + precision.diag(), rows.T @ y / 0.25)
    assert found.energy.recorded is not None
    torch.testing.assert_close(torch.cat([value.reshape(-1) for value in found.weights.values()]), expected)


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
