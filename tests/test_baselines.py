"""Baselines against scikit-learn and closed forms, the comparison with them, and what the end of a fit says."""

import math
import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import pyrobnn as bnn
from pyrobnn import likelihoods
from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.random import seeded
from pyrobnn.verdict.baselines import fit_baselines
from pyrobnn.verdict.evidence import Budget, Evidence
from pyrobnn.verdict.finding import templates
from pyrobnn.verdict.remedies import first
from pyrobnn.verdict.scores import compared, left_out_by_draws

NUM, FEATURES = 400, 4


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * NUM, FEATURES, generator=generator)
    eta = x[:, 0] - 0.5 * x[:, 1]
    return x, eta, generator


def targets(name):
    _, eta, generator = problem()
    noisy = eta + 0.3 * torch.randn(len(eta), generator=generator)
    rate = eta.exp() * (torch.distributions.Gamma(2.0, 2.0).sample(eta.shape) if name == "negative_binomial" else 1)
    labels = (torch.rand(len(eta), generator=generator) < torch.sigmoid(2 * eta)).long()
    return {
        "gaussian": 1000 * noisy + 5e4,
        "columns": torch.stack([noisy, 1 - 3 * noisy], 1),
        "censored_gaussian": 100 * noisy.clamp_min(0),
        "bernoulli": labels.float(),
        "categorical": labels,
        "ordinal": (noisy.round().clamp(-2, 2) + 2).long(),
        "poisson": torch.poisson(rate, generator=generator).long(),
        "negative_binomial": torch.poisson(rate, generator=generator).long(),
        "zero_inflated": torch.poisson(rate, generator=generator).long() * labels,
        "log_normal": 1000 * noisy.exp(),
        "gamma": 1000 * noisy.exp(),
        "beta": torch.sigmoid(noisy),
    }.get(name, noisy)


LIKELIHOODS = {
    "gaussian": (likelihoods.Gaussian(), 1),
    "known": (likelihoods.Gaussian(scale=0.01), 1),
    "prior": (likelihoods.Gaussian(scale={"type": "half_normal", "scale": 1.0}), 1),
    "heteroscedastic": (likelihoods.Gaussian(scale="heteroscedastic"), 2),
    "columns": (likelihoods.Gaussian(), 2),
    "student_t": (likelihoods.StudentT(df="learned"), 1),
    "laplace": (likelihoods.Laplace(), 1),
    "censored_gaussian": (likelihoods.CensoredGaussian(lower=0.0), 1),
    "bernoulli": (likelihoods.Bernoulli(), 1),
    "categorical": (likelihoods.Categorical(), 3),
    "ordinal": (likelihoods.Ordinal(num_classes=6), 1),
    "poisson": (likelihoods.Poisson(), 1),
    "negative_binomial": (likelihoods.NegativeBinomial(), 1),
    "zero_inflated": (likelihoods.ZeroInflated(), 2),
    "log_normal": (likelihoods.LogNormal(), 1),
    "gamma": (likelihoods.Gamma(), 1),
    "beta": (likelihoods.Beta(), 1),
    "mixture_density": (likelihoods.MixtureDensity(2), 6),
}


def all_targets(name):
    with seeded(0):
        return targets(name)


def targets_of(name):
    return all_targets(name)[:NUM]


def fitted(name):
    """The baselines of a likelihood, fitted to the first half of the data, and the second half."""
    likelihood, outputs = LIKELIHOODS[name]
    x, y = problem()[0], all_targets(name)
    setting = bnn.BNN(bnn.MLP(FEATURES, [2], outputs), likelihood=likelihood).settings["likelihood"]
    return fit_baselines(setting, bnn.Data(x[:NUM], y[:NUM]), outputs), bnn.Data(x[NUM:], y[NUM:])


def score(baseline, data):
    return float(baseline.predict(data.x).log_prob(data.y).mean())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_linear_truth_is_found_under_every_likelihood(name):
    """The linear model gains on new data, and its cross-validated score foretells that on them: 5 standard errors."""
    found, new = fitted(name)
    assert list(found) == ["constant", "linear"]
    assert score(found["linear"], new) > score(found["constant"], new) + 0.15
    for baseline in found.values():
        within = baseline.cross_validated.log_prob(targets_of(name)[baseline.rows])
        beyond = baseline.predict(new.x).log_prob(new.y)
        error = float((within.var() / len(within) + beyond.var() / len(beyond)).sqrt())
        assert abs(float(within.mean() - beyond.mean())) < 5 * error


