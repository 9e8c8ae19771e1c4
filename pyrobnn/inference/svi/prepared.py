"""A fit for a training loop of the caller's: a module whose loss is minus the ELBO of a batch."""

import dataclasses
from typing import Any

from torch import Tensor, nn

from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import autocast_in_networks, gradients
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import described
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import checked_batch
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import as_data
from pyrobnn.guides.base import as_guide, rate_factors
from pyrobnn.guides.given import noise_of
from pyrobnn.inference.capture.objective import ELBO, WeightLatents
from pyrobnn.inference.data import SHOWN, Source, make_source
from pyrobnn.inference.laplace import complete
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.state import BuiltParts, StochasticMethod, build_parts, model_of, start_record
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.priors.scale_mixture import tabulate

_PAGE = "how-to/own-loop"
_OBJECTIVE = ("guide", "num_particles", "kl", "temperature")
"""Settings of `SVI` that say what is maximised; the others belong to the loop."""


@gradients()
def prepare(bnn: BNN, method: Any, *, num_data: int, like: Any, seed: int = 0, start: Any = None) -> "PreparedFit":
    """Build model and guide for a training loop of your own: a `torch.nn.Module` whose loss is minus the ELBO.

    The loop, its optimiser, rates, batches and length are yours; the module goes where modules go: Lightning,
    accelerate, DistributedDataParallel, autocast. No scales are measured: a "tuned" prior is "he", "tuned" noise is
    trained. All else that the method leaves open is chosen as in `fit`.

    Args:
        bnn: the model, which is copied, with its device and precision.
        method: `SVI` with a guide, and `num_particles`, `kl` and `temperature` as needed.
        num_data: N, the number of training examples. The log-likelihood of a batch of B counts N / B times.
        like: a batch as the loop will have them: (x, y), where several inputs are a mapping or a tuple, a longer tuple
            with the targets last, or a mapping with `labels`. Batches are in the units of the network, unless the model
            has units, or `like` is `Data(x, y, standardize=True)`, which sets them.
        seed: seed of the starting values, and of the posterior's draws; 0 if left out. The loss draws from torch's
            global generator: `torch.manual_seed` makes a loop reproducible.
        start: a posterior to go on from, as in `fit`.

    Raises:
        InputError: settings that belong to the loop; parts, batch or posterior that do not go together.

    Examples:
        >>> x, y = bnn.datasets.sinusoid(64).tensors
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> fit = bnn.prepare(model, bnn.SVI(guide="mean_field"), num_data=64, like=(x, y), seed=0)
        >>> optimizer = torch.optim.Adam(fit.parameters(), lr=0.01)
        >>> for step in range(20):
        ...     optimizer.zero_grad()
        ...     fit.loss((x, y)).backward()
        ...     optimizer.step()
        >>> prediction = fit.posterior().predict([[0.0], [0.5]])
    """
    if type(method) is not SVI:
        text = f"A loop of your own follows the gradient of the ELBO, as SVI(guide=...) does, got {method!r}: use fit."
        raise InputError(text, page=_PAGE)
    usual, names = SVI(), [field.name for field in dataclasses.fields(SVI) if field.name not in _OBJECTIVE]
    if given := ", ".join(f"`{name}`" for name in names if getattr(method, name) != getattr(usual, name)):
        raise InputError(f"SVI: {given} belongs to the loop, which is yours here: leave it out.", page=_PAGE)
    check_count(num_data, "num_data")
    bnn = bnn if start is None else model_of(start, bnn)
    data = like if isinstance(like, Data) else Data(*checked_batch(like))
    if data.weights is not None:
        raise InputError("`like` has weights of examples, which batches of your own do not have: leave them out.")
    if len(data) > num_data:
        raise InputError(f"`num_data` must count all training examples, got {num_data}, and `like` has {len(data)}.")
    source = dataclasses.replace(make_source(data, bnn, None, seed=seed), num_data=num_data)
    parts = _built(bnn, dataclasses.replace(method, steps=1), source, seed, earlier=start)
    some, table = data[:SHOWN], described(method)
    is_table = isinstance(table, dict)
    record: dict[str, Any] = dict(
        method={name: table[name] for name in table if name in ("type", *_OBJECTIVE)} if is_table else table,
        batch_size=len(data),
        noise=noise_of(parts.method.guide),
        kl=parts.method.kl,
        own_loop=True,
        start=start_record(start),
        stop_reason="the training loop was the caller's: whether it has converged is unknown",
    )
    return PreparedFit(parts, dataclasses.replace(source, data=some, head=(some.x, some.y)), record, seed)


