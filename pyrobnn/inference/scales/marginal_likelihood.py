"""Training by the marginal likelihood: prior precision and noise are tuned between stretches of training."""

import dataclasses
import math
import sys
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from tqdm.auto import tqdm

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._core.settings import Count, setting, to_dict
from pyrobnn.bnn import BNN
from pyrobnn.guides.base import as_guide
from pyrobnn.guides.laplace import Laplace
from pyrobnn.inference.data import make_source
from pyrobnn.inference.method import BaseMethod, Offer, Run, registry
from pyrobnn.inference.scales.noise import spread
from pyrobnn.inference.scales.tune_prior import Per, tune_prior
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.fits import fit_together
from pyrobnn.inference.training.state import Asked
from pyrobnn.inference.training.watch import Stop
from pyrobnn.likelihoods import Gaussian
from pyrobnn.likelihoods.base import OPEN, as_likelihood
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import LaplaceRecord

_NOISE_OF_A_CONSTANT = 0.95
_NOISE_AFTER_A_CONSTANT = 0.3
"""Noise, in units of the spread of the targets, above which a mode is a constant, and noise to begin with then."""
_ROWS_AT_ONCE = 4096


@registry.register
@setting
class MarginalLikelihood(BaseMethod[Posterior]):
    """Laplace approximations, alternating with the tuning of the prior by their evidence (Immer et al. 2021).

    Each round trains on from the last weights, takes the curvature at the mode, and moves the precision of the prior
    (and the noise) to the maximum of the evidence. If the first ends at a constant, because learned noise explains the
    targets before the network does, it is repeated with the noise held at 0.3 of the targets' spread.

    Attributes:
        method: the training in each round; its guide is `Laplace`, and `steps` counts the steps of one round. A
            structure that is left open is "kron": the evidence of "full" takes minutes for 3,000 weights.
        rounds: number of rounds.
        per: which weights share a precision, as in `tune_prior`.
        noise: whether to tune the scale of Gaussian noise too; "auto" does if it is learned, for one column of targets.

    Examples:
        >>> method = bnn.MarginalLikelihood(bnn.SVI(guide="laplace", steps=20), rounds=2)
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1), prior=bnn.priors.Normal(1.0))
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> len(posterior.record.laplace.rounds)  # the log evidence of each
        2
    """

    method: Annotated[SVI, BeforeValidator(registry.resolve)] = SVI(guide=Laplace(), steps=1000)
    rounds: Count = 5
    per: Per = "site"
    noise: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if as_guide(self.method.guide).curvature is None:
            raise InputError(f"MarginalLikelihood: its method needs a Laplace guide, got {self.method.guide!r}.")
        if self.method.patience is not None:
            raise InputError("MarginalLikelihood: rounds have a fixed length: leave `patience` out of the method.")

    def offer(self) -> Offer:
        return Offer(inner=self.method, tunes_scales="rounds")

    def bounded(self, steps: int) -> "MarginalLikelihood":
        """Return the method with so many steps in each round."""
        return dataclasses.replace(self, method=dataclasses.replace(self.method, epochs=None, steps=steps))

    def shortened(self) -> "MarginalLikelihood":
        return dataclasses.replace(self, rounds=1)

    def learning_on(self) -> SVI:
        return self.method

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        """Fit and tune in turns; `record.laplace.rounds` of the last posterior has the evidence of each.

        `record.method["noise"]` says whether the noise was tuned, also where the setting is "auto".
        """
        posterior: Posterior | None = None
        records, noise = list[LaplaceRecord](), self.noise
        for index in range(self.rounds):
            round_run = dataclasses.replace(run, seed=derive(run.seed, f"round {index}"))
            if run.progress:
                words = "training, then the scales that make the data most probable"
                tqdm.write(f"round {index + 1} of {self.rounds}: {words}", file=sys.stderr)
            trained = self._round(bnn, posterior, data, round_run)
            likelihood = as_likelihood(trained.bnn.settings["likelihood"])
            learns = likelihood.is_normal and likelihood.noise in OPEN
            if noise == "auto":
                noise = learns and math.prod(trained.example[1].shape[1:]) == 1
            if posterior is None and noise and learns:
                trained = self._without_a_constant(bnn, trained, data, round_run)
            posterior = tune_prior(trained, data, per=self.per, noise=noise)
            assert posterior.record.laplace is not None  # its guide is Laplace
            records.append(posterior.record.laplace)
        assert posterior is not None  # there is a round
        posterior.seed = run.seed
        posterior.note(
            method=to_dict(self) | {"noise": noise, "guide": posterior.record.guide},
            laplace=dataclasses.replace(records[-1], rounds=[record.log_evidence for record in records]),
            seconds=run.seconds,
        )
        return posterior

    def _without_a_constant(self, bnn: BNN, trained: Posterior, data: Any, run: Run) -> Posterior:
        """Return the first round, repeated with smaller noise that is held if its noise explains the targets."""
        source = make_source(data, bnn, self.method.batch_size, seed=run.seed)
        targets = (rest for _, *rest in source.one_pass(trained.bnn, _ROWS_AT_ONCE))
        y, *weights = (torch.cat(parts).double() for parts in zip(*targets, strict=True))
        deviation = float(spread(y.view(len(y), 1), weights[0] if weights else torch.ones(len(y)).to(y)))
        if not 0 < _NOISE_OF_A_CONSTANT * deviation < float(trained.bnn.likelihood.scale.detach()):
            return trained
        known = _NOISE_AFTER_A_CONSTANT * deviation * float(trained.y_scaler.scale)
        return self._round(bnn.with_parts(likelihood=Gaussian(scale=known)), None, data, run)

    def _round(self, bnn: BNN, last: Posterior | None, data: Any, run: Run) -> Posterior:
        """Train on from the last posterior's mode, under its prior, and take the curvature there."""
        bnn, guide = bnn if last is None else last.bnn, self.method.guide
        chosen = dataclasses.replace(guide, structure="kron") if guide.structure is None else guide
        source = make_source(data, bnn, self.method.batch_size, seed=run.seed)
        training = dataclasses.replace(self.method, guide=chosen)
        move = None if last is None else partial(_put_at, last)
        return fit_together([Asked(bnn, training, source, run.seed, move)], run, Stop())[0]


def _put_at(last: Posterior, begun: Posterior) -> None:
    """Give a posterior the points, the network and the noise of another."""
    points = last.guide.points_by_name()
    with torch.no_grad():
        for name, point in begun.guide.points_by_name().items():
            point.copy_(points[name])
        begun.bnn.net.load_state_dict(last.bnn.net.state_dict())
        begun.bnn.likelihood.load_state_dict(last.bnn.likelihood.state_dict())