def test_real_targets_are_those_of_least_squares():
    """Scikit-learn's linear regression with the standard deviation of its residuals; 0.01 nats for the penalty."""
    from sklearn.linear_model import LinearRegression

    found, new = fitted("gaussian")
    x, y = problem()[0][:NUM].numpy(), targets_of("gaussian").numpy()
    other = LinearRegression().fit(x, y)
    law = torch.distributions.Normal(torch.as_tensor(other.predict(new.x.numpy())), float((y - other.predict(x)).std()))
    assert score(found["linear"], new) == pytest.approx(float(law.log_prob(new.y).mean()), abs=0.01)
    constant = found["constant"].predict(new.x[:1])
    assert float(constant.mean) == pytest.approx(y.mean(), rel=1e-5)
    assert float(constant.std) == pytest.approx(y.std(), rel=0.01)


def test_labels_and_counts_are_those_of_generalised_linear_models():
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    x = problem()[0][:NUM].numpy()
    found, new = fitted("bernoulli")
    logistic = LogisticRegression(C=1.0).fit(x, targets_of("bernoulli").numpy())
    probs = torch.as_tensor(logistic.predict_proba(new.x.numpy()))
    exact = float(probs[torch.arange(len(new)), new.y.long()].log().mean())
    assert score(found["linear"], new) == pytest.approx(exact, abs=0.01)
    share = float(targets_of("bernoulli").mean())
    assert float(found["constant"].predict(new.x[:1]).mean) == pytest.approx(share, abs=0.001)
    found, new = fitted("poisson")
    rates = torch.as_tensor(PoissonRegressor(alpha=0).fit(x, targets_of("poisson").numpy()).predict(new.x.numpy()))
    exact = float(torch.distributions.Poisson(rates).log_prob(new.y.double()).mean())
    assert score(found["linear"], new) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(("signal", "is_told"), [(0.0, True), pytest.param(2.0, False, marks=pytest.mark.slow)])
def test_a_fit_to_noise_is_told_by_rows_left_out(signal, is_told):
    """It looks better than a constant on its own rows, and is not on rows left out of it, as on new ones."""
    rng = np.random.default_rng(102)
    x, y = rng.standard_normal((60, 3)), rng.standard_normal(60)
    y += signal * np.sin(x[:, 0])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        regressor = bnn.BNNRegressor(random_state=2).fit(x, y)
    texts = [str(one.message) for one in found if one.category is bnn.PoorFitWarning]
    assert len(texts) == is_told
    for text in texts:
        assert text.startswith("The fit predicts no better than a constant")
    inputs, targets = rng.standard_normal((2000, 3)), torch.from_numpy(rng.standard_normal(2000))
    targets += signal * torch.from_numpy(np.sin(inputs[:, 0]))
    new = regressor.predict_dist(inputs).log_prob(targets)
    constant = torch.distributions.Normal(float(y.mean()), float(y.std())).log_prob(targets)
    assert (float((new - constant).mean()) > 0.05) == (not is_told)


@pytest.mark.parametrize(
    ("gain", "linear_gain", "num", "is_told"),
    [
        (0.02, -0.01, 100, True),
        (0.02, 0.10, 100, False),  # a linear model finds something
        (0.06, -0.01, 100, False),
        (0.045, -0.01, 100, False),  # with its standard error of 0.01
        (0.02, -0.01, 1000, False),  # 20 nats in all
    ],
)
def test_a_gain_as_small_as_noise_leaves_is_told(gain, linear_gain, num, is_told):
    constant = noise(num, seed=7)
    own, of_linear = gains(gain, 1, num=num), gains(linear_gain, 2, num=num)
    rivals = {"constant": constant, "linear": constant + of_linear}
    assert compared(constant + own, rivals, 0.01).are_slight == is_told


