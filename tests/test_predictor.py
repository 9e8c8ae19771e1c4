"""Posteriors with fixed draws as modules: the moments of `predict` with the same draws, to 1e-5 relative."""

import io
import itertools
import warnings

import pytest
import torch
from helpers import Net, refused
from torch import nn

import pyrobnn as bnn

NUM = 24
G = torch.Generator().manual_seed(0)
X = torch.randn(NUM, 3, generator=G)
Y = X[:, 0].sin() + 0.1 * torch.randn(NUM, generator=G)
TARGETS = {
    "gaussian": Y,
    "student_t": Y,
    "heteroscedastic": Y,
    "two columns": torch.stack([Y, -Y], 1),
    "latent noise": Y,
    "categorical": torch.randint(3, (NUM,), generator=G),
    "bernoulli": (Y > 0).long(),
    "poisson": torch.randint(5, (NUM,), generator=G),
}
LIKELIHOODS = {
    "heteroscedastic": bnn.likelihoods.Gaussian("heteroscedastic"),
    "two columns": bnn.likelihoods.Gaussian((0.1, 0.3)),
    "latent noise": bnn.likelihoods.Gaussian({"type": "half_normal", "scale": 1.0}),
}
OUTPUTS = {"categorical": 3, "heteroscedastic": 2, "two columns": 2}
METHODS = {
    "mean-field": bnn.SVI(steps=20),
    "laplace": bnn.SVI("laplace", steps=20),
    "last layer": bnn.SVI(bnn.guides.Laplace(sites="last_layer"), steps=20),
    "sampled laplace": bnn.SVI(bnn.guides.Laplace(linearized=False), steps=20),
    "dropout": bnn.SVI("dropout", steps=20),
    "map": bnn.SVI("map", steps=20),
    "chains": bnn.SGLD(num_draws=6, burn_in=10, thinning=1, num_chains=2, step_size=1e-5),
    "ensemble": bnn.Ensemble(bnn.SVI(steps=20), members=3),
}


KINDS = itertools.product(["mean-field", "last layer", "ensemble"], ["gaussian", "categorical"])
every_kind = pytest.mark.parametrize(("method", "likelihood"), list(KINDS))


def posterior_of(method="mean-field", likelihood="gaussian", *, net=None, standardize=True):
    net = bnn.MLP(3, [8], OUTPUTS.get(likelihood, 1)) if net is None else net
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=LIKELIHOODS.get(likelihood, likelihood))
    data = bnn.Data(X, TARGETS[likelihood], standardize=standardize)
    return bnn.fit(model, data, METHODS[method], seed=0, progress=False)


def moments(posterior, x, **settings):
    """What `predict` says, as a predictor returns it."""
    with warnings.catch_warnings(action="ignore"):
        prediction = posterior.predict(x, **settings)
        return prediction.class_probs if prediction.is_classification else (prediction.mean, prediction.std)


def assert_same(found, expected):
    found, expected = ((values,) if isinstance(values, torch.Tensor) else values for values in (found, expected))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("likelihood", TARGETS)
@pytest.mark.parametrize("method", METHODS)
def test_moments_are_those_of_predict(method, likelihood):
    if (method, likelihood) == ("dropout", "latent noise"):
        pytest.skip("dropout has no latents beside weights")
    posterior = posterior_of(method, likelihood)
    predictor = posterior.predictor(12, seed=5)
    assert_same(predictor(X), moments(posterior, X, num_draws=12, seed=5))


def convolution():
    """A convolution with batch normalisation over three numbers."""
    torch.manual_seed(0)
    run = lambda net, x: net.last(torch.tanh(net.norm(net.body(x[:, None]))).flatten(1))  # noqa: E731
    return Net(run, body=nn.Conv1d(1, 4, 2), norm=nn.BatchNorm1d(4), last=nn.Linear(8, 1))


@pytest.mark.parametrize("method", ["mean-field", "last layer", "laplace", "ensemble"])
def test_other_networks_too(method):
    with warnings.catch_warnings(action="ignore"):
        posterior = posterior_of(method, net=convolution)
    assert_same(posterior.predictor(9)(X), moments(posterior, X, num_draws=9))


