import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from sklearn import metrics as sk

from pyrobnn import InputError, Prediction
from pyrobnn.data import Scaler
from pyrobnn.metrics import score


def normals(num_inputs, *event, num_draws=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(num_draws, num_inputs, *event, generator=generator, dtype=torch.float64)
    scale = 0.5 + torch.rand(num_draws, num_inputs, *event, generator=generator, dtype=torch.float64)
    return Prediction(dist.Normal(loc, scale).to_event(len(event)))


def classes(num_inputs, num_classes, num_draws=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_draws, num_inputs, num_classes, generator=generator, dtype=torch.float64)
    return Prediction(dist.Categorical(logits=logits))


def test_rmse_and_its_delta_method_error_agree_with_sklearn_and_a_bootstrap():
    prediction, y = normals(400), np.random.default_rng(0).normal(size=400)
    found = score(prediction, y)["rmse"]
    errors = (prediction.mean.numpy() - y) ** 2
    rows = np.random.default_rng(1).integers(400, size=(4000, 400))
    assert found.value == pytest.approx(sk.root_mean_squared_error(y, prediction.mean.numpy()))
    assert found.stderr == pytest.approx(np.sqrt(errors[rows].mean(1)).std(), rel=0.05)
    assert not found.higher_is_better


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
    assert list(scores) == ["log_likelihood", "rmse", "coverage_95", "width_95"]
    assert str(scores["coverage_95"]) == "0.750 ± 0.250"


def test_columns_are_averaged():
    prediction, y = normals(60, 3), torch.randn(60, 3, generator=torch.Generator().manual_seed(3)).double()
    scores = score(prediction, y)
    each = [
        score(Prediction(dist.Normal(prediction._base.loc[..., k], prediction._base.scale[..., k])), y[:, k])
        for k in range(3)
    ]
    for name in ("rmse", "coverage_95", "width_95"):
        assert scores[name].value == pytest.approx(np.mean([s[name].value for s in each]))


def test_scores_are_in_original_units():
    base, y = normals(50), torch.randn(50, generator=torch.Generator().manual_seed(1)).double()
    scaler = Scaler(torch.tensor(5.0).double(), torch.tensor(10.0).double())
    plain, scaled = score(base, y), score(Prediction(base.distribution, scaler), scaler.inverse(y))
    assert scaled["rmse"].value == pytest.approx(10 * plain["rmse"].value)
    assert scaled["rmse"].stderr == pytest.approx(10 * plain["rmse"].stderr)
    assert scaled["log_likelihood"].value == pytest.approx(plain["log_likelihood"].value - math.log(10))
    assert scaled["coverage_95"] == plain["coverage_95"]


def test_exact_predictions_have_rmse_zero():
    prediction = Prediction(dist.Normal(torch.zeros(1, 3), 1.0))
    assert score(prediction, [0.0, 0.0, 0.0])["rmse"].value == 0.0
    assert score(prediction, [0.0, 0.0, 0.0])["rmse"].stderr == 0.0


def test_one_example_has_no_standard_error():
    assert all(math.isnan(entry.stderr) for entry in score(normals(1), [0.3]).values())
    assert all(math.isnan(entry.stderr) for entry in score(classes(1, 3), [0]).values())


def test_counts_have_no_interval():
    scores = score(Prediction(dist.Poisson(torch.full((2, 3), 4.0))), [1.0, 4.0, 5.0])
    assert list(scores) == ["log_likelihood", "rmse"]


@pytest.mark.parametrize("num_classes", [2, 4])
def test_classification_agrees_with_sklearn(num_classes):
    prediction = classes(300, num_classes)
    y = np.random.default_rng(0).integers(num_classes, size=300)
    y[:num_classes] = range(num_classes)
    scores, probs = score(prediction, y), prediction.class_probs.numpy()
    squared = ((probs - np.eye(num_classes)[y]) ** 2).sum(1)
    assert scores["accuracy"].value == sk.accuracy_score(y, probs.argmax(1))
    assert scores["log_likelihood"].value == pytest.approx(-sk.log_loss(y, probs))
    assert scores["brier"].value == pytest.approx(squared.mean())
    assert scores["brier"].stderr == pytest.approx(squared.std(ddof=1) / math.sqrt(300))
    assert scores["ece"].value == pytest.approx(calibration_error(probs, y), abs=1e-6)
    assert [entry.higher_is_better for entry in scores.values()] == [True, True, False, False]


def calibration_error(probs, y):
    confidence, right = probs.max(1), probs.argmax(1) == y
    bins = np.minimum((confidence * 15).astype(int), 14)
    inside = [bins == b for b in range(15) if (bins == b).any()]
    return sum(rows.mean() * abs(right[rows].mean() - confidence[rows].mean()) for rows in inside)


def test_calibration_error_has_a_reproducible_error_that_shrinks():
    def stderr(num):
        prediction = Prediction(dist.Categorical(probs=torch.tensor([0.6, 0.4]).expand(1, num, 2)))
        return score(prediction, torch.arange(num) % 2)["ece"].stderr

    assert stderr(400) == stderr(400)
    assert stderr(400) == pytest.approx(math.sqrt(0.25 / 400), rel=0.2)
    assert stderr(6400) == pytest.approx(stderr(400) / 4, rel=0.2)


def test_certain_and_right_is_perfect():
    logits = torch.tensor([[[50.0, -50.0], [-50.0, 50.0]]])
    scores = score(Prediction(dist.Categorical(logits=logits)), [0, 1])
    assert [scores[name].value for name in ("accuracy", "brier", "ece")] == pytest.approx([1.0, 0.0, 0.0])


def test_binary_targets_score_as_two_classes():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).double()
    y = torch.arange(50) % 2
    two = torch.stack([torch.zeros_like(logits), logits], -1)
    binary, both = (
        score(Prediction(dist.Bernoulli(logits=logits)), y),
        score(Prediction(dist.Categorical(logits=two)), y),
    )
    for name, entry in binary.items():
        assert entry.value == pytest.approx(both[name].value), name
        assert entry.stderr == pytest.approx(both[name].stderr), name


def test_several_binary_columns_are_averaged():
    logits = torch.randn(4, 50, 2, generator=torch.Generator().manual_seed(0)).double()
    y = (torch.arange(100) % 3 == 0).long().reshape(50, 2)
    scores = score(Prediction(dist.Bernoulli(logits=logits).to_event(1)), y)
    each = [score(Prediction(dist.Bernoulli(logits=logits[..., k])), y[:, k]) for k in range(2)]
    for name in ("accuracy", "brier"):
        assert scores[name].value == pytest.approx(np.mean([s[name].value for s in each]))


def test_labels_out_of_range_are_refused():
    with pytest.raises(InputError, match="below the 3 classes, got 3"):
        score(classes(2, 3), [0, 3])
