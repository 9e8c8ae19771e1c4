"""`diagnose`: silent on good fits at its stated rate, and a warning for each way in which a fit is bad."""

import copy
import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn import likelihoods
from pyrobnn.diagnostics.checks import ALL_CHECKS, epistemic
from pyrobnn.diagnostics.predictive_checks import _OF_QUANTILES, level_of, predictive_tests, ranking_test, statistics_of
from pyrobnn.distributions.counts import Poisson
from pyrobnn.distributions.targets import TargetStudentT
from pyrobnn.verdict.evidence import Evidence
from pyrobnn.verdict.finding import templates
from pyrobnn.verdict.remedies import first

FEATURES, NUM_TRAIN, NUM_TEST, NOISE = 20, 40, 200, 0.3
RATE = 0.01
FEW = {"false_alarm_rate": 0.1}
"""A rate that takes a fifth of the simulations."""
SEEDS = range(10)
OF_NUMBERS = ["spread", "coverage", "bias", "noise", "surprise"]


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


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize("seeds", [[0], SEEDS])
def test_silence_on_good_fits(seeds):
    """10 exact posteriors at a rate of 1 %: 2 or more with a warning have a probability of 0.4 %."""
    found = [diagnosed(seed) for seed in seeds]
    assert sum(bool(one.warnings) for one in found) <= len(seeds) // 10
    assert not {name for one in found for name in one.names} & {"constant", "linear"}
    for name in ("bias", "spread", "noise", "surprise"):
        assert sum(len(named(one.findings, name)) for one in found) == len(seeds)


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
        tests = predictive_tests(prediction, test.y[:50], simulated, seed=seed)
        for name, p_values in found.items():
            p_values.append(tests[name].p)
    for p_values in found.values():
        assert kstest(p_values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("num", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"scale": 0.05}, {"spread", "surprise"}),
        ({"scale": 8.0}, {"spread", "surprise"}),
        ({"shift": 6.0}, {"surprise"}),
    ],
)
def test_posteriors_that_are_wrong_are_caught(change, names, num):
    """Of 4 exact posteriors made wrong, in all but one; so a single bad fit is caught in most cases."""
    found = [diagnosed(seed, **change) for seed in range(num)]
    assert sum(bool(names & set(one.names)) for one in found) >= num - num // 4


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("noise", "offset", "names", "is_high"),
    [
        (0.5 * NOISE, 0.0, ("spread",), True),
        (0.5 * NOISE, 0.0, ("coverage",), False),
        (2 * NOISE, 0.0, ("spread",), False),
        (NOISE, 0.5 * NOISE, ("bias",), True),
        (NOISE, -0.5 * NOISE, ("bias",), False),
    ],
)
def test_predictions_that_are_wrong_are_named(noise, offset, names, is_high):
    model, train, test = linear_problem(0, bnn.likelihoods.Gaussian(scale=noise))
    moved = bnn.Data(test.x, test.y + offset, standardize=False)
    found = bnn.diagnose(exact_posterior(model, train), train, moved, num_draws=200)
    for name in names:
        (one,) = named(found.findings, name)
        assert (one.kind, one.value > one.expected) == ("warning", is_high)


def named(findings, name):
    return [finding for finding in findings if finding.name == name]


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


def epistemic_of(prediction):
    return epistemic(SimpleNamespace(prediction=prediction))


def normal_prediction(spread, num=5):
    means = spread * torch.tensor([[-1.0], [1.0]]).expand(2, num)
    return bnn.Prediction(dist.Normal(means, torch.ones(2, num)))


def test_the_epistemic_part_is_missed_only_where_it_is_negligible():
    certain = bnn.Prediction(dist.Categorical(probs=torch.tensor([[[1.0, 0.0]]])))
    found = [epistemic_of(one) for one in (*map(normal_prediction, (0.1, 0.005, 0.0)), certain)]
    assert [one.kind for one in found] == ["fine", "warning", "warning", "warning"]
    assert [one.value for one in found] == pytest.approx([0.01 / 1.01, 2.5e-5, 0.0, 0.0], rel=1e-3)