def _built(
    bnn: BNN, method: StochasticMethod, source: Source, seed: int, *, earlier: Posterior | None = None
) -> BuiltParts:
    with seeded(seed, "fit"), fast_pyro():
        return build_parts(bnn, method, source, seed, str(bnn.like.device), earlier=earlier)


class PreparedFit(nn.Module):
    """A model and its guide in the training loop of a caller, as `prepare` returns it, in training mode.

    Its parameters are those of the guide and the learned ones of likelihood, prior and network. Its state has all that
    a loop needs to resume, beside that of the optimiser.

    Attributes:
        bnn: the model in training.
        guide: the guide in training.
        num_data: N.
        temperature: factor on the KL; a loop may change it, to let the KL grow in the first steps, say.
    """

    def __init__(self, parts: BuiltParts, source: Source, record: dict[str, Any], seed: int) -> None:
        super().__init__()
        self.bnn, self.guide, self.num_data = parts.bnn, parts.guide, source.num_data
        self.temperature = parts.method.temperature
        self._method, self._source, self._record, self._seed = parts.method, source, record, seed
        self._elbo = ELBO(parts.method.kl, parts.method.num_particles)
        if parts.method.kl == "quadrature":
            tabulate(self.bnn)
        self.train()

    def forward(self, batch: Any) -> Tensor:
        """Return `loss`, so that wrappers such as DistributedDataParallel see it."""
        return self.loss(batch)

    def loss(self, batch: Any) -> Tensor:
        """Return minus the ELBO of all data per example, as a batch estimates it, in nats.

        -(N / B sum_b log p(y_b | x_b, w) - temperature KL(q || p)) / N, for draws w of the guide; `SVI` has N times
        this gradient. Under autocast the network alone computes in half precision.

        Args:
            batch: as `like` in `prepare`, on any device.

        Returns:
            The loss, (), to be differentiated.

        Raises:
            InputError: a batch that does not fit the model.
        """
        x, y = checked_batch(batch)
        self._source.check_targets(self.bnn, y)
        scaled = self._source.scaled(self.bnn, x, y)
        with fast_pyro(), autocast_in_networks(), WeightLatents(self.temperature):
            loss = self._elbo.differentiable_loss(self.bnn, self.guide, *scaled, num_data=self.num_data)
        return loss / self.num_data

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return the trained parameters in groups for an optimiser, with the rates that `SVI` gives them.

        Args:
            lr: learning rate of all but the factor of a `full_rank` or `low_rank` guide, which takes smaller steps.
        """
        factors = {f"guide.{name}": factor for name, factor in rate_factors(self.guide).items()}
        members: dict[float, list[Tensor]] = {}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                members.setdefault(factors.get(name, 1.0), []).append(parameter)
        return [{"params": parameters, "lr": lr * factor} for factor, parameters in members.items()]

    @gradients()
    def posterior(self, data: Any = None) -> Posterior:
        """Return the posterior as it is now: a copy, which later steps do not change.

        Args:
            data: all training data, as for `fit`: needed by the guide `Laplace` alone, for the curvature at the mode.

        Raises:
            InputError: a Laplace guide without data, or with another number of them.
        """
        source, like = self._source, self.bnn.like
        parts = _built(self.bnn, self._method, source, self._seed)  # copies may hold the graph of the last loss
        bnn, guide = parts.bnn.to(like), parts.guide.to(like)
        bnn.load_state_dict(self.bnn.state_dict())
        guide.load_state_dict(self.guide.state_dict())
        example = source.example(bnn.eval())
        posterior = source.posterior(bnn, guide, example, seed=self._seed, **self._record)
        if as_guide(self._method.guide).curvature is not None:
            complete(posterior, self._method.guide, self._all(data, bnn), progress=False)
        return posterior

    def _all(self, data: Any, bnn: BNN) -> Source:
        """Return the source of all data, in the units of the fit."""
        if data is None:
            text = "Laplace takes the curvature at the mode from all training data: pass them, fit.posterior(data)."
            raise InputError(text, page=_PAGE)
        source = make_source(as_data(data), bnn, None, seed=self._seed)
        if source.num_data != self.num_data:
            raise InputError(f"`data` must be all {self.num_data} training examples, got {source.num_data}: pass all.")
        return dataclasses.replace(source, x_scaler=self._source.x_scaler, y_scaler=self._source.y_scaler)
