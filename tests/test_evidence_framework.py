"""The evidence framework: exact in linear models, no constant on small tables, and what it refuses."""

import dataclasses

import mpmath
import numpy as np
import pytest
import torch
from helpers import Net
from scipy import stats
from scipy.optimize import minimize
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import to_dict
from pyrobnn.inference.method import registry as methods
from pyrobnn.inference.scales.evidence_framework import _members
from pyrobnn.inference.scales.tuned_mode import TunedMode, log_mass
from pyrobnn.posterior.record import FitRecord

QUICK = bnn.EvidenceFramework(starts=1, rounds=30)


def linear_data(num_data=40, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_data, 3))
    return x, x @ [1.0, -0.5, 0.0] + 0.3 * rng.normal(size=num_data)


def linear_net():
    return bnn.MLP(3, [], 1, bias=False, dtype="float64")


def log_evidence(x, y, alphas, noise):
    marginal = x / alphas @ x.T + noise**2 * np.eye(len(y))
    return -0.5 * (y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(marginal)[1] + len(y) * np.log(2 * np.pi))


def fit(model, method, x, y, **arguments):
    return bnn.fit(model, (x, y), method, seed=0, progress=False, engine="eager", **arguments)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("counts", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("per", ["site", "input"])
def test_scales_of_a_linear_model_maximise_its_exact_evidence_times_their_prior(per, counts):
    """The density of a log precision a is exp(c (a - s^2 e^a) / 2), with c at most the weights of the group; of the
    noise's, c is at most 1, and s^2 a tenth of the variance of the targets."""
    x, y = linear_data()
    x = x[:, :2]  # all precisions have a finite maximum
    declared = 2.0
    model = bnn.BNN(bnn.MLP(2, [], 1, bias=False, dtype="float64"), prior=bnn.priors.Normal(declared))
    method = bnn.EvidenceFramework(starts=1, rounds=30, per=per, prior_counts=counts)
    posterior = fit(model, method, x, y)
    groups = 2 if per == "input" else 1
    shape = min(counts, 2 / groups) / 2

    def evidence(logs):
        return log_evidence(x, y, np.broadcast_to(np.exp(logs[:-1]), 2), np.exp(logs[-1]))

    def prior(logs):
        of_noise = -2 * logs[-1] - 0.1 * y.var() * np.exp(-2 * logs[-1])
        return shape * (logs[:-1] - 0.02 * declared**2 * np.exp(logs[:-1])).sum() + min(counts, 1) / 2 * of_noise

    start = np.zeros(groups + 1)
    found = minimize(lambda logs: -evidence(logs) - prior(logs), start, options={"gtol": 1e-8}).x
    precision = np.atleast_1d(posterior.record.evidence.precision["0.weight"])
    np.testing.assert_allclose(np.log(precision), found[:-1], atol=1e-3)
    assert posterior.bnn.settings["likelihood"].scale == pytest.approx(np.exp(found[-1]), rel=1e-3)
    (start,) = map(vars, posterior.record.evidence.starts)
    assert posterior.record.laplace.log_evidence == pytest.approx(start["log_evidence"], abs=1e-5)
    assert start["log_evidence"] == pytest.approx(evidence(found), abs=2e-3)
    alphas = np.broadcast_to(np.exp(found[:-1]), 2)
    information = x.T @ x / np.exp(2 * found[-1])
    determined = np.trace(np.linalg.solve(information + np.diag(alphas), information))
    assert start["determined"] == pytest.approx(determined, abs=1e-3)


def with_a_constant_column(num_data=40):
    x, y = linear_data(num_data)
    x[:, 2] = 0.0
    return x, y


@pytest.mark.one_in(3, 2)
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("num_data", [40, 15])
@pytest.mark.parametrize("hidden", [[], [6]], ids=["linear", "network"])
def test_weights_of_an_input_that_never_varies_keep_their_declared_prior(likelihood, num_data, hidden):
    x, y = with_a_constant_column(num_data)
    y = (y > 0).astype(float) if likelihood == "bernoulli" else y
    net = bnn.MLP(3, hidden, 1, activation="tanh", dtype="float64")
    model = bnn.BNN(net, prior=bnn.priors.Normal(0.7), likelihood=likelihood)
    posterior = fit(model, bnn.EvidenceFramework(starts=2, rounds=4), x, y)
    precision = np.atleast_2d(posterior.record.evidence.precision["0.weight"])
    np.testing.assert_allclose(precision[..., 2], 0.7**-2)


@pytest.mark.slow
@pytest.mark.parametrize(("per", "structure"), [("weight", "full"), ("weight", "diag"), ("site", "full")])
def test_tuning_afterwards_leaves_the_prior_of_weights_that_do_nothing(per, structure):
    """Weights of a constant input by themselves, and all of a site behind it."""
    x, y = with_a_constant_column()
    split = Net(lambda net, x: x[:, :2] + net.dead(x[:, 2:]), dead=nn.Linear(1, 1, bias=False))  # the third input is 0
    net = linear_net() if per == "weight" else nn.Sequential(split, nn.Linear(2, 1)).double()
    model = bnn.BNN(net, prior=bnn.priors.Normal(0.7), likelihood=bnn.likelihoods.Gaussian(0.3))
    method = bnn.SVI(guide=bnn.guides.Laplace(structure=structure), batch_size="all")
    posterior = bnn.tune_prior(fit(model, method, x, y), (x, y), per=per)
    name = "0.weight" if per == "weight" else "0.dead.weight"
    std = posterior.draw(4000, seed=0)[name].std(0).reshape(-1)[-1]
    assert float(std) == pytest.approx(0.7, rel=4 / np.sqrt(8000))  # 4 standard errors


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("net", ["linear", "network"])
def test_more_columns_than_rows_do_not_make_the_noise_vanish(net):
    """100 columns, 60 rows; a constant has -2.1, ridge regression -1.9."""
    rng = np.random.default_rng(1000)
    x = rng.normal(size=(1060, 100))
    y = x[:, :5] @ [1, -1, 1, 0.5, 0.5] + 0.5 * rng.normal(size=1060)
    model = bnn.BNN(bnn.MLP(100, [] if net == "linear" else [20], 1), prior=bnn.priors.Normal("fan_in"))
    data = bnn.Data(x[:60], y[:60], standardize=True)
    posterior = bnn.fit(model, data, bnn.EvidenceFramework(), seed=0, progress=False)
    assert float(posterior.predict(x[60:]).log_prob(torch.tensor(y[60:])).mean()) > -1.9


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4])
def test_directions_that_few_rows_leave_open_keep_the_prior_in_single_precision(noise):
    """Standard deviations of predictions against the exact ones, 4 standard errors of 2,000 draws."""
    x, _ = linear_data(5)
    x = np.hstack([x, x**2, x[:, :1] * x[:, 1:]]).astype(np.float32)  # 8 columns
    y = x[:, 0]
    net, likelihood = bnn.MLP(8, [], 1, bias=False), bnn.likelihoods.Gaussian(noise)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood)
    posterior = fit(model, bnn.EvidenceFramework(starts=1, rounds=0), x, y)
    new = np.eye(8)
    exact = np.linalg.inv(x.T.astype(float) @ x / noise**2 + np.eye(8))
    found = posterior.predict(new, num_draws=2000, seed=0).epistemic_std.numpy()
    np.testing.assert_allclose(found, np.sqrt(exact.diagonal()), rtol=4 / np.sqrt(4000), atol=1e-3)


