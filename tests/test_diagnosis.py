"""`diagnose`: silent on good fits at its stated rate, and a warning for each way in which a fit is bad."""

import copy
import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import nn

import pyrobnn as bnn
from pyrobnn.data.directions import Directions, ranks
from pyrobnn.diagnostics.classes import never_predicted
from pyrobnn.diagnostics.findings import Diagnosis, Finding, of_few_rows
from pyrobnn.diagnostics.inputs import with_cause
from pyrobnn.diagnostics.predictive_checks import epistemic_finding, predictive_findings, ranking_finding
from pyrobnn.distributions.counts import Poisson
from pyrobnn.distributions.targets import StudentT
from pyrobnn.inference.default_parts import parts_for
from pyrobnn.verdict.judgement import ranks_better
from pyrobnn.verdict.remedies import (
    Fitted,
    amounts,
    heavier_tails,
    open_to,
    other_guide,
    other_noise,
    varying_noise,
)

FEATURES, NUM_TRAIN, NUM_TEST, NOISE = 20, 40, 200, 0.3
TESTED = {"bias", "spread", "coverage", "noise", "surprise", "confidence"}
RATE = 0.01
FEW = {"false_alarm_rate": 0.1}
"""A rate that takes a fifth of the simulations."""
SEEDS = range(10)


def linear_problem(seed, likelihood=None):
    """Data of a linear model whose weights come from its prior N(0, 1), so that the exact posterior is calibrated."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights, x = draw(FEATURES), draw(NUM_TRAIN + NUM_TEST, FEATURES)
    y = x @ weights + NOISE * draw(len(x))
    both = bnn.Data(x, y, standardize=False)
    train, test = both.split(NUM_TEST / len(both), seed=0)
    net = torch.nn.Linear(FEATURES, 1, bias=False).double()
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood or bnn.likelihoods.Gaussian(scale=NOISE))
    return model, train, test


def exact_posterior(model, train, scale=1.0, shift=0.0):
    """The posterior of a linear model, which Laplace gives exactly, its scale and mean changed if asked."""
    with torch.no_grad():
        gram = train.x.T @ train.x / NOISE**2 + torch.eye(FEATURES, dtype=torch.float64)
        mode = torch.linalg.solve(gram, train.x.T @ train.y) / NOISE**2
    weights = {"weight": mode[None]}
    posterior = bnn.guides.Laplace(structure="full").around(model, train, weights=weights, progress=False)
    with torch.no_grad():
        (block,) = posterior.guide.gaussian_blocks()
        posterior.guide.loc.add_(shift * block.spread())
        block.factor.mul_(scale)
    return posterior


def diagnosed(seed, **change):
    model, train, test = linear_problem(seed)
    posterior = exact_posterior(model, train, **change)
    return bnn.diagnose(posterior, train, test, num_draws=100, false_alarm_rate=RATE)


# A good fit


def linear_truths_are_no_alarm(found):
    return {f.kind for one in found for f in one.findings if f.name == "baseline"} <= {"note", "fine"}


@pytest.mark.slow
def test_silence_on_a_good_fit():
    found = diagnosed(0)
    assert found.warnings == ()
    assert linear_truths_are_no_alarm([found])


@pytest.mark.nightly
def test_silence_on_good_fits():
    """10 exact posteriors at a rate of 1 %: 2 or more with a warning have a probability of 0.4 %."""
    found = [diagnosed(seed) for seed in SEEDS]
    assert sum(bool(one.warnings) for one in found) <= 1
    assert linear_truths_are_no_alarm(found)
    p_values = {name: [f.p_value for one in found for f in one.findings if f.name == name] for name in TESTED}
    for name in ("bias", "spread", "noise", "surprise"):
        assert len(p_values[name]) == len(SEEDS)
        assert 0.02 < float(np.mean(np.array(p_values[name]) < 0.5)) < 0.98  # not all alike: 0.2 % if uniform


@pytest.mark.nightly
def test_null_p_values_are_uniform():
    """Also where training data are few, and test targets share an error: 40 problems, Kolmogorov-Smirnov at 0.1 %."""
    from scipy.stats import kstest

    found = {"bias": [], "spread": [], "noise": [], "surprise": []}
    for seed in range(40):
        model, train, test = linear_problem(1000 + seed)
        few = bnn.Data(train.x[:8], train.y[:8], standardize=False)
        posterior = exact_posterior(model, few)
        prediction, other = (posterior.predict(test.x[:50], num_draws=100, seed=own) for own in (seed, 100 + seed))
        simulated = other.sample(seed=seed)
        for finding in predictive_findings(prediction, test.y[:50], simulated, 0.01, seed=seed):
            if finding.name in found:
                found[finding.name].append(finding.p_value)
    for p_values in found.values():
        assert kstest(p_values, "uniform").pvalue > 1e-3


# Four bad ones


@pytest.mark.parametrize("num", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("change", "names", "words"),
    [
        ({"scale": 0.05}, {"spread", "surprise"}, "too narrow"),
        ({"scale": 8.0}, {"spread", "surprise"}, "too wide"),
        ({"shift": 6.0}, {"surprise"}, "less likely than the fit expects"),
    ],
)
def test_posteriors_that_are_wrong_are_caught(change, names, words, num):
    """Of 4 exact posteriors made wrong, in all but one; so a single bad fit is caught in most cases."""
    found = [diagnosed(seed, **change) for seed in range(num)]
    assert sum(bool(names & set(one.names)) for one in found) >= num - num // 4
    assert sum(words in " ".join(one.warnings) for one in found) >= num - num // 4


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("noise", "offset", "name", "words"),
    [
        (0.5 * NOISE, 0.0, "spread", "too narrow"),
        (0.5 * NOISE, 0.0, "coverage", "they are too narrow"),
        (2 * NOISE, 0.0, "spread", "too wide"),
        (NOISE, 0.5 * NOISE, "bias", "Targets lie above the predictions"),
        (NOISE, -0.5 * NOISE, "bias", "Targets lie below the predictions"),
    ],
)
def test_predictions_that_are_wrong_are_named(noise, offset, name, words):
    model, train, test = linear_problem(0, bnn.likelihoods.Gaussian(scale=noise))
    found = bnn.diagnose(
        exact_posterior(model, train),
        train,
        bnn.Data(test.x, test.y + offset, standardize=False),
        num_draws=200,
        false_alarm_rate=0.05,
    )
    assert name in found.names
    assert any(words in warning for warning in found.warnings)


def test_ranks_are_those_of_scipy_with_mean_ranks_of_equal_values_and_none_of_gaps():
    values = np.random.default_rng(0).integers(0, 6, (40, 3)).astype(float)
    values[3, 1] = values[9, 1] = np.nan
    values[:, 2] = 1.0
    expected = stats.rankdata(values, axis=0, nan_policy="omit")
    expected = np.nan_to_num(expected - np.nanmean(expected, axis=0))
    expected[:, :2] /= np.linalg.norm(expected[:, :2], axis=0)
    np.testing.assert_allclose(ranks(values), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(ranks(torch.tensor(values[:, 0])), expected[:, :1], rtol=0, atol=1e-14)


def test_intervals_that_hold_too_much():
    """1000 targets of a third of the predicted spread: 95 % intervals hold all of them."""
    y = torch.randn(1000, generator=torch.Generator().manual_seed(0)) / 3
    found = {f.name: f.text for f in findings_of(bnn.Prediction(dist.Normal(torch.zeros(3, 1000), 1.0)), y)}
    assert "hold 100.0% of the targets" in found["coverage"]
    assert "they are too wide" in found["coverage"]


@pytest.mark.slow
def test_a_fit_that_was_cut_short():
    model, train, test = linear_problem(0)
    options = {"seed": 0, "progress": False, "engine": "eager"}
    short = bnn.fit(model, train, bnn.SVI(steps=150, lr=0.01), **options)
    assert "elbo" in bnn.diagnose(short, train, test, num_draws=100, **FEW).names
    long = bnn.fit(
        model, train, bnn.SVI(guide="full_rank", steps=1500, lr=0.03, schedule="cosine_annealing_lr"), **options
    )
    assert bnn.diagnose(long, train, test, num_draws=200).warnings == ()


# The parts


def normal_prediction(spread, num=5):
    means = spread * torch.tensor([[-1.0], [1.0]]).expand(2, num)
    return bnn.Prediction(dist.Normal(means, torch.ones(2, num)))


def test_the_epistemic_part_is_missed_only_where_it_is_negligible():
    assert epistemic_finding(normal_prediction(0.1)).kind == "fine"
    assert "near zero (2.5e-05 of it)" in epistemic_finding(normal_prediction(0.005)).text
    assert "variance is zero" in epistemic_finding(normal_prediction(0.0)).text
    certain = bnn.Prediction(dist.Categorical(probs=torch.tensor([[[1.0, 0.0]]])))
    assert "variance is zero" in epistemic_finding(certain).text


def findings_of(prediction, y):
    """With predictions whose draws are all alike, these serve for the simulation too."""
    return predictive_findings(prediction, y, prediction.sample(200, seed=0), 0.01, seed=0)


def test_infinite_variances_and_columns_of_other_units():
    """t of 2 degrees of freedom; and two columns of which one, in the smaller unit, has no epistemic part."""
    means = torch.tensor([[-1.0], [1.0]]).expand(2, 5)
    heavy = bnn.Prediction(StudentT(torch.full((2, 5), 2.0), means, torch.full((2, 5), 0.3)))
    assert epistemic_finding(heavy).kind == "fine"
    columns = torch.stack([torch.zeros(2, 5), 1000 * means], -1)
    both = bnn.Prediction(dist.Normal(columns, torch.tensor([1.0, 1000.0])).to_event(1))
    assert "variance is zero" in epistemic_finding(both).text


@pytest.mark.nightly
def test_single_errors_of_confident_classifiers_are_no_alarm():
    """Exact predictions of 0.999 for 100 labels, 80 times: at 0.01 a share of 0.01 + 3 standard errors of 0.011."""
    prediction = bnn.Prediction(dist.Categorical(probs=torch.tensor([0.999, 0.001]).expand(2, 100, 2)))
    simulated = prediction.sample(200, seed=0)
    truths = prediction.sample(80, seed=1)
    found = [predictive_findings(prediction, y, simulated, 0.01, seed=0) for y in truths]
    for name in ("confidence", "surprise"):
        alarms = [finding.kind == "warning" for one in found for finding in one if finding.name == name]
        assert np.mean(alarms) < 0.043


def growing_errors(power, num, seed=0):
    """Predictions with noise of 0.2 around log-normal means; the targets' noise is 0.2 times a power of the mean."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.exp(0.4 * torch.randn(num, generator=generator))
    y = mean + 0.2 * mean**power * torch.randn(num, generator=generator)
    return bnn.Prediction(dist.Normal(mean.expand(2, num), 0.2)), y


