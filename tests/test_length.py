"""Fits that end by themselves: where they end, what their record says, and that every engine and method has them."""

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import quick

import pyrobnn as bnn
from pyrobnn.inference.training.state import put_values
from pyrobnn.inference.training.watch import ConvergenceRule
from pyrobnn.posterior.record import Convergence, FitRecord
from pyrobnn.verdict.checks import length, needs_steps
from pyrobnn.verdict.evidence import Evidence

NOISE = 0.3
N, D = 60, 4
torch.manual_seed(0)
X = torch.randn(N, D, dtype=torch.float64) @ torch.randn(D, D, dtype=torch.float64)
Y = X @ torch.randn(D, dtype=torch.float64) + 0.5 + NOISE * torch.randn(N, dtype=torch.float64)
ROWS = torch.cat([X, torch.ones(N, 1, dtype=torch.float64)], 1)
PRECISION = ROWS.T @ ROWS / NOISE**2 + torch.eye(D + 1, dtype=torch.float64)
LINE = torch.linspace(-1, 1, 30).unsqueeze(1)
SINE = (3 * LINE).sin() + 0.1 * torch.randn(30, 1, generator=torch.Generator().manual_seed(1))


def linear(prior=1.0):
    likelihood = bnn.likelihoods.Gaussian(scale=NOISE)
    return bnn.BNN(bnn.MLP(D, [], 1, dtype="float64"), prior=bnn.priors.Normal(scale=prior), likelihood=likelihood)


def network(scale=0.1):
    return bnn.BNN(bnn.MLP(1, [8], 1), likelihood=bnn.likelihoods.Gaussian(scale=scale), prior=bnn.priors.Normal(1.0))


def fit(model, data=(X, Y), *, seed=0, method=None, **settings):
    method = bnn.SVI(**settings) if method is None else method
    return bnn.fit(model, data, method, seed=seed, progress=False, engine="captured")


def elbo(mean, covariance):
    """Return the ELBO of a normal over the weights of the linear model, in closed form."""
    residual = (Y - ROWS @ mean).square().sum() + torch.einsum("ni,ij,nj->", ROWS, covariance, ROWS)
    log_likelihood = -0.5 * residual / NOISE**2 - N * math.log(NOISE * math.sqrt(2 * math.pi))
    trace = covariance.diagonal().sum() + mean.square().sum() - (D + 1)
    return float(log_likelihood - 0.5 * (trace - torch.linalg.slogdet(covariance)[1]))


def optimum(*, correlated):
    mean = torch.linalg.solve(PRECISION, ROWS.T @ Y / NOISE**2)
    return elbo(mean, torch.linalg.inv(PRECISION) if correlated else torch.diag(1 / PRECISION.diagonal()))


def covariance_of(guide):
    if hasattr(guide, "covariance"):
        return guide.covariance()
    if hasattr(guide, "factors"):  # each column of the map from noise, by the guide's own factors
        weight, bias = guide.factors
        columns = [weight(unit.view(1, D)).reshape(-1) for unit in torch.eye(D, dtype=torch.float64)]
        root = torch.block_diag(torch.stack(columns, 1), bias.spread().view(1, 1))
        return (root @ root.T).detach()
    return torch.diag(guide.spread().detach().square())


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("guide", ["mean_field", "low_rank", "full_rank", "matrix_normal"])
def test_gaussian_guides_end_at_their_optimum(guide):
    """Within 0.05 nats with nothing set; the matrix-normal's best is between the two others."""
    posterior = fit(linear(), guide=guide)
    mean = torch.cat([posterior.guide.mean()[name].reshape(-1) for name in ("0.weight", "0.bias")])
    found = elbo(mean, covariance_of(posterior.guide))
    if guide == "matrix_normal":  # the bias by itself, the weights with all their correlations
        block = torch.block_diag(torch.linalg.inv(PRECISION[:D, :D]), 1 / PRECISION[D:, D:])
        best = elbo(torch.linalg.solve(PRECISION, ROWS.T @ Y / NOISE**2), block)
    else:
        best = optimum(correlated=guide != "mean_field")
    convergence = posterior.record.convergence
    assert best - 0.05 < found < best + 1e-6
    assert convergence.converged
    assert abs(convergence.elbo - found) < 5 * convergence.elbo_error + 0.05


