"""The classifier: one label per example, two or more classes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data
from pyrobnn.estimators.base import AbstractBNN
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.tables.cells import order_of, require_order


@dataclass(eq=False, repr=False)
class BNNClassifier(ClassifierMixin, AbstractBNN):
    """A Bayesian neural network for labels, by scikit-learn's rules.

    Parts and their settings are parameters as in `BNNRegressor`. Labels have no intervals: `predict_proba` gives
    probabilities, and `predict_dist` splits the uncertainty. See docs/how-to/scikit-learn.md.

    Args:
        net, prior, likelihood, guide, method: the parts. Without a method, the rules of docs/explanations/defaults.md
            choose: up to 1,000 rows chains of `MCLMC`, of more an ensemble of networks with dropout.
        steps: as in `BNNRegressor`, like all that follow.
        class_weight: weights of the classes by label, or "balanced"; they multiply the weights of the examples.

    Attributes:
        classes_: the labels, sorted; those of `Ordinal` in the order of ordered categories of pandas.
        posterior_, encoder_, n_features_in_, feature_names_in_: as in `BNNRegressor`.

    Examples:
        >>> classifier = bnn.BNNClassifier(steps=20, random_state=0).fit([[0.0], [3.0]], ["a", "b"])
        >>> classifier.predict([[0.5]]).shape, classifier.predict_proba([[0.5]]).shape
        ((1,), (1, 2))
    """

    TASK = "classification"

    class_weight: Any = field(default=None, kw_only=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "BNNClassifier":
        """Learn on: the posterior so far, as independent normals, becomes the prior for these examples.

        Scaling and categories stay as in the first call, which needs all labels as `classes`. Refused is what `fit`
        refuses, a guide that gives some weights no spread, other classes later, and class_weight="balanced".

        Examples:
            >>> classifier = bnn.BNNClassifier(steps=20, random_state=0)
            >>> first = classifier.partial_fit([[0.0], [1.0]], [0, 1], classes=[0, 1, 2])
            >>> classifier.partial_fit([[1.0], [2.0]], [1, 2]).classes_
            array([0, 1, 2])
        """
        if isinstance(self.class_weight, str):
            what = f"class_weight={self.class_weight!r} needs the counts of all labels"
            raise InputError(f"{what}, which partial_fit does not know: pass a dictionary.")
        return self._partial_fit(X, y, sample_weight, classes=self._checked_classes(classes, order_of(y)))

    def _checked_classes(self, classes: Any, order: list[Any] | None) -> np.ndarray:
        """Return the labels of all calls of partial_fit."""
        first = not hasattr(self, "posterior_")
        if classes is None and first:
            raise InputError("classes must be passed on the first call to partial_fit: all labels that there are.")
        if classes is None:
            return self.classes_
        labels = self._labels(classes, order_of(classes) or order)
        if not first and not np.array_equal(labels, self.classes_):
            raise InputError(f"`classes` must stay those of the first call, {self.classes_}, got {labels}.")
        return labels

    def _labels(self, given: Any, order: list[Any] | None) -> np.ndarray:
        """Return the different labels: sorted, or for a likelihood with an order in the order that was declared."""
        labels = np.unique(given)
        num = as_likelihood(self._given().likelihood).num_ordered
        if num is not None and order is not None:
            labels = np.array(order if len(order) == num else [label for label in order if label in labels])
        require_order(labels.tolist(), num, is_ordered=order is not None)
        return labels

    def _examples(self, X: Any, y: Any, weight: Any, **options: Any) -> Data:
        self._order = order_of(y)
        if self._order is not None:  # scikit-learn makes numbers of booleans
            y = pd.Series(np.asarray(y).reshape(-1)).infer_objects().to_numpy()
        return super()._examples(X, y, weight, **options)

    def _check_targets(self, y: np.ndarray, *, reset: bool, classes: Any) -> np.ndarray:
        if type_of_target(y).startswith("continuous"):
            said = "Unknown label type: continuous. BNNClassifier predicts classes, and `y` holds numbers such as"
            how = "use BNNRegressor, or number classes, as pandas.cut(..., labels=False)"
            raise InputError(f"{said} {y.ravel()[0]:g}: {how}.")
        check_classification_targets(y)
        self.classes_ = self._labels(y, self._order) if classes is None else classes
        if len(self.classes_) < 2:
            raise InputError(f"BNNClassifier needs labels of at least 2 classes, got one class, {self.classes_[0]}.")
        if len(strange := np.setdiff1d(y, self.classes_)):
            raise InputError(f"`y` has the label {strange[0]}, which is none of `classes`, {self.classes_}.")
        return np.asarray(pd.Index(self.classes_).get_indexer(y))

    def _weights(self, y: np.ndarray, sample_weight: Any) -> np.ndarray | None:
        weights = super()._weights(y, sample_weight)
        if self.class_weight is None:
            return weights
        by_class = compute_sample_weight(self.class_weight, y)
        if not (np.isfinite(by_class) & (by_class >= 0)).all():
            raise InputError(f"`class_weight` must be finite and not negative, got {self.class_weight!r}.")
        weights = by_class if weights is None else weights * by_class
        if not weights.any():
            what = f"class_weight={self.class_weight!r} gives 0 to all classes among them, {np.unique(y)}"
            raise InputError(f"No example has a positive weight: {what}. Pass others, or another class_weight.")
        return weights

    @property
    def _width(self) -> int:
        return len(self.classes_)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable label of each row, (N,)."""
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class under the mixture of all draws, (N, C), in the order of `classes_`.

        Examples:
            >>> classifier = bnn.BNNClassifier(steps=20, random_state=0).fit([[0.0], [1.0]], ["a", "b"])
            >>> classifier.predict_proba([[0.0], [3.0]]).sum(1)
            array([1., 1.])
        """
        blocks = self._predict_blocks(X, lambda prediction: prediction.class_probs)
        probs = torch.cat(blocks).double().cpu().numpy()
        return np.asarray(probs / probs.sum(1, keepdims=True))
