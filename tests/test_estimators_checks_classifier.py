"""The classifier against scikit-learn's own checks; apart from those of the regressor, to run beside them."""

from sklearn.utils.estimator_checks import parametrize_with_checks
from test_estimators_checks import LINEAR, QUICK

import pyrobnn as bnn


@parametrize_with_checks([bnn.BNNClassifier(**QUICK), bnn.BNNClassifier(**LINEAR, missing="impute")])
def test_scikit_learn_checks_of_the_classifier(estimator, check):
    check(estimator)
