"""Entropy and mutual information of several class targets jointly, which the draws of the weights tie together."""

import functools
import math

import torch
from torch import Tensor

from pyrobnn._core.random import derive

MOST_OUTCOMES = 1024
"""Largest number of joint outcomes that are listed in full."""
_FEWEST_SAMPLES = 1000


def listed_entropy(probs: Tensor) -> Tensor:
    """Return the entropy of the mixture over draws by a list of all outcomes, (N,).

    Args:
        probs: probabilities of the classes of each target column under each draw, (S, N, K, C).
    """
    joint = functools.reduce(lambda some, more: (some[..., None] * more[..., None, :]).flatten(2), probs.unbind(2))
    return torch.special.entr(joint.mean(0)).sum(-1)


def num_samples(num_draws: int) -> int:
    """Return how many outcomes `sampled_information` draws: equally many from each draw, and 1000 at least."""
    return num_draws * math.ceil(_FEWEST_SAMPLES / num_draws)


def sampled_information(probs: Tensor) -> Tensor:
    """Return the mutual information of outcomes and draws, (N,), from samples of each draw; arguments as above.

    It is the mean of log p(y | w_s) - log p(y). All inputs have the same random numbers, so that the result for an
    input does not depend on the others.
    """
    num_draws, rounds = len(probs), num_samples(len(probs)) // len(probs)
    generator = torch.Generator().manual_seed(derive(0, "outcomes"))
    uniform = torch.rand((rounds, num_draws, 1, probs.shape[2], 1), generator=generator, dtype=torch.float64)
    chosen = (uniform.to(probs) > probs.cumsum(-1)[..., :-1]).sum(-1).flatten(0, 1)
    logs = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
    one_hot = torch.nn.functional.one_hot(chosen, probs.shape[-1]).to(probs)
    each = torch.einsum("tnkc,snkc->tsn", one_hot, logs)
    same_draw = each.unflatten(0, (rounds, num_draws)).diagonal(dim1=1, dim2=2).mean((0, 2))
    information = same_draw - each.logsumexp(1).mean(0) + math.log(num_draws)
    return information.clamp(0, math.log(num_draws))
