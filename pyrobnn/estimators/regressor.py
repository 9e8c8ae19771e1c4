"""The regressor: real targets or counts, one or several columns."""

from typing import Any, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from pyrobnn._core.errors import InputError
from pyrobnn.estimators.base import AbstractBNN
from pyrobnn.estimators.rows import PerRow, TargetKind, Targets, checked_targets
from pyrobnn.posterior.prediction import Prediction


class BNNRegressor(RegressorMixin, AbstractBNN):
    """A Bayesian neural network for real targets or counts, by scikit-learn's rules.

    Every part may be a setting or its name, and the settings of parts are parameters too, such as net__hidden,
    guide__rank or method__method__lr. What is not given follows from docs/explanations/defaults.md, and
    `posterior_.record.choice` says why. See docs/how-to/scikit-learn.md. `prior`, `guide` and `method` are the prior of
    the weights, the guide of the method or of its inner method, and the method, whose `steps`, `lr` and `batch_size`
    stand beside them: `steps` alone bounds the default. `device` and `engine` are as in `pyrobnn.fit`.

    Args:
        net: the network; None for a default of SiLU in float64. An `MLP` that is given has its own, ReLU in float32.
        likelihood: the distribution of targets. None means Gaussian, or one that suits them better.
        num_draws: number of posterior draws to predict with.
        standardize: whether inputs and real targets are centred and scaled.
        inputs: "plain", or "ranks" or "waves" for networks that see ranks of the inputs too, as in `Data`.
        categories: how columns of text and categories become numbers, "onehot" or "ordinal".
        missing: "raise" refuses missing values, "impute" draws them given the other columns. Indicator columns mark
            numbers that are missing, and missing text is a category.
        random_state: seed, as in scikit-learn: an integer, None or a `RandomState`.
        verbose: whether to show progress. With None a terminal shows the seconds of a fit that takes more than two.

    Examples:
        >>> regressor = bnn.BNNRegressor(steps=20, random_state=0).fit([[0.0], [1.0]], [0.0, 1.0])
        >>> mean, std = regressor.predict([[0.5]], return_std=True)
    """

    TASK = "regression"

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: PerRow = None) -> Self:
        """Learn on: the posterior so far, as independent normals, becomes the prior for these examples.

        It is exact for linear models with Gaussian noise and an uncorrelated posterior. Scaling and categories stay as
        in the first call. A guide that gives some weights no spread is refused.

        Examples:
            >>> regressor = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> regressor.partial_fit([[2.0]], [2]).predict([[0.5]]).shape
            (1,)
        """
        return self._partial_fit(X, y, sample_weight)

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> np.ndarray: ...  # noqa: FBT002
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:  # noqa: FBT001, FBT002 - as scikit-learn's have it
        """Return the mean of the targets, (N,) or (N, K), and with `return_std` also their standard deviation.

        The standard deviation includes the noise; `predict_dist` has its parts. Where a few draws make them up
        (`FewDrawsWarning`), they are the median and half the width of the central interval of 68.27 %.

        Examples:
            >>> regressor = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> mean, std = regressor.predict([[0.5]], return_std=True)
        """
        means, stds = self._predict_parts(X, _centres)
        return (means, stds) if return_std else means

    def predict_interval(self, X: ArrayLike, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds (lower, upper) of the equal-tailed interval that holds a target with probability `level`.

        Examples:
            >>> regressor = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> lower, upper = regressor.predict_interval([[0.5]], level=0.9)
        """
        lower, upper = self._predict_parts(X, lambda prediction: prediction.interval(level))
        return lower, upper

    def _targets(self, y: ArrayLike, known: TargetKind | None = None) -> Targets:
        """Return targets as numbers, a single column as (N,); refuse other columns than those known."""
        values = checked_targets(y, are_numbers=True)
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if values.dtype.kind == "f":
            values = values.astype(np.float64)  # torch has no long double
        kind = TargetKind(values.shape[1:])
        if known is not None and kind.shape != known.shape:
            raise InputError(f"`y` must have the columns of the first call, {known.shape}, got {kind.shape}.")
        return Targets(values, kind)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _centres(prediction: Prediction) -> tuple[torch.Tensor, torch.Tensor]:
    """Return means and standard deviations; medians and half the central 68.27 % where few draws make these up."""
    mean, std, is_few = prediction.mean, prediction.std, prediction.rests_on_few_draws
    if prediction.has_quantiles and bool(is_few.any()):
        lower, median, upper = prediction[is_few].quantile([0.15865, 0.5, 0.84135]).to(mean)
        mean[is_few], std[is_few] = median, (upper - lower) / 2
    return mean, std