@pytest.mark.parametrize(("power", "words"), [(0, "No clear sign"), (1, "Errors grow"), (-1, "Errors shrink")])
def test_errors_that_depend_on_the_prediction(power, words):
    """300 targets; the correlation is Spearman's of the errors' size and the means, as all spreads are alike."""
    from scipy.stats import spearmanr

    prediction, y = growing_errors(power, 300)
    (found,) = [one for one in findings_of(prediction, y) if one.name == "noise"]
    assert found.text.startswith(words)
    assert found.kind == ("warning" if power else "fine")
    mean = prediction.distribution.mean[0]
    assert f"is {spearmanr((y - mean).abs(), mean).statistic:.2f}, where" in found.text


def test_predictions_that_are_all_alike_have_no_correlation_with_errors():
    prediction = bnn.Prediction(dist.Normal(torch.zeros(2, 30), 1.0))
    (found,) = [one for one in findings_of(prediction, torch.arange(30.0)) if one.name == "noise"]
    assert (found.kind, found.p_value) == ("fine", 1.0)


@pytest.mark.slow
def test_p_values_of_errors_that_do_not_depend_on_the_prediction_are_uniform():
    """80 sets of 30 targets, Kolmogorov-Smirnov at 0.1 %; a warning at 5 % in at most 5 % + 3 errors of 2.4 %."""
    from scipy.stats import kstest

    found = [findings_of(*growing_errors(0, 30, seed)) for seed in range(80)]
    p_values = [one.p_value for each in found for one in each if one.name == "noise"]
    assert kstest(p_values, "uniform").pvalue > 1e-3
    assert np.mean(np.array(p_values) < 0.05) < 0.123
    assert np.mean([min(one.p_value for one in each) < 0.05 / len(each) for each in found]) < 0.123


