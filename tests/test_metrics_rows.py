"""The score of an example is the same alone as among others, for every score and likelihood."""

import pytest
import torch

from pyrobnn import InputError, Prediction
from pyrobnn import likelihoods as lik
from pyrobnn.metrics import pit, score
from pyrobnn.metrics.scoring import LEVELS, _statistics

NUM, DRAWS, F64 = 5, 5, torch.float64
SETTINGS = {
    "bernoulli": lik.Bernoulli(),
    "categorical": lik.Categorical(),
    "censored_gaussian": lik.CensoredGaussian(lower=-0.5, upper=4.0, scale=0.7),
    "gaussian": lik.Gaussian(0.7),
    "laplace": lik.Laplace(0.7),
    "negative_binomial": lik.NegativeBinomial(0.3),
    "ordinal": lik.Ordinal(4),
    "poisson": lik.Poisson(),
    "student_t": lik.StudentT(0.7, df=3.0),
}
"""Every likelihood."""
REAL = ["censored_gaussian", "gaussian", "laplace", "student_t"]
COUNTS = ["negative_binomial", "poisson"]
CASES = [*((name, 1) for name in SETTINGS), *((name, 2) for name in [*REAL, *COUNTS, "bernoulli"])]


def predict(name, columns):
    """Predictions of rows of very different size, the rows one by one, and targets."""
    generator = torch.Generator().manual_seed(0)
    setting = SETTINGS[name]
    outputs = 4 if name == "categorical" else columns
    size = torch.linspace(-2.0, 8.0, NUM, dtype=F64)[:, None] if name in COUNTS else 0.0
    spread = torch.logspace(-3, 1, NUM, dtype=F64)[:, None]
    f = size + spread * 0.1 * torch.randn(DRAWS, NUM, outputs, generator=generator, dtype=F64)
    module = setting.build(torch.empty(0, dtype=F64), torch.ones(() if columns == 1 else (columns,)))
    y = module(f).sample()[0]
    alone = [Prediction(module(f[:, row : row + 1])) for row in range(NUM)]
    return Prediction(module(f)), alone, y


def test_no_likelihood_is_left_out():
    assert set(SETTINGS) == set(lik.registry.names)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "columns"), CASES)
def test_a_row_scores_as_it_does_alone(name, columns):
    together, alone, y = predict(name, columns)
    statistics = _statistics(together, y, LEVELS)
    each = {key: entry.by_example for key, entry in statistics.items() if entry.by_example is not None}
    expected = {"log_likelihood"} | ({"accuracy", "brier"} if together.is_classification else {"crps", "mae"})
    assert expected <= set(each)
    assert ("energy_score" in each) == (columns == 2 and not together.is_classification)
    assert ("interval_score_95" in each) == (name in REAL and name != "censored_gaussian")
    for row, prediction in enumerate(alone):
        own = score(prediction, y[row : row + 1])
        for key, values in each.items():
            assert own[key].value == pytest.approx(values[row], rel=1e-12, abs=1e-14), (key, row)


@pytest.mark.parametrize("name", [*REAL, *COUNTS])
def test_quantiles_and_distribution_functions_of_a_row_are_those_of_it_alone(name):
    together, alone, y = predict(name, 1)
    quantiles, cdf = together.quantile([0.01, 0.7]), together.cdf(y)
    for row, prediction in enumerate(alone):
        torch.testing.assert_close(prediction.quantile([0.01, 0.7])[:, 0], quantiles[:, row], rtol=0, atol=1e-15)
        assert float(prediction.cdf(y[row : row + 1])) == pytest.approx(float(cdf[row]), rel=1e-14)
        if name == "gaussian":
            assert float(pit(prediction, y[row : row + 1])) == pytest.approx(float(pit(together, y)[row]), rel=1e-14)


@pytest.mark.parametrize(("name", "columns"), CASES)
def test_some_rows_of_a_prediction_are_a_prediction(name, columns):
    together, alone, y = predict(name, columns)
    torch.testing.assert_close(together[[4]].log_prob(y[4:5]), alone[4].log_prob(y[4:5]))
    torch.testing.assert_close(together[2:4].draw_means, together.draw_means[:, 2:4])
    torch.testing.assert_close(together[torch.arange(NUM) < 3].std, together.std[:3])
    with pytest.raises(InputError, match="for a single row i pass"):
        together[4]
