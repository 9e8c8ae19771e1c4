"""Predictions for rows with an unknown category, as mixtures over the known ones."""

import math
from collections.abc import Sequence
from typing import Any

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
def predict_known(posterior: Any, x: Any, categories: Sequence[Sequence[int]], *, num_draws: int) -> Prediction:
    """Predict as the posterior does, and for unknown categories as the mixture over the known ones by their shares.

    Zeros in all columns of a category are no row like those of training, and the prediction for them would be as narrow
    as for others. The mixture adds the variance between categories, as epistemic. Each draw has a known category, by
    the fractions of multiples of an irrational number, which keep the shares along the draws (Weyl 1916). Several
    unknown columns of a row are independent.

    Args:
        posterior: a posterior or a mixture.
        x: inputs (N, features), float64.
        categories: for each category, the positions of its columns of 0 and 1.
        num_draws: as for `Posterior.predict`.
    """
    inputs = torch.as_tensor(x).cpu()
    plain = posterior.predict(inputs, num_draws=num_draws)
    is_unknown = torch.stack([inputs[:, at].eq(0).all(1) for at in categories] or [torch.zeros(len(inputs)) > 0], 1)
    if not is_unknown.any():
        return plain
    repeats = math.ceil(_FEWEST / plain.num_draws)
    found, build = take_apart(plain.distribution)
    tensors = [torch.cat([tensor] * repeats) for tensor in found]
    draws = torch.arange(plain.num_draws).repeat(repeats)
    for pattern in is_unknown[is_unknown.any(1)].unique(dim=0):
        rows, columns = (is_unknown == pattern).all(1).nonzero()[:, 0], pattern.nonzero()[:, 0]
        unknown = [categories[column] for column in columns.tolist()]
        drawn = torch.stack([_drawn(posterior, at, place, len(draws)) for place, at in enumerate(unknown)], 1)
        if len(drawn.unique(dim=0)) > _MOST:
            drawn = drawn[torch.arange(len(draws)) % _MOST]
        known, which = drawn.unique(dim=0, return_inverse=True)
        for number, ones in enumerate(known):
            variant = inputs[rows]
            variant[:, ones] = 1
            parts, _ = take_apart(posterior.predict(variant, num_draws=num_draws).distribution)
            chosen = (which == number).nonzero()
            for tensor, part in zip(tensors, parts, strict=True):
                tensor[chosen.to(tensor.device), rows.to(tensor.device)] = part[draws[chosen[:, 0]].to(part.device)]
    return Prediction(build(tensors), plain.scaler)


def _drawn(posterior: Any, positions: Sequence[int], place: int, count: int) -> torch.Tensor:
    """Return the position of a known category for each draw, (count,), in proportion to the shares in training.

    The mean of a column of 0 and 1, which standardising learned, is the share; without it all count alike.
    """
    at, scaler = torch.tensor(positions), posterior.x_scaler
    ends = (torch.ones(len(at), dtype=torch.float64) if scaler.is_identity else scaler.loc.cpu()[at]).cumsum(0)
    fractions = (torch.arange(count, dtype=torch.float64) + 0.5) * math.sqrt(_PRIMES[place % len(_PRIMES)]) % 1
    return at[torch.searchsorted(ends, fractions * ends[-1], right=True).clamp_max(len(at) - 1)]
