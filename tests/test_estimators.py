"""The estimators against closed forms: the exact linear model, weights as copies, learning on, intervals."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1
from torch import nn

import pyrobnn as bnn

NOISE, SCALE = 0.5, 0.8
TO_THE_MODE = bnn.SVI(guide=bnn.guides.Laplace(structure="full"), steps=100, lr=0.005, optimizer="sgd")
"""Gradient descent on parabolas of curvature between 30 and 300."""
SMALL = {"net": bnn.MLP(hidden=(3,), dtype="float64"), "engine": "eager", "random_state": 0, "num_draws": 10}


def problem(num=30, columns=2, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num, columns))
    return x, x @ np.array([1.0, -0.5])[:columns] + NOISE * generator.normal(size=num)


def linear(columns=2, **settings):
    """The linear model of known noise without a bias, in double precision, which Laplace infers exactly."""
    net = nn.Linear(columns, 1, bias=False).double()
    defaults = {"prior": bnn.priors.Normal(SCALE), "likelihood": bnn.likelihoods.Gaussian(scale=NOISE)}
    defaults |= {"method": TO_THE_MODE, "standardize": False, "random_state": 0, "engine": "eager"}
    return bnn.BNNRegressor(net, **(defaults | settings))


def exact(x, y, weights=None, noise=NOISE):
    """Mean and covariance of the weights of that model."""
    weighted = x if weights is None else weights[:, None] * x
    precision = np.eye(x.shape[1]) / SCALE**2 + weighted.T @ x / noise**2
    return np.linalg.solve(precision, weighted.T @ y) / noise**2, np.linalg.inv(precision)


def assert_exact(model, mean, covariance):
    found, std = (part[0].numpy() for part in model.posterior_.guide.moments()["weight"])
    np.testing.assert_allclose(found, mean, atol=1e-5)
    np.testing.assert_allclose(std, np.sqrt(np.diag(covariance)), rtol=1e-5)


def test_linear_regression_is_exact():
    x, y = problem()
    mean, covariance = exact(x, y)
    model = linear(num_draws=20_000).fit(x, y)
    assert_exact(model, mean, covariance)
    predicted, std = model.predict(x, return_std=True)
    epistemic = np.einsum("ni,ij,nj->n", x, covariance, x)
    assert (np.abs(predicted - x @ mean) < 5 * np.sqrt(epistemic / 20_000) + 1e-5).all()
    np.testing.assert_allclose(std, np.sqrt(epistemic + NOISE**2), rtol=0.02)


def test_predictions_and_score_are_those_of_the_posterior_also_in_blocks(monkeypatch):
    x, y = problem()
    model = linear(num_draws=50).fit(x, y)
    prediction = model.predict_dist(x)
    assert prediction.num_draws == 50
    whole = model.predict(x, return_std=True)
    for found, expected in zip(whole, (prediction.mean, prediction.std), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())
    for found, expected in zip(model.predict_interval(x, level=0.8), prediction.interval(0.8), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())
    assert model.score(x, y) == pytest.approx(1 - np.square(y - whole[0]).sum() / np.square(y - y.mean()).sum())
    monkeypatch.setattr("pyrobnn.estimators.base._LARGEST_BLOCK", 50 * 7)
    for found, expected in zip(model.predict(x, return_std=True), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    (firsts,) = model._predict_parts(x, lambda prediction: (torch.tensor([prediction.first_row]),))
    assert firsts.tolist() == [*range(0, len(x), 7)]


COPIES = np.array([0, 1, 2, 3, 1, 2, 0, 1, 4, 1])


def test_weights_are_exact_in_the_linear_model():
    x, y = problem()
    weights = np.random.default_rng(1).uniform(0.1, 3, len(x))
    assert_exact(linear().fit(x, y, sample_weight=weights), *exact(x, y, weights))


def test_weights_are_exact_with_standardised_data_and_noise_in_original_units():
    x, y = problem()
    x, y = 3 * x + 1, 10 * y + 5
    weights = np.random.default_rng(1).uniform(0.1, 3, len(x))
    model = linear(standardize=True).set_params(likelihood__scale=5.0).fit(x, y, sample_weight=weights)
    share = weights / weights.sum()
    x_loc, y_loc = share @ x, share @ y
    x_scale, y_scale = np.sqrt(share @ (x - x_loc) ** 2), np.sqrt(share @ (y - y_loc) ** 2)
    mean, covariance = exact((x - x_loc) / x_scale, (y - y_loc) / y_scale, weights, noise=5 / y_scale)
    assert_exact(model, mean, covariance)
    assert float(model.predict_dist(x[:1]).aleatoric_std) == pytest.approx(5.0)


def copies(y):
    x = np.random.default_rng(2).normal(size=(10, 2))
    return x, y(x), np.repeat(x, COPIES, 0), np.repeat(y(x), COPIES, 0)


SHARED = bnn.guides.MeanField(noise="shared")  # so that copies of a row see the same draw
GUIDES = {
    "mean_field": SHARED,
    "full_rank": bnn.guides.FullRank(),
    "full": bnn.guides.Laplace(structure="full"),
    "diag": bnn.guides.Laplace(structure="diag"),
    "empirical Fisher": bnn.guides.Laplace(curvature="fisher", structure="diag"),
    "Hessian": bnn.guides.Laplace(curvature="hessian", structure="full"),
    "recursion": bnn.guides.Laplace(curvature="recursion", structure="diag"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)
@pytest.mark.filterwarnings("ignore:Laplace")  # of an indefinite Hessian after few steps
def test_integer_weights_count_as_copies(guide):
    x, y, x_copied, y_copied = copies(lambda x: np.sin(x[:, 0]))
    settings = SMALL | {"method": bnn.SVI(guide=guide), "steps": 15}
    weighted = bnn.BNNRegressor(**settings).fit(x, y, sample_weight=COPIES)
    copied = bnn.BNNRegressor(**settings).fit(x_copied, y_copied)
    for found, expected in zip(weighted.predict(x, return_std=True), copied.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        ("student_t", lambda x: x),
        ({"type": "gaussian", "scale": {"type": "half_normal", "scale": 1.0}}, lambda x: x[:, 0]),
        ({"type": "gaussian", "scale": "heteroscedastic"}, lambda x: x),
        ("poisson", lambda x: np.floor(3 * np.abs(x[:, 0]))),
    ],
)
def test_weights_go_with_other_likelihoods_and_several_columns(likelihood, y):
    x, y, x_copied, y_copied = copies(y)
    settings = SMALL | {"method": bnn.SVI(guide=SHARED), "steps": 15, "likelihood": likelihood}
    weighted = bnn.BNNRegressor(**settings).fit(x, y, sample_weight=COPIES)
    copied = bnn.BNNRegressor(**settings).fit(x_copied, y_copied)
    np.testing.assert_allclose(weighted.predict(x), copied.predict(x), rtol=1e-8)
    assert weighted.posterior_.bnn.settings["likelihood"] == copied.posterior_.bnn.settings["likelihood"]


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_class_weights_multiply_the_weights(likelihood):
    x, y, x_copied, y_copied = copies(lambda x: np.where(x[:, 0] > 0, "b", "a"))
    settings = SMALL | {"method": bnn.SVI(guide=SHARED), "steps": 15, "likelihood": likelihood}
    weighted = bnn.BNNClassifier(**settings, class_weight={"a": 2.0, "b": 1.0}).fit(x, y, sample_weight=COPIES)
    twice = np.concatenate([np.arange(len(y_copied)), np.flatnonzero(y_copied == "a")])
    copied = bnn.BNNClassifier(**settings).fit(x_copied[twice], y_copied[twice])
    np.testing.assert_allclose(weighted.predict_proba(x), copied.predict_proba(x), rtol=1e-8)


def test_balanced_classes_weigh_the_same():
    x, y, *_ = copies(lambda x: (x[:, 0] > 0.8).astype(int))
    settings = SMALL | {"method": bnn.SVI(guide=SHARED), "steps": 15}
    by_hand = len(y) / 2 / np.bincount(y)[y]
    balanced = bnn.BNNClassifier(**settings, class_weight="balanced").fit(x, y)
    weighted = bnn.BNNClassifier(**settings).fit(x, y, sample_weight=by_hand)
    np.testing.assert_allclose(balanced.predict_proba(x), weighted.predict_proba(x), rtol=1e-8)


def test_learning_on_is_exact_for_orthogonal_inputs_with_weights():
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    x = np.concatenate([signs, 1.5 * signs, 0.5 * signs])
    y = problem(12)[1]
    weights = np.repeat([1.5, 2.0, 3.0], 4)
    model = linear(lr=0.01)
    for rows in np.split(np.arange(12), 3):
        model.partial_fit(x[rows], y[rows], sample_weight=weights[rows])
    assert_exact(model, *exact(x, y, weights))


def test_learning_on_from_a_narrow_batch_is_not_compared_with_its_constant():
    """A constant that fits the newest batch alone is no rival of a line through all of them."""
    rng = np.random.default_rng(0)
    model = linear(1, lr=0.002)
    x = rng.normal(size=(20, 1))
    model.partial_fit(x, x[:, 0] + NOISE * rng.normal(size=20))
    with warnings.catch_warnings():
        warnings.simplefilter("error", bnn.PoorFitWarning)
        for centre in (1.0, 2.0):
            x = centre + 0.02 * rng.normal(size=(20, 1))
            model.partial_fit(x, x[:, 0] + 0.05 * rng.normal(size=20))
    assert model.predict([[2.0]])[0] == pytest.approx(2.0, abs=0.4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The 2 members of the ensemble are identical")  # from one start to one mode
def test_members_of_an_ensemble_learn_on_apart():
    x, y = problem(40, columns=1)
    method = bnn.Ensemble(TO_THE_MODE, members=2)
    model = linear(1, method=method).partial_fit(x[:20], y[:20]).partial_fit(x[20:], y[20:])
    mean, covariance = exact(x, y)
    for member in model.posterior_.members:
        found, std = member.guide.moments()["weight"]
        np.testing.assert_allclose(found[0], mean, atol=1e-5)
        np.testing.assert_allclose(std[0], np.sqrt(np.diag(covariance)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Laplace")  # the prior's precision is that of each weight alone
def test_the_default_method_learns_on_without_tuning():
    x, y = problem(40)
    model = bnn.BNNRegressor(**SMALL, steps=20, lr=0.01).partial_fit(x[:20], y[:20])
    noise = model.posterior_.bnn.settings["likelihood"].scale
    model.partial_fit(x[20:], y[20:])
    assert model.posterior_.record.method["type"] == "svi"
    assert model.posterior_.bnn.settings["likelihood"].scale == noise


def test_steps_alone_bound_the_default_fit():
    """Prior and noise are tuned all the same: the noise is 3, and the error inside the data is no larger than it.

    With a learning rate it is a stochastic fit, as before, whose error is three times as large.
    """
    generator = np.random.default_rng(0)
    x = generator.uniform(-4, 4, (20, 1))
    y = x[:, 0] ** 3 + 3 * generator.normal(size=20)
    model = bnn.BNNRegressor(steps=200, random_state=0, engine="eager").fit(x, y)
    assert model.posterior_.record.method["type"] == "evidence_framework"
    assert model.posterior_.record.method["iterations"] == 20
    new = np.linspace(x.min(), x.max(), 100)[:, None]
    assert np.sqrt(np.mean((model.predict(new) - new[:, 0] ** 3) ** 2)) < 3


@pytest.mark.slow
def test_a_prior_that_is_not_normal_predicts_few_rows():
    """A linear model has a log score of about -2.5 on new rows; the median of eight priors here is -1.8."""
    x, y = make_friedman1(1100, n_features=10, noise=1.0, random_state=11)
    model = bnn.BNNRegressor(prior="student_t", random_state=11).fit(x[:100], y[:100])
    assert float(model.predict_dist(x[100:]).log_prob(torch.as_tensor(y[100:])).mean()) > -2.1


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::pyrobnn.PoorFitWarning")
@pytest.mark.parametrize("settings", [{"steps": 2}, {"steps": 2, "lr": 0.01}], ids=str)
def test_short_fits_take_a_single_row(settings):
    """The spread of one target is 0, from which no noise can begin."""
    assert np.isfinite(bnn.BNNRegressor(random_state=0, **settings).fit([[1.0]], [1.0]).predict([[1.0]])).all()


def test_a_classifier_learns_on_with_classes_that_come_later():
    """Each class has an input, and so weights, of its own: those of the first two stay as they were."""
    x = np.repeat(np.eye(3), 10, 0)
    y = np.repeat(["a", "b", "c"], 10)
    net = bnn.MLP(hidden=(), bias=False, dtype="float64")
    model = bnn.BNNClassifier(net, steps=60, lr=0.1, standardize=False, engine="eager", random_state=0)
    model.partial_fit(x[:20], y[:20], classes=["c", "b", "a"])
    assert list(model.classes_) == ["a", "b", "c"]
    before = model.predict_proba(x[:20])
    model.partial_fit(x[20:], y[20:])
    np.testing.assert_allclose(model.predict_proba(x[:20]), before, atol=0.05)
    assert model.score(x, y) == 1


@pytest.mark.filterwarnings("ignore::pyrobnn.PoorFitWarning")
@pytest.mark.nightly
@pytest.mark.parametrize("kind", [bnn.BNNRegressor, bnn.BNNClassifier])
def test_with_nothing_set_weights_are_copies_within_monte_carlo_error(kind):
    """Six seeds, six standard errors of their mean at each of 15 rows; nothing is equal to the last digit there."""
    generator = np.random.RandomState(42)
    x, y, weights = generator.uniform(size=(15, 3)), generator.randint(0, 3, 15), generator.randint(0, 5, 15)
    y = (y > 0).astype(int) if kind is bnn.BNNClassifier else y.astype(float)
    of_weights, of_copies = [], []
    for seed in range(6):
        fits = kind(random_state=seed).fit(x, y, sample_weight=weights), kind(random_state=seed)
        fits[1].fit(x.repeat(weights, 0), y.repeat(weights))
        found = [fit.predict_proba(x)[:, 1] if kind is bnn.BNNClassifier else fit.predict(x) for fit in fits]
        of_weights.append(found[0])
        of_copies.append(found[1])
    error = np.sqrt((np.var(of_weights, 0, ddof=1) + np.var(of_copies, 0, ddof=1)) / 6)
    assert (np.abs(np.mean(of_weights, 0) - np.mean(of_copies, 0)) < 6 * error + 1e-6).all()


@pytest.mark.filterwarnings("default::pyrobnn.PoorFitWarning")
@pytest.mark.parametrize("verbose", [False, True])
def test_a_poor_fit_warns(verbose):
    """Once, with bars or without; a fit that is fine says nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    y = x @ [1.0, -1.0, 0.0] + 0.1 * rng.normal(size=100)
    settings = {"likelihood": bnn.likelihoods.Gaussian(scale=20.0), "guide": "mean_field", "steps": 20}
    with pytest.warns(bnn.PoorFitWarning, match="The fit predicts no better than a constant") as found:
        bnn.BNNRegressor(**settings, random_state=0, verbose=verbose).fit(x, y)
    assert [warning.filename for warning in found] == [__file__]
    if not verbose:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bnn.BNNRegressor(net=bnn.MLP(3, [], 1), random_state=0).fit(x, y)
