"""The groups of a DataTree that rest on draws: from joint draws of the latents to arrays, block by block."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._torch.pyro import fast_pyro, local_parameters
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.monitored import Monitored
from pyrobnn.guides.built import built
from pyrobnn.inference.prior_predictive import PriorGuide
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior, latent_names
from pyrobnn.posterior.prediction import Prediction

Arrays = dict[str, dict[str, np.ndarray]]
"""Variables by group, (draw, ...) or (chain, draw, ...)."""
_DRAWS = 500
_DRAWN_NUMBERS = 2**29
"""Numbers drawn in all, beyond which fewer draws are made unless more are asked for."""
_FEWEST_BY_DEFAULT = 100
_BLOCK = 2**23
"""Most floats of draws held at one time: 32 MiB in float32, and a few times more for their densities."""
_FEWEST_FROM_PRIOR, _FROM_PRIOR = 50, 2**27
"""Fewest draws from the prior of a large network, and most floats for as many draws as from the posterior."""
_TYPES: dict[str, type] = {"diverging": bool, "n_steps": int}
"""Types in ArviZ of the statistics of chains that are not real numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Converter:
    """Conversion of blocks of draws.

    Attributes:
        data: inputs and targets in original units, without weights.
        monitored: which entries of the sites to keep.
        x_pred: inputs (M, *in) without targets, in original units, or None.
    """

    data: Data
    monitored: Monitored
    x_pred: Any = None

    def convert(self, member: Posterior, draws: dict[str, Tensor], seed: int) -> Arrays:
        """Return the groups of a block of draws (B, *event), the draws on the leading axis."""
        prediction = member.predict(self.data.x, draws=draws)
        log_likelihood, log_prior = prediction.draw_log_prob(self.data.y), log_prior_density(member, draws)
        tensors = {
            "posterior_predictive": self._predictive(prediction, seed),
            "log_likelihood": {"y": log_likelihood},
            "log_prior": {"lprior": log_prior},
            "sample_stats": {"lp": log_prior + log_likelihood.double().sum(1)},
        }
        if self.x_pred is not None:
            elsewhere = member.predict(self.x_pred, draws=draws)
            tensors["predictions"] = self._predictive(elsewhere, derive(seed, "predictions"))
        return {"posterior": self.monitored.select(draws)} | _numpy(tensors)

    def convert_prior(self, prior: Posterior, draws: dict[str, Tensor], seed: int) -> Arrays:
        """Return the groups of a block of draws from the prior; no predictive group if a prediction is not finite."""
        prediction = prior.predict(self.data.x, draws=draws)
        finite = bool(prediction.draw_means.isfinite().all())
        predictive = {"prior_predictive": self._predictive(prediction, seed)} if finite else {}
        return {"prior": self.monitored.select(draws)} | _numpy(predictive)

    def _predictive(self, prediction: Prediction, seed: int) -> dict[str, Tensor]:
        y = prediction.sample(seed=seed)
        if prediction.is_classification:
            return {"y": y.to(self.data.y.dtype), "probs": prediction.draw_means}
        return {"y": y, "mu": prediction.draw_means}


def _numpy(tensors: dict[str, dict[str, Tensor]]) -> Arrays:
    return {group: {name: v.cpu().numpy() for name, v in variables.items()} for group, variables in tensors.items()}


def draw_groups(posterior: Posterior | Mixture, converter: Converter, num_draws: int | None, seed: int) -> Arrays:
    """Return the groups that rest on draws from the posterior, (chain, draw, ...), for a mixture by member.

    `num_draws` counts the draws of all chains together; None is 500 (fewer of more than a million weights), or all of
    Markov chains.

    Raises:
        InputError: fewer draws than chains, or data that do not fit the model.
    """
    parts = members_of(posterior)
    seeds = _seeds(posterior, seed)
    if _hold_chains(parts):
        kept = _num_kept(parts, num_draws)
        by_part = [_from_chains(part, key, converter, kept) for part, key in zip(parts, seeds, strict=True)]
    else:
        each = _num_each(parts, _default_draws(posterior.bnn.num_weights) if num_draws is None else num_draws)
        by_part = [_from_guide(part, key, converter, each) for part, key in zip(parts, seeds, strict=True)]
    groups = _by_chain(by_part)
    statistics = groups["sample_stats"]
    if np.isnan(statistics.get("log_q", np.zeros(1))).all():
        del statistics["log_q"]
    return groups


