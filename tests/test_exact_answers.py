"""Whole fits and predictions against answers that are known exactly: closed forms, quadrature, other libraries."""

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Net
from scipy import stats
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch import nn
from torch.optim import lr_scheduler

import pyrobnn as bnn
from pyrobnn.inference.several.swag import _Path
from pyrobnn.verdict.baselines import fit_baselines

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3))
Y = X @ [1.0, -0.5, 0.2] + 0.3 * RNG.normal(size=30)
NEW = RNG.normal(size=(5, 3))
DESIGN = np.c_[X, np.ones(30)]
MODE = bnn.EvidenceFramework(starts=1, rounds=0)
"""The mode by L-BFGS, and a Laplace approximation with all correlations: the exact posterior of linear models."""
KIND = {"engine": "eager", "progress": False}


def linear(likelihood, outputs=1, prior=1.0):
    return bnn.BNN(bnn.MLP(3, [], outputs, dtype="float64"), prior=bnn.priors.Normal(prior), likelihood=likelihood)


def exact(model, y, **arguments):
    return bnn.fit(model, bnn.Data(X, y, **arguments), MODE, seed=0, **KIND)


def coefficients(values):
    return np.concatenate([values["0.weight"].numpy().ravel(), values["0.bias"].numpy()])


def random_features():
    """200 tanh features with weights that stay, and a linear layer that is inferred."""
    first, last = (nn.Linear(*sizes, bias=False, dtype=torch.float64) for sizes in ((3, 200), (200, 1)))
    first.requires_grad_(requires_grad=False)
    first.weight.copy_(torch.randn(200, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    return Net(lambda net, x: net.last(torch.tanh(net.first(x))), first=first, last=last)


def test_a_linear_layer_on_frozen_features_is_the_gaussian_process_of_their_kernel():
    """Its law, evidence and leave-one-out score; the prior of frozen features can be tuned."""
    model = bnn.BNN(random_features(), prior=bnn.priors.Normal(0.2), likelihood=bnn.likelihoods.Gaussian(0.3))
    posterior = bnn.fit(model, (X, Y), MODE, seed=0, **KIND)
    old, new = (0.2 * np.tanh(x @ posterior.bnn.net.first.weight.numpy().T) for x in (X, NEW))
    kernel, cross = old @ old.T + 0.09 * np.eye(30), new @ old.T
    inverse = np.linalg.inv(kernel)
    found = bnn.functional(posterior, NEW, joint=True)
    np.testing.assert_allclose(found.mean[:, 0], cross @ inverse @ Y, atol=1e-5)
    np.testing.assert_allclose(found.covariance[:, 0, :, 0], new @ new.T - cross @ inverse @ cross.T, atol=1e-7)
    evidence = stats.multivariate_normal(np.zeros(30), kernel).logpdf(Y)
    assert posterior.record.laplace.log_evidence == pytest.approx(evidence, abs=1e-5)
    left_out = stats.norm(0, inverse.diagonal() ** -0.5).logpdf(inverse @ Y / inverse.diagonal()).sum()
    assert posterior.record.evidence.starts[0].log_left_out == pytest.approx(left_out, abs=1e-5)
    tuned = bnn.tune_prior(posterior, (X, Y), per="site")
    assert tuned.record.laplace.log_evidence >= posterior.record.laplace.log_evidence
    assert torch.equal(tuned.bnn.net.first.weight, posterior.bnn.net.first.weight)


MODELS = {
    "bernoulli": (bnn.likelihoods.Bernoulli(), 1, 1.0 * (Y > 0)),
    "poisson": (bnn.likelihoods.Poisson(), 1, np.random.default_rng(1).poisson(np.exp(0.5 * X[:, 0] + 0.3))),
    "categorical": (bnn.likelihoods.Categorical(), 3, np.random.default_rng(2).integers(0, 3, 30)),
    "ordinal": (bnn.likelihoods.Ordinal(3), 1, np.digitize(Y, [-0.5, 0.5])),
}


@pytest.mark.parametrize("name", MODELS)
def test_mode_evidence_and_covariance_of_generalised_linear_models_are_those_of_autograd(name):
    """A step of Newton's method is the distance to the mode; where the link is no canonical one, with the Fisher."""
    likelihood, outputs, y = MODELS[name]
    posterior = exact(linear(likelihood, outputs), y)
    mode = torch.tensor(coefficients(posterior.mean()))

    def law(w):
        return posterior.bnn.likelihood(torch.tensor(X) @ w[: 3 * outputs].view(outputs, 3).T + w[3 * outputs :])

    def log_joint(w):
        return law(w).log_prob(torch.tensor(y)).sum() - 0.5 * w @ w

    if name == "ordinal":
        scores = torch.autograd.functional.jacobian(lambda w: law(w).logits, mode)  # (N, classes, weights)
        precision = torch.einsum("nc,nci,ncj->ij", law(mode).probs.detach(), scores, scores) + torch.eye(4)
    else:
        precision = -torch.autograd.functional.hessian(log_joint, mode)
    gradient = torch.autograd.functional.jacobian(log_joint, mode)
    np.testing.assert_allclose(torch.linalg.solve(precision, gradient), 0, atol=1e-4)
    evidence = float(log_joint(mode).detach() - 0.5 * torch.logdet(precision))
    assert posterior.record.evidence.starts[0].log_evidence == pytest.approx(evidence, abs=1e-5)
    assert posterior.record.laplace.log_evidence == pytest.approx(evidence, abs=1e-5)
    jacobian = np.stack([np.hstack([np.kron(np.eye(outputs), x), np.eye(outputs)]) for x in NEW])
    covariance = jacobian @ torch.linalg.inv(precision).numpy() @ jacobian.transpose(0, 2, 1)
    np.testing.assert_allclose(bnn.functional(posterior, NEW).covariance, covariance, atol=1e-5)


HOURS = np.random.default_rng(4).uniform(0.1, 10, 30)
LONGER, TIMED = (np.insert(X, 1, np.log(factor * HOURS), 1) for factor in (2, 1))
COUNTS = np.random.default_rng(5).poisson(HOURS * np.exp(0.5 * X[:, 0] - 0.3))
TIMES = bnn.Data(TIMED, COUNTS, standardize=True, inputs="ranks", feature_names=["a", "log_hours", "b", "c"])
RATES = {
    bnn.likelihoods.Poisson(offset="log_hours"): stats.poisson,
    bnn.likelihoods.NegativeBinomial(0.5, offset="log_hours"): lambda mean: stats.nbinom(2, 2 / (2 + mean)),
}


@pytest.mark.parametrize("setting", RATES)
def test_rates_with_an_offset_are_those_of_maximum_likelihood(setting):
    """The constant that they are compared with is the count of an hour."""
    law, data = RATES[setting], TIMES.with_inputs("plain")
    posterior = bnn.fit(linear(setting, prior=1e4), data, MODE, seed=0, **KIND)
    best = minimize(lambda w: -law(HOURS * np.exp(DESIGN @ w)).logpmf(COUNTS).sum(), np.zeros(4), tol=1e-9).x
    np.testing.assert_allclose(posterior.predict(TIMED, at_mean=True).mean, HOURS * np.exp(DESIGN @ best), rtol=1e-4)
    constant = fit_baselines(setting, data, 1)["constant"].predict(data.x).mean.numpy() / HOURS
    rate = COUNTS.sum() / HOURS.sum() if law is stats.poisson else constant[0]
    np.testing.assert_allclose(constant, np.full(30, rate), rtol=1e-3)


@pytest.mark.parametrize("dispersion", [0.0, "heteroscedastic"])
def test_twice_the_exposure_has_twice_the_mean(dispersion, tmp_path):
    setting = bnn.likelihoods.ZeroInflated(dispersion, offset="log_hours")
    net = bnn.MLP(TIMES.with_offset("log_hours").num_inputs, [3], setting.num_outputs(TIMES.y))
    posterior = bnn.fit(bnn.BNN(net, likelihood=setting), TIMES, bnn.SVI(steps=5), seed=0, **KIND)
    for predict in (posterior.predict, bnn.load(posterior.save(tmp_path / "p")).predict):
        torch.testing.assert_close(predict(LONGER).mean, 2 * predict(TIMED).mean, rtol=1e-5, atol=0)
    alone = posterior.predictor(20)(torch.tensor(TIMED))[0]
    torch.testing.assert_close(alone.double(), predict(TIMED, num_draws=20).mean.double(), rtol=1e-5, atol=0)
    with pytest.raises(bnn.InputError, match=r"must have shape \(N, 4\).* need their offset.* a, log_hours, b, c"):
        posterior.predict(X)


def test_two_columns_with_noise_of_their_own_in_standard_units():
    y = np.column_stack([Y, 5 * Y + np.random.default_rng(3).normal(size=30)])
    method = bnn.EvidenceFramework(starts=1, rounds=5, per="site")
    model = linear(bnn.likelihoods.Gaussian(), outputs=2)
    posterior = bnn.fit(model, bnn.Data(X, y, standardize=True), method, seed=0, **KIND)
    alpha = posterior.record.evidence.precision
    z = (X - X.mean(0)) / X.std(0)
    evidence = left_out = 0.0
    for column, noise in zip((y - y.mean(0)).T, posterior.bnn.settings["likelihood"].scale, strict=True):
        kernel = (z @ z.T / alpha["0.weight"] + 1 / alpha["0.bias"]) * column.var() + noise**2 * np.eye(30)
        inverse = np.linalg.inv(kernel)
        evidence += stats.multivariate_normal(np.zeros(30), kernel).logpdf(column)
        mean = inverse @ column / inverse.diagonal()
        left_out += stats.norm(0, inverse.diagonal() ** -0.5).logpdf(mean).sum()
    start = posterior.record.evidence.starts[0]
    assert posterior.record.laplace.log_evidence == pytest.approx(evidence, abs=1e-4)
    assert (start.log_evidence, start.log_left_out) == pytest.approx((evidence, left_out), abs=1e-4)


@pytest.mark.parametrize("rounds", [0, 1])
def test_inputs_whose_squares_overflow_are_named_as_the_cause(rounds):
    method = bnn.EvidenceFramework(starts=1, rounds=rounds)
    with pytest.raises(FloatingPointError, match="no start kept finite numbers"):
        bnn.fit(linear(bnn.likelihoods.Gaussian(0.3)), (1e200 * X, Y), method, seed=0, **KIND)


def test_a_mixture_of_two_posteriors_by_hand():
    y = 50 * Y + 1000
    members = [exact(linear(bnn.likelihoods.Gaussian(noise)), y, standardize=True) for noise in (10.0, 20.0)]
    mixture = bnn.Mixture(members, seed=3)
    draws = mixture.draw(7)
    prediction = mixture.predict(NEW, draws=draws)
    inputs = np.hstack([(NEW - X.mean(0)) / X.std(0), np.ones((5, 1))])
    weights = np.hstack([draws["0.weight"][:, 0], draws["0.bias"]])
    parts = stats.norm(weights @ inputs.T * y.std() + y.mean(), np.repeat([10.0, 20.0], [4, 3])[:, None])
    np.testing.assert_allclose(prediction.mean, parts.mean().mean(0))
    np.testing.assert_allclose(prediction.std, np.sqrt(parts.mean().var(0) + parts.var().mean(0)))
    np.testing.assert_allclose(prediction.log_prob(y[:5]), logsumexp(parts.logpdf(y[:5]), 0) - np.log(7))
    np.testing.assert_allclose(parts.cdf(prediction.quantile(0.1)).mean(0), 0.1)
    chosen = prediction[[-1, 0]]
    np.testing.assert_array_equal(chosen.quantile(0.9), prediction.quantile(0.9)[[-1, 0]])


@pytest.mark.parametrize("names", [["x0", "x1", "x2"], [0, 1, 2], ["a", "b", "c"]])
def test_columns_of_a_frame_go_by_name_and_by_position_where_training_had_none(names):
    frame = pd.DataFrame(X, columns=names)
    posterior = bnn.fit(linear(bnn.likelihoods.Gaussian(0.3)), bnn.Data(frame, Y), MODE, seed=0, **KIND)
    found = posterior.predict(frame[[names[2], names[0], names[1]]], at_mean=True).mean
    np.testing.assert_array_equal(found, posterior.predict(X, at_mean=True).mean)
    unnamed = exact(linear(bnn.likelihoods.Gaussian(0.3)), Y)
    np.testing.assert_array_equal(unnamed.predict(frame, at_mean=True).mean, found)


SCHEDULES = [
    ("cosine_annealing_lr", lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=12)),
    ({"type": "step_lr", "step_size": 5, "gamma": 0.3}, lambda o: lr_scheduler.StepLR(o, 5, 0.3)),
    ({"type": "polynomial_lr", "power": 2.0}, lambda o: lr_scheduler.PolynomialLR(o, total_iters=12, power=2.0)),
    (
        {"type": "one_cycle_lr", "cycle_momentum": False},
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.005, total_steps=12, cycle_momentum=False),
    ),
    (None, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
]


def test_replicates_follow_their_own_schedules_and_warm_ups_as_torch_does():
    warm_ups = [0, 4, 8, 4, 0]
    methods = [
        bnn.SVI(guide="map", optimizer="sgd", lr=0.005, steps=12, schedule=schedule, kl_warmup=warm_up)
        for (schedule, _), warm_up in zip(SCHEDULES, warm_ups, strict=True)
    ]
    net = bnn.MLP(3, [], 1, bias=False, dtype="float64")
    model = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(1.0), prior=bnn.priors.Normal(1.0))
    found = bnn.fit_replicates(model, (X, Y), methods, seed=3, **KIND)
    for posterior, (_, build), warm_up in zip(found, SCHEDULES, warm_ups, strict=True):
        still = bnn.fit(model, (X, Y), bnn.SVI(guide="map", lr=1e-300, steps=1), seed=posterior.seed, **KIND)
        w = torch.nn.Parameter(still.mean()["0.weight"].clone())
        optimizer = torch.optim.SGD([w], lr=0.005)
        schedule = build(optimizer)
        for step in range(12):
            optimizer.zero_grad()
            misfit = (torch.tensor(Y) - torch.tensor(X) @ w[0]).square().sum() / 2
            (misfit + min(1.0, (step + 1) / warm_up if warm_up else 1.0) * w.square().sum() / 2).backward()
            optimizer.step()
            schedule.step()
        torch.testing.assert_close(posterior.mean()["0.weight"], w.detach(), atol=1e-12, rtol=0)


