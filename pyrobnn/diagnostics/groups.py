"""The groups of a DataTree that rest on draws: from joint draws of the latents to arrays, block by block."""

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pyrobnn._errors import InputError
from pyrobnn._pyro import fast_pyro
from pyrobnn._vectorize import draws_at_once
from pyrobnn.data import Data
from pyrobnn.diagnostics.monitored import Monitored
from pyrobnn.mixture import Mixture, members_of
from pyrobnn.posterior import Posterior, latent_names
from pyrobnn.prediction import Prediction

Arrays = dict[str, dict[str, np.ndarray]]
"""Variables by group, (draw, ...) or (chain, draw, ...)."""
_DRAWS = 500
_TYPES: dict[str, type] = {"diverging": bool, "n_steps": int}
"""Types in which ArviZ has statistics of chains that are not real numbers."""


def draw_groups(
    posterior: Posterior | Mixture, data: Data, monitored: Monitored, num_draws: int | None, seed: int
) -> Arrays:
    """Return posterior, posterior_predictive, log_likelihood and sample_stats, with variables (chain, draw, ...).

    Args:
        posterior: one chain, or the Markov chains that it holds; a mixture has those of each member.
        data: inputs and targets in original units.
        monitored: which entries of the sites to keep.
        num_draws: number of draws S of all chains together; None for 500, or for all of Markov chains.
        seed: seed of the draws and of the noise of the targets.

    Raises:
        InputError: fewer draws than chains, or data that do not fit the model.
    """
    parts = members_of(posterior)
    seeds = [own for *_, own in posterior.shares(len(parts), seed=seed)] if isinstance(posterior, Mixture) else [seed]
    if _hold_chains(parts):
        kept = _num_kept(parts, num_draws)
        found = [_from_chains(part, own, data, monitored, kept) for part, own in zip(parts, seeds, strict=True)]
    else:
        each = _num_each(parts, _DRAWS if num_draws is None else num_draws)
        found = [_from_guide(part, own, data, monitored, each) for part, own in zip(parts, seeds, strict=True)]
    groups = {
        group: {name: np.concatenate([arrays[group][name] for arrays in found]) for name in variables}
        for group, variables in found[0].items()
    }
    statistics = groups["sample_stats"]
    if np.isnan(statistics.get("log_q", np.zeros(1))).all():
        del statistics["log_q"]
    return groups


def _hold_chains(members: Sequence[Posterior]) -> bool:
    """Whether all members hold Markov chains, as many and as long, with the same statistics."""
    guides = [member.guide for member in members]
    if not all(hasattr(guide, "chains") for guide in guides):
        return False
    return len({(guide.draws.shape[:2], tuple(guide.sample_stats())) for guide in guides}) == 1


