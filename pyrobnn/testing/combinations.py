"""Pytest decorators for the checks, and the check that priors, likelihoods and guides work together."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine

from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.convert import to_datatree
from pyrobnn.guides.sites import latent_sites
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save
from pyrobnn.testing.checks import (
    accepted_targets,
    make_inputs,
    make_net,
    require,
    require_equal,
    require_finite,
    short_fit,
)

if TYPE_CHECKING:
    import pytest

Check = Callable[[Any], None]
_NUM_ROWS = 6
_NUM_DRAWS = 4


def pairwise(*families: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Return combinations of a member from each of three families, such that every pair of members occurs.

    The two larger families are crossed, and the smallest is dealt out along their diagonals.
    """
    order = sorted(range(3), key=lambda place: -len(families[place]))
    first, second, third = (families[place] for place in order)
    for a, b in product(range(len(first)), range(len(second))):
        chosen = (first[a], second[b], third[(a + b) % len(third)])
        yield tuple(chosen[order.index(place)] for place in range(3))


def parametrize_with_checks(parts: Iterable[Any], checks: Sequence[Check]) -> "pytest.MarkDecorator":
    """Return a pytest decorator for a test that takes `part` and `check`, for every part and check of its kind.

    Examples:
        >>> from pyrobnn import priors
        >>> from pyrobnn.testing import PRIOR_CHECKS, parametrize_with_checks
        >>> @parametrize_with_checks([priors.Normal(0.5)], PRIOR_CHECKS)
        ... def test_prior(part, check):
        ...     check(part)
    """
    import pytest

    pairs = [pytest.param(part, check, id=f"{part!r}-{check.__name__}") for part in parts for check in checks]
    return pytest.mark.parametrize(("part", "check"), pairs)


def parametrize_combinations(
    priors: Sequence[Any], likelihoods: Sequence[Any], guides: Sequence[Any]
) -> "pytest.MarkDecorator":
    """Return a pytest decorator for a test that takes `prior`, `likelihood` and `guide`: every pair occurs once.

    Examples:
        >>> from pyrobnn import guides, likelihoods, priors
        >>> @bnn.testing.parametrize_combinations([priors.Normal(0.5)], [likelihoods.Poisson()], [guides.Map()])
        ... def test_combination(prior, likelihood, guide):
        ...     bnn.testing.check_combination(prior, likelihood, guide)
    """
    import pytest

    combinations = [
        pytest.param(prior, likelihood, guide, id=f"{prior!r}-{likelihood!r}-{guide!r}")
        for prior, guide, likelihood in pairwise(priors, guides, likelihoods)
    ]
    return pytest.mark.parametrize(("prior", "likelihood", "guide"), combinations)


def check_combination(prior: Any, likelihood: Any, guide: Any) -> None:
    """A model of these parts is fitted, audited, predicted, stored and exported, as each part promises.

    Examples:
        >>> bnn.testing.check_combination(bnn.priors.Normal(0.5), bnn.likelihoods.Gaussian(1.0), bnn.guides.MeanField())
    """
    y, outputs = next(accepted_targets(likelihood))
    data = Data(make_inputs(len(y)), y)
    posterior = short_fit(BNN(make_net(outputs), prior=prior, likelihood=likelihood), data, guide=guide, steps=2)
    with fast_pyro():
        latents = {site.name: site.start.shape for site in latent_sites(posterior.bnn, *posterior.example)}
    shapes = {name: value.shape[1:] for name, value in posterior.draw(_NUM_DRAWS).items()}
    require_equal("The sites of draws", shapes, latents)
    _require_same_draws(posterior, posterior, "of a posterior for the same seed")
    _require_batching(posterior, data)
    _require_prediction(posterior, data)
    _require_storage(posterior, data)
    tree = to_datatree(posterior, data, num_draws=_NUM_DRAWS)
    missing = set(posterior.bnn.site_names) - set(tree["posterior"].data_vars)
    require(not missing, f"The DataTree lacks {', '.join(sorted(missing))}.")
    shape = tuple(tree["log_likelihood"]["y"].shape[:3])
    require_equal("The shape of the log-likelihood in the DataTree", shape, (1, _NUM_DRAWS, len(data)))


def _require_same_draws(first: Posterior, second: Any, what: str) -> None:
    pairs = ((name, value, second.draw(_NUM_DRAWS)[name]) for name, value in first.draw(_NUM_DRAWS).items())
    different = [name for name, one, other in pairs if not torch.equal(one, other)]
    require(not different, f"Draws {what} differ at {', '.join(different)}.")


def _require_batching(posterior: Posterior, data: Data) -> None:
    """Require that the scaled log-likelihoods of two halves average to the log-likelihood of all data."""
    bnn, half = posterior.bnn, len(data) // 2
    x, y = posterior.inputs(data.x), bnn.cast_targets(posterior.y_scaler.transform(data.y), bnn.like)
    model = poutine.condition(bnn, data={name: value[0] for name, value in posterior.draw(_NUM_DRAWS).items()})

    def log_likelihood(rows: slice) -> torch.Tensor:
        trace = poutine.trace(model).get_trace(x[rows], y[rows], num_data=2 * half)
        trace.compute_log_prob(lambda name, node: name == "y")
        return trace.nodes["y"]["log_prob_sum"].double()

    with fast_pyro(), poutine.block(), torch.no_grad():
        every, first, second = map(log_likelihood, (slice(2 * half), slice(half), slice(half, 2 * half)))
    require_finite("The log-likelihood of a draw", every)
    difference = float(((first + second) / 2 - every).abs() / every.abs().clamp_min(1.0))
    require(difference < 1e-4, f"The log-likelihood of halves, scaled, is off by {difference:.2g} of the whole's.")


def _require_prediction(posterior: Posterior, data: Data) -> None:
    """Require finite scores, and that aleatoric and epistemic variance sum to the variance of a sample."""
    prediction = posterior.predict(data.x[:_NUM_ROWS], num_draws=_NUM_DRAWS)
    require_finite("The log score after a short fit", prediction.log_prob(data.y[:_NUM_ROWS]))
    epistemic = prediction.draw_means.var(0, correction=0)
    torch.testing.assert_close(prediction.epistemic_variance, epistemic, rtol=1e-3, atol=1e-5)
    total, finite = prediction.variance, prediction.variance.isfinite()
    rest = total - prediction.aleatoric_variance - prediction.epistemic_variance
    share = (rest.abs() / total.clamp_min(1e-6))[finite]
    require(not bool((share >= 1e-4).any()), f"Aleatoric and epistemic variance miss the variance by {share}.")


def _require_storage(posterior: Posterior, data: Data) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(posterior, Path(folder) / "posterior")
        loaded = load(Path(folder) / "posterior", net=posterior.bnn.settings["net"])
    _require_same_draws(posterior, loaded, "of the stored posterior")
    first, second = (each.predict(data.x[:_NUM_ROWS], num_draws=_NUM_DRAWS).mean for each in (posterior, loaded))
    require(torch.equal(first, second), "Predictions of the stored posterior differ.")
