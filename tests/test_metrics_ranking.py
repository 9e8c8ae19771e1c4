"""What rests on an order: risk and sparsification curves, telling inputs outside the data, and paired comparisons."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk

import pyrobnn as bnn
from pyrobnn import InputError, Prediction
from pyrobnn.metrics import compare_scores, ood_measures, score, score_ood, selective_risk, sparsification
from pyrobnn.metrics.curves import receiver_operating, risk_by_coverage


def normal(std, num_draws=2):
    std = torch.as_tensor(std, dtype=torch.float64)
    return Prediction(dist.Normal(torch.zeros(num_draws, *std.shape).double(), std))


def classes(num, num_classes=3, num_draws=4, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(num_draws, num, num_classes, generator=generator, dtype=torch.float64)
    return Prediction(dist.Categorical(logits=logits))


# risk


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
    real = selective_risk(normal([1.0, 3.0, 2.0]), [1.0, 4.0, 2.0])
    np.testing.assert_allclose(real.error, [1.0, (1 + 4) / 2, (1 + 4 + 16) / 3])
    for function in (sparsification, selective_risk):
        with pytest.raises(InputError, match="below the 3 classes, got 3"):
            function(classes(2), [0, 3])


# sparsification


def test_a_perfect_order_has_no_sparsification_error():
    std = np.linspace(0.1, 3, 80)
    curves = sparsification(normal(std), std)
    assert curves.excess == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(curves.error, np.sqrt(np.cumsum(std**2) / np.arange(1, 81) / np.mean(std**2)))
    assert curves.error[-1] == curves.random == 1.0
    assert score(normal(std), std)["ause"].value == pytest.approx(0.0, abs=1e-12)
    exact = sparsification(normal([1.0, 2.0]), [0.0, 0.0])
    assert exact.excess == 0.0
    assert not exact.error.any()


def test_uncertainty_that_says_nothing_gives_the_random_curve():
    y = np.random.default_rng(0).normal(size=500)
    curves = sparsification(normal(np.ones(500)), y)
    np.testing.assert_allclose(curves.error, 1.0)
    assert score(normal(np.ones(500)), y)["ause"].value == pytest.approx(1 - curves.oracle.mean())
    shuffled = np.random.default_rng(1).random(500) + 0.5
    assert sparsification(normal(shuffled), y).error[50:].mean() == pytest.approx(1.0, abs=0.1)
    backwards = 1 / (0.1 + np.abs(y))
    assert score(normal(backwards), y)["ause"].value > 1 - curves.oracle.mean()


def test_sparsification_of_classes_is_of_the_brier_score_by_entropy():
    prediction, y = classes(60), np.random.default_rng(0).integers(3, size=60)
    probs = prediction.class_probs.numpy()
    brier = ((probs - np.eye(3)[y]) ** 2).sum(1)
    order = np.argsort(stats.entropy(probs, axis=1))
    found = sparsification(prediction, y)
    np.testing.assert_allclose(found.error, np.cumsum(brier[order]) / np.arange(1, 61) / brier.mean())
    assert score(prediction, y)["ause"].value == pytest.approx(found.excess)


# inputs outside the data


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


# paired comparisons


def test_means_are_compared_by_the_paired_t_test():
    rng = np.random.default_rng(0)
    y = rng.normal(size=60)
    a, b = normal(np.full(60, 1.0)), normal(rng.random(60) + 0.6)
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
    assert compare_scores(normal([1.0]), normal([2.0]), [0.5]).p_value.isna().all()
