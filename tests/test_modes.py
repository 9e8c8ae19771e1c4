"""Modes of torch that are in force where a fit is called: none of them changes it, and all are there after it."""

import contextlib
import functools
import itertools
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn.guides import Laplace

X = torch.linspace(-1, 1, 24)[:, None]
Y = torch.sin(3 * X[:, 0]) + 0.1 * torch.randn(24, generator=torch.Generator().manual_seed(0))
SHORT = bnn.SVI(steps=12)


@contextlib.contextmanager
def set_for_all(put, value, before):
    """A setting that is not a context: as a user makes it at the top of a script."""
    put(value)
    try:
        yield
    finally:
        put(before)


ON, OFF = True, False
MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "gradients off": lambda: set_for_all(torch.set_grad_enabled, OFF, ON),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(ON),
    "meta": lambda: set_for_all(torch.set_default_device, "meta", None),
    "device": lambda: torch.device("meta"),
    "cpu": lambda: set_for_all(torch.set_default_device, "cpu", None),
    "deterministic": lambda: set_for_all(torch.use_deterministic_algorithms, ON, OFF),
}


def set_aside(*modes):
    """All modes but some."""
    return [mode for mode in MODES if mode not in modes]


def in_force():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


def make_model(net=None):
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)) if net is None else net
    return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=0.3))


torch.manual_seed(0)
MODEL = make_model()
LABELS = bnn.BNN(nn.Linear(1, 2), prior=bnn.priors.Normal(1.0), likelihood="categorical")
ARGUMENTS = {"seed": 0, "device": "cpu", "progress": False}


def fit(method, model=MODEL, data=(X, Y), **arguments):
    return bnn.fit(model, data, method, **(ARGUMENTS | arguments))


def numbers(found):
    """What a posterior draws, by site."""
    return found.draw(5)


FITS = {
    "eager": lambda: fit(SHORT, engine="eager"),
    "captured": lambda: fit(bnn.SVI(steps=40, batch_size=7)),
    "a loader": lambda: fit(SHORT, data=DataLoader(TensorDataset(X, Y), 7, shuffle=True)),
    "open length": lambda: fit(bnn.SVI(guide="map", max_steps=200)),
    "measured scales": lambda: fit(bnn.SVI(max_steps=100), OPEN),
    "laplace": lambda: fit(bnn.SVI(guide="laplace", steps=12)),
    "ivon": lambda: fit(bnn.IVON(steps=12)),
    "nuts": lambda: fit(bnn.NUTS(num_draws=4, warmup=4, num_chains=1, max_tree_depth=4)),
    "hmc": lambda: fit(bnn.HMC(step_size=0.05, trajectory_length=0.2, num_draws=4, warmup=2, num_chains=1)),
    "mclmc": lambda: fit(bnn.MCLMC(num_draws=4, warmup=40, num_chains=2, thinning=1)),
    "swag": lambda: fit(bnn.SWAG(SHORT_MAP, steps=12, every=2, rank=3)),
    "ensemble": lambda: fit(bnn.Ensemble(SHORT, 2)),
    "replicates": lambda: bnn.fit_replicates(MODEL, (X, Y), SHORT, replicates=2, **ARGUMENTS)[1],
    "evidence": lambda: fit(bnn.EvidenceFramework(starts=1, rounds=2)),
    "around a network": lambda: Laplace().around(NET, (X, Y), progress=False, device="cpu"),
    "labels": lambda: Laplace(structure="full").around(LABELS, (X, (Y > 0).long()), progress=False, device="cpu"),
    "tuned": lambda: bnn.tune_prior(fitted("laplace"), (X, Y)),
}
SHORT_MAP, NET = bnn.SVI(guide="map", steps=12), nn.Linear(1, 1)
OPEN = bnn.BNN(NET)


@functools.cache
def fitted(kind):
    """A posterior to look at, made without a mode by whoever asks first."""
    return fit(
        {
            "laplace": bnn.SVI(guide=Laplace(structure="full"), steps=12),
            "svi": SHORT,
            "chains": bnn.NUTS(num_draws=10, warmup=30, num_chains=2, max_tree_depth=4),
        }[kind]
    )


@pytest.fixture(scope="module")
def without():
    """What the fits give without a mode."""
    found = {}
    return lambda kind: found.setdefault(kind, numbers(FITS[kind]()))