def test_remedies_of_noise_by_the_likelihood_and_the_targets():
    """Amounts may be log-normal; a Student-t gets fewer degrees of freedom, once."""

    def fitted(likelihood, y, outputs=1):
        model = bnn.BNN(nn.Linear(1, outputs), likelihood=likelihood, prior="normal")
        return Fitted(model.fit(bnn.Data(y[:, None], y), guide="map", steps=1, progress=False), y)

    y = torch.exp(torch.randn(50, generator=torch.Generator().manual_seed(0)))
    known = bnn.likelihoods.Gaussian(1.0)
    assert amounts(fitted(known, y)).settings == ("likelihood.type=log_normal",)
    assert amounts(fitted(known, y.log())) is None
    assert amounts(fitted(bnn.likelihoods.Gaussian("heteroscedastic"), y, 2)) is None
    heavy = heavier_tails(fitted(bnn.likelihoods.StudentT(scale=1.0), y))
    assert heavy.settings == ("likelihood.df=2.5",)
    assert heavier_tails(fitted(bnn.likelihoods.StudentT(scale=1.0, df=2.5), y)) is None
    assert heavier_tails(fitted(known, y)) is None


def test_other_noise_gets_a_method_that_measures_it():
    """The marginal likelihood tunes Gaussian noise only: under Student-t noise 88 % of 1,400 rows lay within 95 %."""
    y = torch.randn(40, generator=torch.Generator().manual_seed(0))
    model = bnn.BNN(nn.Linear(1, 1), prior="normal")
    tuned = bnn.MarginalLikelihood(bnn.SVI(guide="laplace", steps=1), rounds=1)
    for method, changes in ((tuned, ("fit.type=default",)), (bnn.EvidenceFramework(starts=1, rounds=1), ())):
        posterior = bnn.fit(model, bnn.Data(y[:, None], y), method, progress=False)
        assert other_noise(Fitted(posterior, y)).settings == ("likelihood.type=student_t", *changes)
        assert other_noise(Fitted(posterior, y.repeat(51))).settings == ("likelihood.type=student_t", *changes)
    few, many = (
        parts_for("regression", likelihood=bnn.likelihoods.StudentT(), num_data=num, num_inputs=3)["method"]
        for num in (2_000, 2_001)
    )
    assert (type(few), few.starts) == (bnn.EvidenceFramework, 1)
    assert isinstance(many, bnn.SVI)
    assert isinstance(many.guide, bnn.guides.MeanField)


def test_noise_that_varies_is_advised_before_heavy_tails():
    """Narrow noise here and wide noise there have heavy tails together, which other tails do not mend."""
    y = torch.randn(40, generator=torch.Generator().manual_seed(0))
    fit = Fitted(bnn.fit(bnn.BNN(nn.Linear(1, 1)), bnn.Data(y[:, None], y), bnn.SVI(steps=1), progress=False), y)
    tails, varying = other_noise(fit), varying_noise(fit)
    wide = Finding("spread", "warning", "Wide.", remedies=(tails, varying))
    for name, kind, first, p_value, varies, advice in (
        ("inputs", "warning", varying, 0.001, 0.001, (varying,)),
        ("noise", "warning", varying, 0.001, 1.0, (varying,)),
        ("inputs", "note", varying, 0.01, 0.01, (tails, varying)),
        ("noise", "note", varying, 0.01, 1.0, (tails, varying)),
        ("noise", "fine", varying, 0.06, 0.06, (tails,)),
        ("inputs", "warning", tails, 0.001, 0.06, (tails,)),  # a trend that was missed
    ):
        found = with_cause([wide, Finding(name, kind, "Varies.", p_value, remedies=(first,))], fit, varies)
        assert found[0].remedies == advice
    assert with_cause([wide], None) == [wide]


def test_a_diagnosis_says_where_an_alarm_may_be_chance():
    """Noise of 1 taken for 0.9: 60 targets lie a little too far off."""
    found = bnn.diagnose(*true_line(1.0, 60, 7, noise=0.9), num_draws=50, **FEW)
    assert "though this may be chance" in found.verdict
    assert found.next_step.settings == ("likelihood.scale=tuned",)


@pytest.mark.parametrize(("grows", "advice"), [(True, varying_noise), (False, other_noise)])
def test_noise_that_varies_along_a_training_input_is_advised_before_heavy_tails(grows, advice):
    """Too few rows held out show it, where they have heavy tails; the training rows do."""
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.rand(200, 2, generator=generator), torch.randn(200, generator=generator)
    y = x[:, 0] + noise * ((3 * x[:, 1]).exp() / 10 if grows else 1.0)
    posterior = bnn.fit(bnn.BNN(nn.Linear(2, 1)), bnn.Data(x, y), bnn.SVI(steps=1), progress=False)
    fit = Fitted(posterior, y, x)
    tails = Finding("surprise", "warning", "Unlikely.", remedies=(other_noise(fit),))
    assert with_cause([tails], fit)[0].remedies == (advice(fit),)
    positive = Fitted(posterior, y.exp() ** 2, x)  # their errors vary too, and a log-normal says so
    skewed = Finding("surprise", "warning", "Unlikely.", remedies=(other_noise(positive),))
    assert with_cause([skewed], positive) == [skewed]


@pytest.mark.parametrize("kind", ["gaussian", "student_t", "poisson"])
def test_a_spec_takes_each_advice_for_predictions(kind, tmp_path):
    """A network gets the outputs that another likelihood needs: amounts with one column of numbers, or counts."""
    from pyrobnn.diagnostics.predictive_checks import _WORDS
    from pyrobnn.runs.overrides import apply_overrides
    from pyrobnn.runs.spec import RunSpec

    (tmp_path / "t.csv").write_text("a,y\n" + "\n".join(f"{i % 7},{1 + (i * i) % 11}" for i in range(40)))
    net, likelihood = {"type": "mlp", "in_features": 1, "hidden": [20], "out_features": 1}, {"type": kind}
    fit = {"type": "svi", "steps": 2, "seed": 0}
    tables = {
        "data": {"path": str(tmp_path / "t.csv"), "target": "y", "standardize": kind != "poisson"},
        "net": net,
        "prior": {"type": "normal"},
        "likelihood": likelihood,
        "fit": fit,
    }
    prepared = RunSpec.from_dict(tables).prepare()
    posterior = prepared.bnn.fit(prepared.train, guide="mean_field", steps=2, progress=False)
    tries = {one for words in _WORDS.values() for one in (*words.if_low, *words.if_high)}
    changes = {remedy.settings for remedy in open_to(Fitted(posterior, prepared.train.y), tries)}
    assert len(changes) > 3
    for settings in changes:
        RunSpec.from_dict(apply_overrides(tables, settings)).prepare()


