"""Confusion of classes against scikit-learn, and the importance of columns against closed forms."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from matplotlib import colors as colours
from sklearn.metrics import confusion_matrix

import pyrobnn as bnn
from pyrobnn import plots
from pyrobnn.metrics import confusion, permutation_importance
from pyrobnn.plots._colors import BLUE, ORANGE

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
    found = permutation_importance(
        linear, table, groups={"both": [0, 2], "none": [1]}, num_shuffles=400, num_draws=1, seed=1
    )
    exact = all_pairs(table, [0, 2])
    assert list(found.index) == ["both", "none"]
    assert found.loc["both", "importance"] == pytest.approx(
        exact.mean(), abs=4 * found.loc["both", "stderr"] / np.sqrt(20)
    )


def test_a_column_that_does_not_matter_is_zero_within_its_errors(table):
    """A fit has learned a little noise: three standard errors on 100 other rows."""
    posterior = bnn.BNN(bnn.MLP(3, [], 1), likelihood=bnn.likelihoods.Gaussian(scale=NOISE)).fit(
        table[:100], guide="laplace", steps=200, lr=0.05, seed=0, progress=False
    )
    found = permutation_importance(posterior, table[100:])
    assert abs(found.loc["none", "importance"]) < 3 * found.loc["none", "stderr"]
    assert found.loc["big", "importance"] > 5 * found.loc["big", "stderr"]
    again = permutation_importance(posterior, table[100:])
    assert found.equals(again)


def predicted(num_classes, num=60):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, num, num_classes, generator=generator)
    return bnn.Prediction(dist.Categorical(logits=logits)), torch.randint(num_classes, (num,), generator=generator)


@pytest.mark.parametrize("num_classes", [2, 5])
def test_confusion_is_that_of_scikit_learn(num_classes):
    prediction, y = predicted(num_classes)
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
