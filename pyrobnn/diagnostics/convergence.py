"""Has a fit converged? Markov chains are compared by predictions; of a fit of given length a copy is continued."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.random import derive, seeded
from pyrobnn._torch.devices import running
from pyrobnn._torch.work import Work
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import built
from pyrobnn.inference.data import make_source
from pyrobnn.inference.method import registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.state import TrainingState, cloned, put_values
from pyrobnn.nets import leftovers
from pyrobnn.optimizers import resolve_optimizer
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

_FEWEST_DRAWS = 4  # of a chain
_CONTINUED_STEPS = 400
_FEWEST_CONTINUED_STEPS = 20
_CONTINUED_SECONDS = 5.0  # steps that would take longer are fewer
_NEGLIGIBLE_NATS = 0.5  # that matter to nobody who has not asked for less
_ESTIMATES_A_BLOCK, _FEWEST_BLOCKS, _MOST_BLOCKS = 20, 4, 20  # of the objective, between looks at its error
_MOST_MEMBERS = 3
_OF_THE_OPTIMIZER = ("guide", "lr", "optimizer", "schedule")  # settings that mean nothing to Adam


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionConvergence:
    """R-hat and effective sample sizes of function values; str() shows the worst of each.

    Attributes:
        rhat: rank-normalised split R-hat (Vehtari et al. 2021), (N, K) or (N,): above 1.01 chains do not agree yet.
        ess_bulk: effective number of independent draws for means, the same shape; 400 or more are enough.
        ess_tail: the same for 5 % and 95 % quantiles.
        error: Monte Carlo error of the predicted mean, in standard deviations of the prediction.
    """

    rhat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    error: np.ndarray

    def __str__(self) -> str:
        sizes = f"{np.min(self.ess_bulk):.0f} (bulk) and {np.min(self.ess_tail):.0f} (tail)"
        rhat = f"largest R-hat {np.max(self.rhat):.3f}"
        return f"{rhat}, smallest effective sample size {sizes}, over {self.rhat.size} function values"


def function_rhat(posterior: Posterior | Mixture, x: Any) -> FunctionConvergence:
    """Compare chains by their predicted means at some inputs, as weights may be in mirror images of a mode.

    Args:
        posterior: the result of Markov chains, as of `NUTS` or `MCLMC`: two or more of at least 4 draws.
        x: probe inputs (N, *in) in original units; a dozen, inside and outside the data, are enough.

    Raises:
        InputError: a mixture, a posterior without chains, or with too few or too short chains.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.HMC(step_size=0.01, trajectory_length=0.05, num_draws=10, warmup=5, num_chains=2)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
        >>> bnn.function_rhat(posterior, [[0.0], [0.25], [1.0]]).rhat.shape
        (3,)
    """
    import arviz as az

    if isinstance(posterior, Mixture):
        raise InputError(f"R-hat compares the Markov chains of one fit, got a mixture of {len(posterior)}.")
    chains = built(posterior.guide).chains()
    if chains is None:
        raise InputError(f"R-hat compares Markov chains, and the guide {type(posterior.guide).__name__} has none.")
    num_chains, num_draws = next(iter(chains.values())).shape[:2]
    if num_chains < 2 or num_draws < _FEWEST_DRAWS:
        got = f"got {num_chains} of {num_draws}: set `num_chains` and `num_draws`"
        raise InputError(f"R-hat needs two or more chains of at least {_FEWEST_DRAWS} draws, {got}.")
    prediction = posterior.predict(x, draws={name: values.flatten(0, 1) for name, values in chains.items()})
    means = prediction.draw_means.double().cpu().numpy()
    values = means.reshape(num_chains, num_draws, *means.shape[1:])
    with np.errstate(divide="ignore", invalid="ignore"):  # of values that never change
        rhat, bulk = np.asarray(az.rhat(values)), np.asarray(az.ess(values, method="bulk"))
        tail = np.asarray(az.ess(values, method="tail", prob=(0.05, 0.95)))
    variance = means.var(0)
    total = variance + prediction.aleatoric_variance.double().cpu().numpy() if prediction.has_moments else variance
    share = np.divide(variance, total, out=np.zeros_like(variance), where=total > 0)
    error = np.sqrt(np.where(np.isfinite(total), share, 1.0) / bulk)
    return FunctionConvergence(rhat, bulk, tail, error)


class ElboGain(NamedTuple):
    """The gain of the objective by further steps, in nats of the whole data set; one up to the tolerance is nothing.

    It is that of a fit which `has_patience` or has not, the most certain of `num_fits` that were continued.
    """

    mean: float
    stderr: float
    steps: int
    rate: float
    tolerance: float
    has_patience: bool = False
    num_fits: int = 1

    @property
    def p_value(self) -> float:
        """The chance of such a gain if the true gain is the tolerance, by a normal approximation."""
        excess = self.mean - self.tolerance
        return 0.5 * math.erfc(excess / self.stderr / math.sqrt(2)) if self.stderr else float(excess <= 0)


class _Continuation:
    """A copy of a fit, continued by a new Adam at a constant rate, to the average of the second half of the iterates.

    Its objective is compared with the fit's on the same batches and random numbers, which the steps have not seen.
    """

    def __init__(self, posterior: Posterior, method: SVI, train: Data, seed: int) -> None:
        bnn, guide = copy.deepcopy((posterior.bnn, posterior.guide), leftovers(posterior.bnn))
        bnn.train()
        self._bnn = bnn
        self._seed = seed
        self._has_patience = method.patience is not None
        batch_size = method.batch_size or posterior.record.batch_size or "all"
        plain = dataclasses.replace(method, schedule=None, kl_warmup=0, patience=None, epochs=None)
        adam = resolve_optimizer("adam")
        self._method = dataclasses.replace(plain, batch_size=batch_size, optimizer=adam, steps=_CONTINUED_STEPS)
        self._source = make_source(train, bnn, self._method.batch_size, seed=seed)
        self._tolerance = method.tolerance_for(self._source.num_data)
        if method.tolerance is None:
            self._tolerance = max(_NEGLIGIBLE_NATS, self._tolerance)
        with seeded(seed, "continuation start"):
            example = self._source.example(bnn)
            self._fit = TrainingState(bnn, guide, self._method, self._source, example, seed=derive(seed, "steps"))

    def gain(self) -> ElboGain:
        """Return the gain of the steps; no gain of an infinite error where they do not stay finite."""
        fit, start = self._fit, cloned(self._fit.parameters)
        batch_size = self._source.batch_size(self._method.batch_size)
        nan = ignored_warnings("Encountered NaN")  # at rates that are too high
        with running(self._bnn.net, batch_size, self._seed, "continuation"), nan:
            with Work() as work:
                fit.differentiate(next(fit.batches))
            seconds = work.seconds(fit.example[0].device.type)
            affordable = max(_FEWEST_CONTINUED_STEPS, int(_CONTINUED_SECONDS / seconds))
            mean, num_steps = start, min(_CONTINUED_STEPS, affordable)
            for step in range(num_steps):
                fit.advance(1)
                share = 1 / max(1, step + 1 - num_steps // 2)
                mean = [value.lerp(new.detach(), share) for value, new in zip(mean, fit.parameters, strict=True)]
            change, stderr = self._compare(mean, start)
        if not math.isfinite(change):
            change, stderr = 0.0, math.inf
        return ElboGain(change, stderr, num_steps, fit.rate, self._tolerance, has_patience=self._has_patience)

    def _compare(self, new: Sequence[Tensor], old: Sequence[Tensor]) -> tuple[float, float]:
        """Return the objective at new parameters less the objective at old parameters, and the standard error."""
        differences = torch.empty(0, dtype=torch.float64)
        for block in range(_MOST_BLOCKS):
            differences = torch.cat([differences, self._objectives(new, block) - self._objectives(old, block)])
            mean, stderr = float(differences.mean()), float(differences.std()) / math.sqrt(len(differences))
            if block + 1 >= _FEWEST_BLOCKS and stderr <= max(self._tolerance, abs(mean - self._tolerance)) / 4:
                break
        return mean, stderr

    def _objectives(self, values: Sequence[Tensor], block: int) -> Tensor:
        """Return estimates of the objective on batches and random numbers of a block, (estimates,), on the CPU."""
        put_values(self._fit.parameters, values)
        seed = derive(self._seed, f"measured {block}")
        batches = self._source.batches(self._bnn, self._method.batch_size, seed)
        with seeded(self._seed, f"measured {block}"):
            terms = torch.stack([self._fit.evaluate(next(batches)) for _ in range(_ESTIMATES_A_BLOCK)]).double().cpu()
        return terms[:, 0] - self._method.temperature * terms[:, 1]


def continued_gain(posterior: Posterior | Mixture, train: Data, seed: int) -> ElboGain | None:
    """Continue a fit of fixed length, or the first members of a mixture, and return the most certain gain.

    None where a fit cannot be continued.
    """
    members = posterior.members[:_MOST_MEMBERS]
    pairs = [(member, method) for member in members if (method := _method_of(member)) is not None]
    if len(pairs) < len(members):
        return None
    gains = [_Continuation(*pair, train, seed).gain() for pair in pairs]
    return min(gains, key=lambda gain: (gain.p_value, -gain.mean))._replace(num_fits=len(gains))


def _method_of(posterior: Posterior) -> SVI | None:
    """Return how a fit goes on, which it can after `SVI` and methods of its kind, such as `IVON`; without its guide."""
    table = posterior.record.method
    guide = built(posterior.guide)
    is_open = any(p.requires_grad for p in (*posterior.bnn.parameters(), *posterior.guide.parameters()))
    if guide.pruned_sites() or not (guide.trainable and is_open and isinstance(table, dict)):
        return None
    kind = table.get("type")
    if kind not in registry.names or not issubclass(registry.get(kind), SVI):
        return None
    left_out = {"guide"} | (set() if kind == "svi" else set(_OF_THE_OPTIMIZER))
    known = {field.name for field in dataclasses.fields(SVI)} - left_out  # files may have settings that are gone
    return SVI(**{name: value for name, value in table.items() if name in known})
