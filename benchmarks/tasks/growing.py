"""Fits to data that grow: all sizes, seeds and members share a captured graph."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

import pyrobnn as bnn
from benchmarks.tasks.schema import Fitted, entry_settings, mixed, svi_settings


def learners(suite: dict[str, Any], kind: type, **defaults: Any) -> list[dict[str, Any]]:
    """Return the settings of each of [[entries]], as `methods` does.

    Raises:
        InputError: as there, or an ensemble of Laplace approximations, or `tuned` for another guide.
    """
    entries = entry_settings(suite, kind, **defaults)
    for method in entries:
        is_laplace = isinstance(bnn.guides.resolve(method["guide"]), bnn.guides.Laplace)
        if is_laplace and method["members"] > 1:
            raise bnn.InputError(f"{method['entry']} is an ensemble of Laplace approximations: leave out `members`.")
        if method.get("tuned") and not is_laplace:
            raise bnn.InputError(f"{method['entry']} has `tuned`, which needs a Laplace guide: leave it out.")
    return entries


@dataclasses.dataclass
class From:
    """A guide that starts at given parameters, or as usual without them."""

    guide: Any
    state: dict[str, Tensor] | None

    def build(self, model: Any, *args: Any) -> Any:
        """Return the guide of the model."""
        built = self.guide.build(model, *args)
        if self.state is not None:
            built.load_state_dict(self.state)
        return built


@dataclasses.dataclass
class Growing:
    """Fits of a model to data sets of the same size, which grows from call to call.

    The graph is made for `size` examples, so smaller data are repeated; the weight of the KL grows as much, which
    keeps the ELBO of the data themselves, times a constant. Where the last repeat is incomplete, chance decides
    which examples are in it.

    Attributes:
        model: the model.
        guide: what to train. Laplace is a MAP fit and then the curvature of the data, not repeated.
        size: number of examples of the largest data.
        members: fits for each data set; several are an ensemble.
        settings: of `SVI`, beside the guide and the temperature.
        warm_start: start each call from where the last one stopped.
        tuned: choose the scale of the prior of each site by the marginal likelihood; Laplace only.
        engine: of the fits.
    """

    model: bnn.BNN
    guide: Any
    size: int
    settings: dict[str, Any]
    members: int = 1
    warm_start: bool = False
    tuned: bool = False
    engine: str = "captured"
    _states: list[dict[str, Tensor] | None] = dataclasses.field(default_factory=list, init=False)

    @classmethod
    def of(cls, settings: Any, model: bnn.BNN, **more: Any) -> "Growing":
        """Return the fits that the settings of a job ask for, with more attributes."""
        guide, how = bnn.guides.resolve(settings.guide), {"members": settings.members, "engine": settings.engine}
        return cls(model, guide, settings=svi_settings(settings), **how, **more)

    def fit(self, parts: list[tuple[Tensor, Tensor]], seed: int) -> list[Fitted]:
        """Return the posterior of each data set (x, y), all of the same length."""
        num = len(parts[0][1])
        repeat = repeated(num, self.size, seed)
        data = [(x[repeat], y[repeat]) for x, y in parts for _ in range(self.members)]
        states = self._states or [None] * len(data)
        is_laplace = isinstance(self.guide, bnn.guides.Laplace)
        guide = bnn.guides.Map() if is_laplace else self.guide
        methods = [bnn.SVI(guide=From(guide, state), temperature=self.size / num, **self.settings) for state in states]
        arguments: dict[str, Any] = {"seed": seed, "device": "cpu", "engine": self.engine, "progress": False}
        fits = bnn.fit_replicates(self.model, data, methods, **arguments)
        if self.warm_start:
            self._states = [fit.guide.state_dict() for fit in fits]
        if is_laplace:
            return [self._curved(fit, part) for fit, part in zip(fits, parts, strict=True)]
        return mixed(fits, self.members)

    def _curved(self, fit: bnn.Posterior, data: tuple[Tensor, Tensor]) -> bnn.Posterior:
        how: dict[str, Any] = {"seed": fit.seed, "device": "cpu", "progress": False}
        posterior = self.guide.around(fit.bnn, data, weights=fit.mean(), **how)
        return bnn.tune_prior(posterior, data, per="site") if self.tuned else posterior


def repeated(num: int, size: int, seed: int) -> Tensor:
    """Return indices (size,) in which each of `num` comes equally often, but for a surplus drawn at random."""
    surplus = torch.randperm(num, generator=torch.Generator().manual_seed(seed))[: size % num]
    return torch.cat([torch.arange(num).repeat(size // num), surplus])
