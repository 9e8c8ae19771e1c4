"""The estimators against scikit-learn's own checks: every one, and none expected to fail."""

from sklearn.utils.estimator_checks import parametrize_with_checks

import pyrobnn as bnn

QUICK = {
    "net": bnn.MLP(hidden=(4,), dtype="float64"),
    "method": bnn.SVI(guide=bnn.guides.Laplace(structure="diag"), steps=20, lr=0.2),
    "num_draws": 20,
    "engine": "eager",
}
LINEAR = QUICK | {"net": bnn.MLP(hidden=(), dtype="float64")}


@parametrize_with_checks([bnn.BNNRegressor(**QUICK), bnn.BNNRegressor(**LINEAR, missing="impute")])
def test_scikit_learn_checks_of_the_regressor(estimator, check):
    check(estimator)
