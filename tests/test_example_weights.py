"""Weights of examples: in every method an example of weight 2 counts as the same example twice."""

import itertools
import tempfile

import numpy as np
import pytest
import torch
from pyro import poutine
from torch import nn
from torch.utils.data import DataLoader

import pyrobnn as bnn
from pyrobnn.data.in_memory import merged
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import make_source
from pyrobnn.inference.mcmc.chains import LogJoint, eager_potential
from pyrobnn.inference.mcmc.mcmc import Leapfrog

F64 = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
COUNTS = torch.tensor([1, 3, 2, 1, 4, 1, 2, 2])
X = torch.randn(8, 2, generator=GENERATOR, dtype=F64) + 3.0
Y = 10 * X[:, 0].sin() + torch.randn(8, generator=GENERATOR, dtype=F64)
LABELS = (X[:, 1] > 3.0).long()


def both(y=Y, *, standardize=True):
    """The same data by weights, and by rows that stand there several times."""
    return (
        bnn.Data(X, y, weights=COUNTS, standardize=standardize),
        bnn.Data(X.repeat_interleave(COUNTS, 0), y.repeat_interleave(COUNTS, 0), standardize=standardize),
    )


def gaussian(scale=2.0):
    net = bnn.MLP(2, [3], 1, dtype="float64")
    return bnn.BNN(net, prior=bnn.priors.Normal(0.7), likelihood=bnn.likelihoods.Gaussian(scale=scale))


def fit(model, method, data, **settings):
    return bnn.fit(model, data, method, seed=0, progress=False, **settings)


def checkpoint_of_other_weights():
    with tempfile.TemporaryDirectory() as folder:
        for factor in (1, 2):
            data = bnn.Data(X, Y, weights=factor * COUNTS, standardize=True)
            fit(gaussian(), bnn.SVI(steps=4), data, checkpoint=folder)


def test_rows_and_summaries_carry_weights():
    data, repeated = both()
    assert data[2:4].weights.tolist() == [2.0, 1.0]
    assert sum(len(part) for part in data.parts(3)) == 8
    assert data.total_weight == repeated.total_weight == 16
    assert repr(data) == "Data(x=(8, 2), y=(8,) float64, weights=(8,), standardize=True)"
    for ours, theirs in ((data.x_scaler, repeated.x_scaler), (data.y_scaler, repeated.y_scaler)):
        torch.testing.assert_close(ours.loc, theirs.loc)
        torch.testing.assert_close(ours.scale, theirs.scale)