def test_the_record_says_how_a_fit_ended():
    ended = fit(network(), (LINE, SINE), tolerance=5.0)
    record, convergence = ended.record, ended.record.convergence
    assert convergence.converged is True
    assert convergence.gain < convergence.tolerance == 5.0
    assert convergence.elbo_error < 5.0
    assert record.num_steps == len(ended.history) == convergence.cycle_ends[-1]
    assert record.stop_reason.startswith("converged: ")
    assert record.stopped_by == "convergence"
    late = ended.history.elbo[-100:].mean()
    assert abs(late - convergence.elbo) < 5.0 + 5 * convergence.elbo_error


def run_cycles(objectives, *, tolerance=1.0, max_steps=100_000, noise=0.0):
    """Return a length whose cycles measure these objectives, the number of the best, their steps and their rates."""
    parameter, method, begun, trained = torch.zeros(1), SimpleNamespace(temperature=1.0, kl_warmup=0), [], []
    fit = SimpleNamespace(parameters=[parameter], schedule_steps=100, method=method, optimizer=None)
    rate = 1.0
    length, done = ConvergenceRule(fit, tolerance, max_steps), 0
    for number, objective in enumerate(objectives):
        rates = set()
        while len(length.state()["cycle_ends"]) == number and length.end is None:
            parameter.fill_(number)
            done += 50
            found = objective + (noise if done % 100 else -noise)
            block = np.column_stack([np.full(50, found + 3.0), np.full(50, 3.0)])
            move = length.judge(block, done)
            if move is not None:
                rate = move.rate
                begun += [] if move.cycle is None else [move.cycle]
                put_values([parameter], move.values or [parameter.clone()])
            rates.add(rate)
        trained.append(max(rates))
    length.finish()
    return length, float(parameter), begun, trained


LOWER = "converged: the last 200 steps, at a lower rate, gained 0.5 nats"
CYCLES = {
    "they go on while they gain": ([10, 20, 15, 20.5], 100_000, 3, [200, 400, 200], [1, 1, 1, 0.3], 2900, LOWER),
    "a lower rate that gains is kept": (
        *([10, 10, 12, 13.5, 13.5, 13], 100_000, 3, [200, 100, 200, 400, 200], [1, 1, 0.3, 0.3, 0.3, 0.09], 4200),
        "converged",
    ),
    "one that would pass max_steps is left out": (
        *([10, 20], 2000, 1, [200], [1, 1], 1300),
        "not converged within max_steps=2000: the last 200 steps gained 10 nats",
    ),
    "the rest of max_steps runs at a lower rate": (
        *([10, 20, 30], 2500, 2, [200, 200], [1, 1, 0.3], 2000),
        "not converged within max_steps=2500",
    ),
    "one at a lower rate that is cut off": ([10, 10.5], 100_000, 1, [200, 100], [1, 1], None, "not"),
    "a gain below the tolerance": ([10, 10.9], 100_000, 1, [200, 100], [1, 1], None, "not"),
    "twice": ([10, 10.9, 11.8], 100_000, 2, [200, 100], [1, 1, 0.3], 1900, "converged"),
    "then one above it": ([10, 10.9, 12], 100_000, 2, [200, 100, 200], [1, 1, 0.3], None, "not"),
}
"""Objectives of cycles and `max_steps`; the best cycle, steps of those begun, rates, the end, and how it is told."""


@pytest.mark.parametrize("name", CYCLES)
def test_cycles(name):
    objectives, most, best, begun, rates, end, reason = CYCLES[name]
    length, *found, own_rates = run_cycles(objectives, max_steps=most)
    assert (*found, length.end) == (best, begun, end)
    assert own_rates == pytest.approx(rates)
    assert length.reason().startswith(reason)
    assert length.record().converged == reason.startswith("converged")
    if end == 2900:
        assert length.record().cycle_ends == [600, 1300, 2200, 2900]
        assert (length.record().elbo, length.record().gain) == (20.5, 0.5)