def findings_of(prediction, y):
    """With predictions whose draws are all alike, these serve for the simulation too."""
    tests = predictive_tests(prediction, y, prediction.sample(200, seed=0), seed=0)
    return {name: test.finding(name, 0.0027 if name == "noise" else 0.01) for name, test in tests.items()}


def test_infinite_variances_and_columns_of_other_units():
    """t of 2 degrees of freedom; and two columns of which one, in the smaller unit, has no epistemic part."""
    means = torch.tensor([[-1.0], [1.0]]).expand(2, 5)
    heavy = bnn.Prediction(TargetStudentT(torch.full((2, 5), 2.0), means, torch.full((2, 5), 0.3)))
    assert epistemic_of(heavy).kind == "fine"
    columns = torch.stack([torch.zeros(2, 5), 1000 * means], -1)
    both = bnn.Prediction(dist.Normal(columns, torch.tensor([1.0, 1000.0])).to_event(1))
    found = epistemic_of(both)
    assert (found.value, found.facts["where"]) == (0, " of target column 0")


@pytest.mark.nightly
def test_single_errors_of_confident_classifiers_are_no_alarm():
    """Exact predictions of 0.999 for 100 labels, 80 times: at 0.01 a share of 0.01 + 3 standard errors of 0.011."""
    prediction = bnn.Prediction(dist.Categorical(probs=torch.tensor([0.999, 0.001]).expand(2, 100, 2)))
    simulated = prediction.sample(200, seed=0)
    truths = prediction.sample(80, seed=1)
    found = [predictive_tests(prediction, y, simulated, seed=0) for y in truths]
    for name in ("confidence", "surprise"):
        assert np.mean([one[name].p < 0.01 for one in found]) < 0.043


@pytest.mark.parametrize(
    ("name", "is_high", "likelihood", "settings"),
    [
        ("noise", True, likelihoods.Gaussian(1.0), ["likelihood.type=log_normal", "likelihood.type=gaussian"]),
        ("noise", True, likelihoods.Gaussian("heteroscedastic"), ["fit.type=ensemble"]),
        ("noise", False, likelihoods.StudentT(), ["likelihood.type=student_t", "fit.type=ensemble"]),
        ("surprise", False, likelihoods.Gaussian(1.0), ["likelihood.type=log_normal"]),
        ("surprise", False, likelihoods.Poisson(), ["likelihood.type=negative_binomial"]),
    ],
)
def test_remedies_of_noise_by_the_likelihood_and_the_targets(name, is_high, likelihood, settings):
    """Skewed amounts may be log-normal."""
    y = torch.exp(2 * torch.randn(50, generator=torch.Generator().manual_seed(0)))
    data = bnn.Data(y[:, None], y.round() if isinstance(likelihood, bnn.likelihoods.Poisson) else y)
    model = bnn.BNN(nn.Linear(1, likelihood.num_outputs(data.y)), likelihood=likelihood, prior="normal")
    evidence = Evidence(model.fit(data, guide="map", steps=1, progress=False), data)
    tries = templates()[f"{name} {'high' if is_high else 'low'}"].tries
    found = [first(evidence, (one,)) for one in tries]
    assert [one.settings[0] for one in found if one is not None][: len(settings)] == settings


@pytest.mark.parametrize(
    ("names", "counts", "is_offered"),
    [("0123", (20, 20, 10, 5), True), ("0123", (10, 15, 15, 15), False), ("abcd", (20, 20, 10, 5), False)],
)
def test_classes_that_may_be_counts_are_offered_a_poisson(names, counts, is_offered):
    y = torch.arange(4).repeat_interleave(torch.tensor(counts))
    data = bnn.Data(torch.randn(len(y), 1), y)
    fit = bnn.BNN(nn.Linear(1, 4), likelihood="categorical", prior="normal").fit(data, guide="map", steps=1)
    evidence = Evidence(fit, data, class_names=[*names])
    for key in ("few held-out data", "classes", "like linear"):
        found = first(evidence, templates()[key].tries[:1])
        assert (found is not None) == is_offered
    if is_offered:
        assert found.said("command").endswith("(--task regression --set likelihood.type=poisson)")
        assert found.said("estimator").endswith('`set_params(likelihood="poisson")`, in a `BNNRegressor`')


