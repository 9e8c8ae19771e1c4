"""The same posterior as laplace-torch 0.3, from other code: precision, variance of outputs, log evidence. float64."""

import warnings

import pytest
import torch
from helpers import block_covariance
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn._core.random import seeded
from pyrobnn.posterior.output_covariance import functional

F64 = torch.float64
PRIOR_PRECISION, NOISE, NUM = 2.0, 0.5, 20
CLOSE = {"rtol": 1e-5, "atol": 1e-12}
NETS = {
    "tanh": (lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)), 1, (3,)),
    "relu": (lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4)), 4, (3,)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)),
        3,
        (1, 6, 6),
    ),
}


def case(name):
    make, classes, shape = NETS[name]
    with seeded(0):
        net, x = make().double(), torch.randn(NUM, *shape, dtype=F64)
        y = torch.randn(NUM, 1, dtype=F64) if classes == 1 else torch.randint(0, classes, (NUM,))
    return net, "regression" if classes == 1 else "classification", x, y


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
    setting = bnn.guides.Laplace(structure=structure, joint_bias=False, batch_size=7, **settings)
    data = bnn.Data(x, y[:, 0] if task == "regression" else y, standardize=False)
    return setting.around(model, data, progress=False, device="cpu")


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "last layer"])
@pytest.mark.parametrize("name", NETS)
def test_precision_functional_variance_evidence_and_links_are_those_of_laplace_torch(name, structure):
    if structure == "last layer":
        reference, posterior = theirs(name, "full", "last_layer"), ours(name, "full", sites="last_layer")
    else:
        reference, posterior = theirs(name, structure), ours(name, structure)
        precision = reference.posterior_precision
        if structure != "full":
            precision = precision.to_matrix() if structure == "kron" else precision.diag()
        found = torch.linalg.inv(block_covariance(posterior.guide))
        torch.testing.assert_close(found, precision.detach(), rtol=1e-5, atol=1e-8)
        evidence = float(reference.log_marginal_likelihood())
        assert posterior.record.laplace.log_evidence == pytest.approx(evidence, rel=1e-5)
    x = case(name)[2][:5]
    mean, variance = reference._glm_predictive_distribution(x)
    law = functional(posterior, x)
    torch.testing.assert_close(law.mean, mean.detach(), **CLOSE)
    torch.testing.assert_close(law.covariance, variance.detach(), **CLOSE)
    if structure == "kron" and name != "tanh":
        for link, approximation in (("probit", "probit"), ("laplace_bridge", "bridge")):
            expected = reference(x, pred_type="glm", link_approx=approximation)
            torch.testing.assert_close(law.class_probs(link), expected.detach(), **CLOSE)