def class_prediction(confidence, num=2000):
    return bnn.Prediction(dist.Categorical(probs=torch.tensor([confidence, 1 - confidence]).expand(3, num, 2)))


@pytest.mark.parametrize(
    ("confidence", "right", "word"),
    [(0.8, 0.8, None), (0.9, 0.8, "over-confident"), (0.7, 0.8, "under-confident")],
)
def test_confidence_is_compared_with_accuracy(confidence, right, word):
    y = (torch.arange(2000) >= right * 2000).long()
    found = {f.name: f for f in findings_of(class_prediction(confidence), y)}
    assert set(found) == {"confidence", "surprise"}
    assert found["confidence"].kind == ("fine" if word is None else "warning")
    assert word is None or word in found["confidence"].text


def heteroscedastic(order, num=300, seed=0):
    """Predictions of mean 0 whose scales are those of the targets to a power: 1 right, 0 all alike, -1 upside down."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(torch.randn(num, generator=generator))
    jitter = 1 + 1e-3 * torch.rand(num, generator=generator)
    y = scale * torch.randn(num, generator=generator)
    return bnn.Prediction(dist.Normal(torch.zeros(2, num), jitter * scale**order)), y


@pytest.mark.parametrize(("order", "kind"), [(1, "fine"), (0, "fine"), (-1, "warning")])
def test_an_uncertainty_that_ranks_errors_upside_down(order, kind):
    finding = ranking_finding(*heteroscedastic(order), 0.00135, seed=0)
    assert finding.kind == kind
    assert finding.text.startswith("The uncertainty ranks errors worse than chance") == (kind == "warning")


def test_uncertainties_without_an_order_are_not_judged():
    assert ranking_finding(normal_prediction(0.0), torch.arange(5.0), 0.05, seed=0) is None


@pytest.mark.nightly
def test_orders_by_chance_give_alarm_at_their_rate():
    """30 sets at 10 %: at most 10 % + 3 standard errors of 5.5 %."""
    found = [ranking_finding(*heteroscedastic(0, 50, seed), 0.1, seed=seed).kind for seed in range(30)]
    assert np.mean([kind == "warning" for kind in found]) < 0.265


def test_counts_that_vary_more_than_predicted():
    """Poisson of mean 5 against twice its variance: 500 counts; and against itself."""
    generator = np.random.default_rng(0)
    rates = torch.full((4, 500), math.log(5.0))
    prediction = bnn.Prediction(Poisson(rates))
    spread = torch.as_tensor(generator.negative_binomial(5, 0.5, 500)).float()
    good = torch.as_tensor(generator.poisson(5, 500)).float()
    kinds = {y: {f.name: f.kind for f in findings_of(prediction, y)} for y in (spread, good)}
    assert kinds[spread]["spread"] == "warning"
    assert set(kinds[good].values()) == {"fine"}


def test_without_held_out_data_it_says_so():
    model, train, _ = linear_problem(0)
    found = bnn.diagnose(exact_posterior(model, train), train)
    is_open, none = found.notes[:2]
    assert is_open.startswith("How the fit compares with a constant and a linear model on new examples is open.")
    assert none.startswith("No data were held out: nothing here tells how good predictions of new rows are.")
    assert not {finding.name for finding in found.findings} & {"bias", "spread", "coverage", "surprise", "ranking"}
    assert any("is close to the posterior" in finding.text for finding in found.findings)  # q is exact


@pytest.mark.slow
def test_khat_is_noted_and_never_warned_of_and_points_have_none():
    model, train, test = linear_problem(0)
    found = bnn.diagnose(exact_posterior(model, train, scale=0.3), train, test, num_draws=100, **FEW)
    assert any("weights differs much from the posterior" in note for note in found.notes)
    assert "k-hat" not in found.names
    wide = bnn.diagnose(exact_posterior(model, train, scale=1e3), train, test, num_draws=100, **FEW)
    assert any("(k-hat inf: a few draws have all the weight, close below 0.67)" in n for n in wide.notes)
    point = model.fit(train, seed=0, guide="map", steps=200, lr=0.05, progress=False, engine="eager")
    found = bnn.diagnose(point, train, test, num_draws=10, **FEW)
    assert "epistemic" in found.names
    assert "k-hat" not in {finding.name for finding in found.findings}


@pytest.mark.slow
def test_ensembles_are_judged_like_others():
    model, train, test = linear_problem(0)
    method = bnn.Ensemble(bnn.SVI(steps=120, lr=0.05), members=2)
    mixture = bnn.fit(model, train, method, seed=0, progress=False, engine="eager")
    names = {finding.name for finding in bnn.diagnose(mixture, train, test, num_draws=50, **FEW).findings}
    assert {"elbo", "bias", "surprise", "baseline", "epistemic"} <= names


@pytest.mark.parametrize(("rare", "judged"), [(9, False), (10, True), (0, False)])
def test_predictions_of_a_class_with_few_held_out_examples_are_not_judged(rare, judged):
    """A fit that is good and tests that are not: 30 examples of class 0 at inputs of class 1, and a few of class 1."""
    x = torch.tensor([[-1.0], [1.0]]).repeat(100, 1)
    train = bnn.Data(x, (x[:, 0] > 0).long(), standardize=False)
    model = bnn.BNN(nn.Linear(1, 2), prior=bnn.priors.Normal(3.0), likelihood="categorical")
    posterior = model.fit(train, guide="mean_field", seed=0, progress=False)
    test = bnn.Data(torch.ones(30 + rare, 1), torch.tensor([0] * 30 + [1] * rare), standardize=False)
    diagnosis = bnn.diagnose(posterior, train, test, seed=0)
    assert bool(diagnosis.warnings) == judged
    named = bnn.diagnose(posterior, train, test, seed=0, class_names=("no", "yes"))
    few_of = [[note for note in one.notes if "held out" in note] for one in (named, diagnosis)]
    assert few_of[0] == [note.replace("of class 1", "of class 'yes'") for note in few_of[1]]
    assert f"No example is predicted as 'no', though 30 of {30 + rare} are: another class" in str(named)
    assert "The most probable class is never 'no', so the classes alone are of no use" in named.verdict
    count = {0: "No examples are", 9: "9 examples are"}.get(rare)
    (said,) = [note for note in diagnosis.notes if "too few to judge" in note] or [None]
    share = {0: "0.11", 9: "0.1"}.get(rare)
    few = [finding for finding in diagnosis.findings if finding.name == "held-out data"]
    if judged:
        assert said is None
        assert few == []
        return
    text = f"{count} of class 1 among the {30 + rare} held out, too few to judge the predictions."
    assert said == f"{text} To mend it, hold out 10 or more examples of class 1."
    assert few[0].said("command").endswith(f"examples of class 1 (--set data.test={share}).")
    assert "baseline" not in {finding.name for finding in diagnosis.findings}  # training examples do not stand in


@pytest.mark.parametrize(
    ("right", "level", "kind", "begin"),
    [
        (50, 1e-3, "fine", "No clear sign that the fit is right"),
        (62, 1e-3, "note", "A weak sign, which may be chance, that the fit is right"),
        (62, 0.04, "warning", "The fit is under-confident"),
    ],
)
def test_a_small_p_value_is_not_called_fine(right, level, kind, begin):
    """Of 100 labels that are right with probability 0.51, 62 are 2.2 standard errors too many."""
    generator = torch.Generator().manual_seed(0)
    simulated = (torch.rand(2000, 100, generator=generator) > 0.51).long()
    y = (torch.arange(100) >= right).long()
    found = {one.name: one for one in predictive_findings(class_prediction(0.51, 100), y, simulated, level, seed=0)}
    assert (found["confidence"].kind, found["confidence"].text[: len(begin)]) == (kind, begin)


def test_a_rare_class_that_is_never_predicted_has_a_threshold():
    """Of 100 labels 6 are of class 1, whose probability is 0.1 everywhere; a class that is found has no note."""
    y = (torch.arange(100) < 6).long()
    (found,) = never_predicted(class_prediction(0.9, 100), y, y, ("no", "yes"))
    assert found.kind == "note"
    assert found.text.startswith("No example is predicted as 'yes', though 6 of 100 are: another class is more")
    assert found.said("command").endswith(
        "its share in training is 0.06. To mend it, say 'yes' where prob_yes is above 0.06, to find 6 of 6 "
        "(61 % to 100 % of those to come), and call 94 of 94 others so (96 % to 100 %)."
    )
    assert "`prediction.class_probs[:, 1] > 0.06`" in found.said()
    assert Diagnosis((found,), 0.05).details == (
        "The most probable class is never 'yes': say 'yes' above a probability of 0.06, which finds 6 of 6, "
        "too few to tell how many of those to come.",
    )
    assert never_predicted(class_prediction(0.9, 100), torch.zeros(100).long(), y) == []
    (common,) = never_predicted(class_prediction(0.1, 100), y, y)
    assert common.text.startswith("No example is predicted as 0, though 94 of 100 are")
    assert common.remedies == ()


def test_the_threshold_is_for_a_class_that_training_has_and_finds_some():
    """Of 100 labels 5 each are of classes 1 and 2; training lacks class 2, and class 1 has 0.06 or 0.04 everywhere."""
    y = torch.zeros(100).long()
    y[:5], y[5:10] = 1, 2
    labels = torch.zeros(100).long()
    labels[:5] = 1
    for share, remedies in ((0.06, 1), (0.04, 0)):
        prediction = bnn.Prediction(dist.Categorical(probs=torch.tensor([0.9 - share, share, 0.1]).expand(2, 100, 3)))
        (found,) = never_predicted(prediction, y, labels)
        assert found.text.startswith("No example is predicted as 1, 2, though 10 of 100 are")
        assert found.text.endswith("its share in training is 0.05.")
        assert len(found.remedies) == remedies
    assert found.said() == found.text


def test_chains_are_offered_no_guide():
    model, data = bnn.BNN(bnn.MLP(1, [2], 1), prior=bnn.priors.Normal(1.0)), bnn.datasets.sinusoid(20)
    chains = bnn.fit(model, data, bnn.SGLD(step_size=1e-4, num_draws=4, burn_in=2, num_chains=1), progress=False)
    point = bnn.fit(model, data, bnn.SVI("map", steps=1), seed=0, progress=False)
    assert open_to(Fitted(chains), (other_guide,)) == ()
    assert open_to(Fitted(point), (other_guide,))[0].settings == ("guide.type=mean_field",)


def test_of_many_classes_a_rare_one_alone_is_not_judged():
    """Of 43 held-out examples 20 each are of two classes, and 3 of a third."""
    x = torch.tensor([[-1.0], [0.0], [1.0]]).repeat(50, 1)
    train = bnn.Data(x, (x[:, 0] + 1).long(), standardize=False)
    model = bnn.BNN(nn.Linear(1, 3), prior=bnn.priors.Normal(3.0), likelihood="categorical")
    posterior = model.fit(train, guide="laplace", seed=0, progress=False, steps=200)
    test = bnn.Data(
        torch.tensor([[-1.0]] * 20 + [[1.0]] * 20 + [[0.0]] * 3), torch.tensor([0] * 20 + [2] * 20 + [1] * 3)
    )
    found = {f.name: f for f in bnn.diagnose(posterior, train, test, num_draws=50, **FEW).findings}
    assert found["held-out data"].text.endswith(
        "of class 1 among the 43 held out, too few to judge the predictions of this class."
    )
    assert "on 43 held-out examples" in found["baseline"].text
    assert "confidence" in found


def test_with_held_out_examples_no_judgement_rests_on_training_examples():
    """A fit that follows the noise of 40 labels: it has memorised by new labels, and without them by those left out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=generator)
    y = (torch.rand(80, generator=generator) < 0.5).long()
    train, test = bnn.Data(x[:40], y[:40], standardize=False), bnn.Data(x[40:], y[40:], standardize=False)
    model = bnn.BNN(bnn.MLP(2, [50], 2), prior=bnn.priors.Normal(10.0), likelihood="categorical")
    posterior = model.fit(train, guide="map", steps=1000, lr=0.03, seed=0, progress=False)
    found = {f.name: f for f in bnn.diagnose(posterior, train, test, num_draws=20, **FEW).findings}
    assert found["memorised"].text.startswith("The fit has memorised its targets: a held-out example is")
    assert found["baseline"].kind != "fine"
    assert "on 40 held-out examples" in found["baseline"].text
    assert not [f for f in found.values() if "training example," in f.text]
    alone = {f.name: f for f in bnn.diagnose(posterior, train, num_draws=20, **FEW).findings}
    assert alone["memorised"].text.startswith("The fit has memorised its targets: a training example is")
    assert alone["baseline"].kind == "note"