@pytest.mark.parametrize("kind", ["gaussian", "student_t", "poisson"])
def test_a_spec_takes_each_advice_for_predictions(kind, tmp_path):
    """A network gets the outputs that another likelihood needs: amounts with one column of numbers, or counts."""
    from pyrobnn.runs.spec import RunSpec, apply_overrides

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
    tries = {one for found in templates().values() if found.measure for one in found.tries}
    remedies = [first(Evidence(posterior, prepared.train), (one,)) for one in tries]
    changes = {remedy.settings for remedy in remedies if remedy is not None}
    assert len(changes) > 3
    for settings in changes:
        RunSpec.from_dict(apply_overrides(tables, settings)).prepare()


def growing_errors(power):
    """Noise of 0.2 around 300 log-normal means, where that of the targets is 0.2 times a power of the mean."""
    from scipy.stats import spearmanr

    generator = torch.Generator().manual_seed(0)
    mean = torch.exp(0.4 * torch.randn(300, generator=generator))
    y = mean + 0.2 * mean**power * torch.randn(300, generator=generator)
    return bnn.Prediction(dist.Normal(mean.expand(2, 300), 0.2)), y, spearmanr((y - mean).abs(), mean).statistic


def labelled(confidence):
    """Of 2000 labels 1600 are right."""
    law = dist.Categorical(probs=torch.tensor([confidence, 1 - confidence]).expand(3, 2000, 2))
    return bnn.Prediction(law), (torch.arange(2000) >= 1600).long(), 0.8 - confidence


def counted(y):
    """Counts beside 500 predictions of Poisson with mean 5."""
    return bnn.Prediction(Poisson(torch.full((4, 500), math.log(5.0)))), torch.as_tensor(y).float(), None


def standard(y, value):
    return bnn.Prediction(dist.Normal(torch.zeros(3, len(y)), 1.0)), y, value


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (
            lambda: standard(torch.randn(1000, generator=torch.Generator().manual_seed(0)) / 3, 1),
            {"coverage": "warning"},
        ),
        (lambda: standard(torch.arange(30.0), 0), {"noise": "fine"}),  # all alike: no correlation
        (lambda: growing_errors(0), {"noise": "fine"}),
        (lambda: growing_errors(1), {"noise": "warning"}),
        (lambda: growing_errors(-1), {"noise": "warning"}),
        (lambda: labelled(0.8), {"confidence": "fine"}),
        (lambda: labelled(0.9), {"confidence": "warning"}),
        (lambda: labelled(0.7), {"confidence": "warning"}),
        (lambda: counted(np.random.default_rng(0).negative_binomial(5, 0.5, 500)), {"spread": "warning"}),
        (lambda: counted(np.random.default_rng(0).poisson(5, 500)), dict.fromkeys(OF_NUMBERS, "fine")),
    ],
)
def test_findings_of_predictions(given, kinds):
    prediction, y, value = given()
    found = findings_of(prediction, y)
    assert [*found] == (["confidence", "surprise"] if "confidence" in kinds else OF_NUMBERS)
    assert {name: found[name].kind for name in kinds} == kinds
    assert value is None or found[next(iter(kinds))].value == pytest.approx(value, abs=1e-4)


