"""Predictions for the batches of a loader, joined by rows."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import X
from pyrobnn.data.given import as_loader
from pyrobnn.data.loader import Loader
from pyrobnn.distributions.latents import concatenate
from pyrobnn.posterior.prediction import Prediction


def batch_by_batch[F: Callable[..., Prediction]](predict: F) -> F:
    """Return a function that predicts at inputs as one that takes a loader as well, whose targets it leaves aside.

    Each batch sees the same draws of the weights, so that predictions equal those at all inputs together up to
    rounding, unless the outputs are drawn (`predict`). Lengths of inputs may differ from batch to batch, as those of
    padded sequences do, but not those of targets.
    """

    @functools.wraps(predict)
    def predict_all(self: Any, x: Any, **options: Any) -> Prediction:
        loader = as_loader(x)
        if not isinstance(loader, Loader):
            return predict(self, x, **options)
        parts = [predict(self, inputs, **options) for inputs in _in_order(loader)]
        shapes = {tuple(part.distribution.event_shape) for part in parts}
        if len(shapes) > 1:
            raise InputError(
                f"Batches have targets of several shapes, {', '.join(map(str, sorted(shapes)))}, which are no table: "
                "predict batch by batch.",
                page="how-to/likelihoods",
            )
        return Prediction(concatenate([part.distribution for part in parts], 1), parts[0].scaler)

    return cast(F, predict_all)


def _in_order(loader: Loader) -> Iterator[X]:
    """Return the inputs of each batch.

    Raises:
        InputError: a loader that shuffles.
    """
    if loader.shuffles:
        raise InputError(
            "The DataLoader takes its examples in random order, so nobody could tell which prediction is whose: pass a "
            "DataLoader with shuffle=False.",
            page="how-to/large-data",
        )
    return loader.one_pass(loader.inputs_of)