REFUSED = {
    "zero": (lambda: bnn.Data(X, Y, weights=COUNTS - 1), "`weights` must be positive, got 0: leave out such rows"),
    "not finite": (lambda: bnn.Data(X, Y, weights=COUNTS / 0), "`weights` must be finite"),
    "columns": (lambda: bnn.Data(X, Y, weights=X), r"one number for each of 8 rows, got \(8, 2\)"),
    "loader": (
        lambda: fit(gaussian(), bnn.SVI(), DataLoader(list(zip(X, Y, COUNTS, strict=True)), 4)),
        "does not take inputs of shape 0",
    ),
    "in some replicates": (
        lambda: bnn.fit_replicates(gaussian(), [bnn.Data(X, Y), both()[0]], bnn.SVI(), seed=0, progress=False),
        "need equal shapes; got inputs .*, weights",
    ),
    "diagnostics": (
        lambda: bnn.heldout_elpd(fit(gaussian(), bnn.SVI(steps=1), (X, Y)), both()[0]),
        "Every example counts once here, and these data have weights",
    ),
    "trees": (
        lambda: bnn.to_datatree(fit(gaussian(), bnn.SVI(steps=1), (X, Y)), both()[0]),
        "Every example counts once here",
    ),
    "a checkpoint": (checkpoint_of_other_weights, "is of another fit, the data differ"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_weighted_is_refused(case):
    call, message = REFUSED[case]
    with pytest.raises(bnn.InputError, match=message):
        call()


def test_a_mini_batch_is_scaled_by_the_plate_and_its_weights_alone():
    likelihood, prior = bnn.likelihoods.Gaussian(scale=1.0), bnn.priors.Normal(1.0)
    model = bnn.BNN(nn.Linear(1, 1), likelihood=likelihood, prior=prior).eval()
    x, y, weights = torch.randn(4, 1), torch.randn(4), torch.tensor([0.5, 1.0, 2.0, 3.0])
    trace = poutine.trace(model).get_trace(x, y, weights, num_data=12)
    log_prob = torch.distributions.Normal(trace.nodes["_RETURN"]["value"][:, 0], 1.0).log_prob(y)
    trace.compute_log_prob()
    torch.testing.assert_close(trace.nodes["y"]["log_prob_sum"], 3 * (weights * log_prob).sum())


def test_the_gradient_of_a_mini_batch_is_unbiased():
    data, _ = both()
    log_joint, everything = density(data)
    z = torch.randn(13, dtype=F64)
    whole = eager_potential(log_joint, everything)(z)
    pairs = [torch.tensor(rows) for rows in itertools.combinations(range(8), 2)]
    parts = [eager_potential(log_joint, tuple(values[rows] for values in everything))(z) for rows in pairs]
    for found, expected in zip(zip(*parts, strict=True), whole, strict=True):
        torch.testing.assert_close(torch.stack(found).mean(0), expected)


def density(data):
    """The log joint density of the model, and the data in its units."""
    source = make_source(data, gaussian(), None, seed=0)
    model, example = source.fresh_model(gaussian(), "cpu")
    joint = LogJoint(model, latent_sites(model, *example), source.num_data)
    return joint, source.scaled(model, *data.tensors)


@pytest.mark.parametrize("captured", [False, True])
def test_the_potential_is_that_of_repeated_rows(captured):
    z = torch.randn(13, dtype=F64)
    found = []
    for data in both():
        joint, everything = density(data)
        energy = eager_potential(joint, everything)
        if captured:
            energy = Leapfrog(joint, everything, z).evaluate
        found.append(energy(z))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


SHARED = bnn.guides.MeanField(noise="shared")  # so that copies of a row see the same draw
METHODS = {
    "mean_field": bnn.SVI(guide=SHARED, steps=20),
    "quadrature": bnn.SVI(guide=SHARED, steps=20, kl="quadrature", num_particles=2),
    "ensemble": bnn.Ensemble(bnn.SVI(guide="map", steps=20), members=2),
    "swag": bnn.SWAG(bnn.SVI(guide="map", steps=5), steps=6, every=2, rank=2, lr=1e-4),
    "nuts": bnn.NUTS(num_draws=4, warmup=4, num_chains=1, target_accept=0.99),
    "mclmc": bnn.MCLMC(num_draws=4, warmup=40, num_chains=2, thinning=1),
    "hmc": bnn.HMC(num_draws=4, warmup=4, num_chains=1),
    "sgld": bnn.SGLD(step_size=1e-4, num_draws=4, burn_in=4, thinning=1, num_chains=2),
    "sghmc": bnn.SGHMC(step_size=1e-3, num_draws=4, burn_in=4, thinning=1, num_chains=2),
    "evidence": bnn.EvidenceFramework(starts=2, rounds=2, iterations=20),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", METHODS)
def test_fits_are_those_to_repeated_rows(name):
    ours, theirs = (fit(gaussian(), METHODS[name], data, engine="eager") for data in both())
    for one, other in zip(ours.draw(3).values(), theirs.draw(3).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    if ours.record.laplace is not None:
        expected = pytest.approx(theirs.record.laplace.log_evidence, rel=1e-6)
        assert ours.record.laplace.log_evidence == expected


def test_tuned_scales_are_those_of_repeated_rows():
    method = bnn.SVI(guide=bnn.guides.Laplace(structure="kron"), steps=5)
    fits = [(fit(gaussian("learned"), method, data, engine="eager"), data) for data in both()]
    ours, theirs = (bnn.tune_prior(one, data, per="site", noise=True) for one, data in fits)
    assert ours.record.laplace.log_evidence == pytest.approx(theirs.record.laplace.log_evidence, rel=1e-6)
    assert ours.record.laplace.precision == pytest.approx(theirs.record.laplace.precision, rel=1e-4)
    scales = [one.bnn.settings["likelihood"].scale for one in (ours, theirs)]
    assert scales[0] == pytest.approx(scales[1], rel=1e-5)


STRUCTURES = [
    *(("ggn", structure) for structure in ("kron", "full", "diag", "low_rank")),
    *(("fisher", structure) for structure in ("kron", "full", "diag")),
    ("hessian", "full"),
    ("hessian", "diag"),
    ("recursion", "diag"),
]


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize(("curvature", "structure"), STRUCTURES)
@pytest.mark.filterwarnings("ignore:Laplace")
def test_curvature_is_that_of_repeated_rows(curvature, structure, classes):
    setting = bnn.guides.Laplace(curvature=curvature, structure=structure, rank=3)
    net = bnn.MLP(2, [3], 2 if classes else 1, dtype="float64")
    likelihood = "categorical" if classes else bnn.likelihoods.Gaussian(scale=2.0)
    model = bnn.BNN(net, likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    found = [setting.around(model, data, progress=False) for data in both(LABELS if classes else Y)]
    ours, theirs = (vars(one.record.laplace) for one in found)
    assert ours["log_evidence"] == pytest.approx(theirs["log_evidence"], rel=1e-9)
    for one, other in zip(*(posterior.guide.state_dict().values() for posterior in found), strict=True):
        torch.testing.assert_close(one, other)


def test_validation_scores_are_weighted_means():
    method = bnn.SVI(steps=10, eval_every=5)
    fits = [fit(gaussian(), method, (X, Y), engine="eager", validation=data) for data in both()]
    np.testing.assert_allclose(*(one.history.validation_scores for one in fits))


def test_elbo_and_importance_weights_count_them():
    data, repeated = both()
    posterior = fit(gaussian(), bnn.SVI(steps=30), data, engine="eager")
    ours, theirs = (bnn.elbo_report(posterior, one, num_draws=10) for one in (data, repeated))
    assert ours.elbo.mean == pytest.approx(theirs.elbo.mean)
    ours, theirs = (bnn.importance_weights(posterior, one, num_draws=100) for one in (data, repeated))
    assert ours.log_evidence.mean == pytest.approx(theirs.log_evidence.mean)


def test_real_targets_beside_integer_inputs_keep_their_digits():
    model = bnn.BNN(nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 1)), prior=bnn.priors.Normal(1.0))
    data = bnn.Data(torch.randint(0, 5, (20, 2)), torch.rand(20), weights=torch.rand(20) + 0.1)
    _, y, weights = make_source(data, model, None, seed=0).scaled(model, *data.tensors)
    assert torch.equal(y, data.y)
    torch.testing.assert_close(weights.double(), data.weights, rtol=1e-6, atol=0)


def test_the_evidence_framework_is_that_of_repeated_rows():
    """Of a row of weight 2 the leave-one-out score leaves one copy out. The linear model has one mode."""
    method, net = bnn.EvidenceFramework(starts=3, rounds=4), bnn.MLP(2, [], 1, dtype="float64")
    model = bnn.BNN(net, prior=bnn.priors.Normal(0.7), likelihood=bnn.likelihoods.Gaussian("tuned"))
    weighted, repeated = (fit(model, method, data) for data in both())
    for one, other in zip(weighted.record.evidence.starts, repeated.record.evidence.starts, strict=True):
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-4)
        assert one.log_left_out == pytest.approx(other.log_left_out, abs=1e-4)
    assert weighted.record.evidence.chosen == repeated.record.evidence.chosen
    assert weighted.record.evidence.members == repeated.record.evidence.members
    torch.testing.assert_close(weighted.predict(X).mean, repeated.predict(X).mean, rtol=1e-3, atol=1e-3)


SEARCHED = {
    "real": (bnn.EvidenceFramework(starts=1, rounds=2, iterations=20), "gaussian"),
    "labels": (bnn.EvidenceFramework(starts=2, rounds=4, iterations=50), "bernoulli"),
    "counts": (bnn.EvidenceFramework(starts=2, rounds=3, iterations=30, per="site"), "poisson"),
    "noise": (bnn.EvidenceFramework(starts=1, rounds=2, iterations=30), bnn.likelihoods.Gaussian("heteroscedastic")),
    "guide": (bnn.SVI(guide=SHARED, max_steps=20), "gaussian"),
    "default": (None, "gaussian"),
    "measured": (bnn.SVI(guide=bnn.guides.Laplace(structure="full"), max_steps=50), "gaussian"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "real")) for n in SEARCHED])
