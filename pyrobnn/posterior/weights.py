"""Functions of the weights of a posterior: summarise, prune, draw functions, use as the next prior."""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.bnn import BNN, StartState
from pyrobnn.guides.base import built
from pyrobnn.guides.pruned import PrunedGuide
from pyrobnn.posterior.mixture import Mixture, require_single
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import with_guide_table
from pyrobnn.priors.from_posterior import FromPosterior

if TYPE_CHECKING:
    import pandas as pd

_MOST_MOMENT_DRAWS = 1000
_MOST_DRAWN_NUMBERS = 2**25


def weight_moments(posterior: Posterior) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean and standard deviation of every weight by site: exact where the guide knows, else of draws."""
    names = posterior.bnn.site_names
    with torch.no_grad():
        moments = built(posterior.guide).moments()
    if moments is not None:
        return {name: moments[name] for name in names}
    affordable = max(2, _MOST_DRAWN_NUMBERS // posterior.bnn.num_weights)
    num_draws = posterior.num_distinct(min(_MOST_MOMENT_DRAWS, affordable))
    sums = posterior.map_traces(
        lambda trace: {name: trace.nodes[name]["value"].double() for name in names},
        lambda draws: {name: torch.stack([v.sum(0), v.square().sum(0)]) for name, v in draws.items()},
        num_draws,
    )
    totals = {name: torch.stack([part[name] for part in sums]).sum(0) / num_draws for name in names}
    like = posterior.bnn.initial_values
    return {
        name: (mean.to(like[name]), (square - mean.square()).clamp_min(0).sqrt().to(like[name]))
        for name, (mean, square) in totals.items()
    }


def weight_table(posterior: Posterior) -> "pd.DataFrame":
    """Return a row for every weight: its site, its index in it, mean, standard deviation and signal-to-noise ratio.

    The ratio |mean| / std is the pruning criterion of Blundell et al. (2015, sec. 5.1).

    Raises:
        InputError: a mixture.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> table = bnn.weight_table(posterior)
        >>> len(table), list(table.columns)
        (31, ['site', 'index', 'mean', 'std', 'snr'])
    """
    import numpy as np
    import pandas as pd

    require_single(posterior, "weight_table")
    parts = []
    for name, (mean, std) in weight_moments(posterior).items():
        index = [tuple(map(int, place)) for place in np.ndindex(*mean.shape)]
        columns = {"index": index, "mean": mean.flatten().tolist(), "std": std.flatten().tolist()}
        parts.append(pd.DataFrame({"site": name} | columns))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(snr=table["mean"].abs() / table["std"])


def prune(posterior: Posterior, fraction: float) -> Posterior:
    """Return the posterior with the fraction of weights of smallest signal-to-noise ratio set to zero.

    The result draws, predicts and saves like any posterior; the other weights keep their distribution. (Blundell et al.
    2015, sec. 5.1; Graves 2011.)

    Args:
        posterior: the posterior to prune, unchanged.
        fraction: share of all weights, in [0, 1).

    Raises:
        InputError: a mixture, or a fraction outside the range.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> pruned = bnn.prune(posterior, 0.5)
        >>> int((bnn.weight_table(pruned)["std"] == 0).sum()), posterior.bnn.num_weights
        (16, 31)
    """
    require_single(posterior, "prune")
    if not 0 <= fraction < 1:
        raise InputError(f"`fraction` must be at least 0 and below 1, got {fraction}.")
    ratios = {name: mean.abs() / std for name, (mean, std) in weight_moments(posterior).items()}
    flat = torch.cat([ratio.flatten() for ratio in ratios.values()])
    kept = torch.ones_like(flat)
    kept[flat.argsort(stable=True)[: round(fraction * len(flat))]] = 0
    pieces = kept.split([ratio.numel() for ratio in ratios.values()])
    masks = {name: piece.view(ratio.shape) for (name, ratio), piece in zip(ratios.items(), pieces, strict=True)}
    others = {name: torch.ones_like(value[0]) for name, value in posterior.draw(1).items()}
    with local_parameters():
        guide = PrunedGuide(copy.deepcopy(posterior.guide), others | masks)
    pruned = posterior.with_fields(guide=guide)
    if posterior.record.guide is not None:
        table = {"type": "pruned", "guide": posterior.record.guide}
        pruned.note(method=with_guide_table(posterior.record.method, table))
    return pruned


def sample_function(posterior: Posterior | Mixture, *, seed: int) -> Callable[[Any], Tensor]:
    """Return a function drawn from the posterior, for Thompson sampling (Thompson 1933).

    It maps inputs (N, *in) to the mean of the targets under the draw, (N, K), in original units. It has the gradient in
    a tensor of inputs that requires it, to climb to the maximum.

    Args:
        posterior: the posterior to draw from; in a mixture, the seed picks a member.
        seed: seed of the draw; the same seed gives the same function.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> function = bnn.sample_function(posterior, seed=1)
        >>> best = function(torch.linspace(-0.5, 0.5, 101)[:, None]).argmax()  # where this draw would look next
        >>> torch.equal(function([[0.3]]), function([[0.3]]))
        True
    """
    members = posterior.members
    member = members[derive(seed, "member") % len(members)]
    draw = member.draw(1, seed=seed)
    return lambda x: member.predict(x, draws=draw).mean


def update_prior(posterior: Posterior) -> BNN:
    """Return the model with this posterior, as independent normals, for its prior (Nguyen et al. 2018).

    Later fits keep the units of this fit: `standardize` of their data has no effect. The network starts at the
    posterior mean, its parameters without a prior and its buffers at their trained values. Sites of prior or likelihood
    and a learned noise are inferred anew. Correlations between weights are left out: two fits in turn give the
    posterior of all data if there are none.

    Raises:
        InputError: a mixture, or weights without a spread.

    Examples:
        >>> first, second = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(first, steps=20, seed=0, progress=False)
        >>> model = bnn.update_prior(posterior)
        >>> model.fit(second, steps=20, seed=0, progress=False).predict([[0.0], [0.3]])
        Prediction(Normal, num_draws=500, num_inputs=2)
    """
    require_single(posterior, "update_prior")
    moments, bnn = weight_moments(posterior), posterior.bnn
    for name, (mean, std) in moments.items():
        if not bool(((std > 0) & std.isfinite() & mean.isfinite()).all()):
            text = f"{name!r} has weights without a spread under {type(posterior.guide).__name__}"
            remedy = "use a guide that covers all, such as 'mean_field' or 'laplace', and the posterior before pruning"
            raise InputError(f"The posterior becomes the prior of the next fit, and {text}: {remedy}.")
    prior = FromPosterior(moments)
    is_whole = not any(value.requires_grad for value in bnn.net.parameters())
    means = {name: mean for name, (mean, _) in moments.items()}
    parts = {"prior": prior if is_whole else dict.fromkeys(moments, prior) | {"*": None}}
    updated = bnn.fresh(parts, start=StartState(bnn.state_at(means)))
    updated.units = (posterior.x_scaler, posterior.y_scaler)
    return updated
