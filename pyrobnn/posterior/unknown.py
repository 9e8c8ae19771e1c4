"""Predictions for rows with an unknown category or number, as mixtures over the known ones."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from pyrobnn._core.modes import plain_tensors, under
from pyrobnn.distributions.parts import take_apart
from pyrobnn.posterior.prediction import Prediction

_FEWEST = 500
"""Components of a mixture over categories; posteriors with fewer draws, such as points, repeat them."""
_MOST = 64
"""Combinations of known categories that are tried; of more, the first ones of the sequence that keeps the shares."""
_PRIMES = (5, 2, 3, 7, 11, 13, 17, 19, 23, 29)


@under(plain_tensors)
def predict_known(
    posterior: Any,
    x: Any,
    categories: Sequence[Sequence[int]],
    numbers: Mapping[int, np.ndarray] | None = None,
    *,
    num_draws: int,
) -> Prediction:
    """Predict as the posterior does, and for what is unknown as the mixture over what is known, by its shares.

    Zeros in all columns of a category are no row like those of training, and the prediction for them would be as narrow
    as for others, as would be that for the mean of a number. The mixture adds the variance between categories, or
    between values, as epistemic. Each draw has a known category, by
    the fractions of multiples of an irrational number, which keep the shares along the draws (Weyl 1916). Several
    unknown columns of a row are independent.

    Args:
        posterior: a posterior or a mixture.
        x: inputs (N, features), float64, with NaN for unknown numbers.
        categories: for each category, the positions of its columns of 0 and 1.
        numbers: for positions of numbers that may be unknown, values that stand for them alike.
        num_draws: as for `Posterior.predict`.
    """
    inputs = torch.as_tensor(x).cpu()
    values = {at: torch.as_tensor(each, dtype=inputs.dtype) for at, each in (numbers or {}).items()}
    plain = posterior.predict(inputs.nan_to_num() if values else inputs, num_draws=num_draws)
    known = [_of_category(posterior, torch.tensor(at)) for at in categories]
    known += [_Known(torch.tensor([at]).expand(len(each)), each, torch.ones(len(each))) for at, each in values.items()]
    are_zero = [inputs[:, at].eq(0).all(1) for at in categories]
    is_unknown = torch.stack([*are_zero, *(inputs[:, at].isnan() for at in values), torch.zeros(len(inputs)) > 0], 1)
    if not is_unknown.any():
        return plain
    repeats = math.ceil(_FEWEST / plain.num_draws)
    found, build = take_apart(plain.distribution)
    tensors = [torch.cat([tensor] * repeats) for tensor in found]
    draws = torch.arange(plain.num_draws).repeat(repeats)
    for pattern in is_unknown[is_unknown.any(1)].unique(dim=0):
        rows, columns = (is_unknown == pattern).all(1).nonzero()[:, 0], pattern.nonzero()[:, 0]
        unknown = [known[column] for column in columns.tolist()]
        drawn = torch.stack([_drawn(one.shares, place, len(draws)) for place, one in enumerate(unknown)], 1)
        if len(drawn.unique(dim=0)) > _MOST:
            drawn = drawn[torch.arange(len(draws)) % _MOST]
        picks, which = drawn.unique(dim=0, return_inverse=True)
        for number, pick in enumerate(picks):
            variant = inputs[rows]
            for one, place in zip(unknown, pick, strict=True):
                variant[:, one.positions[place]] = one.values[place].to(variant)
            parts, _ = take_apart(posterior.predict(variant, num_draws=num_draws).distribution)
            chosen = (which == number).nonzero()
            for tensor, part in zip(tensors, parts, strict=True):
                tensor[chosen.to(tensor.device), rows.to(tensor.device)] = part[draws[chosen[:, 0]].to(part.device)]
    return Prediction(build(tensors), plain.scaler)


class _Known(NamedTuple):
    """What may stand for an unknown category or number: values to set at positions, (K,), and their shares."""

    positions: torch.Tensor
    values: torch.Tensor
    shares: torch.Tensor


def _of_category(posterior: Any, at: torch.Tensor) -> _Known:
    """Return the known categories.

    The mean of a column of 0 and 1, which standardising learned, is the share; without it all count alike.
    """
    scaler, ones = posterior.x_scaler, torch.ones(len(at), dtype=torch.float64)
    return _Known(at, ones, ones if scaler.is_identity else scaler.loc.cpu()[at])


def _drawn(shares: torch.Tensor, place: int, count: int) -> torch.Tensor:
    """Return the number of a known one for each draw, (count,), in proportion to the shares."""
    ends = shares.double().cumsum(0)
    fractions = (torch.arange(count, dtype=torch.float64) + 0.5) * math.sqrt(_PRIMES[place % len(_PRIMES)]) % 1
    return torch.searchsorted(ends, fractions * ends[-1], right=True).clamp_max(len(ends) - 1)
