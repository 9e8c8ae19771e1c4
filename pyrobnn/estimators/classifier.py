"""The classifier: one label per example, two or more classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from pyrobnn._core.errors import InputError
from pyrobnn.estimators.base import AbstractBNN
from pyrobnn.estimators.rows import PerRow, TargetKind, Targets, checked_targets, checked_weights
from pyrobnn.likelihoods.base import as_likelihood, require_order
from pyrobnn.tables.column_reader import order_of


@dataclass(eq=False, repr=False)
class BNNClassifier(ClassifierMixin, AbstractBNN):
    """A Bayesian neural network for labels, by scikit-learn's rules.

    Parts, their settings and defaults are as in `BNNRegressor`. Labels have no intervals: `predict_proba` gives
    probabilities, and `predict_dist` splits the uncertainty. See docs/how-to/scikit-learn.md.

    Args:
        steps: as in `BNNRegressor`, like all that follow.
        class_weight: weights of the classes by label, or "balanced"; they multiply the weights of the examples.

    Examples:
        >>> classifier = bnn.BNNClassifier(steps=20, random_state=0).fit([[0.0], [3.0]], ["a", "b"])
        >>> classifier.predict([[0.5]]).shape, classifier.predict_proba([[0.5]]).shape
        ((1,), (1, 2))
    """

    TASK = "classification"
    class_weight: Mapping[Any, float] | str | None = field(default=None, kw_only=True)

    @property
    def classes_(self) -> np.ndarray:
        """The labels (C,), sorted; those of `Ordinal` in the order of ordered categories of pandas."""
        return self._require_fit().coding.kind.classes

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: PerRow = None, sample_weight: PerRow = None) -> Self:
        """Learn on: the posterior so far, as independent normals, becomes the prior for these examples.

        Scaling and categories stay as in the first call, which needs all labels as `classes`. Refused is what `fit`
        refuses, a guide that gives some weights no spread, other classes later, and class_weight="balanced".

        Examples:
            >>> model = bnn.BNNClassifier(steps=20, random_state=0).partial_fit([[0.0], [1.0]], [0, 1], [0, 1, 2])
            >>> model.partial_fit([[1.0], [2.0]], [1, 2]).classes_
            array([0, 1, 2])
        """
        return self._partial_fit(X, y, sample_weight, self._declared(classes, y))

    def _declared(self, classes: PerRow, y: ArrayLike) -> TargetKind | None:
        """Return the classes that a call of `partial_fit` declares: the first call must, later ones repeat them."""
        if isinstance(self.class_weight, str):
            what = f"class_weight={self.class_weight!r} needs the counts of all labels"
            raise InputError(f"{what}, which partial_fit does not know: pass a dictionary.")
        before = self.classes_ if hasattr(self, "_fitted") else None
        if classes is None and before is None:
            raise InputError("classes must be passed on the first call to partial_fit: all labels that there are.")
        if classes is None:
            return None
        labels = self._labels(classes, order_of(classes) or order_of(y))
        if before is not None and not np.array_equal(labels, before):
            raise InputError(f"`classes` must stay those of the first call, {before}, got {labels}.")
        return TargetKind((len(labels),), labels)

    def _labels(self, given: ArrayLike, order: list[Any] | None) -> np.ndarray:
        """Return the different labels: sorted, or for a likelihood with an order in the order that was declared."""
        labels = np.unique(given)
        num = as_likelihood(self._given().likelihood).num_ordered
        if num is not None and order is not None:
            labels = np.array(order if len(order) == num else [label for label in order if label in labels])
        require_order(labels.tolist(), num, is_ordered=order is not None)
        return labels

    def _targets(self, y: ArrayLike, known: TargetKind | None = None) -> Targets:
        """Return labels as places among the classes; refuse others than those known, and fewer than two classes."""
        order = order_of(y)
        if order is not None:  # scikit-learn makes numbers of booleans
            y = pd.Series(np.asarray(y).reshape(-1)).infer_objects().to_numpy()
        labels = checked_targets(y, are_numbers=False)
        check_classification_targets(labels)
        classes = self._labels(labels, order) if known is None else known.classes
        if len(classes) < 2:
            raise InputError(f"BNNClassifier needs labels of at least 2 classes, got one class, {classes[0]}.")
        if len(strange := np.setdiff1d(labels, classes)):
            raise InputError(f"`y` has the label {strange[0]}, which is none of `classes`, {classes}.")
        return Targets(np.asarray(pd.Index(classes).get_indexer(labels)), TargetKind((len(classes),), classes))

    def _weights(self, targets: Targets, weight: PerRow) -> np.ndarray | None:
        codes, kind = targets
        weights = checked_weights(weight, codes)
        if self.class_weight is None:
            return weights
        by_class = np.asarray(compute_sample_weight(self.class_weight, kind.classes[codes]))
        return checked_weights(by_class if weights is None else weights * by_class, codes)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most probable label of each row, (N,)."""
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probability of each class under the mixture of all draws, (N, C), in the order of `classes_`.

        Examples:
            >>> classifier = bnn.BNNClassifier(steps=20, random_state=0).fit([[0.0], [1.0]], ["a", "b"])
            >>> classifier.predict_proba([[0.0], [1.0]]).sum(1)
            array([1., 1.])
        """
        (probs,) = self._predict_parts(X, lambda prediction: (prediction.class_probs,))
        return np.asarray(probs / probs.sum(1, keepdims=True))
