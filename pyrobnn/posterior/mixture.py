"""Equal-weight mixtures: of posteriors, as deep ensembles, and of predictions for imputed copies of rows."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.random import derive
from pyrobnn.data.imputed import TO_PREDICT, Imputer
from pyrobnn.distributions.parts import converted
from pyrobnn.guides.base import built
from pyrobnn.posterior.base import AbstractPosterior, Draws
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction, joined
from pyrobnn.posterior.record import FitRecord, History


class Mixture(AbstractPosterior):
    """The equal-weight mixture of K posteriors of one model: q(w) = 1/K sum_k q_k(w).

    With point masses for members it is a deep ensemble (Lakshminarayanan et al. 2017).

    Args:
        members: K posteriors of the same model, in the same units.
        seed: default seed for draws; the first member's if not given.
        record: how they were fitted, as for `Posterior`.

    Raises:
        InputError: no members, or members of different models or units.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> fits = model.fit(bnn.datasets.sinusoid(), guide="map", replicates=3, steps=20, seed=0, progress=False)
        >>> mixture = bnn.Mixture(fits)
        >>> len(mixture), mixture.members[0] is fits[0]
        (3, True)
    """

    def __init__(
        self, members: Sequence[Posterior], *, seed: int | None = None, record: FitRecord | None = None
    ) -> None:
        if not members or not all(isinstance(member, Posterior) for member in members):
            raise InputError(f"A mixture needs posteriors, at least one, got {list(members)!r}.")
        self.members = tuple(members)
        self.seed = members[0].seed if seed is None else seed
        self.record = record or FitRecord()

        first, *others = self.members
        self.bnn, self.x_scaler, self.y_scaler = first.bnn, first.x_scaler, first.y_scaler
        for other in others:
            shapes = [{name: value.shape for name, value in one.bnn.initial_values.items()} for one in (first, other)]
            if shapes[0] != shapes[1]:
                raise InputError(f"Members of a mixture must have the same weights; got {first.bnn!r}, {other.bnn!r}.")
            for mine, theirs in ((first.x_scaler, other.x_scaler), (first.y_scaler, other.y_scaler)):
                a, b = mine.tensors, theirs.tensors
                if a.keys() != b.keys() or not all(torch.equal(a[name], b[name]) for name in a):
                    raise InputError("Members of a mixture must have the same units: fit them to one Data.")

    @property
    def _title(self) -> str:
        return f"Mixture of {counted(len(self), 'member')}"

    def __len__(self) -> int:
        return len(self.members)

    @property
    def history(self) -> History | None:
        """The record of the fits, averaged over the members; None if a history is missing or lengths differ."""
        records = [member.history for member in self.members if member.history is not None]
        if len(records) < len(self.members) or len({len(record) for record in records}) > 1:
            return None
        log_likelihood = np.mean([record.log_likelihood for record in records], 0)
        kl = np.mean([record.kl for record in records], 0)
        return History(log_likelihood, kl, [], [], records[0].engine)

    def draw(self, num_draws: int = 500, *, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all latent sites jointly, an equal share from each member in order, as values (S, *event) by site name.

        Each member has at least one of the draws; a remainder is spread over the first.

        Examples:
            >>> fits = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), replicates=3, steps=20, progress=False)
            >>> bnn.Mixture(fits).draw(30)["0.weight"].shape  # ten draws of each member
            torch.Size([30, 10, 1])
        """
        parts = [member.draw(count, seed=part_seed) for member, count, part_seed in self.shares(num_draws, seed=seed)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of each site by name, averaged over the members."""
        means = [member.mean() for member in self.members]
        return {name: torch.stack([mean[name] for mean in means]).mean(0) for name in means[0]}

    def _predict(
        self, x: Any, *, num_draws: int, seed: int | None, draws: Draws | None, at_mean: bool, linearized: bool | None
    ) -> Prediction:
        shares = self.shares(num_draws, seed=seed)
        if at_mean or (draws is None and self._are_points()):
            parts = [member.predict(x, seed=seed, at_mean=True) for member in self.members]
        elif draws is None:
            most = max(member.num_distinct(count) for member, count, _ in shares)
            parts = []
            for member, share, own_seed in shares:
                count = min(share, most)  # exactly so many, since the mixture counts its members alike
                repeated = member.draw(count, seed=own_seed) if member.num_distinct(count) < count else None
                options: dict[str, Any] = {"draws": repeated, "linearized": linearized}
                parts.append(member.predict(x, num_draws=count, seed=own_seed, **options))
        else:
            pairs = zip(self.members, self.split(draws), strict=True)
            parts = [member.predict(x, draws=part, linearized=linearized) for member, part in pairs]
        return joined(parts)

    def num_distinct(self, num_draws: int) -> int:
        """Return how many of so many draws differ: of points, one for each member."""
        return len(self) if self._are_points() else num_draws

    def _are_points(self) -> bool:
        pairs = [(built(member.guide), member.bnn.site_names) for member in self.members]
        return all(guide.fixed_sites().issuperset([*names, *(guide.mean() or {})]) for guide, names in pairs)

    def split(self, draws: Draws) -> list[dict[str, Tensor]]:
        """Split the result of `draw` into the draws of each member."""
        counts = self._counts(len(next(iter(draws.values()))))
        pieces = {name: value.split(counts) for name, value in draws.items()}
        return [{name: value[k] for name, value in pieces.items()} for k in range(len(self))]

    def shares(self, num_draws: int, *, seed: int | None = None) -> list[tuple[Posterior, int, int]]:
        """Return each member with its number of draws and the seed of these, which together make `draw(num_draws)`."""
        whole = self.seed if seed is None else seed
        seeds = [derive(whole, f"member {index}") for index in range(len(self))]
        return list(zip(self.members, self._counts(num_draws), seeds, strict=True))

    def _counts(self, num_draws: int) -> list[int]:
        if num_draws < len(self):
            raise InputError(f"`num_draws` must be at least {len(self)}, one for each member, got {num_draws}.")
        each, rest = divmod(num_draws, len(self))
        return [each + (k < rest) for k in range(len(self))]


def require_single(posterior: Posterior | Mixture, name: str) -> None:
    """Refuse a mixture where a function, named for the message, takes one posterior."""
    if isinstance(posterior, Mixture):
        got = f"a mixture of {len(posterior)}"
        raise InputError(f"`{name}` takes one posterior, got {got}: pass its `members` one by one.")


def copies_of(imputer: Imputer | None, x: np.ndarray) -> Iterator[Tensor]:
    """Yield rows (N, features) as often as predictions draw the values that they lack: once where they lack none."""
    if imputer is None or not (lacks := imputer.lacking(x).any(1)).any():
        yield torch.tensor(x)
        return
    for drawn in imputer.copies(x[lacks], TO_PREDICT):
        copy = torch.tensor(x)
        copy[lacks] = torch.from_numpy(drawn)
        yield copy


def predict_copies(
    posterior: Posterior | Mixture, imputer: Imputer | None, x: np.ndarray, *, num_draws: int, seed: int | None = None
) -> Prediction:
    """Predict for rows (N, features), with NaN where they lack a value: each copy of these rows has some of the draws.

    Each copy has as many draws of each member of a mixture, at least one. The imputer is None if rows lack nothing.
    """
    if imputer is None or not imputer.lacking(x).any():
        return posterior.predict(x, num_draws=num_draws, seed=seed)
    members, root = len(posterior.members), posterior.seed if seed is None else seed
    draws = math.ceil(num_draws / (TO_PREDICT * members)) * members

    def predict(rows: np.ndarray, count: int, number: int) -> Prediction:
        return posterior.predict(rows, num_draws=count, seed=derive(root, f"copy {number}"))

    lacks = imputer.lacking(x).any(1)
    copies = enumerate(imputer.copies(x[lacks], TO_PREDICT))
    with_gaps = joined([predict(copy, draws, number) for number, copy in copies])
    if lacks.all():
        return with_gaps
    whole = predict(x[~lacks], draws * TO_PREDICT, TO_PREDICT)
    if with_gaps.num_draws % whole.num_draws:  # of chains with few draws each copy has some of them
        whole = joined([predict(x[~lacks], draws, number) for number in range(TO_PREDICT)])
    times = with_gaps.num_draws // whole.num_draws
    if times > 1:
        repeated = converted(whole.distribution, lambda values: values.repeat_interleave(times, 0))
        whole = Prediction(repeated, whole.scaler)
    place = torch.from_numpy(np.argsort(np.concatenate([np.flatnonzero(~lacks), np.flatnonzero(lacks)])))
    return joined([whole, with_gaps], 1)[place]
