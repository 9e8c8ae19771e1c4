"""Fits of numbers at the edge: they end finite, go back with smaller steps, or say which site is not finite."""

import pytest
import torch
from helpers import Net
from torch import nn

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn.inference.training import loop

G = torch.Generator().manual_seed(0)
N = 24
X = torch.randn(N, 3, generator=G)
Y = X[:, 0] + 0.1 * torch.randn(N, generator=G)
CLASSES, COUNTS = (Y > 0).long(), torch.arange(N)
HETEROSCEDASTIC = bnn.likelihoods.Gaussian(scale="heteroscedastic")
RAW = {"standardize": False}
CASES = {
    "constant targets": (X, torch.full((N,), 3.0), {}),
    "targets of zero": (X, torch.zeros(N), {}),
    "constant inputs": (torch.ones(N, 3), Y, {}),
    "duplicate columns": (torch.cat([X, X], 1), Y, {}),
    "one example": (X[:1], Y[:1], {}),
    "two examples": (X[:2], Y[:2], {}),
    "inputs of 1e6": (X * 1e6, Y, {}),
    "inputs of 1e6, raw": (X * 1e6, Y, RAW),
    "targets of 1e6": (X, Y * 1e6, {}),
    "targets of 1e6, raw": (X, Y * 1e6, RAW),
    "both of 1e6, raw": (X * 1e6, Y * 1e6, RAW),
    "targets of 1e-30": (X, Y * 1e-30, {}),
    "targets of 1e30": (X, Y * 1e30, {}),
    "small changes far from zero": (X.double() * 1e-3 + 1e6, Y.double() * 1e-3 + 1e6, {}),
    "inputs of 1e200": (X.double() * 1e200, Y, {}),
    "an outlier": (X, torch.where(torch.arange(N) == 0, 1e8, Y), {}),
    "one class": (X, torch.zeros(N, dtype=torch.int64), {"likelihood": "categorical", "outputs": 2}),
    "one class, bernoulli": (X, torch.zeros(N, dtype=torch.int64), {"likelihood": "bernoulli"}),
    "logits of 1e6": (X * 1e6, CLASSES, {"likelihood": "categorical", "outputs": 2} | RAW),
    "logits of 1e6, bernoulli": (X * 1e6, CLASSES, {"likelihood": "bernoulli"} | RAW),
    "counts of zero": (X, torch.zeros(N, dtype=torch.int64), {"likelihood": "poisson"}),
    "counts of 1e7": (X, torch.full((N,), 10**7), {"likelihood": "poisson"}),
    "counts of 1e7, overdispersed": (X, torch.full((N,), 10**7), {"likelihood": "negative_binomial"}),
    "rates of exp(1e6)": (X * 1e6, COUNTS, {"likelihood": "poisson", "linear": True} | RAW),
    "noise of softplus(1e6)": (X * 1e6, Y, {"likelihood": HETEROSCEDASTIC, "outputs": 2} | RAW),
    "constant, student": (X, torch.full((N,), 3.0), {"likelihood": "student_t"}),
}


def network(inputs, outputs, dtype, *, linear=False):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(inputs, 6), nn.Identity() if linear else nn.Tanh(), nn.Linear(6, outputs)]
        return nn.Sequential(*layers).to(dtype)