@pytest.mark.parametrize(("gain", "error", "needs"), [(1.3, 0.0, True), (1.3, 0.1, False), (1.1, 0.0, False)])
def test_all_steps_are_too_few_if_the_last_cycle_gained_more_than_noise_and_what_matters(gain, error, needs):
    """0.02 nats for each of 60 examples are 1.2."""
    end = Convergence(converged=False, elbo=0.0, elbo_error=error, gain=gain, tolerance=0.1, cycle_ends=[9])
    record = FitRecord(convergence=end, num_data=60, stopped_by="steps")
    assert needs_steps(record) is needs


def test_cycles_under_the_warm_up_of_the_kl_say_nothing():
    """Whatever the tolerance, the two cycles that gain too little begin after it."""
    posterior = fit(linear(), kl_warmup=4000, tolerance=1e6)
    convergence = posterior.record.convergence
    assert convergence.converged
    assert convergence.cycle_ends[-3] >= 4000


@pytest.mark.parametrize(("most", "cycles"), [(120, 0), (2500, 0), (4000, 1)])
def test_a_fit_ends_at_max_steps(most, cycles):
    posterior = fit(network(), (LINE, SINE), max_steps=most)
    convergence = posterior.record.convergence
    assert not convergence.converged
    assert convergence.gain is None
    assert len(convergence.cycle_ends) == cycles
    assert posterior.record.num_steps <= most
    assert posterior.record.stop_reason == f"not converged within max_steps={most}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 1e-9},
        {"lr": 1e-8, "optimizer": "adamw", "batch_size": 8},
        {"lr": 1e-9, "guide": "map"},
        {"schedule": {"type": "exponential_lr", "gamma": 0.01}},
    ],
)
def test_a_fit_that_stands_still_has_not_converged(settings):
    """The posterior is far: a usual rate gains tens of nats."""
    settings = {"lr": 1e-2} | settings
    posterior = fit(network(), (LINE, SINE), max_steps=20_000, **settings)
    assert not posterior.record.convergence.converged
    assert posterior.record.stopped_by == "steps"
    assert posterior.record.stop_reason.startswith("not converged")
    assert "raise the learning rate" in posterior.record.stop_reason or settings["lr"] == 1e-2


@pytest.mark.slow
def test_replicates_end_by_themselves():
    """Each at its own step, with the parameters and the history of its own end."""
    methods = [bnn.SVI(tolerance=tolerance, max_steps=21_000) for tolerance in (1e6, 1e-6)]
    posteriors = bnn.fit_replicates(network(), (LINE, SINE), methods, seed=1, progress=False, engine="captured")
    assert posteriors[0].record.num_steps < posteriors[1].record.num_steps  # which measures for longer
    for posterior in posteriors:
        ends = posterior.record.convergence.cycle_ends
        assert len(posterior.history) == posterior.record.num_steps == ends[-1]
        draws = posterior.predict(LINE, num_draws=2000, seed=1).draw_log_prob(SINE).sum(1).double()
        log_likelihood = posterior.history.log_likelihood[-400:]
        noise = math.hypot(float(draws.std()) / 2000**0.5, log_likelihood.std() / 400**0.5)
        assert abs(float(draws.mean()) - log_likelihood.mean()) < 5 * noise + 1