def test_pure_noise_is_shrunk_to_a_constant():
    """200 inputs, 100 examples: least squares would fit them exactly. Also images, and a class that never occurs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 1, 10, 20, generator=generator)
    y = torch.randint(2, (600,), generator=generator)
    found = fit_baselines(bnn.likelihoods.Categorical(), bnn.Data(x[:100], y[:100]), 3)
    new = bnn.Data(x[100:], y[100:])
    assert score(found["linear"], new) > score(found["constant"], new) - 0.05
    unseen = found["constant"].predict(x[:1]).class_probs[0, 2]
    assert 1e-4 < float(unseen) < 0.02


def test_what_has_no_baselines():
    x, y = torch.randn(10, 2), torch.randn(10)
    likelihood = bnn.likelihoods.Gaussian()
    assert fit_baselines(likelihood, bnn.Data(x[:1], y[:1]), 1) == {}
    assert list(fit_baselines(likelihood, bnn.Data(torch.randn(4, 20_001), y[:4]), 1)) == ["constant"]


def test_examples_count_by_their_weights():
    """The weighted mean and spread, and scikit-learn's regression with weights; weights of 1 change nothing."""
    from sklearn.linear_model import LinearRegression

    x, y = problem()[0][:NUM], targets_of("gaussian")
    weights = torch.where(x[:, 0] + x[:, 2] > 0, 5.0, 0.2)
    likelihood = bnn.likelihoods.Gaussian()
    y = y + 3000 * x[:, 0].square()  # no line fits it everywhere
    found = fit_baselines(likelihood, bnn.Data(x, y, weights=weights), 1)
    mean = float((weights * y).sum() / weights.sum())
    constant = found["constant"].predict(x[:1])
    assert float(constant.mean) == pytest.approx(mean, rel=1e-4)
    spread = float(((weights * (y - mean) ** 2).sum() / weights.sum()).sqrt())
    assert float(constant.std) == pytest.approx(spread, rel=0.01)
    for sample_weight, is_near in ((weights.numpy(), True), (None, False)):  # apart from the penalty
        other = LinearRegression().fit(x.numpy(), y.numpy(), sample_weight=sample_weight).predict(x.numpy())
        error = np.abs(found["linear"].predict(x).mean.numpy() - other).max()
        assert error < 0.15 * spread if is_near else error > 0.5 * spread
    plain, ones = (fit_baselines(likelihood, bnn.Data(x, y, weights=one), 1) for one in (None, torch.ones(NUM)))
    assert torch.allclose(plain["linear"].predict(x).mean, ones["linear"].predict(x).mean)


@pytest.mark.slow
def test_a_gain_on_training_examples_counts_by_their_weights():
    """A line that is right where weights are 9, and upside down where they are 1."""
    x = torch.linspace(-1, 1, 100)[:, None]
    y = torch.where(x[:, 0] > 0, x[:, 0], -x[:, 0]) + 0.1 * noise(100).float()
    weights = torch.where(x[:, 0] > 0, 9.0, 1.0)
    data = bnn.Data(x, y, weights=weights, standardize=False)
    model = bnn.BNN(torch.nn.Linear(1, 1), likelihood=likelihoods.Gaussian(0.3), prior=bnn.priors.Normal(1.0))
    line = {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}
    posterior = bnn.guides.Laplace(structure="diag").around(model, data, weights=line, progress=False)
    evidence = Evidence(posterior, data, budget=Budget(draws=50))
    rows = evidence.baselines["constant"].rows
    gain = evidence.scores - evidence.baseline_scores["constant"]
    weighted = float((weights[rows] * gain).sum() / weights.sum())
    assert abs(weighted - float(gain.mean())) > 0.1
    assert evidence.comparison.fit.mean == pytest.approx(weighted)