def test_several_inputs_are_arguments():
    ids = torch.arange(NUM) % 5
    run = lambda net, ids, x: net.last(torch.tanh(net.table(ids) + x))  # noqa: E731
    net = Net(run, table=nn.Embedding(5, 3), last=nn.Linear(3, 1))
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.3))
    posterior = bnn.fit(model, bnn.Data({"ids": ids, "x": X}, Y), METHODS["mean-field"], seed=0, progress=False)
    assert_same(posterior.predictor(9)(x=X, ids=ids), moments(posterior, {"ids": ids, "x": X}, num_draws=9))


@every_kind
def test_it_is_a_module_like_others(method, likelihood):
    posterior = posterior_of(method, likelihood)
    predictor, other = posterior.predictor(7), posterior.predictor(7, seed=9)
    expected = predictor(X)
    with pytest.raises(AssertionError):
        assert_same(other(X), expected)
    other.load_state_dict(predictor.state_dict())
    assert_same(other(X), expected)
    with torch.inference_mode():
        assert_same(predictor(X), expected)
    file = io.BytesIO()
    torch.save(predictor.state_dict(), file)
    assert not list(predictor.parameters()) or not any(p.requires_grad for p in predictor.parameters())
    x = X.clone().requires_grad_()
    values = predictor(x)
    (values if isinstance(values, torch.Tensor) else values[0]).square().sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("net", [None, convolution])
def test_it_is_exported_for_any_number_of_rows(method, likelihood, net):
    if net is not None and likelihood == "categorical":
        pytest.skip("its network has one output")
    with warnings.catch_warnings(action="ignore"):
        predictor = posterior_of(method, likelihood, net=net).predictor(7)
        program = torch.export.export(predictor, (X,), dynamic_shapes=(({0: torch.export.Dim("rows")},),), strict=False)
    for x in (X, X[:5]):
        assert_same(program.module()(x), predictor(x))


def test_what_is_no_tensor_is_refused_by_name():
    rows = [(row, 0.0) for row in X]
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    predictor = posterior_of().predictor(5)
    with refused("takes tensors, got DataLoader: pass the inputs of each"):
        predictor(loader)
    means = torch.cat([predictor(x)[0] for x, _ in loader])
    torch.testing.assert_close(means, predictor(X)[0])
    with refused(r"takes tensors, got dict: "):
        predictor({"x": X})


def test_rows_of_another_shape_are_refused_before_scales_stretch_them():
    predictor = posterior_of().predictor(5)
    for x in (X[:, :1], X[0], X[:, :, None]):
        with pytest.raises(bnn.InputError, match=r"`x` must have shape \(N, 3\), got"):
            predictor(x)


@pytest.mark.parametrize("guide", ["mean_field", "laplace"])
def test_predictors_and_drawn_functions_have_gradients_in_x(guide):
    """Against finite differences in float64, also where the network is linearised, and with scales of the data."""
    data = bnn.Data(5 * X.double(), 10 + 5 * X[:, 0].double(), standardize=True)
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1)).double()
    posterior = bnn.BNN(net).fit(data, guide=guide, steps=5, seed=0, progress=False)
    for function in (posterior.predictor(4), bnn.sample_function(posterior, seed=0)):
        assert torch.autograd.gradcheck(function, (data.x[:3].clone().requires_grad_(),))


@pytest.mark.slow
@every_kind
def test_it_becomes_a_file_of_onnx(method, likelihood, tmp_path):
    pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime")
    runtime = pytest.importorskip("onnxruntime")
    predictor = posterior_of(method, likelihood).predictor(7)
    shapes = (({0: torch.export.Dim("rows")},),)
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(predictor, (X,), dynamic_shapes=shapes, dynamo=True, verbose=False)
    program.save(tmp_path / "predictor.onnx")
    session = runtime.InferenceSession(tmp_path / "predictor.onnx")
    for x in (X, X[:5]):
        found = tuple(map(torch.from_numpy, session.run(None, {session.get_inputs()[0].name: x.numpy()})))
        assert_same(found[0] if len(found) == 1 else found, predictor(x))


def test_a_layer_before_a_kink_is_no_last_layer_where_its_outputs_happen_to_be_positive():
    """The network is linearised, as `predict` does."""
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1), nn.ReLU())
    with torch.no_grad():
        net[2].bias.fill_(0.3)
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    posterior = bnn.guides.Laplace(sites=("2.*",)).around(net, bnn.Data(x, x[:, 0].relu()), progress=False)
    mean, std = posterior.predictor(50)(x)
    expected = posterior.predict(x, num_draws=50)
    torch.testing.assert_close(mean, expected.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(std, expected.std, rtol=1e-4, atol=1e-5)