def _default_draws(num_weights: int) -> int:
    return min(_DRAWS, max(_FEWEST_BY_DEFAULT, _DRAWN_NUMBERS // max(1, num_weights)))


def prior_groups(
    posterior: Posterior | Mixture, converter: Converter, num_draws: int, seed: int
) -> tuple[Arrays, str | None]:
    """Return `prior` and `prior_predictive`, a chain for each member, and why a group is left out, or None.

    Parameters have their learned values. Large networks have fewer than `num_draws` draws.
    """
    parts, seeds = members_of(posterior), _seeds(posterior, seed)
    affordable = max(_FEWEST_FROM_PRIOR, _FROM_PRIOR // max(1, posterior.bnn.num_weights))
    each = max(1, min(num_draws, affordable) // len(parts))
    try:
        by_part = [_from_prior(part, key, converter, each) for part, key in zip(parts, seeds, strict=True)]
    except NotImplementedError as error:
        return {}, f"the prior cannot be drawn from: {error or type(error).__name__}"
    if all("prior_predictive" in arrays for arrays in by_part):
        return _by_chain(by_part), None
    without = [{"prior": arrays["prior"]} for arrays in by_part]
    return _by_chain(without), "predictions under draws from the prior overflow, so prior_predictive is left out"


def _seeds(posterior: Posterior | Mixture, seed: int) -> list[int]:
    if isinstance(posterior, Mixture):
        return [member_seed for *_, member_seed in posterior.shares(len(posterior), seed=seed)]
    return [seed]


def _by_chain(by_part: Sequence[Arrays]) -> Arrays:
    """Return the arrays of members, concatenated along the chains."""
    return {
        group: {name: np.concatenate([arrays[group][name] for arrays in by_part]) for name in variables}
        for group, variables in by_part[0].items()
    }


def _hold_chains(members: Sequence[Posterior]) -> bool:
    """Whether all members hold Markov chains, as many and as long, with the same statistics."""
    kinds = [(_lengths(member), tuple(built(member.guide).sample_stats())) for member in members]
    return kinds[0][0] != (0, 0) and len(set(kinds)) == 1


def _lengths(member: Posterior) -> tuple[int, int]:
    """Return the number of stored Markov chains and of the draws of each, 0 without any."""
    stored = next(iter((built(member.guide).chains() or {}).values()), None)
    return (0, 0) if stored is None else (stored.shape[0], stored.shape[1])


def _num_kept(members: Sequence[Posterior], num_draws: int | None) -> int:
    """Return the number of last draws to take from each Markov chain."""
    num_chains, length = _lengths(members[0])
    total = num_chains * len(members)
    kept = length if num_draws is None else min(length, num_draws // total)
    if kept < 1:
        raise InputError(f"`num_draws` must be at least {total}, one for each chain, got {num_draws}.")
    return kept


def _num_each(members: Sequence[Posterior], num_draws: int) -> int:
    """Return the number of draws to take from each guide."""
    if num_draws < len(members):
        reason = ", one for each member" if len(members) > 1 else ""
        raise InputError(f"`num_draws` must be at least {len(members)}{reason}, got {num_draws}.")
    return num_draws // len(members)


def _from_chains(member: Posterior, seed: int, converter: Converter, kept: int) -> Arrays:
    """Return the groups of the last draws of each chain, (chain, draw, ...), in their order."""
    guide = built(member.guide)
    chains = {name: values[:, -kept:] for name, values in (guide.chains() or {}).items()}
    num_chains, noise_seeds = len(next(iter(chains.values()))), count(seed)
    with fast_pyro(), torch.no_grad():
        blocks = [converter.convert(member, block, next(noise_seeds)) for block in _blocks(member, chains)]
    groups = _joined(blocks, num_chains)
    groups["sample_stats"] |= {
        name: values[:, -kept:].cpu().numpy().astype(_TYPES.get(name, float))
        for name, values in guide.sample_stats().items()
    }
    return groups


def _from_guide(member: Posterior, seed: int, converter: Converter, num_draws: int) -> Arrays:
    """Return the groups of independent draws, (1, draw, ...), with NaN for the log density where there is none."""
    noise_seeds = count(seed)

    def convert(draws: dict[str, Tensor], log_q: Tensor) -> Arrays:
        arrays = converter.convert(member, draws, next(noise_seeds))
        arrays["sample_stats"]["log_q"] = log_q.double().cpu().numpy()
        return arrays

    def convert_stored(draws: dict[str, Tensor]) -> Arrays:
        return convert(draws, torch.full((len(next(iter(draws.values()))),), torch.nan))

    blocks: list[Arrays] = []
    if _lengths(member) != (0, 0):
        blocks += member.map_traces(_values, convert_stored, num_draws, seed=seed)
    else:
        for number, part_seed in _shares(member, num_draws, seed):
            blocks += member.map_draws(convert, number, seed=part_seed)
    groups = _joined(blocks, 1)
    if not groups["sample_stats"]["log_q"].any():
        groups["sample_stats"]["log_q"][:] = np.nan
    return groups


def _from_prior(member: Posterior, seed: int, converter: Converter, num_draws: int) -> Arrays:
    """Return the groups of draws from the prior of a member's model, (1, draw, ...)."""
    with local_parameters():
        guide = PriorGuide(member.bnn)
    prior = Posterior(
        member.bnn,
        guide,
        example=member.example,
        x_scaler=member.x_scaler,
        y_scaler=member.y_scaler,
        seed=seed,
        outputs=member.outputs,
    )
    noise_seeds = count(seed)
    blocks: list[Arrays] = []
    for number, part_seed in _shares(prior, num_draws, derive(seed, "prior")):
        blocks += prior.map_traces(
            _values, lambda draws: converter.convert_prior(prior, draws, next(noise_seeds)), number, seed=part_seed
        )
    common = set.intersection(*(set(block) for block in blocks))
    return _joined([{group: block[group] for group in block if group in common} for block in blocks], 1)


def _shares(member: Posterior, num_draws: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield the number of draws and the seed of each part; a large network draws in several parts."""
    size = max(1, _BLOCK // max(1, member.bnn.num_weights))
    for start in range(0, num_draws, size):
        yield min(size, num_draws - start), derive(seed, f"draw {start}") if start else seed


def _values(trace: poutine.Trace) -> dict[str, Tensor]:
    return {name: trace.nodes[name]["value"].detach() for name in latent_names(trace)}


def _joined(blocks: Sequence[Arrays], num_chains: int) -> Arrays:
    """Return concatenated blocks of draws, as chains (chain, draw, ...)."""
    joined = {
        group: {name: np.concatenate([block[group][name] for block in blocks]) for name in variables}
        for group, variables in blocks[0].items()
    }
    return {
        group: {name: values.reshape(num_chains, -1, *values.shape[1:]) for name, values in variables.items()}
        for group, variables in joined.items()
    }


def _blocks(member: Posterior, chains: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the draws of chains in order, in blocks (B, *event) that fit into memory."""
    size = max(1, _BLOCK // max(1, member.bnn.num_weights))
    pieces = {n: v.flatten(0, 1).split(size) for n, v in chains.items()}
    for index in range(len(next(iter(pieces.values())))):
        yield {name: piece[index] for name, piece in pieces.items()}


def log_prior_density(member: Posterior, draws: dict[str, Tensor]) -> Tensor:
    """Return the log prior density of each joint draw (B, *event), summed in float64, (B,)."""

    def density(values: dict[str, Tensor]) -> Tensor:
        trace = member.trace(poutine.condition(member.bnn, data=values))
        trace.compute_log_prob(lambda name, site: name in values)
        return torch.stack([trace.nodes[name]["log_prob_sum"].double() for name in values]).sum()

    with seeded(member.seed, "log prior"):
        return torch.func.vmap(density, randomness="different")(draws)


def log_likelihoods(
    member: Posterior, data: Data, draws: dict[str, Tensor], *, linearized: bool | None = None
) -> Tensor:
    """Return log p(y_n | x_n, w_s) in original units, times the weight of the example if given, (S, N)."""
    log_probs = member.predict(data.x, draws=draws, linearized=linearized).draw_log_prob(data.y).double()
    return log_probs if data.weights is None else log_probs * data.weights.to(log_probs.device)