FEW_FITS, LONG_FITS = ("eager", "captured", "laplace"), ("nuts", "measured scales", "open length")
"""Fits that are tried in every mode; the others in inference mode, which takes gradients away too."""


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((kind, "inference") for kind in FITS if kind not in LONG_FITS),
        *(pytest.param(kind, "inference", marks=pytest.mark.slow) for kind in LONG_FITS),
        *(
            pytest.param(kind, mode, marks=[pytest.mark.slow] * ((row + column) % 2))
            for (row, kind), (column, mode) in itertools.product(*map(enumerate, (FEW_FITS, set_aside("inference"))))
        ),
    ],
)
def test_a_fit_is_the_same_in_every_mode(kind, mode, without):
    expected = without(kind)
    with MODES[mode]():
        before = in_force()
        found = FITS[kind]()
        assert in_force() == before
    for name, values in numbers(found).items():
        assert torch.equal(values, expected[name])
    tensors = [*found.bnn.parameters(), *found.bnn.buffers()]
    assert not any(value.is_inference() or value.is_meta for value in tensors)


LOOKS = {
    "diagnose": lambda: str(bnn.diagnose(fitted("svi"), (X, Y))),
    "diagnose laplace": lambda: str(bnn.diagnose(fitted("laplace"), (X, Y))),
    "predict": lambda: fitted("svi").predict(X, num_draws=20).mean,
    "predict by chains": lambda: fitted("chains").predict(X).std,
    "predict by laplace": lambda: fitted("laplace").predict(X, num_draws=20).log_prob(Y),
    "functional": lambda: bnn.functional(fitted("laplace"), X).covariance,
    "prior": lambda: MODEL.sample_prior_predictive(X, num_draws=20, seed=0).mean,
    "elbo": lambda: str(bnn.elbo_report(fitted("svi"), bnn.Data(X, Y), num_draws=20)),
    "function_rhat": lambda: bnn.function_rhat(fitted("chains"), X[:3]).rhat,
    "sample_function": lambda: bnn.sample_function(fitted("svi"), seed=0)(X),
}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((kind, "inference") for kind in LOOKS if "diagnose" not in kind),
        *itertools.product(["predict", "predict by laplace", "functional"], set_aside("inference", "autocast")),
        *(pytest.param(kind, "inference", marks=pytest.mark.slow) for kind in LOOKS if "diagnose" in kind),
    ],
)
def test_a_look_at_a_posterior_is_the_same_in_every_mode(kind, mode):
    expected = LOOKS[kind]()
    with MODES[mode]():
        before = in_force()
        found = LOOKS[kind]()
        assert in_force() == before
    assert found == expected if isinstance(expected, str) else torch.equal(*map(torch.as_tensor, (found, expected)))


class Notes(nn.Linear):
    """Notes the default device in which it is called."""

    seen: ClassVar[set[str]] = set()

    def forward(self, x):
        self.seen.add(torch.get_default_device().type)
        return super().forward(x)


def test_a_network_is_called_under_the_default_device_of_the_caller():
    """It may count on it for tensors that it makes."""
    model = make_model(Notes(1, 1))
    with torch.device("meta"):
        posterior = fit(bnn.SVI(steps=3), model)
        posterior.predict(X)
        assert Notes.seen == {"meta"}
    assert not any(value.is_meta for value in posterior.guide.parameters())


def test_what_was_made_in_inference_mode_can_be_fitted():
    """Tensors, a network, a model, data, a loader and a posterior that was loaded."""
    with torch.inference_mode():
        x, y, net = X.clone(), Y.clone(), nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        scaled, model = bnn.Data(x, y, standardize=True), make_model(net)
        loader = DataLoader(TensorDataset(x, y), 7)
    declared = make_model(net)
    for own in (model, declared):
        for data in ((x, y), scaled, loader):
            for method in (SHORT, bnn.SVI(guide="laplace", steps=3)):
                assert bool(torch.isfinite(fit(method, own, data).predict(X).mean).all())
    mode = Laplace().around(nn.Linear(1, 1), (x, y), weights={"weight": x[:1]}, progress=False, device="cpu")
    assert bool(torch.isfinite(mode.predict(x).mean).all())


def test_data_that_require_gradients_get_none():
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    for make in (lambda *pair: pair, bnn.Data, lambda *pair: DataLoader(TensorDataset(*pair), 7)):
        expected, found = numbers(fit(SHORT, data=make(X, Y))), fit(SHORT, data=make(x, y))
        assert all(torch.equal(values, expected[name]) for name, values in numbers(found).items())
        assert not found.predict(x).mean.requires_grad
    assert x.grad is None
    assert y.grad is None


def test_mode_is_put_back_where_a_fit_fails():
    with torch.inference_mode(), pytest.raises(bnn.InputError):
        fit(SHORT, data=(X, torch.full_like(Y, torch.nan)))
    assert torch.is_grad_enabled()