def noise(num, scale=1.0, seed=0):
    return scale * torch.randn(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def verdict(own, of_linear, level=0.01):
    """The comparison by the gains of a fit and of a linear model over a constant."""
    constant = noise(len(own), seed=7)
    return compared(constant + own, {"constant": constant, "linear": constant + of_linear}, level)


def gains(mean, seed, spread=0.1, num=200):
    """Gains of examples that have this mean exactly."""
    drawn = noise(num, spread, seed)
    return mean + drawn - drawn.mean()


@pytest.mark.parametrize(
    ("gain", "linear_gain", "case"),
    [
        (-0.5, 0.0, "constant"),
        (0.0, 0.013, "constant"),
        (0.0, 0.5, "constant"),
        (0.28, 1.0, "linear"),
        (0.5, 0.5, "like linear"),
        (0.5004, 0.5, "like linear"),  # equal numbers are never a lead
        (0.9, 1.0, "behind linear"),
        (1.0, 0.5, "better"),
    ],
)
def test_cases(gain, linear_gain, case):
    found = verdict(gains(gain, 1), gains(linear_gain, 2))
    assert found.case == case
    assert (found.p is not None) == (case in ("constant", "linear"))
    assert found.fit.is_shown == (gain > 0)
    if gain <= 0:
        assert found.linear.is_shown == (linear_gain > 0)


def test_a_small_lead_that_is_no_chance_is_a_lead():
    linear = gains(0.5, 2)
    assert verdict(linear + 0.004 + gains(0.0, 3) * 1e-3, linear).case == "better"
    assert verdict(linear + 0.0004 + gains(0.0, 3) * 1e-3, linear).case == "like linear"


def test_an_impossible_target_is_warned_of_whatever_the_others_say():
    for lost in (-math.inf, math.nan):
        found = verdict(torch.cat([gains(1.0, 1), torch.tensor([lost])]), noise(201))
        assert (found.case, found.num_lost) == ("impossible", 1)


def test_a_target_that_is_impossible_under_a_baseline_counts_with_the_lowest_score():
    own, constant = gains(0.5, 1), noise(200, 0.1)
    lost = torch.cat([torch.tensor([-math.inf, math.nan]), constant[2:]])
    found = compared(own, {"constant": lost, "linear": lost}, 0.01)
    lowest = torch.cat([own, constant[2:]]).min()
    same = torch.cat([lowest.expand(2), constant[2:]])
    assert found == compared(own, {"constant": same, "linear": same}, 0.01)
    assert found.fit.is_shown


def test_a_fit_as_good_as_the_linear_model_gives_alarm_at_its_rate_at_most():
    """400 comparisons at 5 % of two fits whose expected scores are equal: at most 5 % + 3 standard errors of 1.1 %."""
    pairs = [[0.2 + noise(100, 0.5, 2 * seed + k) for k in (0, 1)] for seed in range(400)]
    cases = [verdict(*pair, level=0.05).case for pair in pairs]
    assert np.mean([case in ("constant", "linear") for case in cases]) < 0.083


def test_leave_one_out_is_that_of_the_conjugate_model():
    """Mean of y ~ N(m, 1), m ~ N(0, 10^2), 10 targets, one far away: 20,000 draws, within 0.03 nats an example."""
    y = torch.cat([noise(9, seed=5), torch.tensor([2.5], dtype=torch.float64)])
    variance = 1 / (len(y) + 0.01)
    draws = y.sum() * variance + noise(20_000, variance**0.5, seed=6)
    prediction = bnn.Prediction(dist.Normal(draws[:, None].expand(-1, 10), 1.0))
    others = 1 / (len(y) - 1 + 0.01)
    exact = torch.distributions.Normal((y.sum() - y) * others, (1 + others) ** 0.5).log_prob(y)
    assert torch.allclose(left_out_by_draws(prediction, y), exact, atol=0.03)
    assert float((prediction.log_prob(y) - exact).max()) > 0.1  # the training score is not it


def sines(num=100):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num + 200, 3, generator=generator)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * torch.randn(num + 200, generator=generator)
    return bnn.Data(x[:num], y[:num], standardize=True), bnn.Data(x[num:], y[num:], standardize=True)


@pytest.fixture(scope="module")
def collapsed():
    """Where a long mean-field fit of the sines ends: a layer at the prior, outputs near 0, noise of the targets."""
    train, test = sines()
    model = bnn.BNN(bnn.MLP(3, [50, 50], 1), prior=bnn.priors.Normal(1.0))
    posterior = bnn.fit(model, train, bnn.SVI(steps=1), seed=0, progress=False, engine="eager")
    with torch.no_grad():
        guide = posterior.guide
        guide.loc.zero_()
        for (name, _), rho in zip(guide._named(), guide._split(guide.rho), strict=True):
            rho.fill_(math.log(math.expm1(1.0 if name.startswith("2.") else 0.01)))
        posterior.bnn.likelihood.scale = torch.tensor(1.0)
    return posterior, train, test


@pytest.mark.slow
def test_a_regression_that_explains_nothing_says_so_first(collapsed):
    posterior, train, test = collapsed
    for data in (test, None):
        found = bnn.diagnose(posterior, train, data, num_draws=100)
        assert (found.worst.name, found.mood) == ("constant", "bad")
        assert found.next_step.settings == ("fit.steps=4",)