@pytest.mark.slow
def test_units_of_the_targets_change_nothing_but_units():
    """With starts from a Gaussian process the ends differ by 0.2 to 0.7 %."""
    x, y = linear_data()
    model = bnn.BNN(bnn.MLP(3, [8], 1, activation="tanh", dtype="float64"), prior=bnn.priors.Normal("fan_in"))
    method = bnn.EvidenceFramework(starts=2, rounds=3, per="site")
    plain, scaled = (
        bnn.fit(model, bnn.Data(x, targets, standardize=True), method, seed=0, progress=False)
        for targets in (y, 1000 * y + 7)
    )
    torch.testing.assert_close(1000 * plain.predict(x).mean + 7, scaled.predict(x).mean, rtol=1e-4, atol=1.0)
    shift = len(y) * np.log(1000)
    assert scaled.record.laplace.log_evidence == pytest.approx(plain.record.laplace.log_evidence - shift, abs=0.1)


def logistic(seed, rows, slopes):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows + 2000, len(slopes)))
    return x, generator.uniform(size=len(x)) < 1 / (1 + np.exp(-x @ np.array(slopes)))


def rare(seed, rows):
    generator = np.random.default_rng(seed)
    x, kind = generator.normal(size=(rows + 3000, 3)), generator.integers(8, size=rows + 3000)
    logits = -3.8 + 1.3 * x[:, 0] + 0.9 * x[:, 1] + np.linspace(-1, 1, 8)[kind]
    return np.column_stack([x, np.eye(8)[kind]]), generator.uniform(size=len(x)) < 1 / (1 + np.exp(-logits))


