"""Predictions for rows that lack values, as mixtures over values of other rows."""

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from pyrobnn._core.checks import as_tensor
from pyrobnn._core.modes import plain_tensors, under
from pyrobnn._torch.inputs import Inputs
from pyrobnn.data.given import columns_by_name
from pyrobnn.distributions.parts import take_apart
from pyrobnn.posterior.prediction import Prediction

_FEWEST = 500
"""Components of a mixture over values."""
_NOT_SAVED = (
    "`save` leaves donors out, so set `donors` to those of the posterior that was saved, predict by a pickled "
    "estimator or a run folder, which have them, or leave these rows out"
)
_AT_ONCE = 2**20
"""Rows times draws that are predicted in one call."""


def over_donors[F: Callable[..., Prediction]](predict: F) -> F:
    """Return a function that predicts a row that lacks values as the mixture over those of its donors, if any are kept.

    A prediction for a mean, or for a category of zeros, would be as narrow as for a value. The mixture adds the
    variance between values, as epistemic. Each draw has values of one donor, by the fractions of multiples of an
    irrational number, which keep the shares along the draws (Weyl 1916). Fewer than 500 draws are repeated, for all
    rows, unless they were given.
    """

    @functools.wraps(predict)
    @under(plain_tensors)
    def predict_all(self: Any, x: Any, **options: Any) -> Prediction:
        donors = self.donors
        if donors is None or isinstance(x, Inputs):
            return predict(self, x, **options)
        given = x if isinstance(x, torch.Tensor) else columns_by_name(x, self.record.feature_names or [])
        inputs = as_tensor(given, "x").cpu()
        if inputs.shape[1:] != donors.rows.shape[1:]:  # it is refused
            return predict(self, x, **options)
        rows = donors.lacking(inputs.double()).any(1).nonzero()[:, 0]
        if len(rows) and not len(donors.rows):
            donors.tell(inputs, _NOT_SAVED)
        if not len(rows) or not len(donors.rows):
            return predict(self, x, **options)
        values, shares = donors.stand_ins(inputs[rows].double())
        plain = predict(self, inputs.double().index_copy(0, rows, values[0]), **options)
        repeats = 1 if options.get("draws") is not None else math.ceil(_FEWEST / plain.num_draws)
        mixture = repeated(plain, repeats)
        tensors, build = take_apart(mixture.distribution)
        tensors = [tensor.clone() for tensor in tensors]
        draws = torch.arange(plain.num_draws).repeat_interleave(repeats)
        which = _drawn(shares, len(draws))
        is_drawn = torch.stack([(which == number).any(0) for number in range(len(values))])
        is_drawn[0] = False  # the plain prediction has the first value
        size = max(1, _AT_ONCE // plain.num_draws)
        for number, lacking in (block.T for block in is_drawn.nonzero().split(size) if len(block)):
            parts, _ = take_apart(predict(self, values[number, lacking], **options).distribution)
            at, pair = (which[:, lacking] == number).nonzero(as_tuple=True)
            for tensor, part in zip(tensors, parts, strict=True):
                place = tensor.device
                tensor[at.to(place), rows[lacking[pair]].to(place)] = part[draws[at].to(place), pair.to(place)]
        return Prediction(build(tensors), plain.scaler)

    return cast(F, predict_all)


def repeated(prediction: Prediction, times: int) -> Prediction:
    """Return the same mixture with each of its draws so many times."""
    if times == 1:
        return prediction
    tensors, build = take_apart(prediction.distribution)
    return Prediction(build([tensor.repeat_interleave(times, 0) for tensor in tensors]), prediction.scaler)


def _drawn(shares: Tensor, count: int) -> Tensor:
    """Return a number for each draw and row, (count, N), in proportion to the shares of each row, (K, N)."""
    ends = shares.T.cumsum(1)
    fractions = (torch.arange(count, dtype=ends.dtype) + 0.5) * math.sqrt(5) % 1
    drawn = torch.searchsorted(ends.contiguous(), (fractions * ends[:, -1:]).contiguous(), right=True)
    return drawn.clamp_max(len(shares) - 1).T