def told(model, data, method, **options):
    """What a fit warns of at its end."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", bnn.PoorFitWarning)
        bnn.fit(model, data, method, **({"engine": "eager"} | options))
    return [str(one.message) for one in found if one.category is bnn.PoorFitWarning]


def test_the_end_of_a_fit_warns_once():
    """With bars or without, whether the fit ends by itself or has a given length."""
    train, test = sines()
    model = bnn.BNN(bnn.MLP(3, [5], 1), likelihood=likelihoods.Gaussian(scale=9.0), prior=bnn.priors.Normal(1.0))
    ends_by_itself = bnn.SVI(guide=bnn.guides.MeanField(init_rho=-1.0), max_steps=50)
    for method, progress in ((bnn.SVI(steps=20), True), (ends_by_itself, False)):
        for extra in ({}, {"validation": test}):
            (text,) = told(model, train, method, progress=progress, **extra)
            assert text.startswith("The fit predicts no better than a constant")
            assert text.endswith("See docs/how-to/warnings.md.")
    (one,), (other,) = (told(model, train, bnn.SVI(steps=5), seed=seed, progress=False) for seed in (0, 1))
    assert one == other  # Python's filter shows a text once for a line of code
    assert one == (
        "The fit predicts no better than a constant, which ignores the inputs. To mend it, let the noise be measured, "
        '`scale="tuned"`. See docs/how-to/warnings.md.'
    )


def test_warnings_that_are_ignored_in_a_block_let_python_remember_what_it_has_shown():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            with ignored_warnings("Not this"):
                warnings.warn("Not this one", stacklevel=1)
            warnings.warn("This one", stacklevel=1)
    assert [str(one.message) for one in found] == ["This one"]


SHORT = {
    "epochs": bnn.SVI("mean_field", epochs=5),
    "laplace": bnn.SVI("laplace", steps=10),
    "dropout": bnn.SVI(bnn.guides.Dropout(), steps=10),
    "SWAG": bnn.SWAG(bnn.SVI("map", steps=10)),
    "ensemble": bnn.Ensemble(bnn.SVI("map", steps=5), members=2),
    "IVON": bnn.IVON(steps=10),
    "NUTS": bnn.NUTS(num_draws=4, warmup=4, num_chains=1),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", SHORT)
def test_every_method_tells_without_bars_what_training_data_show(name):
    """A noise of 9 around targets that spread by 1.2 is worse than a constant."""
    model = bnn.BNN(bnn.MLP(3, [5], 1), likelihood=likelihoods.Gaussian(scale=9.0), prior=bnn.priors.Normal(1.0))
    train, _ = sines()
    (text,) = told(model, train, SHORT[name], progress=False, engine="auto")
    assert text.startswith("The fit predicts no better than a constant")


@pytest.mark.slow
def test_good_fits_warn_of_nothing():
    line = bnn.BNN(torch.nn.Linear(1, 1), likelihood=likelihoods.Gaussian(scale=0.5), prior=bnn.priors.Normal(1.0))
    x = sines()[0].x[:, :1]
    assert told(line, bnn.Data(x, 3 * x[:, 0] + noise(100, 0.5)), bnn.SVI(steps=300, lr=0.05)) == []


def advised(posterior, data, key):
    """The settings of all remedies that are open to a fit, in their order."""
    evidence = Evidence(posterior, data)
    found = [first(evidence, (name,)) for name in templates()[key].tries]
    return [remedy.settings for remedy in found if remedy is not None]


@pytest.mark.parametrize(("prior", "is_advised"), [("normal", True), ("laplace", False), ({"*": "ard"}, False)])
def test_the_evidence_framework_is_advised_for_the_priors_that_it_takes(prior, is_advised):
    data = sines()[0]
    posterior = bnn.fit(bnn.BNN(bnn.MLP(3, [2], 1), prior=prior), data, bnn.SVI(steps=1), progress=False)
    for key in ("constant", "missed"):
        assert (("fit.type=evidence_framework",) in advised(posterior, data, key)) == is_advised


@pytest.mark.parametrize(
    ("shift", "standardize", "is_named"), [(50.0, False, True), (0.0, False, False), (50.0, True, False)]
)
def test_inputs_in_units_of_their_own_are_to_be_standardised_first(shift, standardize, is_named):
    x = np.random.default_rng(0).normal(size=(40, 2)) + shift
    data = bnn.Data(x, x[:, 0] - shift, standardize=standardize)
    posterior = bnn.BNN(bnn.MLP(2, [5], 1)).fit(data, guide="map", steps=1, seed=0, progress=False)
    assert (advised(posterior, data, "constant")[0] == ("data.standardize=true",)) == is_named
