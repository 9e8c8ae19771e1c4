"""Which classes are taken for which."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pyrobnn._core.errors import InputError
from pyrobnn.metrics.columns import class_columns
from pyrobnn.posterior.prediction import Prediction

if TYPE_CHECKING:
    from pandas import DataFrame


def confusion(prediction: Prediction, y: ArrayLike, *, class_names: Sequence[str] = ()) -> "DataFrame":
    """Count how often each class was predicted where each class was observed.

    Several binary targets are pooled.

    Args:
        prediction: a prediction of C classes.
        y: the observed labels, (N,) or (N, K).
        class_names: names of the classes; their numbers if not given.

    Returns:
        Counts (C, C): a row for each observed class, a column for each predicted one. Right predictions are on the
        diagonal.

    Raises:
        InputError: real targets, not one label for each prediction, or not a name for each class.

    Examples:
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1), likelihood="bernoulli").fit(x, y, steps=20, seed=0, progress=False)
        >>> table = bnn.metrics.confusion(posterior.predict(x), y, class_names=["low", "high"])
        >>> int(table.loc["low"].sum()), int(table.loc["high"].sum())
        (20, 20)
    """
    import pandas as pd

    if not prediction.is_classification:
        raise InputError(f"`confusion` needs classes, got {prediction!r}.")
    labels, probs = class_columns(prediction, y)
    num_classes = probs.shape[-1]
    if class_names and len(class_names) != num_classes:
        raise InputError(f"`class_names` must name {num_classes} classes, got {len(class_names)} names.")
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(counts, (labels.ravel(), probs.argmax(-1).ravel()), 1)
    names = list(class_names) or [str(label) for label in range(num_classes)]
    return pd.DataFrame(counts, pd.Index(names, name="observed"), pd.Index(names, name="predicted"))
