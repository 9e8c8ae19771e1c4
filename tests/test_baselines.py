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
from pyrobnn.verdict.comparison import Evaluation, compare_with_baselines, judge, leave_one_out
from pyrobnn.verdict.complaint import sites_at_prior
from pyrobnn.verdict.remedies import OF_BAD_PREDICTIONS, OF_MISSED_FUNCTION, Fitted, open_to

NUM, FEATURES = 400, 4


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * NUM, FEATURES, generator=generator)
    eta = x[:, 0] - 0.5 * x[:, 1]
    return x, eta, generator


def targets(name):
    _, eta, generator = problem()
    noisy = eta + 0.3 * torch.randn(len(eta), generator=generator)
    rate = (
        eta.exp() * torch.distributions.Gamma(2.0, 2.0).sample(eta.shape) if name == "negative_binomial" else eta.exp()
    )
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
    model = bnn.BNN(bnn.MLP(FEATURES, [2], outputs), likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    return fit_baselines(model, bnn.Data(x[:NUM], y[:NUM])), bnn.Data(x[NUM:], y[NUM:])


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
    assert judge(constant + own, rivals, 0.01, "left out").gains.are_slight == is_told


def test_pure_noise_is_shrunk_to_a_constant():
    """200 inputs, 100 examples: least squares would fit them exactly. Also images, and a class that never occurs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 1, 10, 20, generator=generator)
    y = torch.randint(2, (600,), generator=generator)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(200, 3))
    found = fit_baselines(
        bnn.BNN(net, likelihood="categorical", prior=bnn.priors.Normal(1.0)), bnn.Data(x[:100], y[:100])
    )
    new = bnn.Data(x[100:], y[100:])
    assert score(found["linear"], new) > score(found["constant"], new) - 0.05
    unseen = found["constant"].predict(x[:1]).class_probs[0, 2]
    assert 1e-4 < float(unseen) < 0.02


def test_what_has_no_baselines():
    x, y = torch.randn(10, 2), torch.randn(10)
    model = bnn.BNN(bnn.MLP(2, [2], 1), prior=bnn.priors.Normal(1.0))
    assert fit_baselines(model, bnn.Data(x[:1], y[:1])) == {}
    wide = bnn.BNN(torch.nn.Linear(20_001, 1), prior=bnn.priors.Normal(1.0))
    assert list(fit_baselines(wide, bnn.Data(torch.randn(4, 20_001), y[:4]))) == ["constant"]


def test_examples_count_by_their_weights():
    """The weighted mean and spread, and scikit-learn's regression with weights; weights of 1 change nothing."""
    from sklearn.linear_model import LinearRegression

    x, y = problem()[0][:NUM], targets_of("gaussian")
    weights = torch.where(x[:, 0] + x[:, 2] > 0, 5.0, 0.2)
    model = bnn.BNN(bnn.MLP(FEATURES, [2], 1), prior=bnn.priors.Normal(1.0))
    y = y + 3000 * x[:, 0].square()  # no line fits it everywhere
    found = fit_baselines(model, bnn.Data(x, y, weights=weights))
    mean = float((weights * y).sum() / weights.sum())
    constant = found["constant"].predict(x[:1])
    assert float(constant.mean) == pytest.approx(mean, rel=1e-4)
    spread = float(((weights * (y - mean) ** 2).sum() / weights.sum()).sqrt())
    assert float(constant.std) == pytest.approx(spread, rel=0.01)
    for sample_weight, is_near in ((weights.numpy(), True), (None, False)):  # apart from the penalty
        other = LinearRegression().fit(x.numpy(), y.numpy(), sample_weight=sample_weight).predict(x.numpy())
        error = np.abs(found["linear"].predict(x).mean.numpy() - other).max()
        assert error < 0.15 * spread if is_near else error > 0.5 * spread
    plain, ones = (fit_baselines(model, bnn.Data(x, y, weights=one)) for one in (None, torch.ones(NUM)))
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
    baselines = fit_baselines(model, data)
    found = compare_with_baselines(Evaluation(posterior, data, None, baselines, num_draws=50, most_rows=1000), 0.01)
    rows = baselines["constant"].rows
    own = posterior.predict(x[rows], num_draws=50).log_prob(y[rows])
    gain = own - baselines["constant"].cross_validated.log_prob(y[rows])
    weighted = float((weights[rows] * gain).sum() / weights.sum())
    assert abs(weighted - float(gain.mean())) > 0.1
    assert f"fit {weighted:+.2f} ± " in found.text
    assert "baseline" in {one.name for one in bnn.diagnose(posterior, data, num_draws=20).findings}


# The comparison


def noise(num, scale=1.0, seed=0):
    return scale * torch.randn(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def verdict(own, of_linear, level=0.01, basis="held out"):
    """The verdict on the gains of a fit and of a linear model over a constant."""
    constant = noise(len(own), seed=7)
    return judge(constant + own, {"constant": constant, "linear": constant + of_linear}, level, basis)


def gains(mean, seed, spread=0.1, num=200):
    """Gains of examples that have this mean exactly."""
    drawn = noise(num, spread, seed)
    return mean + drawn - drawn.mean()


@pytest.mark.parametrize(
    ("gain", "linear_gain", "kind", "words"),
    [
        (-0.5, 0.0, "warning", "The fit predicts no better than a constant, which ignores the inputs. Either the"),
        (0.0, 0.013, "warning", "The fit predicts no better than a constant, which ignores the inputs. A linear model"),
        (0.0, 0.5, "warning", "The fit predicts no better than a constant, which ignores the inputs. The inputs do"),
        (0.28, 1.0, "warning", "The fit predicts worse than a linear model, with 28% of its gain."),
        (0.5, 0.5, "note", "Nothing shows that the fit predicts better than a linear model, which is simpler."),
        (0.9, 1.0, "note", "The fit predicts a little worse than a linear model, which is simpler."),
        (1.0, 0.5, "fine", "The fit predicts better than a constant and a linear model."),
    ],
)
def test_verdicts(gain, linear_gain, kind, words):
    found = verdict(gains(gain, 1), gains(linear_gain, 2))
    assert found.kind == kind
    assert found.text.startswith(words)
    assert (found.p_value is not None) == (kind == "warning")
    assert found.gains.is_better == (gain > 0)
    assert (found.case in ("behind linear", "like linear")) == (kind == "note")
    if gain <= 0:
        assert found.gains.linear_finds == (linear_gain > 0)


def test_an_impossible_target_is_warned_of_whatever_the_others_say():
    for lost in (-math.inf, math.nan):
        found = verdict(torch.cat([gains(1.0, 1), torch.tensor([lost])]), noise(201))
        assert found.kind == "warning"
        assert found.text.startswith("The fit takes 1 of 201 held-out examples for impossible")


def test_a_target_that_is_impossible_under_a_baseline_counts_with_the_lowest_score():
    own, constant = gains(0.5, 1), noise(200, 0.1)
    lost = torch.cat([torch.tensor([-math.inf, math.nan]), constant[2:]])
    found = judge(own, {"constant": lost, "linear": lost}, 0.01, "held out")
    lowest = torch.cat([own, constant[2:]]).min()
    same = torch.cat([lowest.expand(2), constant[2:]])
    assert found == judge(own, {"constant": same, "linear": same}, 0.01, "held out")
    assert found.gains.is_better
    assert "nan" not in found.text


@pytest.mark.parametrize(("lead", "kind", "is_lead"), [(0.0004, "note", False), (0.004, "fine", True)])
def test_equal_numbers_are_never_a_lead(lead, kind, is_lead):
    linear = gains(0.5, 2)
    found = verdict(linear + lead + gains(0.0, 3) * 1e-3, linear)
    assert (found.kind, found.case) == (kind, "better" if is_lead else "like linear")
    assert ("+0.504 ± " in found.text) == is_lead


def test_training_examples_never_show_that_a_fit_is_good():
    """Bad scores on them are bad; and each example left out of the fit tells as much as one held out."""
    for gain, linear_gain in ((1.0, 0.5), (0.5, 0.5), (0.0, 0.5), (0.28, 1.0)):
        pair = gains(gain, 1), gains(linear_gain, 2)
        held_out, left_out, training = (verdict(*pair, basis=one) for one in ("held out", "left out", "training"))
        assert held_out.kind == left_out.kind
        assert training.kind == ("note" if held_out.kind == "fine" else held_out.kind)


def test_a_fit_as_good_as_the_linear_model_gives_alarm_at_its_rate_at_most():
    """400 comparisons at 5 % of two fits whose expected scores are equal: at most 5 % + 3 standard errors of 1.1 %."""
    pairs = [[0.2 + noise(100, 0.5, 2 * seed + k) for k in (0, 1)] for seed in range(400)]
    kinds = [verdict(*pair, level=0.05).kind for pair in pairs]
    assert np.mean([kind == "warning" for kind in kinds]) < 0.083


def test_leave_one_out_is_that_of_the_conjugate_model():
    """Mean of y ~ N(m, 1), m ~ N(0, 10^2), 10 targets, one far away: 20,000 draws, within 0.03 nats an example."""
    y = torch.cat([noise(9, seed=5), torch.tensor([2.5], dtype=torch.float64)])
    variance = 1 / (len(y) + 0.01)
    draws = y.sum() * variance + noise(20_000, variance**0.5, seed=6)
    prediction = bnn.Prediction(dist.Normal(draws[:, None].expand(-1, 10), 1.0))
    others = 1 / (len(y) - 1 + 0.01)
    exact = torch.distributions.Normal((y.sum() - y) * others, (1 + others) ** 0.5).log_prob(y)
    assert torch.allclose(leave_one_out(prediction, y), exact, atol=0.03)
    assert float((prediction.log_prob(y) - exact).max()) > 0.1  # the training score is not it


# Whole fits


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
    assert sites_at_prior(posterior) == ("2.weight",)
    for data in (test, None):
        found = bnn.diagnose(posterior, train, data, num_draws=100)
        assert found.verdict.startswith("Do not trust it yet: the fit predicts no better than a constant")
        assert found.findings[0].remedies[0].python == "measure the noise first: no `steps`"
        (lost,) = (finding for finding in found.findings if finding.name == "prior")
        assert lost.kind == "warning"
        assert "Collapse to the prior at 2.weight:" in lost.text


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
    (first,), (second,) = (told(model, train, bnn.SVI(steps=5), seed=seed, progress=False) for seed in (0, 1))
    assert first == second  # Python's filter shows a text once for a line of code
    assert first == (
        "The fit predicts no better than a constant, which ignores the inputs. To mend it, let the noise be measured: "
        "leave out its number; or train longer, `steps=20`, or leave out `steps`. See docs/how-to/warnings.md."
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


@pytest.mark.parametrize(("prior", "is_advised"), [("normal", True), ("laplace", False), ({"*": "ard"}, False)])
def test_the_evidence_framework_is_advised_for_the_priors_that_it_takes(prior, is_advised):
    posterior = bnn.fit(bnn.BNN(bnn.MLP(3, [2], 1), prior=prior), sines()[0], bnn.SVI(steps=1), progress=False)
    for tries in (OF_BAD_PREDICTIONS, OF_MISSED_FUNCTION):
        settings = [remedy.settings for remedy in open_to(Fitted(posterior), tries)]
        assert (("fit.type=evidence_framework",) in settings) == is_advised


@pytest.mark.parametrize(
    ("shift", "standardize", "is_named"), [(50.0, False, True), (0.0, False, False), (50.0, True, False)]
)
def test_inputs_in_units_of_their_own_are_to_be_standardised_first(shift, standardize, is_named):
    x = np.random.default_rng(0).normal(size=(40, 2)) + shift
    data = bnn.Data(x, x[:, 0] - shift, standardize=standardize)
    posterior = bnn.BNN(bnn.MLP(2, [5], 1)).fit(data, guide="map", steps=1, seed=0, progress=False)
    first = open_to(Fitted(posterior, x=data.x), OF_BAD_PREDICTIONS)[0]
    assert ("standardize=True" in str(first)) == is_named
