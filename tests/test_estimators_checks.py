"""The estimators against scikit-learn's own checks: every one, and none expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import pyrobnn as bnn

QUICK = {
    "method": bnn.SVI(guide=bnn.guides.Laplace(structure="diag"), steps=20, lr=0.2),
    "num_draws": 20,
    "engine": "eager",
}
REGRESSOR = bnn.BNNRegressor(bnn.MLP(hidden=(4,), dtype="float64"), **QUICK)
CLASSIFIER = bnn.BNNClassifier(bnn.MLP(hidden=(), dtype="float64"), **QUICK, missing="impute")


@pytest.mark.filterwarnings("ignore:Column .x[0-9]. has .* far from the")  # of rows to predict
@pytest.mark.one_in(8, 3)
@parametrize_with_checks([REGRESSOR, CLASSIFIER])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
