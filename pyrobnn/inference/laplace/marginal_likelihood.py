"""Training by the marginal likelihood: prior precision and noise are tuned between stretches of training."""

import math
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._core.settings import setting, to_dict
from pyrobnn.bnn import BNN
from pyrobnn.guides.laplace import Laplace
from pyrobnn.inference.laplace.tuning import Per, tune_prior
from pyrobnn.inference.method import registry
from pyrobnn.inference.monitor import Callback
from pyrobnn.inference.preparing import prepare_source
from pyrobnn.inference.session import opened
from pyrobnn.inference.source import Source
from pyrobnn.inference.svi.engine import Engine
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods import Gaussian
from pyrobnn.likelihoods.weighted import split_weights, unweighted, with_noise
from pyrobnn.posterior.posterior import Posterior

_LEARNED = Gaussian(scale="learned")
_UNEXPLAINED, _FIRST_NOISE = 0.95, 0.3
"""Noise, in units of the spread of the targets, above which a mode is a constant, and noise to begin with then."""
_BATCH = 4096


@registry.register
@setting
class MarginalLikelihood:
    """Laplace approximations in turns with the tuning of the prior by their evidence (Immer et al. 2021).

    "Scalable Marginal Likelihood Estimation for Model Selection in Deep Learning": each round trains on from the last
    round's weights, takes the curvature at the mode, and moves the precision of the prior (and the noise) to the
    maximum of the evidence. No validation data are needed.

    Where noise is learned from the start, it may explain all of the targets before the network does, and zero weights
    are a mode then. If the first round ends at a constant, it is done again with the noise held at 0.3 of the spread of
    the targets, and tuned from there.

    Attributes:
        method: how each round trains; its guide is a `Laplace` one, and `steps` are those of a round.
        rounds: number of rounds.
        per: groups of weights with a precision of their own, as in `tune_prior`.
        noise: whether to tune the scale of Gaussian noise too; "auto" does where it is learned and targets have one
            column.
        by: "evidence" or "mackay", as in `tune_prior`.
    """

    method: Annotated[SVI, BeforeValidator(registry.resolve)] = SVI(guide=Laplace(), steps=1000)
    rounds: Annotated[int, Field(gt=0)] = 5
    per: Per = "site"
    noise: bool | Literal["auto"] = False
    by: Literal["evidence", "mackay"] = "evidence"

    def __post_init__(self) -> None:
        """Refuse a guide without evidence."""
        if not isinstance(self.method.guide, Laplace):
            raise InputError(f"MarginalLikelihood: its method needs a Laplace guide, got {self.method.guide!r}.")
        if self.method.patience is not None:
            raise InputError("MarginalLikelihood: rounds have a fixed length: leave `patience` out of the method.")

    def run(
        self,
        bnn: BNN,
        data: Any,
        *,
        seed: int,
        device: str,
        engine: Engine,
        progress: bool,
        callbacks: Sequence[Callback],
    ) -> Posterior:
        """Fit and tune in turns; `info["laplace"]["rounds"]` of the last posterior has the evidence of each.

        `info["method"]["noise"]` says whether the noise was tuned, also where the setting is "auto".
        """
        started = time.perf_counter()
        settings: dict[str, Any] = {"device": device, "engine": engine, "progress": progress, "callbacks": callbacks}
        posterior: Posterior | None = None
        evidence = []
        noise: bool | None = None if self.noise == "auto" else self.noise
        for index in range(self.rounds):
            trained = self._round(bnn, posterior, data, seed=derive(seed, f"round {index}"), **settings)
            noise = _has_one_scale_to_learn(trained) if noise is None else noise
            if index == 0 and noise and unweighted(bnn.settings["likelihood"]) == _LEARNED:
                spread = _spread(trained.bnn, prepare_source(bnn, self.method, data, seed))
                if float(trained.bnn.likelihood.scale.detach()) > _UNEXPLAINED * spread:
                    known = _FIRST_NOISE * spread * float(trained.y_scaler.scale)
                    held = bnn.with_parts(likelihood=with_noise(bnn.settings["likelihood"], [known]))
                    trained = self._round(held, None, data, seed=derive(seed, f"round {index}"), **settings)
            posterior = tune_prior(trained, data, by=self.by, per=self.per, noise=noise)
            evidence.append(posterior.info["laplace"]["log_evidence"])
        assert posterior is not None  # there is a round
        posterior.seed = seed
        guide = posterior.info["method"]["guide"]
        posterior.info["method"] = to_dict(self) | {"noise": noise, "guide": guide}
        posterior.info["laplace"]["rounds"] = evidence
        posterior.info["seconds"] = time.perf_counter() - started
        return posterior

    def _round(
        self,
        bnn: BNN,
        last: Posterior | None,
        data: Any,
        *,
        seed: int,
        device: str,
        engine: Engine,
        progress: bool,
        callbacks: Sequence[Callback],
    ) -> Posterior:
        """Train on from the last posterior's mode, under its prior, and take the curvature there."""
        method, bnn = self.method, bnn if last is None else last.bnn
        source = prepare_source(bnn, method, data, seed)
        started = time.perf_counter()
        with opened([bnn], [method], [source], [seed], seed=seed, device=device, started=started) as session:
            if last is not None:
                _move(session.posteriors[0], last)
            session.train(engine, progress=progress, callbacks=callbacks)
        return session.complete(progress=progress)[0]


def _has_one_scale_to_learn(posterior: Posterior) -> bool:
    """Return whether the noise is Gaussian with one scale, which is learned."""
    likelihood, y = posterior.bnn.settings["likelihood"], posterior.example[1]
    targets = y if likelihood is unweighted(likelihood) else split_weights(y)[0]
    return unweighted(likelihood) == _LEARNED and math.prod(targets.shape[1:]) == 1


def _spread(bnn: BNN, source: Source) -> float:
    """Return the standard deviation of a single column of targets, in the units of the model."""
    y = torch.cat([y for _, y in source.one_pass(bnn, _BATCH)]).double()
    weighted = bnn.settings["likelihood"] is not unweighted(bnn.settings["likelihood"])
    targets, weights = split_weights(y) if weighted else (y, torch.ones_like(y))
    share = weights / weights.sum()
    mean = (share * targets).sum()
    return math.sqrt(float((share * (targets - mean).square()).sum()))


def _move(posterior: Posterior, last: Posterior) -> None:
    """Put a posterior that is about to be trained where another one stands."""
    points = last.guide.points()
    with torch.no_grad():
        for name, point in posterior.guide.points_by_name().items():
            point.copy_(points[name])
        posterior.bnn.net.load_state_dict(last.bnn.net.state_dict())
        posterior.bnn.likelihood.load_state_dict(last.bnn.likelihood.state_dict())
