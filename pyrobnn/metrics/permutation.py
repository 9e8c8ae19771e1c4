"""How much a fit relies on each column of its inputs."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import shape_of, single
from pyrobnn.data.loader import in_memory
from pyrobnn.posterior.calibration import check_targets
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

if TYPE_CHECKING:
    from pandas import DataFrame

_ROWS_AT_ONCE = 10_000
"""Rows of shuffled tables that are predicted together: a call has a cost of its own."""


def permutation_importance(
    posterior: Posterior | Mixture,
    data: Any,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    num_shuffles: int = 5,
    num_draws: int = 100,
    seed: int = 0,
) -> "DataFrame":
    """Return how much worse the log score is with the values of a column shuffled among the examples (Breiman 2001).

    Of two columns that say the same each may have little. The standard error is over the examples.

    Args:
        posterior: a posterior or a mixture over a network that takes a table, (N, columns).
        data: the held-out data, at least two examples: `Data`, a pair (x, y), or a loader. Weights count as rows.
        groups: positions of columns that are shuffled together, by name; of an estimator they are
            `estimator.encoder_.positions()`. If not given, each column is by itself.
        num_shuffles: number of shuffles of each column.
        num_draws: number of posterior draws; at least the members of a mixture.
        seed: seed of the shuffles.

    Returns:
        A row for each group, the largest importance first, with the columns importance and stderr, in nats an example.

    Raises:
        InputError: inputs that are no table, or a single example.

    Examples:
        >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
        >>> data = bnn.Data(x, 3 * x[:, 0], feature_names=["size", "noise"])
        >>> posterior = bnn.BNN(bnn.MLP(2, [], 1)).fit(data[:40], guide="laplace", steps=200, seed=0, progress=False)
        >>> list(bnn.metrics.permutation_importance(posterior, data[40:]).index)
        ['size', 'noise']
    """
    import pandas as pd

    data = in_memory(data, collect=True, weighted=True)
    x = single(data.x, "Permutation importance")
    if x.ndim != 2 or len(x) < 2:
        text = "shuffles the columns of a table with two rows or more"
        raise InputError(f"`permutation_importance` {text}, got x of shape {shape_of(x)}.")
    check_count(num_shuffles, "num_shuffles")
    check_targets(posterior, data.y)
    before = posterior.predict(x, num_draws=num_draws).log_prob(data.y)
    generator = np.random.default_rng(seed)
    weights = np.ones(len(x)) if data.weights is None else data.weights.double().cpu().numpy()
    shares = weights / weights.sum()
    drawn: Any = functools.partial(generator.choice, size=len(x), p=shares)
    drawn = generator.permutation if data.weights is None else drawn
    orders = torch.as_tensor(np.stack([drawn(len(x)) for _ in range(num_shuffles)]))
    named = groups or {name: [at] for at, name in enumerate(data.feature_names)}
    rows = {}
    for some in itertools.batched(named.items(), max(1, _ROWS_AT_ONCE // (num_shuffles * len(x)))):
        tables = x.repeat(len(some), num_shuffles, 1)
        for table, (_, columns) in zip(tables, some, strict=True):
            table[:, list(columns)] = x[:, list(columns)][orders.flatten()]
        y = data.y.repeat(len(some) * num_shuffles, *[1] * (data.y.ndim - 1))
        log_probs = posterior.predict(tables.flatten(0, 1), num_draws=num_draws).log_prob(y)
        for (name, _), after in zip(some, log_probs.view(len(some), num_shuffles, -1), strict=True):
            losses = (before - after.mean(0)).double().cpu().numpy()
            variance = shares @ (losses - shares @ losses) ** 2
            rows[name] = {"importance": shares @ losses, "stderr": math.sqrt(variance / max(weights.sum() - 1, 1e-300))}
    return pd.DataFrame.from_dict(rows, orient="index").sort_values("importance", ascending=False, kind="stable")