def test_few_examples_are_called_few_and_a_rate_is_a_probability():
    model, train, test = linear_problem(0)
    posterior = exact_posterior(model, train)
    one = bnn.Data(test.x[:1], test.y[:1], standardize=False)
    few = "1 example is held out, too few to judge the predictions. To mend it, hold out 10 or more examples."
    assert few in bnn.diagnose(posterior, train, one).notes
    twelve = bnn.Data(test.x[:12], test.y[:12], standardize=False)
    few = "Only 12 examples were held out: calibration can hardly be judged. To mend it, hold out 20 or more examples."
    assert few in bnn.diagnose(posterior, train, twelve).notes
    with pytest.raises(bnn.InputError, match="`false_alarm_rate` must lie between 0 and 1, got 1.5"):
        bnn.diagnose(posterior, train, false_alarm_rate=1.5)


def test_few_examples_are_said_to_miss_intervals_that_are_too_narrow():
    """The bound is that of SciPy's exact interval; of 60 examples it is .876, near enough to .95."""
    for num in (20, 30):
        low = stats.binomtest(round(0.95 * num), num).proportion_ci(0.9, method="exact").low
        (note,) = of_few_rows(num)
        assert note.text.startswith(
            f"{num} examples held out cannot tell whether intervals of 95 % hold 95 or {low:.0%}"[:-1]
        )
    assert not of_few_rows(60)
    model, train, test = linear_problem(0)
    few = bnn.Data(test.x[:25], test.y[:25], standardize=False)
    verdict = bnn.diagnose(exact_posterior(model, train), train, few).verdict
    assert verdict.endswith(
        "25 examples held out cannot tell whether intervals of 95 % hold 95 or 82 % of new targets."
    )


