"""Networks whose last layer limits their outputs, where a likelihood takes them without limits."""

import warnings

import pytest
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn.likelihoods import Bernoulli, Categorical, Gaussian, MixtureDensity, Poisson, StudentT

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G)
REAL = X[:, 0].sin() + 0.1 * torch.randn(60, generator=G)
LABELS = torch.arange(60) % 3
BINARY = (X[:, 0] > 0).float()
COUNTS = torch.poisson(X[:, 0].exp(), generator=G).long()


def messages(layers, likelihood, y, *, standardize=False):
    net = nn.Sequential(nn.Linear(3, likelihood.num_outputs(y)), *layers)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(bnn.Data(X, y, standardize=standardize), guide="map", steps=1, seed=0, progress=False)
    return [str(each.message) for each in found if "ends in" in str(each.message)]


INSIDE = 0.5 + 0.4 * REAL / REAL.abs().max()
LAST = {
    "softmax": ([nn.Softmax(-1)], Categorical(), LABELS, "Softmax", "0 and 1"),
    "nested, then dropout": (
        [nn.Sequential(nn.Softmax(-1), nn.Identity()), nn.Dropout(0.1)],
        Categorical(),
        LABELS,
        "Softmax",
        "0 and 1",
    ),
    "bernoulli": ([nn.ReLU()], Bernoulli(), BINARY, "ReLU", "0 and inf"),
    "two columns": ([nn.LogSigmoid()], Bernoulli(), torch.stack([BINARY] * 2, 1), "LogSigmoid", "-inf and 0"),
    "poisson": ([nn.Softplus()], Poisson(), COUNTS, "Softplus", "0 and inf"),
    "gaussian": ([nn.Sigmoid()], Gaussian(), REAL, "Sigmoid", "0 and 1"),
    "one column of two": ([nn.Tanh()], StudentT(), torch.stack([REAL, 100 + REAL], 1), "Tanh", "-1 and 1"),
    "standardised": ([nn.Sigmoid()], Gaussian(), INSIDE, "Sigmoid", "0 and 1"),
    "within the limits": ([nn.Sigmoid()], Gaussian(), INSIDE),
    "linear": ([], Categorical(), LABELS),
    "log_softmax": ([nn.LogSoftmax(-1)], Categorical(), LABELS),
    "half a line of logits of classes": ([nn.ReLU()], Categorical(), LABELS),
    "tanh around its targets": ([nn.Tanh()], Gaussian(), REAL),
    "positive targets": ([nn.ReLU()], Gaussian(), 100 + REAL),
    "mixtures": ([nn.Tanh()], MixtureDensity(2), REAL),
}


@pytest.mark.parametrize("name", LAST)
def test_a_last_layer_that_limits_outputs_as_the_network_sees_them_is_named_and_no_other(name):
    layers, likelihood, y, *words = LAST[name]
    found = messages(layers, likelihood, y, standardize=name == "standardised")
    assert len(found) == bool(words)
    assert all(f"ends in {words[0]}," in text and words[1] in text for text in found)