def fit(x, y, *, dtype=torch.float32, likelihood="gaussian", outputs=1, linear=False, standardize=True, **settings):
    net = network(x.shape[1], outputs, dtype, linear=linear)
    model = bnn.BNN(net, likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    settings = {"steps": 20, "lr": 0.01, "engine": "eager"} | settings
    return model.fit(x, y, seed=0, standardize=standardize, progress=False, **settings)


@pytest.mark.one_in(5, 3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_extreme_data_end_in_finite_predictions(name, dtype):
    x, y, settings = CASES[name]
    posterior = fit(x, y, dtype=dtype, **settings)
    assert torch.isfinite(torch.as_tensor(posterior.history.elbo)).all()
    prediction = posterior.predict(x, num_draws=10)
    assert torch.isfinite(prediction.log_prob(y)).all()
    if not prediction.is_classification:
        assert torch.isfinite(prediction.mean).all()
        assert torch.isfinite(prediction.std).all()
        assert (prediction.std >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_networks_in_half_precision_are_inferred_in_full(dtype):
    posterior = fit(X, Y, dtype=dtype)
    assert {value.dtype for value in posterior.draw(2).values()} == {torch.float32}
    full = bnn.BNN(network(3, 1, dtype).float(), prior=bnn.priors.Normal(1.0))
    expected = full.fit(X, Y, seed=0, standardize=True, progress=False, steps=20, lr=0.01, engine="eager")
    assert torch.equal(posterior.predict(X).mean, expected.predict(X).mean)


def test_numbers_beyond_the_precision_are_refused():
    for dtype in (torch.float32, torch.float16):
        with pytest.raises(InputError, match="`y` has values beyond the range of float32, the precision of the netw"):
            fit(X, Y.double() * 1e200, dtype=dtype)
    with pytest.raises(InputError, match="`x` has values beyond the range of float32.*standardise the data"):
        fit(X.double() * 1e200, Y, standardize=False)
    with pytest.raises(InputError, match="`x` has values beyond the range"):
        fit(X, Y, standardize=False).predict(X.double() * 1e200)
    assert torch.isfinite(fit(X, Y.double() * 1e100, dtype=torch.float64).predict(X, num_draws=5).std).all()


class Fails(nn.Module):
    """A linear network whose output is not a number in some calls of the training."""

    def __init__(self, calls):
        super().__init__()
        self.linear, self.calls, self.count = network(3, 1, torch.float32), calls, 0

    def forward(self, x):
        self.count += self.training
        return self.linear(x) * (torch.nan if self.training and self.count in self.calls else 1.0)


class Spike(torch.autograd.Function):
    """The identity, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.inf


def bad_gradient():
    run = lambda net, x: net.second(Spike.apply(net.first(x)) if net.training else net.first(x))  # noqa: E731
    return Net(run, first=nn.Linear(3, 4), second=nn.Linear(4, 1))


def plain(net, **settings):
    guide = bnn.guides.MeanField(noise="shared")
    settings = {"seed": 0, "engine": "eager", "progress": False, "steps": 60, "guide": guide} | settings
    return lambda: bnn.BNN(net(), prior=bnn.priors.Normal(1.0)).fit(X, Y, **settings)


def too_fast(engine):
    settings = {"optimizer": "sgd", "standardize": False, "steps": 60, "lr": 0.04, "engine": engine}
    return lambda: fit(X, K, likelihood="poisson", **settings)


def one_of_two():
    model = bnn.BNN(network(3, 1, torch.float32), likelihood="poisson", prior=bnn.priors.Normal(1.0))
    methods = [bnn.SVI(steps=40, lr=lr, optimizer="sgd") for lr in (1e-4, 0.04)]
    bnn.fit_replicates(model, (X, K), methods, seed=0, engine="eager", progress=False)


def wide_draws():
    model = bnn.BNN(network(3, 1, torch.float32), prior=bnn.priors.Normal(1e-30))
    guide = bnn.guides.MeanField(init_rho=200.0)
    model.fit(X, Y * 1e15, guide=guide, seed=0, engine="eager", progress=False, steps=60)


K = (2 + 2 * X[:, 0]).exp().round().long()
OVERFLOW = r"became .* at step \d+: .* at site '.*Lower the learning rate"
OF_A_SITE = "the log-likelihood at site 'y' is nan for 24 of"
FAULTS = {
    "overflow": (too_fast("eager"), OVERFLOW),
    "overflow, captured": (too_fast("captured"), OVERFLOW),
    "the first step": (plain(lambda: Fails(range(1000)), lr=1e-3), f"became nan at step 1: {OF_A_SITE}"),
    "after a state that was kept": (plain(lambda: Fails(range(26, 1000)), lr=1e-3), f"nan at step 26: {OF_A_SITE}"),
    "a replicate": (one_of_two, "The ELBO of replicate 1 became"),
    "a gradient": (plain(bad_gradient), "the gradient at site 'first.weight' is"),
    "a gradient of the last step": (plain(bad_gradient, steps=1), "the gradient at site 'first.weight' is"),
    "draws": (wide_draws, r"at step 1: the (guide draws|log-likelihood|log prior).* at site"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * ("captured" in n)) for n in FAULTS])
def test_a_fault_ends_the_fit_and_names_its_site(name, monkeypatch):
    monkeypatch.setattr(loop, "_KEEP_EVERY", 10 if "kept" in name else 500)
    call, message = FAULTS[name]
    with pytest.raises(FloatingPointError, match=message):
        call()