@pytest.mark.slow
def test_many_members_are_simulated_too(monkeypatch):
    monkeypatch.setattr("pyrobnn.diagnostics.predictive_checks._FEWEST_SIMULATIONS", 1)
    model, train, test = linear_problem(0)
    mixture = bnn.Mixture([exact_posterior(model, train)] * 30)
    assert bnn.diagnose(mixture, train, test, num_draws=30, false_alarm_rate=0.5).findings


@pytest.mark.slow
def test_counts_take_fewer_draws():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 1, generator=generator)
    data = bnn.Data(x, torch.poisson(torch.exp(x[:, 0]), generator=generator))
    posterior = bnn.BNN(bnn.MLP(1, [3], 1), likelihood="poisson", prior=bnn.priors.Normal(1.0)).fit(
        data, seed=0, steps=150, lr=0.02, progress=False, engine="eager"
    )
    assert {"bias", "spread"} <= {f.name for f in bnn.diagnose(posterior, data, data, num_draws=500, **FEW).findings}


@pytest.mark.slow
def test_at_most_a_thousand_examples_are_taken(monkeypatch):
    model, train, test = linear_problem(0)
    posterior = exact_posterior(model, train)
    seen = []
    original = type(posterior).predict
    monkeypatch.setattr(type(posterior), "predict", lambda self, x, **o: seen.append(len(x)) or original(self, x, **o))
    many = bnn.Data(test.x.repeat(5, 1), test.y.repeat(5), standardize=False)
    bnn.diagnose(posterior, train, many, num_draws=10, **FEW)
    assert seen[0] == 1000


@pytest.mark.slow
def test_the_same_seed_gives_the_same_diagnosis_also_of_pairs():
    model, train, test = linear_problem(0)
    posterior = exact_posterior(model, train)
    before = torch.random.get_rng_state()
    pairs = [(each.x, each.y) for each in (train, test)]
    first = bnn.diagnose(copy.copy(posterior), train, test, num_draws=20, seed=3, **FEW)
    assert first == bnn.diagnose(posterior, *pairs, num_draws=20, seed=3, **FEW)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_verdict_tells_on_how_many_examples_it_rests():
    found = Diagnosis((Finding("b", "fine", "All right."),), 0.01, num_held_out=60)
    assert found.verdict.endswith("none of 1 checks on 60 held-out examples gave a reason not to.")


def test_more_examples_are_looked_at_where_a_class_is_rare():
    """Of 20,000 held out 40 are of class 1: 1000 of them would hold 2, too few to judge."""
    x = torch.randn(20_300, 1, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(20_300) % 500 == 0).long()
    model = bnn.BNN(nn.Linear(1, 2), likelihood="categorical", prior="normal")
    posterior = model.fit(bnn.Data(x[:300], y[:300]), guide="map", steps=5, progress=False)
    diagnosis = bnn.diagnose(posterior, (x[:300], y[:300]), (x[300:], y[300:]), num_draws=5, **FEW)
    assert diagnosis.num_held_out == 10_000
    assert "held-out data" not in {finding.name for finding in diagnosis.findings}


def true_fit(model, weights, x, y, num_train):
    """A fit whose mean has given weights, to the first rows of data, and these and the others."""
    train, test = (bnn.Data(x[p], y[p], standardize=False) for p in (slice(num_train), slice(num_train, None)))
    guide = bnn.guides.Laplace(structure="diag")
    return guide.around(model, train, weights=weights, progress=False), train, test


def true_line(slope, num, seed, noise=1.0):
    """A line of this slope through 300 and `num` targets of noise 1: a gain of slope^2 / 2 nats or so."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(300 + num, 1, generator=generator)
    y = slope * x[:, 0] + torch.randn(300 + num, generator=generator)
    weights = {"weight": torch.tensor([[slope]]), "bias": torch.zeros(1)}
    model = bnn.BNN(nn.Linear(1, 1), likelihood=bnn.likelihoods.Gaussian(noise), prior=bnn.priors.Normal(1.0))
    return true_fit(model, weights, x, y, 300)


def rare_labels(slope, seed, num=165):
    """The true logistic curve of a class of 6 % or so, 335 labels and `num` held out."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(335 + num, 1, generator=generator)
    y = (torch.rand(335 + num, generator=generator) < torch.sigmoid(1.3 * x[:, 0] - 3.3)).long()
    weights = {"weight": torch.tensor([[0.0], [slope]]), "bias": torch.tensor([0.0, -3.3])}
    model = bnn.BNN(nn.Linear(1, 2), likelihood="categorical", prior=bnn.priors.Normal(1.0))
    return true_fit(model, weights, x, y, 335)


