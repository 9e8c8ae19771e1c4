"""Pytest decorators for the checks, and the check that priors, likelihoods and guides work together."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from torch import Tensor

from pyrobnn._torch.inputs import X
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.convert import to_datatree
from pyrobnn.guides.sites import latent_sites
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save
from pyrobnn.testing.common import make_inputs, make_net, require, short_fit
from pyrobnn.testing.likelihoods import accepted_targets

if TYPE_CHECKING:
    import pytest

Check = Callable[[Any], None]
_ROWS, _DRAWS = 6, 4


def pairwise(*families: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Return combinations of a member from each of three families, such that every pair of members occurs.

    The first two families are crossed, and the third is dealt out along their diagonals; remaining pairs come after.
    """
    first, second, third = families
    wanted = {(a, 2, c) for a in range(len(first)) for c in range(len(third))}
    wanted |= {(b, 3, c) for b in range(len(second)) for c in range(len(third))}
    for a in range(len(first)):
        for b in range(len(second)):
            c = (a + b) % len(third)
            wanted -= {(a, 2, c), (b, 3, c)}
            yield first[a], second[b], third[c]
    for place, family, c in sorted(wanted):
        if family == 2:
            yield first[place], second[(place + c) % len(second)], third[c]
        else:
            yield first[(place + c) % len(first)], second[place], third[c]


def parametrize_with_checks(parts: Iterable[Any], checks: Sequence[Check]) -> "pytest.MarkDecorator":
    """Return a pytest decorator for a test that takes `part` and `check`, called for every pair of them.

    Args:
        parts: settings of the same kind: priors, likelihoods or guides.
        checks: the checks of that kind, such as `PRIOR_CHECKS`.

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
    """Return a pytest decorator for a test that takes `prior`, `likelihood` and `guide`, for every pair of them.

    Args:
        priors: settings of priors.
        likelihoods: settings of likelihoods.
        guides: settings of guides.

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
    draws = posterior.draw(_DRAWS)
    _require_latents(posterior, draws)
    _require_same(draws, posterior.draw(_DRAWS), "Draws for the same seed differ")
    _require_batching(posterior, data, {name: value[0] for name, value in draws.items()})
    _require_prediction(posterior, data)
    _require_storage(posterior, data)
    _require_tree(posterior, data)


def _require_latents(posterior: Posterior, draws: dict[str, Tensor]) -> None:
    with fast_pyro():
        latents = {site.name: site.start.shape for site in latent_sites(posterior.bnn, *posterior.example)}
    shapes = {name: value.shape[1:] for name, value in draws.items()}
    require(shapes == latents, f"Draws have {shapes}, the latent sites of the model are {latents}.")


def _require_same(first: dict[str, Tensor], second: dict[str, Tensor], what: str) -> None:
    different = [name for name, value in first.items() if not torch.equal(value, second[name])]
    require(not different, f"{what} at {', '.join(different)}.")


def _require_batching(posterior: Posterior, data: Data, values: dict[str, Tensor]) -> None:
    """Require that the scaled log-likelihoods of two halves average to the log-likelihood of all data."""
    bnn = posterior.bnn
    x = posterior.inputs(data.x)
    y = bnn.cast_targets(posterior.y_scaler.transform(data.y), bnn.like)
    half = len(y) // 2
    parts = [slice(0, half), slice(half, 2 * half)]
    with fast_pyro(), poutine.block(), torch.no_grad():
        every = _log_likelihood(bnn, values, x[: 2 * half], y[: 2 * half], 2 * half)
        halves = [_log_likelihood(bnn, values, x[part], y[part], 2 * half) for part in parts]
    require(every.isfinite(), "The log-likelihood of a draw is not finite.")
    difference = float((sum(halves) / 2 - every).abs() / every.abs().clamp_min(1.0))
    require(difference < 1e-4, f"The log-likelihood of halves, scaled, is off by {difference:.2g} of the whole's.")


def _log_likelihood(bnn: BNN, values: dict[str, Tensor], x: X, y: Tensor, num_data: int) -> Tensor:
    trace = poutine.trace(poutine.condition(bnn, data=values)).get_trace(x, y, num_data=num_data)
    trace.compute_log_prob(lambda name, node: name == "y")
    return trace.nodes["y"]["log_prob_sum"].double()


def _require_prediction(posterior: Posterior, data: Data) -> None:
    """Require finite scores, and that aleatoric and epistemic variance sum to the variance of a sample."""
    prediction = posterior.predict(data.x[:_ROWS], num_draws=_DRAWS)
    require(bool(prediction.log_prob(data.y[:_ROWS]).isfinite().all()), "Log scores after a short fit are not finite.")
    means = prediction.draw_means
    epistemic = (means - means.mean(0)).square().mean(0)
    torch.testing.assert_close(prediction.epistemic_variance, epistemic, rtol=1e-3, atol=1e-5)
    total = prediction.variance - prediction.aleatoric_variance - prediction.epistemic_variance
    finite = prediction.variance.isfinite()
    largest = float((total[finite].abs() / prediction.variance[finite].clamp_min(1e-6)).max()) if finite.any() else 0.0
    require(largest < 1e-4, f"Aleatoric and epistemic variance do not add up to the variance, off by {largest:.2g}.")


def _require_storage(posterior: Posterior, data: Data) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(posterior, Path(folder) / "posterior")
        loaded = load(Path(folder) / "posterior", net=posterior.bnn.settings["net"])
    _require_same(posterior.draw(_DRAWS), loaded.draw(_DRAWS), "Draws of the stored posterior differ")
    same = torch.equal(
        posterior.predict(data.x[:_ROWS], num_draws=_DRAWS).mean, loaded.predict(data.x[:_ROWS], num_draws=_DRAWS).mean
    )
    require(same, "Predictions of the stored posterior differ.")


def _require_tree(posterior: Posterior, data: Data) -> None:
    tree = to_datatree(posterior, data, num_draws=_DRAWS)
    missing = set(posterior.bnn.site_names) - set(tree["posterior"].data_vars)
    require(not missing, f"The DataTree lacks {', '.join(sorted(missing))}.")
    shape = tuple(tree["log_likelihood"]["y"].shape[:3])
    require(shape == (1, _DRAWS, len(data)), f"The log-likelihood in the DataTree has shape {shape}.")