def heteroscedastic(order, num=300, seed=0):
    """Predictions of mean 0 whose scales are those of the targets to a power: 1 right, 0 all alike, -1 upside down."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(torch.randn(num, generator=generator))
    jitter = 1 + 1e-3 * torch.rand(num, generator=generator)
    y = scale * torch.randn(num, generator=generator)
    return bnn.Prediction(dist.Normal(torch.zeros(2, num), jitter * scale**order)), y


@pytest.mark.parametrize(("order", "kind"), [(1, "fine"), (0, "fine"), (-1, "warning")])
def test_an_uncertainty_that_ranks_errors_upside_down(order, kind):
    assert ranking_test(*heteroscedastic(order), seed=0).finding("ranking", 0.00135).kind == kind


def test_uncertainties_without_an_order_are_not_judged():
    assert ranking_test(normal_prediction(0.0), torch.arange(5.0), seed=0) is None


@pytest.mark.nightly
def test_orders_by_chance_give_alarm_at_their_rate():
    """30 sets at 10 %: at most 10 % + 3 standard errors of 5.5 %."""
    found = [ranking_test(*heteroscedastic(0, 50, seed), seed=seed).p for seed in range(30)]
    assert np.mean([p < 0.1 for p in found]) < 0.265


def test_without_held_out_data_it_says_so():
    model, train, _ = linear_problem(0)
    found = bnn.diagnose(exact_posterior(model, train), train)
    assert (found.worst.name, found.mood) == ("no held-out data", "care")
    assert not {finding.name for finding in found.findings} & {"bias", "spread", "coverage", "surprise", "ranking"}
    assert [one.kind for one in named(found.findings, "k-hat")] == ["fine"]  # q is exact
    assert bnn.diagnose(exact_posterior(model, train), train, train).worst.name == "seen held-out data"


@pytest.mark.slow
def test_khat_is_noted_and_never_warned_of_and_points_have_none():
    model, train, test = linear_problem(0)
    for scale, is_finite in ((0.3, True), (1e3, False)):
        found = bnn.diagnose(exact_posterior(model, train, scale=scale), train, test, num_draws=100, **FEW)
        (note,) = named(found.findings, "k-hat")
        assert (note.kind, math.isfinite(note.value)) == ("note", is_finite)
    point = model.fit(train, seed=0, guide="map", steps=200, lr=0.05, progress=False, engine="eager")
    found = bnn.diagnose(point, train, test, num_draws=10, **FEW)
    assert "epistemic" in found.names
    assert named(found.findings, "k-hat") == []


@pytest.mark.slow
@pytest.mark.parametrize(("rare", "judged"), [(9, False), (10, True), (0, False)])
def test_predictions_of_a_class_with_few_held_out_examples_are_not_judged(rare, judged):
    """A fit that is good and tests that are not: 30 examples of class 0 at inputs of class 1, and a few of class 1."""
    x = torch.tensor([[-1.0], [1.0]]).repeat(100, 1)
    train = bnn.Data(x, (x[:, 0] > 0).long(), standardize=False)
    model = bnn.BNN(nn.Linear(1, 2), prior=bnn.priors.Normal(3.0), likelihood="categorical")
    posterior = model.fit(train, guide="mean_field", seed=0, steps=300, lr=0.05, progress=False)
    test = bnn.Data(torch.ones(30 + rare, 1), torch.tensor([0] * 30 + [1] * rare), standardize=False)
    found = bnn.diagnose(posterior, train, test, seed=0, num_draws=50, class_names=("no", "yes"), **FEW)
    assert bool({*found.names} - {"elbo"}) == judged
    (never,) = named(found.findings, "classes")
    assert never.facts["missed"] == "'no'"
    few = named(found.findings, "few held-out data")
    assert [one.value for one in few] == ([] if judged else [rare])
    compared = {"constant", "linear", "few", "like linear"} & {one.name for one in found.findings}
    assert bool(compared) == judged  # training examples do not stand in
    if few:
        assert few[0].facts["examples"] == f"{rare} examples of class 'yes'"
        assert few[0].remedy.settings == (f"data.test={ {0: 0.11, 9: 0.1}[rare] }",)


def test_a_rare_class_that_is_never_predicted_has_a_threshold():
    """12 of 200 labels held out are of class 1, whose probability is its share everywhere."""
    share = 0.06
    weights = {"weight": torch.zeros(2, 1), "bias": torch.tensor([0.0, math.log(share / (1 - share)) + 0.02])}
    model = bnn.BNN(nn.Linear(1, 2), likelihood="categorical", prior=bnn.priors.Normal(1e-3))
    y = (torch.arange(500) % 50 < 3).long()
    posterior, train, test = true_fit(model, weights, torch.randn(500, 1), y, 300)
    found = bnn.diagnose(posterior, train, test, num_draws=20, class_names=("no", "yes"), **FEW)
    (rare,) = named(found.findings, "classes")
    assert (rare.kind, rare.value) == ("note", 12)
    assert "`prediction.class_probs[:, 1] > 0.06`" in rare.said()
    assert "prob_yes is above 0.06, which finds 12 of 12 among 200" in rare.said("command")


def test_of_many_classes_a_rare_one_alone_is_not_judged():
    """Of 43 held-out examples 20 each are of two classes, and 3 of a third."""
    x = torch.tensor([[-1.0], [0.0], [1.0]]).repeat(50, 1)
    train = bnn.Data(x, (x[:, 0] + 1).long(), standardize=False)
    model = bnn.BNN(nn.Linear(1, 3), prior=bnn.priors.Normal(3.0), likelihood="categorical")
    posterior = model.fit(train, guide="laplace", seed=0, progress=False, steps=200)
    places = torch.tensor([-1] * 20 + [1] * 20 + [0] * 3)
    test = bnn.Data(places[:, None].float(), places + 1)
    found = {f.name: f for f in bnn.diagnose(posterior, train, test, num_draws=50, **FEW).findings}
    assert found["few held-out data"].value == 3
    assert {"better", "like linear", "near linear", "linear"} & {*found}
    assert "confidence" in found


@pytest.mark.slow
def test_with_held_out_examples_no_judgement_rests_on_training_examples():
    """A fit that follows the noise of 40 labels: it has memorised by new labels, and without them by those left out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=generator)
    y = (torch.rand(80, generator=generator) < 0.5).long()
    train, test = bnn.Data(x[:40], y[:40], standardize=False), bnn.Data(x[40:], y[40:], standardize=False)
    model = bnn.BNN(bnn.MLP(2, [50], 2), prior=bnn.priors.Normal(10.0), likelihood="categorical")
    posterior = model.fit(train, guide="map", steps=1000, lr=0.03, seed=0, progress=False)
    found = {f.name: f for f in bnn.diagnose(posterior, train, test, num_draws=20, **FEW).findings}
    (beside,) = {"constant", "linear", "few"} & {*found}
    assert found[beside].facts["rows"] == "40 held-out examples"
    alone = {f.name: f for f in bnn.diagnose(posterior, train, num_draws=20, **FEW).findings}
    assert (found["memorised"].kind, alone["memorised"].kind, alone["open"].kind) == ("warning", "warning", "note")