def test_few_cases_of_a_rare_class_leave_the_use_of_a_fit_open():
    """15 of 165 are 'yes': a gain of 0.04 ± 0.03 nats, and an order that is better than guessing, by `mannwhitneyu`."""
    from scipy.stats import mannwhitneyu

    posterior, train, test = rare_labels(1.3, 2)
    found = bnn.diagnose(posterior, train, test, num_draws=50, class_names=("no", "yes"), **FEW)
    few = "15 examples of class 'yes' held out are too few to tell it from a constant"
    assert found.verdict == f"Whether it is of use is open: {few}, though it ranks better than guessing."
    assert found.next_step.python == "collect more examples of class 'yes'"
    assert "from these it learned too little" not in str(found)
    probs = posterior.predict(test.x, num_draws=50).class_probs[:, 1].numpy()
    for label in (0, 1):
        p_value = mannwhitneyu(probs[test.y == 1], probs[test.y == 0], alternative=("less", "greater")[label]).pvalue
        prediction = bnn.Prediction(dist.Categorical(probs=torch.tensor(np.stack([1 - probs, probs], 1))[None]))
        assert ranks_better(prediction, 1 - test.y if label == 0 else test.y, 1) == (p_value < 0.01) == (label == 1)
    assert not ranks_better(class_prediction(0.9, 100), torch.arange(100) % 2, 1)
    assert not ranks_better(class_prediction(0.9, 100), torch.ones(100), 1)


def test_a_linear_model_that_ranks_better_is_kept_where_a_network_finds_nothing():
    """A network that says the share of a class to all: the inputs are not to blame."""
    _, train, test = rare_labels(1.3, 0)
    weights = {
        "0.weight": torch.zeros(1, 1),
        "0.bias": torch.zeros(1),
        "2.weight": torch.zeros(2, 1),
        "2.bias": torch.tensor([0.0, math.log(float(train.y.double().mean()))]),
    }
    model = bnn.BNN(bnn.MLP(1, [1], 2, activation="tanh"), likelihood="categorical", prior=bnn.priors.Normal(0.01))
    x, y = torch.cat([train.x, test.x]), torch.cat([train.y, test.y])
    found = bnn.diagnose(*true_fit(model, weights, x, y, 335), num_draws=50, **FEW)
    assert "no better than those of a constant, though a linear model finds something in the inputs" in found.verdict
    assert "look for other inputs" not in str(found)
    (bad,) = (finding for finding in found.findings if finding.name == "baseline")
    assert "A linear model finds something in the inputs, though this may be chance." in bad.text
    assert [remedy.settings for remedy in bad.remedies[:2]] == [("net.hidden=[]",), ("fit.seed=1",)]
    assert found.next_step == bad.remedies[0]


def test_a_linear_model_that_is_as_good_comes_first_where_few_cases_leave_the_use_open():
    """A network that is almost the true line, and as one of no hidden layer."""
    _, train, test = rare_labels(1.3, 2)
    weights = {
        "0.weight": torch.tensor([[0.01]]),
        "0.bias": torch.zeros(1),
        "2.weight": torch.tensor([[0.0], [100.0]]),
        "2.bias": torch.tensor([0.0, -3.3]),
    }
    model = bnn.BNN(bnn.MLP(1, [1], 2, activation="tanh"), likelihood="categorical", prior=bnn.priors.Normal(1.0))
    x, y = torch.cat([train.x, test.x]), torch.cat([train.y, test.y])
    posterior, train, test = true_fit(model, weights, x, y, 335)
    found = bnn.diagnose(posterior, train, test, num_draws=50, class_names=("no", "yes"), **FEW)
    assert found.verdict.startswith("Whether it is of use is open: 15 examples of class 'yes' held out are too few")
    assert ". A linear model, which is simpler, predicts no worse on the mean. The most" in found.verdict
    assert found.next_step.settings == ("net.hidden=[]",)
    (note,) = (one for one in found.findings if one.name == "linear model")
    assert note.text.count("Log score above a constant's") == 1
    line = bnn.diagnose(*rare_labels(1.3, 2), num_draws=50, class_names=("no", "yes"), **FEW)
    assert "linear model" not in [one.name for one in line.findings]


def test_a_verdict_of_little_use_needs_the_power_to_see_a_gain(monkeypatch):
    """Gains of 0.07 ± 0.13 on 24 rows, and of 0.01 ± 0.02 on 200."""
    found = bnn.diagnose(*true_line(0.5, 24, 0), num_draws=50, **FEW)
    assert found.verdict == (
        "Whether it is of use is open: 24 examples held out are too few to tell it from a constant."
    )
    assert found.next_step.said("command") == "hold out 96 or more examples (--set data.test=0.3)"
    monkeypatch.setattr("pyrobnn.diagnostics.diagnosis._MOST_EXAMPLES", 24)
    found = bnn.diagnose(*true_line(0.5, 40, 2), num_draws=50, **FEW)
    assert "24 examples looked at are too few to tell it from a constant" in found.verdict
    assert found.next_step is None
    monkeypatch.undo()
    found = bnn.diagnose(*true_line(0.2, 200, 3), num_draws=50, **FEW)
    assert found.verdict.startswith("It is of little use yet: nothing was found that predicts better than a constant")
    assert found.next_step.python.endswith("from these it learned too little")


def test_a_fit_that_was_not_compared_with_a_constant_is_not_called_trusted(monkeypatch):
    monkeypatch.setattr("pyrobnn.diagnostics.diagnosis.fit_baselines", lambda *_: {})
    found = bnn.diagnose(*true_line(1.0, 100, 0), num_draws=50, **FEW)
    why = "it was not compared with a constant, as its likelihood has latent variables"
    assert found.verdict == f"Whether it is of use is open: {why}."
    assert found.notes[0] == f"The fit{why[2:]}."


def test_of_many_rows_it_is_said_how_many_were_looked_at():
    """Of 30,000 held out 15 are of class 1, and fewer than 10 of the 10,000 that are looked at; then 9 of 30,000."""
    x = torch.randn(30_300, 1, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(30_300) % 2000 == 150).long()
    model = bnn.BNN(nn.Linear(1, 2), likelihood="categorical", prior="normal")
    posterior = model.fit(bnn.Data(x[:300], y[:300]), guide="map", steps=5, progress=False)
    for every, end in ((15, "of 30000 held out that were looked at"), (9, "9 examples are of class 1 among the 30000")):
        held = y[300:].clone()
        held[held.nonzero()[every:, 0]] = 0
        found = bnn.diagnose(posterior, (x[:300], y[:300]), (x[300:], held), num_draws=5, **FEW)
        (few,) = [one for one in found.findings if one.name == "held-out data"]
        assert end in few.text
        assert bool(few.remedies) == (every == 9)
        assert found.num_held_out == 10_000