@pytest.mark.filterwarnings("ignore")
def test_a_search_for_scales_is_the_same_with_copies_in_any_order(name):
    """A search of a network takes rounding to another optimum, so equal data must give it equal numbers."""
    method, likelihood = SEARCHED[name]
    y = {"bernoulli": LABELS, "poisson": 3 * LABELS}.get(str(likelihood), Y)
    weighted, repeated = both(y, standardize=False)
    model = bnn.BNN(bnn.MLP(2, [3], 2 if name == "noise" else 1), likelihood=likelihood)
    fits = [fit(model, method, data) for data in (weighted, repeated, repeated[torch.randperm(16)])]
    for one in fits[1:]:
        assert one.record.num_data == 16
        for ours, theirs in zip(fits[0].draw(5).values(), one.draw(5).values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 if name == "measured" else 0)


def test_copies_are_merged_and_rows_without_any_stay_as_they_are():
    weighted, repeated = both()
    ours, theirs = merged(weighted), merged(repeated[torch.randperm(16)])
    assert all(torch.equal(one, other) for one, other in zip(ours.tensors, theirs.tensors, strict=True))
    assert sorted(ours.weights.tolist()) == sorted(COUNTS.tolist())
    assert merged(repeated, 7) is repeated
    plain = merged(bnn.Data(X, Y, weights=torch.ones(8)))
    assert plain.weights is None
    assert torch.equal(plain.x, X)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_leaving_one_of_a_row_out_is_the_fit_to_one_less(factor):
    """In closed form for a linear model: a row of weight w loses min(w, 1)."""
    weights = factor * COUNTS.double()
    data = bnn.Data(X, Y, weights=weights)
    model = bnn.BNN(nn.Linear(2, 1).double(), prior=bnn.priors.Normal(0.7), likelihood=bnn.likelihoods.Gaussian(2.0))
    found = fit(model, bnn.EvidenceFramework(starts=1, rounds=0), data).record.evidence.starts[0].log_left_out
    rows = torch.cat([X, torch.ones(8, 1, dtype=F64)], 1)
    expected = 0.0
    for index, row in enumerate(rows):
        left = weights - torch.eye(8, dtype=F64)[index] * weights.clamp_max(1)
        covariance = torch.linalg.inv(rows.T @ (left[:, None] * rows) / 4 + torch.eye(3, dtype=F64) / 0.49)
        mean = covariance @ rows.T @ (left * Y) / 4
        law = torch.distributions.Normal(row @ mean, (4 + row @ covariance @ row).sqrt())
        expected += float(weights[index] * law.log_prob(Y[index]))
    assert found == pytest.approx(expected, rel=1e-6)


def test_weights_do_not_change_the_rule_that_estimators_take():
    """A row costs what a row costs; its weight is for the fit."""
    x = torch.linspace(-2, 2, 60)[:, None].numpy()
    found = []
    for weights in (None, np.full(60, 0.01), np.full(60, 1e5)):
        estimator = bnn.BNNClassifier(bnn.MLP(hidden=()), prior="horseshoe", guide="map", steps=2, random_state=0)
        found.append(estimator.fit(x, x[:, 0] > 0, weights)._fitted.facts)
    assert found[0] == found[1] == found[2]