def test_statistics_share_the_rate_and_one_has_a_level_of_its_own(monkeypatch):
    model, train, test = linear_problem(0)
    evidence = Evidence(exact_posterior(model, train), train, test)
    assert level_of(evidence) == 0.05 / 4
    monkeypatch.setitem(_OF_QUANTILES, "last", lambda away, medians: float(away[-1]))
    assert level_of(evidence) == 0.05 / 5
    assert statistics_of(evidence.prediction) == [*OF_NUMBERS[:-1], "last", "surprise"]


def test_few_examples_are_called_few_and_a_rate_is_a_probability():
    model, train, test = linear_problem(0)
    posterior = exact_posterior(model, train)
    for num, least in ((1, 10), (12, 20)):
        few = bnn.Data(test.x[:num], test.y[:num], standardize=False)
        (note,) = named(bnn.diagnose(posterior, train, few, num_draws=50, **FEW).findings, "few held-out data")
        assert (note.severity, note.value) == ("care", num)
        assert note.remedy.words == f"hold out {least} or more examples"
    with pytest.raises(bnn.InputError, match="`false_alarm_rate` must lie between 0 and 1, got 1.5"):
        bnn.diagnose(posterior, train, false_alarm_rate=1.5)


@pytest.mark.slow
def test_many_members_are_simulated_too(monkeypatch):
    monkeypatch.setattr("pyrobnn.diagnostics.checks._FEWEST_SIMULATIONS", 1)
    model, train, test = linear_problem(0)
    mixture = bnn.Mixture([exact_posterior(model, train)] * 30)
    assert bnn.diagnose(mixture, train, test, num_draws=30, false_alarm_rate=0.5).findings


