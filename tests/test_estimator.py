"""noise="auto" and kl="auto": what is chosen for which shapes, and how it is recorded."""

import pytest
import torch
from helpers import Net
from torch import nn

import pyrobnn as bnn
from pyrobnn import guides, priors
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.data import make_source
from pyrobnn.inference.training.state import start

UNIT = bnn.priors.Normal(1.0)
ROWS = 300


def in_sequences(net, x):
    """Rows seen as sequences of 2 with 2 units each, and a linear layer over the last."""
    return net.last(net.first(x.view(len(x), 2, 2)).tanh()).mean(1)


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
    "sequences": lambda: Net(in_sequences, first=nn.Linear(2, 30), last=nn.Linear(30, 1)),
    "twice": lambda: Net(lambda n, x: n.last(n.inner(n.inner(x).tanh())), inner=nn.Linear(4, 4), last=nn.Linear(4, 1)),
    "two ways": lambda: Net(lambda net, x: (net.inner(x) @ net.inner.weight)[:, :1], inner=nn.Linear(4, 4, bias=False)),
    "convolution": lambda: Net(
        lambda net, x: net.kernel(x.repeat(1, 8)[:, None]).tanh().mean((1, 2))[:, None], kernel=nn.Conv1d(1, 2, 3)
    ),
    "embedding": lambda: nn.Sequential(nn.Embedding(5, 1), nn.Flatten(), nn.AdaptiveAvgPool1d(1)),
}


def chosen(net="mlp", *, prior=UNIT, likelihood=None, batch_size=None, **settings):
    """Return the method with which a fit begins."""
    model = bnn.BNN(NETS[net](), prior=prior, likelihood=likelihood or bnn.likelihoods.Gaussian(scale=0.1))
    x = torch.randn(ROWS, 4) if net != "embedding" else torch.zeros(ROWS, 4, dtype=torch.long)
    method = bnn.SVI(batch_size=batch_size, **settings)
    with seeded(0), fast_pyro():
        source = make_source(bnn.Data(x, torch.zeros(ROWS)), model, method.batch_size, seed=0)
        return start(model, method, source, 0, "cpu")[1].method


@pytest.mark.parametrize(
    ("net", "batch_size", "noise"),
    [
        ("mlp", None, "local"),
        ("mlp", 2, "local"),
        ("sequences", None, "flipout"),
        ("sequences", 16, "shared"),
        ("twice", None, "flipout"),
        ("twice", 16, "shared"),
        ("two ways", 16, "shared"),
        ("convolution", None, "flipout"),
        ("convolution", 32, "shared"),
        ("embedding", 16, "shared"),
    ],
)
def test_noise_by_shapes(net, batch_size, noise):
    assert chosen(net, batch_size=batch_size).guide.noise == noise


def test_guides_by_name_choose_for_their_own_layers():
    """The first layer sees sequences, for which flipout pays where steps see all data; others have no choice."""
    guide = {"first.weight": guides.MeanField(), "first.*": guides.MeanField(noise="shared"), "*": "full_rank"}
    found = chosen("sequences", guide=guide).guide.choices
    assert [setting.noise for _, setting in found[:2]] == ["flipout", "shared"]
    assert isinstance(found[2][1], guides.FullRank)


@pytest.mark.parametrize(
    ("settings", "kl"),
    [
        ({}, "analytic"),
        *(({"guide": name}, "analytic") for name in ("full_rank", "low_rank", "matrix_normal", "map", "radial")),
        *(({"guide": name}, "mc") for name in ("flow", "dropout", "AutoMultivariateNormal")),
        *(({"prior": name}, "mc") for name in ("student_t", "hierarchical", "horseshoe", "spike_and_slab")),
        ({"prior": "laplace"}, "analytic"),
        ({"prior": "scale_mixture"}, "quadrature"),
        ({"prior": "scale_mixture", "guide": "full_rank"}, "quadrature"),
        ({"prior": {"*.bias": bnn.priors.Normal(1.0), "*": "scale_mixture"}}, "quadrature"),
        ({"prior": {"*.bias": "student_t", "*": "scale_mixture"}}, "mc"),
        ({"prior": priors.ScaleMixture(learnable=True)}, "mc"),
        ({"likelihood": bnn.likelihoods.Gaussian()}, "analytic"),
        ({"guide": guides.MeanField(path_derivative=True)}, "mc"),
        ({"guide": {"0.weight": "flow", "*": "mean_field"}}, "mc"),
        ({"guide": {"0.weight": "full_rank", "*": "mean_field"}}, "analytic"),
    ],
    ids=str,
)
def test_kl_by_guide_and_prior(settings, kl):
    assert chosen(**settings).kl == kl


GIVEN = {"guide": guides.MeanField(noise="flipout"), "kl": "mc"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"steps": 5}, ("local", "analytic")), ({"epochs": 5}, ("local", "analytic")), (GIVEN, ("flipout", "mc"))],
    ids=str,
)
def test_a_given_length_changes_no_choice_and_settings_that_are_given_stay(settings, expected):
    method = chosen(**settings)
    assert (method.guide.noise, method.kl) == expected


def test_the_choice_draws_nothing_from_the_fit_and_is_recorded():
    """The same bits as the same settings given; the method stays as it was asked for."""
    model = bnn.BNN(NETS["mlp"](), likelihood=bnn.likelihoods.Gaussian(scale=0.1), prior=bnn.priors.Normal(1.0))
    data = bnn.Data(torch.randn(20, 4), torch.randn(20))
    given = {"guide": guides.MeanField(noise="local"), "kl": "analytic"}
    other = {"guide": guides.MeanField(noise="shared"), "kl": "mc"}
    methods = [bnn.SVI(max_steps=5, **settings) for settings in ({}, given, other)]
    automatic, given, other = (bnn.fit(model, data, method, seed=0, progress=False) for method in methods)
    assert automatic.history.elbo.tolist() == given.history.elbo.tolist() != other.history.elbo.tolist()
    chosen = [(found.record.noise, found.record.kl) for found in (automatic, given, other)]
    assert chosen == [("local", "analytic"), ("local", "analytic"), ("shared", "mc")]
    assert automatic.record.method["kl"] == automatic.record.method["guide"]["noise"] == "auto"


def test_noise_of_guides_by_name_is_recorded():
    guide = {"0.weight": guides.MeanField(noise="local"), "*": "map"}
    model = bnn.BNN(NETS["mlp"](), likelihood=bnn.likelihoods.Gaussian(scale=0.1), prior=bnn.priors.Normal(1.0))
    posterior = model.fit(torch.randn(20, 4), torch.randn(20), guide=guide, steps=2, seed=0, progress=False)
    assert posterior.record.noise == {"0.weight": "local"}
