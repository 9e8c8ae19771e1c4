"""Whether a fit has missed what a smooth function tells: errors of a Gaussian process on rows left out."""

import math

import torch
from torch import Tensor

from pyrobnn._core.random import derive
from pyrobnn.data.in_memory import Data
from pyrobnn.data.smooth_function import errors_left_out, standardised
from pyrobnn.data.splits import same_inputs
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

_FEWEST_ROWS = 20
_FACTOR, _ERRORS = 1.25, 3.0
"""Multiple of the errors of the process, and standard errors of the difference, from which on a fit has missed."""


def missed_function(posterior: Posterior | Mixture, train: Data, *, num_draws: int, most_rows: int) -> str | None:
    """Report a fit whose errors on its own training rows are larger than a Gaussian process makes without the row.

    Training rows flatter the fit, so a good fit has smaller errors, whatever the noise. Rows of equal inputs, which
    would tell the process the target of each other, count once. Of 12 fits with `guide="dropout"` to 60 or 100 rows it
    names the three whose mean is worst, with 1.6 to 2.1 times the errors; the other nine have 1.1 times at most.

    Args:
        posterior: the fit.
        train: its training data.
        num_draws: draws S of the predictions.
        most_rows: largest number of rows to use.

    Returns:
        Two sentences; None for other targets than one column of real ones, for inputs that are no tensor, for data with
        weights, and for fewer than 20 rows.
    """
    is_real = as_likelihood(posterior.bnn.settings["likelihood"]).noise is not None and train.y.ndim == 1
    if not is_real or not isinstance(train.x, Tensor) or train.weights is not None:
        return None
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(derive(0, "missed")))[:most_rows]
    groups = same_inputs(train.x[rows]).tolist()
    rows = rows[[groups.index(group) for group in dict.fromkeys(groups)]]
    if len(rows) < _FEWEST_ROWS:
        return None
    x, y = train.x[rows].double().cpu().flatten(1), train.y[rows].double().cpu()
    rival = errors_left_out(standardised(x), standardised(y))[0].abs() * y.std()
    own = (y - posterior.predict(train.x[rows], num_draws=num_draws).mean.double().cpu()).abs()
    apart = own - rival
    error = float(apart.std()) / math.sqrt(len(rows))
    if not (float(own.mean()) > _FACTOR * float(rival.mean()) and float(apart.mean()) > _ERRORS * error):
        return None
    return (
        "The fit has missed what the inputs say: on its own training examples its mean is further from the target than "
        f"that of a Gaussian process fitted to the others. The mean absolute errors on {len(rows)} of them are "
        f"{float(own.mean()):.2g} and {float(rival.mean()):.2g}."
    )