@pytest.mark.slow
def test_a_schedule_restarts_in_each_cycle():
    """Given by the user, it runs from its start to its end in every cycle; what is seen is how far steps go."""
    moved = []

    def watch(progress):
        moved.append(next(progress.guide.parameters()).detach().clone())

    schedule = {"type": "step_lr", "step_size": 1250, "gamma": 1e-6}
    method = bnn.SVI(guide="map", schedule=schedule, tolerance=1e-9, max_steps=9600)
    settings = {"seed": 0, "progress": False, "engine": "captured", "callbacks": [watch]}
    found = bnn.fit(network(), (LINE, SINE), method, **settings).record.convergence.cycle_ends
    assert len(found) == 2
    distance = np.array([float((b - a).norm()) for a, b in pairwise(moved)])
    steps = 100 + 50 * np.arange(len(distance))
    for start, end in zip([0, found[0]], found, strict=True):
        assert (distance[(steps > start + 50) & (steps <= start + 1250)] > 1e-4).all()
        assert (distance[(steps > start + 1300) & (steps < end)] < 1e-4).all()


def test_a_fit_of_any_length_is_as_narrow_at_first_as_is_said():
    def scale(model=None, **settings):
        seen = []

        def look(progress):
            seen.append(float(torch.nn.functional.softplus(progress.guide.rho.detach()).max()))
            return True

        method = bnn.SVI(**settings)
        bnn.fit(model or network(), (LINE, SINE), method, seed=0, progress=False, engine="eager", callbacks=[look])
        return seen[0]

    known = bnn.BNN(network().settings["net"], prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.1))
    assert scale(known, lr=0.001) < 0.01
    assert scale(known, lr=0.001, steps=1000) < 0.01
    assert scale(guide=bnn.guides.MeanField(init_rho=-3.0)) > 0.02


def test_the_tolerance_follows_the_number_of_examples():
    assert [bnn.SVI().tolerance_for(number) for number in (10, 100, 250, 10_000)] == [0.05, 0.2, 1.25, 50.0]
    assert bnn.SVI(tolerance=3.0).tolerance_for(10) == 3.0


def test_a_schedule_with_a_hard_end_rests_while_the_objective_is_measured():
    """`one_cycle_lr` refuses any step after its last."""
    schedule = {"type": "one_cycle_lr", "cycle_momentum": False}
    posterior = fit(network(), (LINE, SINE), schedule=schedule, tolerance=1e-9, max_steps=9600)
    assert len(posterior.record.convergence.cycle_ends) == 2


def test_a_fit_that_is_stopped_keeps_its_best_cycle():
    """The same parameters as a fit that ends with that cycle."""
    kept = {}

    def watch(progress):
        kept[progress.step] = [p.detach().clone() for p in progress.guide.parameters()]
        return progress.step == 4000

    arguments = {"seed": 0, "progress": False, "engine": "captured", "callbacks": [watch]}
    stopped = bnn.fit(network(), (LINE, SINE), bnn.SVI(guide="map", tolerance=1e-9), **arguments)
    (end,) = stopped.record.convergence.cycle_ends
    assert stopped.record.stop_reason == "stopped by a callback after step 4000"
    assert end < 4000
    for found, best in zip(stopped.guide.parameters(), kept[end], strict=True):
        assert torch.equal(found, best)


@pytest.mark.slow
def test_validation_waits_while_the_objective_is_measured():
    """No score of parameters that stand still, so that patience counts steps that train."""
    x, y = LINE[::2], SINE[::2]
    method = bnn.SVI(patience=4, eval_every=250, max_steps=9600)
    posterior = quick(network(), method, (LINE[1::2], SINE[1::2]), validation=(x, y), engine="captured")
    steps = np.array(posterior.history.validation_steps)
    assert len(steps) > 5
    assert not ((steps > 2550) & (steps <= 2500 + 500)).any()


@pytest.mark.parametrize(
    ("guide", "settings", "is_told"),
    [("mean_field", {"max_steps": 50}, True), ("map", {"max_steps": 50}, True), ("mean_field", {"steps": 50}, False)],
)
def test_a_fit_that_was_cut_short_says_so(guide, settings, is_told):
    data = bnn.datasets.sinusoid()
    model = bnn.BNN(bnn.MLP(1, [20], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=1.0))
    found = length(Evidence(quick(model, bnn.SVI(guide=guide, lr=0.03, **settings), data), data))
    assert (found is not None and found.kind == "warning") == is_told