def moons(rows):
    (x, y), (new, truth) = (make_moons(num, noise=0.2, random_state=num) for num in (rows, 1000))
    return np.concatenate([x, new]), np.concatenate([y, truth])


LINEAR = {"net": bnn.MLP(hidden=[], dtype="float64"), "method": bnn.EvidenceFramework(starts=1)}
SLOPES = 0.8 * np.random.default_rng(6).normal(size=8)
LABELS = {
    "a linear model": (80, lambda: logistic(6, 80, SLOPES), LINEAR, 0.03),
    "rare cases": (400, lambda: rare(4, 400), {}, 0.01),
    "a plane": (60, lambda: logistic(4, 60, (1.5, -1.0, 0.0)), {}, 0.08),
    "no signal": (60, lambda: logistic(5, 60, (0.0, 0.0, 0.0)), {}, 0.08),
    "no line divides": (60, lambda: moons(60), {}, -0.1),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Column .* far from")
@pytest.mark.filterwarnings("ignore:.* draws diverged")
@pytest.mark.parametrize("name", LABELS)
def test_few_labels_are_predicted_about_as_a_logistic_regression_does(name):
    """The log loss on new rows is at most so much above; below where no line divides the classes."""
    rows, made, settings, most = LABELS[name]
    x, y = made()
    models = bnn.BNNClassifier(**settings, random_state=0), LogisticRegression()
    ours, theirs = (log_loss(y[rows:], model.fit(x[:rows], y[:rows]).predict_proba(x[rows:])) for model in models)
    assert ours < theirs + most


@pytest.mark.parametrize(("num_data", "counts"), [(17, 4.0), (18, 0.0)])
def test_precisions_have_a_prior_below_six_rows_for_each_input(num_data, counts):
    x, y = linear_data(num_data)
    model = bnn.BNN(linear_net(), prior=bnn.priors.Normal(1.0))
    methods = [bnn.EvidenceFramework(starts=1, rounds=2, prior_counts=given) for given in (None, counts, 0.5)]
    own, same, other = (fit(model, method, x, y).record.evidence.precision for method in methods)
    assert own == same != other


@pytest.mark.parametrize("counts", [None, 0.0, 1.0])
@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson"])
def test_precisions_of_labels_and_counts_are_a_fixed_point_under_their_prior(likelihood, counts):
    """alpha = (gamma + c) / (sum w^2 + c s^2), with s^2 the declared variance in a linear model; c is 2 unless given,
    for any number of rows."""
    x, y = linear_data(80)
    declared = 1.5
    model = bnn.BNN(linear_net(), prior=bnn.priors.Normal(declared), likelihood=likelihood)
    method = bnn.EvidenceFramework(starts=1, rounds=30, per="site", prior_counts=counts)
    posterior = fit(model, method, x, np.float64(y > 0))
    c = 2.0 if counts is None else counts
    evidence = dataclasses.asdict(posterior.record.evidence)
    squares = float(posterior.mean()["0.weight"].double().square().sum())
    expected = (evidence["starts"][0]["determined"] + c) / (squares + c * declared**2)
    assert float(np.ravel(evidence["precision"]["0.weight"])[0]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("method", [bnn.EvidenceFramework(starts=1, rounds=1), bnn.SVI(steps=10)])
def test_a_method_that_is_given_for_few_labels_gets_a_prior_that_it_takes(method):
    x = np.random.default_rng(0).normal(size=(40, 2))
    fitted = bnn.BNNClassifier(method=method, random_state=0).fit(x, x[:, 0] > 0)
    assert not [name for name in fitted.posterior_.mean() if name.startswith("prior.")]


@pytest.mark.parametrize(
    ("model", "settings", "match"),
    [
        ({"prior": "laplace"}, {}, "The evidence tunes the precision of normal priors"),
        ({"prior": "hierarchical"}, {}, "has the latent site 'prior."),
        ({"likelihood": bnn.likelihoods.Gaussian({"type": "half_normal", "scale": 1.0})}, {}, "has the latent site"),
        ({"prior": bnn.priors.Normal(1.0)}, {"callbacks": [print]}, "EvidenceFramework has none"),
    ],
)
def test_what_it_cannot_tune_is_refused(model, settings, match):
    with pytest.raises(InputError, match=match):
        fit(bnn.BNN(linear_net(), **model), QUICK, *linear_data(), **settings)
    for guide in (bnn.guides.Laplace(curvature="fisher"), "mean_field"):
        with pytest.raises(InputError, match="must be a Laplace of curvature='ggn'"):
            bnn.EvidenceFramework(guide=guide)


@pytest.mark.measured
@pytest.mark.parametrize("guide", ["mean_field", "low_rank", "full_rank", "matrix_normal", "radial"])
def test_a_guide_starts_at_the_mode_with_the_deviation_of_each_weight_given_the_others(guide):
    """Of a linear model this is the optimum of a mean-field guide, which stays there while it trains the noise."""
    x, y = linear_data(200)
    x = x[:, :2]
    model = bnn.BNN(bnn.MLP(2, [], 1, bias=False, dtype="float64"))
    still = fit(model, bnn.SVI(guide=guide, steps=1, lr=1e-12), x, y)
    evidence, (prior,) = still.record.evidence, (one for _, one in still.bnn.settings["prior"].choices)
    np.testing.assert_allclose(np.power(prior.scale, -2.0), evidence.precision["0.weight"], rtol=1e-6)
    precision = np.diag(evidence.precision["0.weight"]) + x.T @ x / evidence.numbers["scale"] ** 2
    mean = np.linalg.solve(precision, x.T @ y) / evidence.numbers["scale"] ** 2
    found, std = (value[0].detach() for value in still.guide.moments()["0.weight"])
    np.testing.assert_allclose(found, mean, rtol=1e-4)
    rtol = {"matrix_normal": 1e-6, "low_rank": 0.6}.get(guide, 1e-4)  # F of a low rank is drawn
    np.testing.assert_allclose(std, np.diag(precision) ** -0.5, rtol=rtol)
    assert f"scale {evidence.numbers['scale']:.2g}" in str(evidence)
    if guide == "mean_field":
        trained = fit(model, bnn.SVI(guide=guide, steps=500), x, y)
        moved, spread = (value[0].detach() for value in trained.guide.moments()["0.weight"])
        np.testing.assert_allclose(moved, mean, atol=float(std.max()))
        np.testing.assert_allclose(spread, std, rtol=0.15)


@pytest.mark.parametrize(
    ("scores", "mixes", "expected"),
    [
        ([-10.0, -2.0, -50.0], True, [1, 2, 0]),  # shares .27, .73, .00 of three
        ([-2.0, -2.001, -2.0, -18.0], True, [4, 0, 0, 0]),  # one mode in three starts; .88 and .12 of four
        ([-2.0, -2.001, -2.0, -5.0], True, [2, 0, 0, 2]),
        ([-10.0, -2.0, float("-inf")], False, [0, 3, 0]),
        ([-7.0], True, [1]),
    ],
)
def test_starts_have_shares_by_their_scores(scores, mixes, expected):
    assert _members(scores, len(scores), mixes=mixes) == expected
    assert sum(_members(scores, 7, mixes=mixes)) == 7
    assert _members([-2.0, -8.0], 4, mixes=True) == [3, 1]  # shares .68 and .32 of four: 2.72 and 1.28
    assert _members([-2.0, -8.0], 4, mixes=True, least=-5.0) == [4, 0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("draw", [1, 8])
def test_starts_that_found_a_straight_line_have_no_part_in_a_cubic(draw):
    """With a quarter of such a start the error is 4.1 and 3.5."""
    rng = np.random.default_rng(draw)
    x = rng.uniform(-4, 4, (20, 1))
    y = x[:, 0] ** 3 + 3 * rng.normal(size=20)
    new_x = np.linspace(-4, 4, 200)[:, None]
    found = bnn.BNNRegressor(random_state=0).fit(x, y).predict(new_x)
    assert np.sqrt(np.square(found - new_x[:, 0] ** 3).mean()) < 2.9


@pytest.mark.slow
def test_modes_that_are_about_as_good_share_the_posterior():
    """A wave in 30 rows has several; a linear network has one."""
    x, y = linear_data(30)
    model = bnn.BNN(bnn.MLP(3, [20], 1), prior=bnn.priors.Normal("fan_in"))
    method = bnn.EvidenceFramework(starts=4, rounds=4)
    mixture = fit(model, method, x, np.sin(3 * y))
    found = dataclasses.asdict(mixture.record.evidence)
    used = [index for index, count in enumerate(found["members"]) if count]
    assert len(mixture) == sum(found["members"]) == 4
    assert len(used) > 1
    assert len(set(mixture.members)) == len(used)
    best = mixture.members[0].bnn.settings
    assert best["prior"] == mixture.bnn.settings["prior"]
    scores = [start["log_evidence"] + start["log_left_out"] - start["determined"] for start in found["starts"]]
    assert found["chosen"] == np.argmax(scores)
    for index in used:
        assert max(scores) - scores[index] < 2 * 8 * np.log(2 * len(mixture))
    line = bnn.BNN(linear_net(), prior=bnn.priors.Normal(1.0))
    assert not isinstance(fit(line, bnn.EvidenceFramework(starts=3, rounds=30), x, y), bnn.Mixture)


@pytest.mark.slow
def test_starts_that_are_far_behind_after_three_rounds_end(monkeypatch):
    """Those within 16 nats of the best take all rounds."""
    rounds, early, tune = {}, {}, TunedMode.tune

    def tuned(mode):
        rounds[mode] = rounds.get(mode, 0) + 1
        tune(mode)
        if rounds[mode] == 3:
            early[mode] = mode.best.score

    monkeypatch.setattr(TunedMode, "tune", tuned)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 3))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=60)
    model = bnn.BNN(bnn.MLP(3, [8], 1, activation="tanh", dtype="float64"), prior=bnn.priors.Normal("fan_in"))
    starts = [*map(vars, fit(model, bnn.EvidenceFramework(starts=4, rounds=5), x, y).record.evidence.starts)]
    assert len(starts) == len(rounds) == 4
    assert set(rounds.values()) == {3, 5}
    least = max(early.values()) - 16
    assert [taken == 5 for taken in rounds.values()] == [score >= least for score in early.values()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("scale", [0.5, (0.5, 0.8), "tuned", "learned"])
def test_several_columns_of_targets_with_any_noise(scale, rounds):
    """Where the noise is known, the log evidence of a linear network is exact."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(14, 2, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0, 0.3], [0.0, -1.0]], dtype=torch.float64)
    y += 0.5 * torch.randn(14, 2, generator=generator, dtype=torch.float64)
    likelihood = bnn.likelihoods.Gaussian(scale=scale)
    model = bnn.BNN(nn.Linear(2, 2, bias=False).double(), prior=bnn.priors.Normal(1.3), likelihood=likelihood)
    posterior = fit(model, bnn.EvidenceFramework(rounds=rounds, starts=1), x, y)
    assert posterior.predict(x).mean.shape == (14, 2)
    if rounds == 0 and not isinstance(scale, str):
        noises = np.broadcast_to(scale, 2)
        covariances = [1.69 * (x @ x.T).numpy() + noise**2 * np.eye(14) for noise in noises]
        exact = sum(stats.multivariate_normal(cov=c).logpdf(column) for c, column in zip(covariances, y.T, strict=True))
        assert posterior.record.laplace.log_evidence == pytest.approx(exact, rel=1e-5)


L = bnn.likelihoods
FAST = {"starts": 1, "rounds": 4, "iterations": 20}


def small_net(outputs=1):
    return bnn.MLP(3, [6], outputs, activation="silu", dtype="float64")


def chosen_among(y, *others, model=None, **settings):
    """Return a fit whose evidence chooses between a Gaussian, or a model's likelihood, and others."""
    model = bnn.BNN(small_net(), prior=bnn.priors.Normal("fan_in")) if model is None else model
    data = bnn.Data(linear_data(len(y))[0], y, standardize=True, **settings.pop("data", {}))
    method = bnn.EvidenceFramework(likelihoods=others, **(FAST | settings))
    return bnn.fit(model, data, method, seed=0, progress=False)


def multiplied(num):
    x, y = linear_data(num)
    return np.exp(x[:, 0] + 0.5 * y)


def alone(y, likelihood, **settings):
    model = bnn.BNN(
        small_net(likelihood.num_outputs(torch.tensor(y))), prior=bnn.priors.Normal("fan_in"), likelihood=likelihood
    )
    return chosen_among(y, model=model, **settings)


def test_the_choice_is_the_best_of_separate_fits():
    y, settings = multiplied(40), {"rounds": 3, "per": "site"}
    together = chosen_among(y, L.LogNormal(), **settings)
    assert type(together.bnn.settings["likelihood"]) is L.LogNormal
    assert together.record.measured == ["log_scale"]
    evidence = together.record.evidence
    for number, one in enumerate((L.Gaussian(), L.LogNormal())):
        (start,) = alone(y, one, **settings).record.evidence.starts
        assert evidence.starts[number] == dataclasses.replace(start, likelihood=number)
        score = (start.log_evidence + start.log_left_out - start.determined) / 2 / len(y)
        assert evidence.likelihoods[number].score == pytest.approx(score)
    assert evidence.chosen == np.argmax([one.score for one in evidence.likelihoods]) == 1
    assert [one.name for one in evidence.likelihoods] == ["Gaussian", "LogNormal"]
    weighted = chosen_among(y, L.LogNormal(), **settings, data={"weights": np.full(40, 1.0)})
    assert [one.score for one in weighted.record.evidence.likelihoods] == [one.score for one in evidence.likelihoods]
    assert "LogNormal: " in str(evidence)
    assert str(evidence).endswith(" nats a row ahead of Gaussian")
    failed = dataclasses.replace(evidence.likelihoods[0], score=-np.inf)
    one = dataclasses.replace(evidence, likelihoods=[failed, evidence.likelihoods[1]])
    assert str(one) == "LogNormal: alone with a finite score"
    assert FitRecord.from_table(together.record.to_table()).evidence == evidence


def test_a_lead_that_may_be_chance_is_said():
    """Wider tails than those of the noise cost little; the noise of all rows is the same."""
    y = linear_data(40)[1]
    fitted = chosen_among(y, L.StudentT(df=30.0), L.Gaussian("heteroscedastic"))
    evidence = fitted.record.evidence
    assert {start.origin for start in evidence.starts} == {None, 0}
    first, second, _ = sorted(evidence.likelihoods, key=lambda one: -one.score)
    assert (first.error, second.error > 0) == (0, True)
    assert first.score - second.score < 2 * second.error
    assert f"; the lead over {second.name}" in str(evidence)
    assert str(evidence).endswith(" may be chance")
    again = chosen_among(y, L.StudentT(df=30.0), L.Gaussian("heteroscedastic"))
    assert again.record.evidence == evidence


def test_the_evidence_of_amounts_is_that_of_their_logs_in_other_units():
    x, y = linear_data(40)[0], multiplied(40)
    given = {"net": small_net(), "prior": bnn.priors.Normal("fan_in")}
    method = bnn.EvidenceFramework(**(FAST | {"rounds": 0}))
    amounts, logs = bnn.BNN(**given, likelihood=L.LogNormal(0.3)), bnn.BNN(**given, likelihood=L.Gaussian(0.3))
    data = bnn.Data(x, y, standardize=True), bnn.Data((x - x.mean(0)) / x.std(0), np.log(y / y.mean()))
    fits = [bnn.fit(*pair, method, seed=0, progress=False) for pair in zip((amounts, logs), data, strict=True)]
    ours, plain = (each.record.evidence.starts[0] for each in fits)
    volume = np.log(y).sum()
    assert ours.log_evidence == pytest.approx(plain.log_evidence - volume, abs=1e-3)
    assert ours.log_left_out == pytest.approx(plain.log_left_out - volume, abs=0.5)


@pytest.mark.parametrize(("noise", "kind"), [(0.5, L.Gaussian), (None, L.Poisson)])
def test_counts_are_compared_with_a_gaussian_by_probability(noise, kind):
    """Ratings vary less than any count of their mean."""
    x, _ = linear_data(80)
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(1 + x[:, 0])) if noise is None else np.round(8 + x[:, 0] + noise * rng.normal(size=80))
    fitted = chosen_among(counts.astype(float), L.Poisson())
    assert type(fitted.bnn.settings["likelihood"]) is kind


