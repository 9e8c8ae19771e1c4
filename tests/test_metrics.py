"""Scores against scikit-learn and SciPy, what rests on an order, confusion, and the importance of columns."""

import math
from contextlib import nullcontext

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from matplotlib import colors as colours
from scipy import stats
from sklearn import metrics as sk
from sklearn.metrics import confusion_matrix

import pyrobnn as bnn
from pyrobnn import InputError, Prediction, plots
from pyrobnn.metrics import (
    Score,
    compare_scores,
    confusion,
    ood_measures,
    permutation_importance,
    reliability_bins,
    score,
    score_ood,
    selective_risk,
    sparsification,
)
from pyrobnn.metrics.base import Statistic, bootstrap, finish, mean_of
from pyrobnn.metrics.calibration import uniformity_error
from pyrobnn.metrics.curves import receiver_operating, risk_by_coverage, sparsification_error
from pyrobnn.plots._colors import BLUE, ORANGE


def normals(num_inputs, *event, num_draws=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(num_draws, num_inputs, *event, generator=generator, dtype=torch.float64)
    scale = 0.5 + torch.rand(num_draws, num_inputs, *event, generator=generator, dtype=torch.float64)
    return Prediction(dist.Normal(loc, scale).to_event(len(event)))


def classes(num_inputs, num_classes=3, num_draws=5, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(num_draws, num_inputs, num_classes, generator=generator, dtype=torch.float64)
    return Prediction(dist.Categorical(logits=logits))


def test_errors_of_the_mean_agree_with_sklearn():
    prediction, y = normals(400), np.random.default_rng(0).normal(size=400)
    found, mean = score(prediction, y), prediction.mean.numpy()
    assert found["rmse"].value == pytest.approx(sk.root_mean_squared_error(y, mean))
    assert found["mae"].value == pytest.approx(sk.mean_absolute_error(y, mean))
    assert found["mae"].stderr == pytest.approx(np.abs(y - mean).std(ddof=1) / 20)
    assert found["median_error"].value == pytest.approx(sk.median_absolute_error(y, mean))
    assert found["r2"].value == pytest.approx(sk.r2_score(y, mean))
    assert [found[name].higher_is_better for name in ("rmse", "mae", "median_error", "r2")] == [False] * 3 + [True]


def test_bootstrap_errors_are_those_of_the_delta_method():
    """200 resamples give a standard error to 5 %; the tolerance is 4 times that, the seed fixed."""
    prediction, y = normals(400), np.random.default_rng(0).normal(size=400)
    found, squared = score(prediction, y), ((prediction.mean.numpy() - y) ** 2)
    assert found["rmse"].stderr == pytest.approx(squared.std() / 20 / (2 * found["rmse"].value), rel=0.2)
    ratio = (squared - squared.mean() / y.var() * (y - y.mean()) ** 2) / y.var()
    assert found["r2"].stderr == pytest.approx(ratio.std() / 20, rel=0.2)


def test_bootstrap_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(3).exponential(size=500)
    both = {"mean": mean_of(values), "other": Statistic(mean_of(values).of)}
    scores = finish(both, 500)
    assert scores["mean"].value == scores["other"].value == pytest.approx(values.mean())
    assert scores["mean"].stderr == pytest.approx(values.std(ddof=1) / math.sqrt(500))
    assert scores["other"].stderr == pytest.approx(scores["mean"].stderr, rel=0.2)


def test_bootstrap_resamples_groups_by_themselves():
    sums = {"first": lambda weights: float(weights[:30].sum()), "third": lambda weights: float(weights[2])}
    errors = bootstrap(sums, (30, 50))
    assert errors["first"] == 0.0
    assert errors["third"] == pytest.approx(1.0, rel=0.2)
    assert math.isnan(bootstrap(sums, (30, 1))["first"])


@pytest.mark.slow
def test_the_spread_of_scores_over_many_test_sets_is_the_standard_error():
    """100 test sets of 200 examples give the standard deviation of a score to 7 %; 3.5 times that is allowed."""
    rng, everyone = np.random.default_rng(5), np.ones(200)
    values, errors = {}, {}
    for round_number in range(100):
        doubt = rng.random(200)
        wrong = rng.random(200) < doubt**2
        functions = {
            "auroc": receiver_operating(wrong, doubt)["auroc"],
            "ause": sparsification_error(wrong.astype(float), doubt, root=True),
            "pit_error": uniformity_error(doubt**1.5),
        }
        for name, of in functions.items():
            values.setdefault(name, []).append(of(everyone))
        if round_number % 50 == 0:
            for name, error in bootstrap(functions, (200,)).items():
                errors.setdefault(name, []).append(error)
    for name, found in values.items():
        assert np.std(found) == pytest.approx(np.sqrt(np.mean(np.square(errors[name]))), rel=0.25), name


def test_scores_of_a_standard_normal_by_hand():
    prediction = Prediction(dist.Normal(torch.zeros(1, 4, dtype=torch.float64), 1.0))
    scores = score(prediction, [0.0, 1.0, -1.0, 3.0])
    logs = -0.5 * math.log(2 * math.pi) - 0.5 * np.array([0.0, 1.0, 1.0, 9.0])
    assert scores["log_likelihood"].value == pytest.approx(logs.mean())
    assert scores["log_likelihood"].stderr == pytest.approx(logs.std(ddof=1) / 2)
    assert scores["coverage_95"].value == 0.75
    assert scores["coverage_95"].stderr == pytest.approx(math.sqrt(0.25 * 0.75 / 3))
    assert scores["width_95"].value == pytest.approx(2 * 1.959964, abs=1e-5)
    assert scores["width_95"].stderr == pytest.approx(0.0, abs=1e-9)
    assert str(scores["coverage_95"]) == "0.75 ± 0.25"


@pytest.mark.parametrize(
    ("value", "stderr", "text"),
    [
        (16548.568, 2351.985, "16500 ± 2400"),
        (0.8712, 0.0123, "0.871 ± 0.012"),
        (0.2, 0.0996, "0.20 ± 0.10"),  # rounding the error up takes a digit away
        (123456.0, 99.6, "123460 ± 100"),
        (-3.0, 2400.0, "0 ± 2400"),
        (20.4361, 0.0, "20.44 ± 0"),
        (20.4361, 4.6e-16, "20.44 ± 0"),
        (0.0, 0.0, "0.000 ± 0"),
        (250123.0, math.nan, "250100"),
        (4.183, 3e-12, "4.183 ± 3e-12"),
        (2e12, 3e11, "2e+12 ± 3e+11"),
        (-math.inf, math.nan, "-inf"),
    ],
)
def test_scores_are_written_to_the_second_digit_of_their_error(value, stderr, text):
    assert str(Score(value, stderr, higher_is_better=True)) == text


@pytest.mark.parametrize(("scale", "is_few"), [(0.3, False), (1e-4, True)])
def test_a_log_score_of_few_draws_is_told(scale, is_few):
    """The exact mixture of narrow normals around draws of N(0, 1) is N(0, 1 + scale^2)."""
    y, loc = torch.linspace(-2, 2, 20).double(), np.random.default_rng(0).normal(size=(500, 20))
    prediction = Prediction(dist.Normal(torch.as_tensor(loc), scale))
    with pytest.warns(bnn.FewDrawsWarning, match="fewer than 5 of 500") if is_few else nullcontext():
        found = score(prediction, y)["log_likelihood"].value
    error = abs(found - float(dist.Normal(0.0, math.hypot(1, scale)).log_prob(y).mean()))
    assert error > 1 if is_few else error < 0.05


def test_names_and_levels_of_real_targets():
    y = [0.1, 1.0, -1.0]
    usual, others = score(normals(3), y), score(normals(3), y, levels=[0.999])
    each = ("coverage", "width", "interval_score")
    of_levels = [f"{name}_{level}" for level in (50, 80, 90, 95) for name in each]
    rest = ["log_likelihood", "crps", "rmse", "mae", "median_error", "r2"], ["pit_error", "ause"]
    assert list(usual) == [*rest[0], *of_levels, *rest[1]]
    assert list(others) == [*rest[0], *(f"{name}_99.9" for name in each), *rest[1]]


def test_columns_are_averaged_and_scored_each_by_itself():
    base, unit = normals(20, 2)._base, torch.tensor([1.0, 100.0], dtype=torch.float64)
    y = np.random.default_rng(0).normal(size=(20, 2)) * unit.numpy()
    found = score(Prediction(dist.Normal(base.loc * unit, base.scale * unit).to_event(1)), y)
    columns = zip((base.loc * unit).unbind(-1), (base.scale * unit).unbind(-1), y.T, strict=True)
    each = [score(Prediction(dist.Normal(loc, scale)), targets) for loc, scale, targets in columns]
    names = set(found) - {"log_likelihood", "energy_score"}
    assert names == set(each[0]) - {"log_likelihood"}
    for name in names:
        assert found[name].value == pytest.approx(np.mean([alone[name].value for alone in each])), name
    for scores, alone in zip(found.by_column, each, strict=True):
        assert list(scores) == ["rmse", "mae", "median_error", "r2", "coverage_95", "width_95"]
        for name, entry in scores.items():
            assert (entry.value, entry.stderr) == pytest.approx((alone[name].value, alone[name].stderr)), name
    assert f"column 2: rmse {found.by_column[1]['rmse']}" in repr(found)


def test_edge_cases():
    assert not any(score(normals(1, *columns), np.zeros((1, *columns))).by_column for columns in ((), (21,)))
    assert all(math.isnan(entry.stderr) for entry in score(normals(1), [0.3]).values())
    assert all(math.isnan(entry.stderr) for entry in score(classes(1, 3), [0]).values())
    exact = score(Prediction(dist.Normal(torch.zeros(1, 3), 1.0)), [0.0, 0.0, 0.0])["rmse"]
    assert (exact.value, exact.stderr) == (0.0, 0.0)
    certain = score(Prediction(dist.Categorical(logits=torch.tensor([[[50.0, -50.0], [-50.0, 50.0]]]))), [0, 1])
    assert [certain[name].value for name in ("accuracy", "brier", "ece")] == pytest.approx([1.0, 0.0, 0.0])


def test_what_is_not_defined_is_left_out():
    constant = score(normals(3), [1.0, 1.0, 1.0])
    assert "r2" not in constant
    assert {"rmse", "ause"} <= set(constant)
    without_cdf = score(Prediction(dist.Poisson(torch.full((2, 3), 4.0))), [1.0, 4.0, 5.0])
    assert list(without_cdf) == ["log_likelihood", "rmse", "mae", "median_error", "r2", "ause"]
    assert "auroc" not in score(classes(4, 3), [1, 1, 1, 1])
    assert "auroc" in score(classes(4, 3), [1, 1, 1, 2])


@pytest.mark.parametrize(
    ("num", "all_told", "has_error"),
    [(1, True, False), (1, False, False), (9, True, False), (9, False, True), (10, True, True)],
)
def test_an_auroc_of_one_case_or_of_few_that_are_all_told_has_no_standard_error(num, all_told, has_error):
    """All resamples that hold the cases agree, which says nothing of the next case."""
    y, spread = np.arange(60) < num, np.random.default_rng(0).uniform(size=60)
    probs = np.where(y, 0.9, 0.8 * spread) if all_told else spread
    found = score(Prediction(dist.Bernoulli(torch.tensor(probs)[None])), y.astype(int))["auroc"]
    assert (found.value == 1) == all_told
    assert math.isfinite(found.stderr) == has_error
    assert ("±" in str(found)) == has_error
    other = Prediction(dist.Bernoulli(torch.tensor(spread)[None]))
    row = compare_scores(Prediction(dist.Bernoulli(torch.tensor(probs)[None])), other, y.astype(int)).loc["auroc"]
    assert math.isfinite(row["stderr"]) == math.isfinite(row["p_value"]) == has_error


@pytest.mark.parametrize("num_classes", [2, 4])
def test_classification_agrees_with_sklearn(num_classes):
    from torchmetrics.functional.classification import multiclass_calibration_error

    prediction = classes(300, num_classes)
    y = np.random.default_rng(0).integers(num_classes, size=300)
    y[:num_classes] = range(num_classes)
    scores, probs = score(prediction, y), prediction.class_probs.numpy()
    squared = ((probs - np.eye(num_classes)[y]) ** 2).sum(1)
    assert scores["accuracy"].value == sk.accuracy_score(y, probs.argmax(1))
    assert scores["log_likelihood"].value == pytest.approx(-sk.log_loss(y, probs))
    assert scores["brier"].value == pytest.approx(squared.mean())
    assert scores["brier"].stderr == pytest.approx(squared.std(ddof=1) / math.sqrt(300))
    assert scores["brier"].value == pytest.approx(sk.brier_score_loss(y, probs, scale_by_half=False))
    library = multiclass_calibration_error(prediction.class_probs, torch.as_tensor(y), num_classes, n_bins=15)
    assert scores["ece"].value == pytest.approx(float(library), abs=1e-6)
    auroc = sk.roc_auc_score(y, probs[:, 1]) if num_classes == 2 else sk.roc_auc_score(y, probs, multi_class="ovr")
    assert scores["auroc"].value == pytest.approx(auroc)
    better = {name for name, entry in scores.items() if entry.higher_is_better}
    assert better == {"accuracy", "log_likelihood", "auroc"}


def test_a_classifier_that_is_too_sure():
    """Probability 0.9, right 70 times of 100: the gap is 0.2, whatever the bins."""
    prediction = Prediction(dist.Categorical(probs=torch.tensor([0.9, 0.1]).double().expand(1, 100, 2)))
    y = (torch.arange(100) >= 70).long()
    found = score(prediction, y)["ece"]
    assert found.value == pytest.approx(0.2)
    assert found.stderr == pytest.approx(math.sqrt(0.7 * 0.3 / 100), rel=0.2)


def test_reliability_bins_add_up_to_the_calibration_error():
    prediction, y = classes(300, 4), np.random.default_rng(0).integers(4, size=300)
    bins = reliability_bins(prediction, y)
    assert bins.count.sum() == 300
    error = (bins.count * np.abs(bins.accuracy - bins.confidence)).sum() / 300
    assert error == pytest.approx(score(prediction, y)["ece"].value)


def test_binary_targets_score_as_two_classes_and_columns_of_them_are_averaged():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).double()
    y = torch.arange(50) % 2
    two = torch.stack([torch.zeros_like(logits), logits], -1)
    distributions = dist.Bernoulli(logits=logits), dist.Categorical(logits=two)
    binary, both = (score(Prediction(one), y) for one in distributions)
    for name, entry in binary.items():
        assert entry.value == pytest.approx(both[name].value), name
        assert entry.stderr == pytest.approx(both[name].stderr), name
    logits, y = torch.stack([logits.flip(1), logits], -1), (torch.arange(100) % 3 == 0).long().reshape(50, 2)
    scores = score(Prediction(dist.Bernoulli(logits=logits).to_event(1)), y)
    each = [score(Prediction(dist.Bernoulli(logits=logits[..., k])), y[:, k]) for k in range(2)]
    for name in ("accuracy", "brier", "auroc", "aurc", "ause"):
        assert scores[name].value == pytest.approx(np.mean([s[name].value for s in each])), name


def centred(std, num_draws=2):
    std = torch.as_tensor(std, dtype=torch.float64)
    return Prediction(dist.Normal(torch.zeros(num_draws, *std.shape).double(), std))


def test_risk_is_the_mean_error_of_the_surest():
    rng = np.random.default_rng(0)
    errors, uncertainty = rng.random(50), rng.random(50)
    order = np.argsort(uncertainty)
    expected = [errors[order[:k]].mean() for k in range(1, 51)]
    np.testing.assert_allclose(risk_by_coverage(errors, uncertainty)(np.ones(50)), expected)


def test_weights_count_examples_several_times():
    rng = np.random.default_rng(0)
    errors, uncertainty, weights = rng.random(30), rng.random(30), rng.integers(0, 3, size=30)
    repeated = [np.repeat(values, weights) for values in (errors, uncertainty)]
    expected = risk_by_coverage(*repeated)(np.ones(weights.sum()))
    found = risk_by_coverage(errors, uncertainty)(weights.astype(float))
    ends = weights[np.argsort(uncertainty)].cumsum()
    np.testing.assert_allclose(found[ends > 0], expected[ends[ends > 0] - 1])


def test_equally_uncertain_examples_are_in_no_order():
    """The curve is the mean over all orders of the examples with the same uncertainty."""
    errors, uncertainty = np.array([3.0, 1.0, 0.0, 2.0]), np.array([1.0, 1.0, 0.0, 1.0])
    orders = [(0.0, a, b, c) for a in (1, 2, 3) for b in {1, 2, 3} - {a} for c in {1, 2, 3} - {a, b}]
    expected = np.mean([np.cumsum(order) / np.arange(1, 5) for order in orders], 0)
    np.testing.assert_allclose(risk_by_coverage(errors, uncertainty)(np.ones(4)), expected)


def test_selective_risk_of_classes_by_hand():
    prediction, y = classes(60), np.random.default_rng(0).integers(3, size=60)
    probs = prediction.class_probs.numpy()
    order = np.argsort(-probs.max(1))
    risks = np.cumsum((probs.argmax(1) != y)[order]) / np.arange(1, 61)
    curves, scores = selective_risk(prediction, y), score(prediction, y)
    np.testing.assert_allclose(curves.error, risks)
    np.testing.assert_allclose(curves.coverage, np.arange(1, 61) / 60)
    assert curves.random == pytest.approx(1 - scores["accuracy"].value)
    assert scores["aurc"].value == pytest.approx(risks.mean())
    best = np.cumsum(np.sort(probs.argmax(1) != y)) / np.arange(1, 61)
    assert curves.excess == pytest.approx((risks - best).mean())
    real = selective_risk(centred([1.0, 3.0, 2.0]), [1.0, 4.0, 2.0])
    np.testing.assert_allclose(real.error, [1.0, (1 + 4) / 2, (1 + 4 + 16) / 3])
    for function in (sparsification, selective_risk):
        with pytest.raises(InputError, match="below the 3 classes, got 3"):
            function(classes(2), [0, 3])


def test_a_perfect_order_has_no_sparsification_error():
    std = np.linspace(0.1, 3, 80)
    curves = sparsification(centred(std), std)
    assert curves.excess == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(curves.error, np.sqrt(np.cumsum(std**2) / np.arange(1, 81) / np.mean(std**2)))
    assert curves.error[-1] == curves.random == 1.0
    assert score(centred(std), std)["ause"].value == pytest.approx(0.0, abs=1e-12)
    exact = sparsification(centred([1.0, 2.0]), [0.0, 0.0])
    assert exact.excess == 0.0
    assert not exact.error.any()


def test_uncertainty_that_says_nothing_gives_the_random_curve():
    y = np.random.default_rng(0).normal(size=500)
    curves = sparsification(centred(np.ones(500)), y)
    np.testing.assert_allclose(curves.error, 1.0)
    assert score(centred(np.ones(500)), y)["ause"].value == pytest.approx(1 - curves.oracle.mean())
    shuffled = np.random.default_rng(1).random(500) + 0.5
    assert sparsification(centred(shuffled), y).error[50:].mean() == pytest.approx(1.0, abs=0.1)
    backwards = 1 / (0.1 + np.abs(y))
    assert score(centred(backwards), y)["ause"].value > 1 - curves.oracle.mean()


def test_sparsification_of_classes_is_of_the_brier_score_by_entropy():
    prediction, y = classes(60), np.random.default_rng(0).integers(3, size=60)
    probs = prediction.class_probs.numpy()
    brier = ((probs - np.eye(3)[y]) ** 2).sum(1)
    order = np.argsort(stats.entropy(probs, axis=1))
    found = sparsification(prediction, y)
    np.testing.assert_allclose(found.error, np.cumsum(brier[order]) / np.arange(1, 61) / brier.mean())
    assert score(prediction, y)["ause"].value == pytest.approx(found.excess)


@pytest.mark.parametrize("ties", [False, True])
def test_receiver_operating_characteristics_are_those_of_sklearn(ties):
    rng = np.random.default_rng(0)
    positive, number = rng.random(200) < 0.3, rng.normal(size=200)
    number = (number + positive).round(0 if ties else 9)
    weights = rng.integers(0, 3, size=200).astype(float)
    found = {name: of(weights) for name, of in receiver_operating(positive, number).items()}
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(positive, number, sample_weight=weights))
    assert found["aupr"] == pytest.approx(sk.average_precision_score(positive, number, sample_weight=weights))
    fpr, tpr, _ = sk.roc_curve(positive, number, sample_weight=weights, drop_intermediate=False)
    assert found["fpr_95"] == pytest.approx(fpr[np.argmax(tpr >= 0.95 - 1e-12)])
    assert all(math.isnan(of(weights * positive)) for of in receiver_operating(positive, number).values())