def test_the_verdict_comes_first_then_warnings():
    found = Diagnosis((Finding("a", "warning", "Beware."), Finding("b", "fine", "All right.")), 0.01)
    assert str(found).splitlines() == [
        "Do not trust it yet: its check of a failed (1 of 2 checks warns).",
        "! Beware.",
        "+ All right.",
        "Tests of ELBO and calibration raise a false alarm in at most 1% of cases.",
    ]
    baseline = Finding("baseline", "note", "A linear model is as good.", plain="a linear model is as good")
    lines = str(Diagnosis((*found.findings[:1], baseline), 0.01)).splitlines()
    assert [line[0] for line in lines] == ["D", "!", "-", "T"]
    assert str(Diagnosis((baseline,), 0.01)).splitlines()[0].endswith("reason not to. A linear model is as good.")


def along(y, x, names=(), draws=1):
    """The finding on inputs, where predictions are standard normal."""
    prediction = bnn.Prediction(dist.Normal(torch.zeros(draws, *y.shape), 1.0))
    simulated = prediction.sample(200, seed=0)
    directions = Directions.of(x, names)
    found = predictive_findings(prediction, y, simulated, 0.01, seed=0, directions=directions)
    return [one for one in found if one.name == "inputs"]


@pytest.mark.parametrize(
    ("changed", "words", "plain"),
    [
        (lambda x, e: e, "No clear sign that errors", ""),
        (lambda x, e: e * x.exp(), "Errors are larger where 'b' is high", "its errors are larger where 'b' is high"),
        (lambda x, e: e * (-x).exp(), "Errors are larger where 'b' is low", "its errors are larger where 'b' is low"),
        (lambda x, e: e * (x**2).exp(), "Errors are larger where 'b' is far from", "is far from its median, more than"),
        (lambda x, e: e / (1 + x**2), "Errors are larger where 'b' is near its", "is near its median, more than it"),
        (lambda x, e: e + x, "Targets lie above the predictions where 'b' is high", "too low where 'b' is high"),
        (lambda x, e: e - x, "Targets lie below the predictions where 'b' is high", "too high where 'b' is high"),
        (lambda x, e: e + x**2 - 1, "Targets lie above the predictions where 'b' is far", "'b' is far from its median"),
    ],
)
def test_errors_that_depend_on_an_input_name_it_and_the_direction(changed, words, plain):
    """300 standard normal targets that are changed along the second of three inputs; the number is Spearman's."""
    from scipy.stats import norm, spearmanr

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    y = changed(x[:, 1], torch.randn(300, generator=generator, dtype=torch.float64))
    (found,) = along(y, x, "abc")
    assert found.text.startswith(words)
    assert plain in found.plain
    assert found.kind == ("warning" if plain else "fine")
    if plain:
        away = norm.cdf(y.numpy()) - 0.5
        by = x[:, 1].numpy()
        direction = np.abs(by - np.median(by)) if "median" in words + plain else by
        value = spearmanr(np.abs(away) if "Errors" in words else away, direction).statistic
        assert f"is {value:.2f}, where" in found.text


def test_inputs_without_columns_of_numbers_are_left_out_and_target_columns_are_judged_together():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    noise = torch.randn(200, 2, generator=generator)
    assert along(noise[:, 0], (x > 0).double()) == []
    assert along(noise[:, 0], x[:, None, None]) == []
    y = noise * x[:, :1].exp()
    prediction = bnn.Prediction(dist.Normal(torch.zeros(1, 200, 2), 1.0).to_event(1))
    found = predictive_findings(
        prediction, y, prediction.sample(200, seed=0), 0.01, seed=0, directions=Directions.of(x, [])
    )
    assert "Errors are larger where 'column 0' is high" in found[-1].text


def test_inputs_with_gaps_are_judged_on_the_rows_that_have_them():
    """Errors grow along the second column, a fifth of which is missing; the last has two values beside gaps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    y = x[:, 1].exp() * torch.randn(300, generator=generator, dtype=torch.float64)
    x[:, 2] = (x[:, 2] > 0).double()
    x[torch.rand(x.shape, generator=generator) < 0.2] = torch.nan
    (found,) = along(y, x, "abc")
    assert found.text.startswith("Errors are larger where 'b' is high")
    assert "the clearest of 8." in found.text
    assert "nan" not in found.text
    assert along(y, x * torch.nan) == []


@pytest.mark.slow
def test_inputs_that_errors_do_not_depend_on_are_rarely_named():
    """60 sets of 40 targets under 4 inputs: below 5 % in at most 5 % and 3 standard errors of 2.8 %."""
    generator = torch.Generator().manual_seed(0)
    p_values = [
        along(torch.randn(40, generator=generator), torch.randn(40, 4, generator=generator))[0].p_value
        for _ in range(60)
    ]
    assert np.mean(np.array(p_values) < 0.05) < 0.134


@pytest.mark.slow
def test_the_advice_on_errors_along_an_input_mends_them():
    """Noise that grows along 'b', under each of two likelihoods; and a curve along 'c', which a line misses."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(900, 3))
    noise = np.exp(1.5 * x[:, 1]) * rng.normal(size=900)

    def diagnosed(y, hidden, likelihood, outputs, method):
        train, test = bnn.Data(x, y, standardize=True, feature_names=list("abc")).split(0.5, seed=0)
        model = bnn.BNN(bnn.MLP(3, hidden, outputs), likelihood=likelihood)
        return bnn.diagnose(bnn.fit(model, train, method, seed=0, progress=False), train, test)

    short = bnn.EvidenceFramework(starts=1, rounds=2, iterations=50)
    for kind, y in (("Gaussian", x[:, 0] + 0.3 * noise), ("LogNormal", np.exp(x[:, 0] + 0.1 * noise))):
        likelihood = getattr(bnn.likelihoods, kind)
        found = diagnosed(y, [10], likelihood(), 1, short)
        assert "inputs" in found.names
        assert f"{kind}('heteroscedastic')` and 2 outputs" in next(
            f.said() for f in found.findings if f.name == "inputs"
        )
        assert "inputs" not in diagnosed(y, [10], likelihood("heteroscedastic"), 2, bnn.SVI()).names

    y = x[:, 0] + 2 * x[:, 2] ** 2 + 0.3 * rng.normal(size=900)
    found = diagnosed(y, [], "gaussian", 1, short)
    assert found.next_step.settings == ("net.hidden=[50]",)
    assert "'c' is far from its median" in found.verdict
    assert diagnosed(y, [50], "gaussian", 1, short).warnings == ()
