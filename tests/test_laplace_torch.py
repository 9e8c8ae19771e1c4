"""The same posterior as laplace-torch 0.3, from other code: precision, variance of outputs, log evidence. float64."""

import warnings

import pytest
import torch
from helpers import block_covariance
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn._core.random import seeded
from pyrobnn.guides import Laplace
from pyrobnn.posterior.output_covariance import functional

F64 = torch.float64
PRIOR_PRECISION, NOISE, NUM = 2.0, 0.5, 20
CLOSE = {"rtol": 1e-5, "atol": 1e-12}
NETS = {
    "tanh": (
        lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)),
        "regression",
        (3,),
    ),
    "relu": (lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4)), "classification", (3,)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)),
        "classification",
        (1, 6, 6),
    ),
}


def case(name):
    make, task, shape = NETS[name]
    with seeded(0):
        net = make().double()
        x = torch.randn(NUM, *shape, dtype=F64)
        classes = 4 if name == "relu" else 3
        y = torch.randn(NUM, 1, dtype=F64) if task == "regression" else torch.randint(0, classes, (NUM,))
    return net, task, x, y


def theirs(name, structure, subset="all"):
    net, task, x, y = case(name)
    noise = {"sigma_noise": NOISE} if task == "regression" else {}
    settings = {"hessian_structure": structure, "prior_precision": PRIOR_PRECISION}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside curvlinops
        laplace = pytest.importorskip("laplace")
        found = laplace.Laplace(net, task, subset_of_weights=subset, **settings, **noise)
        found.fit(DataLoader(TensorDataset(x, y), batch_size=NUM))
    return found


def ours(name, structure, **settings):
    net, task, x, y = case(name)
    likelihood = bnn.likelihoods.Gaussian(scale=NOISE) if task == "regression" else "categorical"
    model = bnn.BNN(net, prior=bnn.priors.Normal(PRIOR_PRECISION**-0.5), likelihood=likelihood)
    setting = Laplace(structure=structure, joint_bias=False, batch_size=7, **settings)
    data = bnn.Data(x, y[:, 0] if task == "regression" else y, standardize=False)
    return setting.around(model, data, progress=False, device="cpu")


def precision_of(found, structure):
    if structure == "kron":
        return found.posterior_precision.to_matrix()
    matrix = found.posterior_precision
    return matrix.diag() if structure == "diag" else matrix


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("name", NETS)
def test_precision_functional_variance_and_evidence_are_those_of_laplace_torch(name, structure):
    reference, posterior = theirs(name, structure), ours(name, structure)
    found = torch.linalg.inv(block_covariance(posterior.guide))
    torch.testing.assert_close(found, precision_of(reference, structure).detach(), rtol=1e-5, atol=1e-8)
    x = case(name)[2][:5]
    mean, variance = reference._glm_predictive_distribution(x)
    law = functional(posterior, x)
    torch.testing.assert_close(law.mean, mean.detach(), **CLOSE)
    torch.testing.assert_close(law.covariance, variance.detach(), **CLOSE)
    evidence = float(reference.log_marginal_likelihood())
    assert posterior.record.laplace.log_evidence == pytest.approx(evidence, rel=1e-5)


@pytest.mark.parametrize("link", ["probit", "laplace_bridge"])
@pytest.mark.parametrize("name", ["relu", "conv"])
def test_links_are_those_of_laplace_torch(name, link):
    reference, posterior = theirs(name, "kron"), ours(name, "kron")
    x = case(name)[2][:5]
    approximation = {"probit": "probit", "laplace_bridge": "bridge"}[link]
    expected = reference(x, pred_type="glm", link_approx=approximation)
    torch.testing.assert_close(functional(posterior, x).class_probs(link), expected.detach(), **CLOSE)


def test_last_layer_is_that_of_laplace_torch():
    x = case("relu")[2][:5]
    _, variance = theirs("relu", "full", "last_layer")._glm_predictive_distribution(x)
    found = functional(ours("relu", "full", sites="last_layer"), x)
    torch.testing.assert_close(found.covariance, variance.detach(), **CLOSE)
