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
"""Components of a mixture over values; posteriors with fewer draws, such as points, repeat them."""


def over_donors[F: Callable[..., Prediction]](predict: F) -> F:
    """Return a function that predicts a row that lacks values as the mixture over those of its donors, if any are kept.

    A prediction for a mean, or for a category of zeros, would be as narrow as for a value. The mixture adds the
    variance between values, as epistemic. Each draw has values of one donor, by the fractions of multiples of an
    irrational number, which keep the shares along the draws (Weyl 1916).
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
        if not len(rows):
            return predict(self, x, **options)
        values, shares = donors.stand_ins(inputs[rows].double())
        plain = predict(self, inputs.double().index_copy(0, rows, values[0]), **options)
        repeats = math.ceil(_FEWEST / plain.num_draws)
        found, build = take_apart(plain.distribution)
        tensors = [tensor.repeat_interleave(repeats, 0) for tensor in found]
        draws = torch.arange(plain.num_draws).repeat_interleave(repeats)
        which = _drawn(shares, len(draws))
        for number in range(1, len(values)):
            some = (which == number).any(0).nonzero()[:, 0]
            if not len(some):
                continue
            parts, _ = take_apart(predict(self, values[number, some], **options).distribution)
            at, row = (which[:, some] == number).nonzero(as_tuple=True)
            for tensor, part in zip(tensors, parts, strict=True):
                place = tensor.device
                tensor[at.to(place), rows[some[row]].to(place)] = part[draws[at].to(place), row.to(place)]
        return Prediction(build(tensors), plain.scaler)

    return cast(F, predict_all)


def _drawn(shares: Tensor, count: int) -> Tensor:
    """Return a number for each draw and row, (count, N), in proportion to the shares of each row, (K, N)."""
    ends = shares.T.cumsum(1)
    fractions = (torch.arange(count, dtype=ends.dtype) + 0.5) * math.sqrt(5) % 1
    drawn = torch.searchsorted(ends.contiguous(), (fractions * ends[:, -1:]).contiguous(), right=True)
    return drawn.clamp_max(len(shares) - 1).T