@pytest.mark.slow
def test_the_same_seed_gives_the_same_diagnosis_also_of_pairs():
    model, train, test = linear_problem(0)
    posterior = exact_posterior(model, train)
    before = torch.random.get_rng_state()
    pairs = [(each.x, each.y) for each in (train, test)]
    first = bnn.diagnose(copy.copy(posterior), train, test, num_draws=20, seed=3, **FEW)
    assert first == bnn.diagnose(posterior, *pairs, num_draws=20, seed=3, **FEW)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.slow
def test_more_examples_are_looked_at_where_a_class_is_rare():
    """Of 20,000 held out 40 are of class 1: 1000 of them would hold 2, too few to judge."""
    x = torch.randn(20_300, 1, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(20_300) % 500 == 0).long()
    model = bnn.BNN(nn.Linear(1, 2), likelihood="categorical", prior="normal")
    posterior = model.fit(bnn.Data(x[:300], y[:300]), guide="map", steps=5, progress=False)
    diagnosis = bnn.diagnose(posterior, (x[:300], y[:300]), (x[300:], y[300:]), num_draws=5, **FEW)
    assert diagnosis.num_held_out == 10_000
    assert "few held-out data" not in {finding.name for finding in diagnosis.findings}


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
    """15 of 165 are 'yes': a gain of 0.04 ± 0.03 nats."""
    posterior, train, test = rare_labels(1.3, 2)
    found = bnn.diagnose(posterior, train, test, num_draws=50, class_names=("no", "yes"), **FEW)
    assert (found.worst.name, found.worst.facts["examples"]) == ("few", "15 examples of class 'yes'")
    assert found.next_step.words == "collect more examples of class 'yes'"


def test_the_use_of_a_fit_is_open_where_rows_are_too_few_to_see_a_gain():
    """Gains of 0.07 ± 0.13 on 24 rows, and of 0.01 ± 0.02 on 200, of which 0.02 is the best."""
    found = bnn.diagnose(*true_line(0.5, 24, 0), num_draws=50, **FEW)
    assert (found.worst.name, found.worst.severity) == ("few", "open")
    assert found.next_step.said("command") == "hold out 96 or more examples (--set data.test=0.3)"
    found = bnn.diagnose(*true_line(0.2, 200, 3), num_draws=50, **FEW)
    assert (found.worst.name, found.worst.severity) == ("few", "open")


def test_a_fit_that_was_not_compared_with_a_constant_is_not_called_trusted(monkeypatch):
    monkeypatch.setattr("pyrobnn.verdict.evidence.fit_baselines", lambda *_, **__: {})
    found = bnn.diagnose(*true_line(1.0, 100, 0), num_draws=50, **FEW)
    assert (found.worst.name, found.worst.severity) == ("not compared", "open")


def test_an_exact_line_is_not_blamed_for_the_last_digits():
    """Errors of 1e-5, where the linear model has 1e-15."""
    x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    weights = {"weight": torch.full((1, 1), 2 + 1e-5), "bias": torch.zeros(1)}
    model = bnn.BNN(nn.Linear(1, 1), likelihood=bnn.likelihoods.Gaussian(1e-4), prior=bnn.priors.Normal(1.0))
    posterior, train, test = true_fit(model, weights, x, 2 * x[:, 0], 40)
    found = bnn.diagnose(posterior, train, test, num_draws=50)
    assert (found.warnings, {one.name for one in found.findings} & {"error", "spread"}) == ((), set())