def ood_pair():
    return classes(300), classes(200, sharpness=0.7, seed=1)


def test_scores_outside_the_data_use_each_measure():
    inside, outside = ood_pair()
    found, positive = score_ood(inside, outside), np.repeat([0, 1], [300, 200])
    numbers = {
        "mutual_information": torch.cat([inside.mutual_information, outside.mutual_information]),
        "entropy": torch.cat([inside.entropy, outside.entropy]),
        "max_prob": 1 - torch.cat([inside.class_probs.amax(1), outside.class_probs.amax(1)]),
    }
    assert list(found) == [f"{name}_{by}" for by in numbers for name in ("auroc", "aupr", "fpr_95")]
    for by, number in numbers.items():
        assert found[f"auroc_{by}"].value == pytest.approx(sk.roc_auc_score(positive, number))
        assert score_ood(inside, outside, by=by)[f"aupr_{by}"] == found[f"aupr_{by}"]
    directions = [found[f"{name}_entropy"].higher_is_better for name in ("auroc", "aupr", "fpr_95")]
    assert directions == [True, True, False]
    assert bnn.score_ood is score_ood


def test_standard_error_of_the_area_is_that_of_delong():
    inside, outside = ood_pair()
    found = score_ood(inside, outside, by="entropy")["auroc_entropy"]
    higher = outside.entropy.numpy()[:, None] > inside.entropy.numpy()
    delong = math.sqrt(higher.mean(1).var(ddof=1) / 200 + higher.mean(0).var(ddof=1) / 300)
    assert found.value == pytest.approx(higher.mean())
    assert found.stderr == pytest.approx(delong, rel=0.2)


