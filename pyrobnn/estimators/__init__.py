"""Estimators for scikit-learn: Bayesian neural networks in pipelines, cross-validation and grid searches."""

from pyrobnn.estimators.classifier import BNNClassifier
from pyrobnn.estimators.regressor import BNNRegressor

__all__ = ["BNNClassifier", "BNNRegressor"]