def _num_kept(members: Sequence[Posterior], num_draws: int | None) -> int:
    """Return the number of last draws to take from each Markov chain."""
    num_chains, length = next(iter(members[0].guide.chains().values())).shape[:2]
    total = num_chains * len(members)
    kept = length if num_draws is None else min(length, num_draws // total)
    if kept < 1:
        raise InputError(f"`num_draws` must be at least {total}, one for each chain, got {num_draws}.")
    return int(kept)


def _num_each(members: Sequence[Posterior], num_draws: int) -> int:
    """Return the number of draws to take from each guide; a single posterior refuses less than one itself."""
    if len(members) > 1 and num_draws < len(members):
        raise InputError(f"`num_draws` must be at least {len(members)}, one for each member, got {num_draws}.")
    return num_draws // len(members)


def _from_chains(member: Posterior, seed: int, data: Data, monitored: Monitored, kept: int) -> Arrays:
    """Return the groups of the last draws of each chain, (chain, draw, ...), in their order."""
    chains = {name: values[:, -kept:] for name, values in member.guide.chains().items()}
    num_chains, noise_seeds = len(next(iter(chains.values()))), count(seed)
    with fast_pyro(), torch.no_grad():
        blocks = [_convert(member, data, monitored, block, next(noise_seeds)) for block in _blocks(member, chains)]
    groups = _joined(blocks, num_chains)
    groups["sample_stats"] |= {
        name: values[:, -kept:].cpu().numpy().astype(_TYPES.get(name, float))
        for name, values in member.guide.sample_stats().items()
    }
    return groups


def _from_guide(member: Posterior, seed: int, data: Data, monitored: Monitored, num_draws: int) -> Arrays:
    """Return the groups of independent draws, (1, draw, ...), with NaN for the log density where there is none."""
    noise_seeds = count(seed)

    def convert(draws: dict[str, Tensor], log_q: Tensor) -> Arrays:
        arrays = _convert(member, data, monitored, draws, next(noise_seeds))
        arrays["sample_stats"]["log_q"] = log_q.double().cpu().numpy()
        return arrays

    def convert_stored(draws: dict[str, Tensor]) -> Arrays:
        return convert(draws, torch.full((len(next(iter(draws.values()))),), torch.nan))

    if hasattr(member.guide, "chains"):
        blocks = member.map_traces(_values, convert_stored, num_draws, seed=seed)
    else:
        blocks = member.map_draws(convert, num_draws, seed=seed)
    groups = _joined(blocks, 1)
    if not groups["sample_stats"]["log_q"].any():
        groups["sample_stats"]["log_q"][:] = np.nan
    return groups


def _values(trace: poutine.Trace) -> dict[str, Tensor]:
    return {name: trace.nodes[name]["value"].detach() for name in latent_names(trace)}


def _convert(member: Posterior, data: Data, monitored: Monitored, draws: dict[str, Tensor], noise_seed: int) -> Arrays:
    """Return the groups of a block of draws (B, *event), the draws on the leading axis."""
    prediction = member.predict(data.x, draws=draws)
    log_likelihood = prediction.draw_log_prob(data.y)
    tensors = {
        "posterior_predictive": _predictive(prediction, data, noise_seed),
        "log_likelihood": {"y": log_likelihood},
        "sample_stats": {"lp": _log_prior(member, draws) + log_likelihood.double().sum(1)},
    }
    arrays = {group: {name: v.cpu().numpy() for name, v in variables.items()} for group, variables in tensors.items()}
    return {"posterior": monitored.select(draws)} | arrays


def _joined(blocks: Sequence[Arrays], num_chains: int) -> Arrays:
    """Return blocks of draws one after the other, as chains (chain, draw, ...)."""
    joined = {
        group: {name: np.concatenate([block[group][name] for block in blocks]) for name in variables}
        for group, variables in blocks[0].items()
    }
    return {
        group: {name: values.reshape(num_chains, -1, *values.shape[1:]) for name, values in variables.items()}
        for group, variables in joined.items()
    }


def _blocks(member: Posterior, chains: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the draws of chains one after the other, in blocks (B, *event) that can be held at once."""
    pieces = {n: v.flatten(0, 1).split(draws_at_once(member.bnn.num_weights)) for n, v in chains.items()}
    for index in range(len(next(iter(pieces.values())))):
        yield {name: piece[index] for name, piece in pieces.items()}


def _predictive(prediction: Prediction, data: Data, seed: int) -> dict[str, Tensor]:
    y = prediction.sample(seed=seed)
    if prediction.is_classification:
        return {"y": y.to(data.y.dtype), "probs": prediction.draw_means}
    return {"y": y, "mu": prediction.draw_means}


def _log_prior(member: Posterior, draws: dict[str, Tensor]) -> Tensor:
    """Return the log prior density of each joint draw, (B,)."""

    def one(values: dict[str, Tensor]) -> Tensor:
        with poutine.block():
            model = poutine.condition(member.bnn, data=values)
            trace = poutine.trace(model).get_trace(*member.example)
        trace.compute_log_prob(lambda name, site: name in values)
        return torch.stack([trace.nodes[name]["log_prob_sum"].double() for name in values]).sum()

    return torch.func.vmap(one, randomness="different")(draws)