def test_pure_noise_asks_for_other_columns_once_the_prior_is_tuned():
    x, y = (torch.randn(80, size, generator=torch.Generator().manual_seed(size)) for size in (3, 1))
    model = bnn.BNN(bnn.MLP(3, [20], 1), prior=bnn.priors.Normal(1.0))
    data = bnn.Data(x, y[:, 0], standardize=True)
    for method, is_asked in ((bnn.EvidenceFramework(starts=1), True), (bnn.SVI(guide="map", steps=5), False)):
        evidence = Evidence(bnn.fit(model, data, method, seed=0, progress=False), data)
        assert (first(evidence, ("other_inputs",)) is not None) == is_asked


def test_rows_that_the_fit_has_not_seen_are_not_taken_for_its_training_rows():
    posterior, train, test = true_line(1.0, 30, 0)
    fitted = posterior.with_fields(record=dataclasses.replace(posterior.record, num_data=len(train)))
    with pytest.raises(bnn.InputError, match="`train` has 30 rows, the fit had 300"):
        bnn.diagnose(fitted, test)


def test_held_out_groups_are_counted():
    posterior, train, test = true_line(1.0, 100, 0)
    grouped = bnn.Data(test.x, test.y, groups=torch.arange(100) // 10)
    found = bnn.diagnose(posterior, train, grouped, num_draws=50, **FEW)
    assert "on 100 held-out examples of 10 groups" in found.conclusion


def chained(name):
    """Slopes (chain, draw) of four chains."""
    noise = torch.randn(4, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slow = noise.clone()
    for at in range(1, 200):
        slow[:, at] = 0.85 * slow[:, at - 1] + (1 - 0.85**2) ** 0.5 * noise[:, at]
    places = torch.tensor([[1.0], [1.0], [1.0], [1.0]], dtype=torch.float64)
    return {
        "good": places + 0.1 * noise,
        "slow, a tenth of the noise": places + 0.05 * slow,
        "slow, without noise": places + 5 * slow,
        "two modes": places * torch.tensor([[-1.0], [-1.0], [1.0], [1.0]]) + 0.1 * noise,
        "one far away": places + torch.tensor([[0.0], [0.0], [0.0], [9.0]]) + 0.1 * noise,
        "one that is stuck": places + 0.1 * noise * torch.tensor([[0.0], [1.0], [1.0], [1.0]]),
        "all stuck": places + 0 * noise,
        "single": places[:1] + 0.1 * noise[:1],
    }[name]


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("good", ("chains", "fine")),
        ("slow, a tenth of the noise", ("chains rough", "note")),
        ("slow, without noise", ("chains apart", "warning")),
        ("two modes", ("chains apart", "warning")),
        ("one far away", ("chains apart", "warning")),
        ("one that is stuck", ("chains apart", "warning")),
        ("all stuck", ("chains stuck", "warning")),
        ("single", ("chains unknown", "warning")),
    ],
)
def test_chains_are_judged_by_the_error_of_their_predictions(name, finding):
    slopes = chained(name)
    model = bnn.BNN(nn.Linear(1, 1).double(), likelihood=bnn.likelihoods.Gaussian(0.5), prior=bnn.priors.Normal(1.0))
    data = bnn.Data(torch.linspace(-1, 1, 30).double()[:, None], torch.linspace(-1, 1, 30).double())
    posterior = model.fit(data, guide="map", steps=1, progress=False)
    guide = bnn.guides.Empirical(num_chains=len(slopes), num_draws=200).build(posterior.bnn, *posterior.example)
    guide.chains = lambda: {"weight": slopes[..., None, None], "bias": torch.zeros(len(slopes), 200, 1).double()}
    guide.sample_stats = lambda: {"diverging": torch.arange(800) < 3}
    evidence = Evidence(posterior.with_fields(guide=guide), data)
    found, diverged = (ALL_CHECKS[name](evidence) for name in ("chains", "divergences"))
    assert ((found.name, found.severity), diverged.value) == (finding, 3)