def test_scores_outside_the_data_of_real_targets():
    inside = Prediction(dist.Normal(torch.randn(50, 100, generator=torch.Generator().manual_seed(0)), 1.0))
    far = Prediction(dist.Normal(5 * inside.distribution.loc, 1.0))
    found = score_ood(inside, far)
    assert list(found) == [f"{name}_{by}" for by in ("epistemic_std", "std") for name in ("auroc", "aupr", "fpr_95")]
    assert found["auroc_std"].value == 1.0
    assert found["fpr_95_std"].value == 0.0
    assert score_ood(inside, inside)["auroc_std"].value == 0.5


def test_several_columns_count_in_units_of_their_own():
    loc = torch.randn(50, 100, 2, generator=torch.Generator().manual_seed(0)).double()
    units = torch.tensor([1.0, 1000.0]).double()
    plain, scaled = (Prediction(dist.Normal(loc * unit, 1.0 * unit).to_event(1)) for unit in (torch.ones(2), units))
    for name, values in ood_measures(plain, plain).items():
        np.testing.assert_allclose(ood_measures(scaled, scaled)[name], values, rtol=1e-6)


def test_means_are_compared_by_the_paired_t_test():
    rng = np.random.default_rng(0)
    y = rng.normal(size=60)
    a, b = centred(np.full(60, 1.0)), centred(rng.random(60) + 0.6)
    table = compare_scores(a, b, y)
    test = stats.ttest_rel(a.log_prob(y), b.log_prob(y))
    row = table.loc["log_likelihood"]
    assert row.p_value == pytest.approx(test.pvalue)
    assert row.difference / row.stderr == pytest.approx(test.statistic)
    assert row.difference == pytest.approx(score(a, y)["log_likelihood"].value - score(b, y)["log_likelihood"].value)
    assert list(table.index) == list(score(a, y))
    assert list(table.columns) == ["a", "b", "difference", "stderr", "p_value", "higher_is_better"]
    assert table.loc["rmse"].p_value == 1.0
    assert bnn.compare_scores is compare_scores


