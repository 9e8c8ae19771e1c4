"""Whether a fit has missed what its inputs tell: a Gaussian process, or the mode that it began at, on rows left out."""

import math

import torch
from torch import Tensor

from pyrobnn._core.random import derive
from pyrobnn.data.gaussian_process import errors_left_out, standardised
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import same_inputs
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.verdict.remedies import Fitted

_FEWEST_ROWS = 20
_FACTOR, _ERRORS = 1.25, 3.0
"""Multiple of the errors of the process, and standard errors of the difference, from which on a fit has missed."""
_BEHIND, _FEWEST_NATS = 0.05, 5.0
"""Nats an example, and in all, behind the mode from which on a guide has lost what the data say."""


def behind_mode(posterior: Posterior | Mixture, train: Data, *, num_draws: int, most_rows: int) -> str | None:
    """Report a guide that scores its training rows below what the mode it began at says of rows left out.

    The evidence framework judges its modes by this left-out score, in closed form under a Laplace approximation.
    Training rows flatter the guide, so a good one scores more. None for other methods, and for data with weights.
    """
    evidence, is_laplace = posterior.record.evidence, posterior.record.laplace is not None
    is_other = is_laplace or "evidence_framework" not in Fitted(posterior).types
    if evidence is None or is_other or train.weights is not None:
        return None
    rows = _some_rows(train, most_rows)
    own = posterior.predict(train.x[rows], num_draws=num_draws).log_prob(train.y[rows]).double().cpu()
    of_mode, error = evidence.starts[evidence.chosen].log_left_out / len(train), float(own.std()) / math.sqrt(len(own))
    if not of_mode - float(own.mean()) > max(_BEHIND, _FEWEST_NATS / len(own), error):
        return None
    return (
        "The guide has lost what the data say: it predicts its own training examples worse than a Laplace "
        "approximation predicts examples left out. The log scores of an example are "
        f"{float(own.mean()):.2f} and {of_mode:.2f}."
    )


def _some_rows(train: Data, most: int) -> Tensor:
    return torch.randperm(len(train), generator=torch.Generator().manual_seed(derive(0, "missed")))[:most]


def missed_function(posterior: Posterior | Mixture, train: Data, *, num_draws: int, most_rows: int) -> str | None:
    """Report a fit whose errors on its own training rows are larger than a Gaussian process makes without the row.

    Training rows flatter the fit, so a good fit has smaller errors, whatever the noise. Rows of equal inputs, which
    would tell the process the target of each other, count once. None for other targets than one column of real ones,
    for inputs that are no tensor, for data with weights, and for fewer than 20 rows.
    """
    is_real = as_likelihood(posterior.bnn.settings["likelihood"]).noise is not None and train.y.ndim == 1
    if not is_real or not isinstance(train.x, Tensor) or train.weights is not None:
        return None
    rows = _some_rows(train, most_rows)
    groups = same_inputs(train.x[rows]).tolist()
    rows = rows[[groups.index(group) for group in dict.fromkeys(groups)]]
    if len(rows) < _FEWEST_ROWS:
        return None
    x, y = train.x[rows].double().cpu().flatten(1), train.y[rows].double().cpu()
    errors, _ = errors_left_out(standardised(x), standardised(y))
    rival = (errors * y.std()).abs()
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