def test_the_mass_of_a_whole_number_is_exact_far_away_too():
    deviation, width = np.meshgrid([0.0, 0.3, -2.0, 7.0, -30.0], [0.01, 1.0, 9.0])
    found = log_mass(torch.tensor(deviation), torch.tensor(width)).numpy()
    near = abs(deviation) < 8
    mass = stats.norm.sf(abs(deviation) - width / 2) - stats.norm.sf(abs(deviation) + width / 2)
    np.testing.assert_allclose(found[near], np.log(mass[near]), rtol=1e-8)
    with mpmath.workdps(50):
        tail = [mpmath.log(mpmath.ncdf(w / 2 - 30) - mpmath.ncdf(-w / 2 - 30)) for w in width[:, 0]]
    np.testing.assert_allclose(found[:, -1], np.array(tail, float), rtol=1e-8)


def test_counts_are_compared_by_probability_alone():
    x, _ = linear_data(60)
    counts = np.random.default_rng(0).negative_binomial(1.0, 1 / (1 + np.exp(1 + x[:, 0])))
    poisson = bnn.BNN(small_net(), prior=bnn.priors.Normal("fan_in"), likelihood=L.Poisson())
    fitted = chosen_among(counts, L.NegativeBinomial(), model=poisson)
    assert type(fitted.bnn.settings["likelihood"]) is L.NegativeBinomial
    assert fitted.record.evidence.starts[-1].origin == 0


def test_likelihoods_are_settings_and_those_that_do_not_fit_are_refused():
    method = bnn.EvidenceFramework(likelihoods=("log_normal", {"type": "student_t", "df": 5.0}))
    assert method.likelihoods == (L.LogNormal(), L.StudentT(df=5.0))
    assert methods.resolve(to_dict(method)) == method
    _, y = linear_data(20)
    module = bnn.BNN(small_net().build(), prior=bnn.priors.Normal("fan_in"))
    poisson = bnn.BNN(small_net(), prior=bnn.priors.Normal("fan_in"), likelihood=L.Poisson())
    for model, other, targets, match in (
        (None, L.LogNormal(), y, "LogNormal needs positive targets"),
        (module, L.Gaussian("heteroscedastic"), y, "needs 2 network outputs"),
        (poisson, L.StudentT(), np.arange(20), "with a Gaussian of one scale, not"),
    ):
        with pytest.raises(InputError, match=match):
            chosen_among(targets, other, model=model)