def test_other_scores_are_compared_on_the_same_resamples():
    """Predictions that differ little: the paired error is far below that of two scores apart."""
    y = np.random.default_rng(0).integers(3, size=200)
    a = classes(200)
    b = Prediction(dist.Categorical(logits=a.distribution.logits + 0.1 * classes(200, seed=5).distribution.logits))
    row, apart = compare_scores(a, b, y).loc["auroc"], score(a, y)["auroc"].stderr
    assert 0 < row.stderr < 0.5 * apart
    assert row.p_value == pytest.approx(2 * stats.norm.sf(abs(row.difference) / row.stderr))


def test_a_prediction_against_itself_differs_nowhere():
    prediction, y = classes(50), np.arange(50) % 3
    table = compare_scores(prediction, prediction, y)
    assert (table.difference == 0).all()
    assert (table.p_value == 1).all()
    assert compare_scores(centred([1.0]), centred([2.0]), [0.5]).p_value.isna().all()


REAL, LABELS = normals(3), classes(3, 3)
COUNTS = bnn.Prediction(dist.Poisson(torch.ones(2, 3)))
BETWEEN = "`levels` must be a list of numbers between 0 and 1, such as .0.95., got"
REFUSED = {
    f"{BETWEEN} 0.9": lambda: score(REAL, [0.0] * 3, levels=0.9),
    f"{BETWEEN} .95.0": lambda: score(REAL, [0.0] * 3, levels=[95.0]),
    "There are no rows to score": lambda: score(REAL[:0], []),
    "`num_bins` must be a whole number, at least 1": lambda: reliability_bins(LABELS, [0] * 3, num_bins=0),
    "A reliability diagram needs classes": lambda: reliability_bins(REAL, [0.0] * 3),
    "below the 3 classes, got 3": lambda: score(LABELS, [0, 3, 0]),
    "to compare must be of the same targets": lambda: compare_scores(LABELS, classes(4, 3), [0, 1, 2]),
    "of the same kind, got Prediction.Normal, num_draws=.*Prediction.Normal": lambda: bnn.score_ood(
        normals(3, 2), normals(3, 3)
    ),
    "inside and outside must be of the same kind": lambda: bnn.score_ood(REAL, LABELS),
    "got 'entrop'. Did you mean 'entropy'": lambda: bnn.score_ood(LABELS, LABELS, by="entrop"),
    "table with two rows or more": lambda: bnn.metrics.permutation_importance(None, bnn.Data([[1.0]], [1.0])),
    "`class_names` must name 3 classes, got 2": lambda: bnn.metrics.confusion(LABELS, [0, 1, 2], class_names="ab"),
    "`predict_dist.X.` of an estimator, got BNNRegressor": lambda: bnn.score(bnn.BNNRegressor(), [0.0]),
    "got BNNRegressor: .* estimator its `.posterior_": lambda: bnn.diagnose(bnn.BNNRegressor(), ([[0.0]], [0.0])),
    "must be a posterior or a mixture, got BNNRegressor": lambda: bnn.loo(bnn.BNNRegressor(), ([[0.0]], [0.0])),
    "must be a posterior.*, got BNNRegressor": lambda: bnn.calibrate(bnn.BNNRegressor(), ([[0.0]], [0.0])),
    "must be .* a mixture, got BNNRegressor": lambda: bnn.save(bnn.BNNRegressor(), "new.safetensors"),
    "`confusion` needs classes": lambda: bnn.metrics.confusion(REAL, [0.0] * 3),
    "need a likelihood with a known distribution function, got Categorical": lambda: bnn.metrics.pit(LABELS, [0, 1, 2]),
    "whole-number labels, got values such as 0.3": lambda: bnn.metrics.confusion(LABELS, [0.3, 1, 2]),
    "whole-number labels, got values such as 0.7": lambda: bnn.metrics.reliability_bins(LABELS, [0, 0.7, 2]),
    "whole-number counts, got values such as 1.5": lambda: bnn.metrics.pit(COUNTS, [1.5, 0, 1]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_scores_refuse(message):
    with pytest.raises(InputError, match=message):
        REFUSED[message]()


NOISE, WEIGHTS = 0.7, torch.tensor([1.5, 0.0, -0.5], dtype=torch.float64)


@pytest.fixture(scope="module")
def table():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    y = x @ WEIGHTS + NOISE * torch.randn(200, generator=generator, dtype=torch.float64)
    return bnn.Data(x, y, feature_names=["big", "none", "small"])


@pytest.fixture(scope="module")
def linear(table):
    """The linear model whose weights are those that made the table."""
    net = torch.nn.Linear(3, 1, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(WEIGHTS[None])
        net.bias.zero_()
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=NOISE))
    return bnn.guides.Map().around(model, table)


def all_pairs(table, columns):
    """The mean loss over all values in place of an example's own, (N,): ((e + w (x - x'))^2 - e^2) / (2 sd^2)."""
    error = table.y - table.x @ WEIGHTS
    change = (table.x[:, None, columns] - table.x[None, :, columns]) @ WEIGHTS[columns]
    return (((error[:, None] + change).square() - error[:, None].square()) / (2 * NOISE**2)).mean(1).numpy()


def test_importance_in_a_linear_model_is_its_closed_form(table, linear):
    """Four standard errors of 400 shuffles; the standard error over examples to a tenth."""
    found = permutation_importance(linear, table, num_shuffles=400, num_draws=1)
    assert list(found.index) == ["big", "small", "none"]
    for name, column in (("big", [0]), ("small", [2])):
        exact = all_pairs(table, column)
        error = found.loc[name, "stderr"]
        assert error == pytest.approx(exact.std(ddof=1) / np.sqrt(len(exact)), rel=0.1)
        assert found.loc[name, "importance"] == pytest.approx(exact.mean(), abs=4 * error / np.sqrt(20))
    assert found.loc["none"].tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_weights_count_as_rows(table, linear):
    """The closed form over repeated rows; four standard errors of 400 shuffles, the error over examples to a tenth."""
    weights = 1 + 5 * (table.x[:, 0].abs() > 1).long() + (table.x[:, 2] > 0).long()
    weighted = bnn.Data(table.x, table.y, weights=weights.double(), feature_names=table.feature_names)
    repeated = bnn.Data(table.x.repeat_interleave(weights, 0), table.y.repeat_interleave(weights))
    found = permutation_importance(linear, weighted, num_shuffles=400, num_draws=1)
    for name, column in (("big", [0]), ("small", [2])):
        exact, error = all_pairs(repeated, column), found.loc[name, "stderr"]
        assert error == pytest.approx(exact.std(ddof=1) / np.sqrt(float(weights.sum())), rel=0.1)
        assert found.loc[name, "importance"] == pytest.approx(exact.mean(), abs=4 * error / np.sqrt(20))


def test_columns_of_a_group_are_shuffled_together(table, linear):
    groups = {"both": [0, 2], "none": [1]}
    found = permutation_importance(linear, table, groups=groups, num_shuffles=400, num_draws=1, seed=1)
    exact = all_pairs(table, [0, 2])
    assert list(found.index) == ["both", "none"]
    error = found.loc["both", "stderr"]
    assert found.loc["both", "importance"] == pytest.approx(exact.mean(), abs=4 * error / np.sqrt(20))


def test_a_column_that_does_not_matter_is_zero_within_its_errors(table):
    """A fit has learned a little noise: three standard errors on 100 other rows."""
    model = bnn.BNN(bnn.MLP(3, [], 1), likelihood=bnn.likelihoods.Gaussian(scale=NOISE))
    posterior = model.fit(table[:100], guide="laplace", steps=200, lr=0.05, seed=0, progress=False)
    found = permutation_importance(posterior, table[100:])
    assert abs(found.loc["none", "importance"]) < 3 * found.loc["none", "stderr"]
    assert found.loc["big", "importance"] > 5 * found.loc["big", "stderr"]
    assert found.equals(permutation_importance(posterior, table[100:]))


@pytest.mark.parametrize("num_classes", [2, 5])
def test_confusion_is_that_of_scikit_learn(num_classes):
    prediction, y = classes(60, num_classes), np.random.default_rng(0).integers(num_classes, size=60)
    names = [f"class {label}" for label in range(num_classes)]
    found = confusion(prediction, y, class_names=names)
    np.testing.assert_array_equal(found, confusion_matrix(y, prediction.label))
    assert list(found.index) == list(found.columns) == names
    assert (found.index.name, found.columns.name) == ("observed", "predicted")
    (axis,) = plots.confusion(prediction, y, class_names=names).axes
    assert [int(text.get_text().split()[0]) for text in axis.texts] == found.to_numpy().ravel().tolist()
    shares = confusion_matrix(y, prediction.label, normalize="true")
    written = [text.get_text().split()[1:2] for text in axis.texts]
    assert written == [[f"{100 * share:.0f}"] if share else [] for share in shares.ravel()]
    inked = 1 - np.asarray(axis.images[0].get_array()).min(-1)  # by the share, of the darkest channel of its colour
    full = [[1 - min(colours.to_rgb(BLUE if i == j else ORANGE)) for j in range(len(names))] for i in range(len(names))]
    np.testing.assert_allclose(inked, shares * full, atol=1e-12)
    assert [label.get_text() for label in axis.get_yticklabels()] == names


def test_confusion_of_binary_targets_pools_their_columns():
    generator = torch.Generator().manual_seed(2)
    prediction = bnn.Prediction(dist.Bernoulli(torch.rand(3, 40, 2, generator=generator)).to_event(1))
    y = torch.randint(2, (40, 2), generator=generator)
    expected = confusion_matrix(y.flatten(), prediction.label.flatten())
    np.testing.assert_array_equal(confusion(prediction, y), expected)
