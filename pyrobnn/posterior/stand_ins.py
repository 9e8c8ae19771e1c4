"""Predictions for rows that lack values, as mixtures over values of other rows."""

import functools
import math
from collections.abc import Callable, Iterator
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
_GROUPS, _HELD = 16, 2**25
"""Parts of the draws, each for a few of the values, and the numbers in all draws of the weights up to which these are
held. For 1,000 rows and 500 draws 16 parts take a sixth of the time of one."""


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
        for some, given in _groups(self, plain.num_draws, repeats, int(is_drawn.sum()), options):
            position = torch.full((plain.num_draws,), -1).index_copy(0, some, torch.arange(len(some)))
            components = (position[draws] >= 0).nonzero()[:, 0]
            here = which[components]
            used = is_drawn & torch.zeros_like(is_drawn).scatter(0, here, torch.ones_like(here, dtype=torch.bool))
            size = max(1, _AT_ONCE // len(some))
            for number, lacking in (block.T for block in used.nonzero().split(size) if len(block)):
                parts, _ = take_apart(predict(self, values[number, lacking], **given).distribution)
                at, pair = (here[:, lacking] == number).nonzero(as_tuple=True)
                for tensor, part in zip(tensors, parts, strict=True):
                    place = tensor.device
                    to, source = components[at].to(place), position[draws[components[at]]].to(place)
                    tensor[to, rows[lacking[pair]].to(place)] = part[source, pair.to(place)]
        return Prediction(build(tensors), plain.scaler)

    return cast(F, predict_all)


def repeated(prediction: Prediction, times: int) -> Prediction:
    """Return the same mixture with each of its draws so many times."""
    if times == 1:
        return prediction
    tensors, build = take_apart(prediction.distribution)
    return Prediction(build([tensor.repeat_interleave(times, 0) for tensor in tensors]), prediction.scaler)


def _groups(
    posterior: Any, num_draws: int, repeats: int, num_pairs: int, options: dict[str, Any]
) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Yield numbers of draws, and the options of a prediction by these alone.

    Draws whose numbers by `_fractions` are close have values of the same donors, so each group needs few of all pairs
    of a row and a value. Few pairs, points, and draws of very many weights make a single group.
    """
    count = 1 + num_draws * num_pairs // _AT_ONCE
    by_weights = num_draws > 1 and not options.get("at_mean")
    if count == 1 or not by_weights or num_draws * posterior.bnn.num_weights > _HELD:
        yield torch.arange(num_draws), options
        return
    given = options.get("draws")
    given = posterior.draw(num_draws, seed=options.get("seed")) if given is None else given
    of_members = torch.arange(num_draws).split(posterior._counts(num_draws))
    fractions = _fractions(num_draws * repeats)[::repeats]
    in_order = [members[fractions[members].argsort()] for members in of_members]
    parts = zip(*(order.tensor_split(min(count, _GROUPS, *map(len, in_order))) for order in in_order), strict=True)
    for some in map(torch.cat, parts):
        yield some, options | {"draws": {name: value[some.to(value.device)] for name, value in given.items()}}


def _fractions(count: int) -> Tensor:
    return (torch.arange(count, dtype=torch.float64) + 0.5) * math.sqrt(5) % 1


def _drawn(shares: Tensor, count: int) -> Tensor:
    """Return a number for each draw and row, (count, N), in proportion to the shares of each row, (K, N)."""
    ends = shares.T.cumsum(1)
    fractions = _fractions(count).to(ends)
    drawn = torch.searchsorted(ends.contiguous(), (fractions * ends[:, -1:]).contiguous(), right=True)
    return drawn.clamp_max(len(shares) - 1).T