def test_swag_has_the_moments_of_its_path():
    path = np.random.default_rng(5).normal(size=(12, 4))
    model = linear(bnn.likelihoods.Gaussian(1.0))
    posterior = bnn.fit(model, (X, Y), bnn.SVI(guide=bnn.guides.LowRank(5), steps=1), seed=0, **KIND)
    collected = _Path(5, width=1, factor=1.0)
    for weights in path:
        collected.step(torch.tensor(weights), is_kept=True)
    collected.write_into(posterior.guide)
    deviations = np.stack([path[i] - path[: i + 1].mean(0) for i in range(7, 12)])
    covariance = np.diag(path.var(0)) / 2 + deviations.T @ deviations / 8
    np.testing.assert_allclose(posterior.guide.covariance(), covariance, rtol=1e-5)
    table = bnn.weight_table(posterior)
    np.testing.assert_allclose(table["mean"], path.mean(0))
    np.testing.assert_allclose(table["std"], np.sqrt(covariance.diagonal()))
    draws = posterior.draw(20_000, seed=0)
    found = np.cov(np.hstack([draws["0.weight"][:, 0], draws["0.bias"]]).T)
    size = np.sqrt(np.outer(covariance.diagonal(), covariance.diagonal()) + covariance**2)
    assert (np.abs(found - covariance) < 5 * size / np.sqrt(20_000)).all()


def test_a_sampled_function_is_one_draw_at_every_call():
    posterior = exact(linear(bnn.likelihoods.Gaussian(0.3)), Y)
    function = bnn.sample_function(posterior, seed=5)
    draw = {name: value[0] for name, value in posterior.draw(1, seed=5).items()}
    np.testing.assert_allclose(torch.cat([function(X[:4]), function(X[4:])]), DESIGN @ coefficients(draw))
