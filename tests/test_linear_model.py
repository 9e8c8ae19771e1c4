"""The linearised model against exact Bayesian linear regression, in double precision."""

import math

import mpmath
import numpy as np
import pytest
import torch

import pyrobnn as bnn
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.linear_model import LinearModel, check_entries, information, linear_model, log_scores
from pyrobnn.curvature.outer_products import GGN
from pyrobnn.likelihoods.base import LikelihoodModule

NOISE = 0.4


def problem(num_data, num_weights, seed=0):
    generator = torch.Generator().manual_seed(seed)
    design = torch.randn(num_data, num_weights, generator=generator, dtype=torch.float64)
    y = design.sum(1) + NOISE * torch.randn(num_data, generator=generator, dtype=torch.float64)
    precision = torch.rand(num_weights, generator=generator, dtype=torch.float64) + 0.5
    return design, y, precision


def exact(design, y, precision):
    """Mean and covariance of the weights."""
    covariance = torch.linalg.inv(design.T @ design / NOISE**2 + precision.diag())
    return covariance @ design.T @ y / NOISE**2, covariance


@pytest.mark.parametrize("shape", [(30, 4), (6, 20)], ids=["more examples", "more weights"])
def test_evidence_and_effective_weights_are_exact(shape):
    design, y, precision = problem(*shape)
    mean, covariance = exact(design, y, precision)
    columns = torch.full((len(design), 1, 1), 1 / NOISE, dtype=torch.float64)
    solution = LinearModel(design[:, None], columns).solve(precision)
    torch.testing.assert_close(solution.determined, 1 - precision * covariance.diagonal(), rtol=1e-9, atol=1e-9)
    variances = (design @ covariance * design).sum(1)
    torch.testing.assert_close(solution.covariance[:, 0, 0], variances, rtol=1e-9, atol=1e-9)
    fit = torch.distributions.Normal(design @ mean, NOISE).log_prob(y).sum()
    evidence = fit - 0.5 * (precision * mean**2).sum() - 0.5 * solution.log_det
    marginal = design @ precision.reciprocal().diag() @ design.T + NOISE**2 * torch.eye(len(y), dtype=torch.float64)
    truth = torch.distributions.MultivariateNormal(torch.zeros_like(y), marginal).log_prob(y)
    assert float(evidence) == pytest.approx(float(truth), abs=1e-8)


def left_out_by_solving(design, y, precision, noise):
    """The log score of each example given the others, from the inverse of the covariance of the targets, in 60 digits.

    Sundararajan & Keerthi 2001, "Predictive approaches for choosing hyperparameters in Gaussian processes", eq. 6.
    """
    with mpmath.workdps(60):
        rows = mpmath.matrix(design.tolist())
        inverse = (rows * mpmath.diag((1 / precision).tolist()) * rows.T + noise**2 * mpmath.eye(len(y))) ** -1
        pulled = inverse * mpmath.matrix(y.tolist())
        found = [
            mpmath.log(inverse[i, i]) / 2 - mpmath.log(2 * mpmath.pi) / 2 - pulled[i] ** 2 / (2 * inverse[i, i])
            for i in range(len(y))
        ]
        mean = rows.T * pulled
        return torch.tensor([float(v) for v in found]), torch.tensor([float(v) for v in mean]).double() / precision


@pytest.mark.one_in(5)
@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("shape", [(20, 26), (20, 20), (40, 6)], ids=["wide", "square", "a row that stands alone"])
@pytest.mark.parametrize("moved", [0.0, 1e-4], ids=["at the mode", "near the mode"])
def test_scores_left_out_are_exact_where_weights_interpolate(shape, noise, moved):
    """A relative 1e-3 of what is rounded to 1e-16 of the largest eigenvalue, 1e12; then log scores of 1e9 at most."""
    design, y, precision = problem(*shape)
    if shape[1] < shape[0]:
        design[0, -1], design[1:, -1] = 1.0, 0.0
    truth, mean = left_out_by_solving(design, y, precision, noise)
    mean = mean + moved * torch.randn(mean.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    columns = torch.full((len(design), 1, 1), 1 / noise, dtype=torch.float64)
    solution = LinearModel(design[:, None], columns).solve(precision)
    f = (design @ mean)[:, None]
    at = solution.at_mode(precision.sqrt() * mean, f, (y[:, None] - f) / noise**2)
    left_mean, left_covariance = solution.left_out(*at)
    law = torch.distributions.Normal(left_mean[:, 0], (left_covariance[:, 0, 0] + noise**2).sqrt())
    torch.testing.assert_close(law.log_prob(y), truth.double(), rtol=1e-3, atol=1e-2)


def classifier(num_data=8, weights=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_data, 2, generator=generator, dtype=torch.float64)
    y = torch.arange(num_data) % 3
    net = bnn.MLP(2, [4], 3, activation="tanh", dtype="float64")
    model = bnn.BNN(net, likelihood="categorical", prior=bnn.priors.Normal(1.0)).eval()
    values = {name: value + 0.1 for name, value in model.initial_values.items()}
    return Point(model, values, model.likelihood, list(values)), x, y


def test_an_example_of_classes_is_left_out_by_dividing_its_term_away():
    """Independent: the Gaussian of all terms in the space of weights, without the term of one example."""
    point, x, y = classifier()
    model, f = linear_model(point, x, y)
    precision = torch.ones(model.jacobian.shape[2], dtype=torch.float64)
    score = torch.nn.functional.one_hot(y, 3) - torch.softmax(f, -1)
    mean, covariance = model.solve(precision).left_out(f, score)
    parts = (model.jacobian, model.columns, model.columns, model.jacobian)
    whole = precision.diag() + torch.einsum("ncp,nck,ndk,ndq->pq", *parts)
    for i in range(len(y)):
        j, fisher = model.jacobian[i], model.columns[i] @ model.columns[i].T
        without = torch.linalg.inv(whole - j.T @ fisher @ j)
        shift = -without @ j.T @ score[i]  # the mode moves by the gradient that is gone
        torch.testing.assert_close(mean[i], f[i] + j @ shift, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(covariance[i], j @ without @ j.T, rtol=1e-7, atol=1e-8)


def test_scores_by_draws_agree_with_quadrature_and_those_of_gaussian_noise_are_closed():
    """E softmax over normal outputs, 512 draws in mirrored pairs: 4 standard errors of one draw's spread."""

    def scores(likelihood, *arguments):
        model = bnn.BNN(bnn.MLP(2, [4], 1, dtype="float64"), likelihood=likelihood, prior=bnn.priors.Normal(1.0)).eval()
        return log_scores(Point(model, dict(model.initial_values), model.likelihood, []), *arguments)

    mean = torch.tensor([[0.3], [-2.0], [4.0]], dtype=torch.float64)
    covariance = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)[:, None, None]
    y = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    found = scores("bernoulli", y, mean, covariance, None).exp()
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(60))
    f = mean + covariance[:, :, 0].sqrt() * nodes
    p = torch.sigmoid(torch.where(y[:, None] == 1, f, -f))
    truth = (p * weights).sum(1) / math.sqrt(2 * math.pi)
    spread = ((p**2 * weights).sum(1) / math.sqrt(2 * math.pi) - truth**2).sqrt()
    assert ((found - truth).abs() < 4 * spread / math.sqrt(512)).all()
    found = scores("gaussian", y, mean, covariance, torch.tensor([0.3], dtype=torch.float64))
    law = torch.distributions.Normal(mean[:, 0], (covariance[:, 0, 0] + 0.09).sqrt())
    torch.testing.assert_close(found, law.log_prob(y), rtol=0, atol=1e-6)


def test_derivatives_that_do_not_fit_are_refused():
    with pytest.raises(bnn.InputError, match=r"1 output of 100,000 examples in 10,000 weights need 7.5 GiB"):
        check_entries(100_000, 1, 10_000)


def test_information_of_simulated_targets_has_no_more_columns_than_outputs():
    """Against all of them, of which only the products count."""

    class Twice(LikelihoodModule):
        def forward(self, f):
            return torch.distributions.Normal(f[..., 0], 0.5)

        def fisher_columns(self, f):
            return torch.stack([f, 1 - f, f.square()])

    model = bnn.BNN(bnn.MLP(2, [3], 1), likelihood=bnn.likelihoods.Gaussian(0.5))
    point = Point(model, model.initial_values, Twice(), list(model.initial_values))
    f, y = torch.tensor([[-1.0], [0.2], [2.0]]), torch.tensor([0.0, 0.4, 1.5])
    every = GGN().weighted_columns(point, f, y).movedim(0, 2).detach().double()
    found = information(point, f, y)
    assert every.shape[2] > 1
    assert found.shape == (3, 1, 1)
    torch.testing.assert_close(found @ found.mT, every @ every.mT)
