"""The evidence framework: a mode and the scales that make the data most probable, in turns, from several starts."""

import dataclasses
import time
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor
from tqdm.auto import tqdm

from pyrobnn import guides, priors
from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import derive
from pyrobnn._core.settings import setting, to_dict
from pyrobnn._torch.lbfgs import minimize_in_place
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.linear_model import check_entries, groups_of_inputs, linear_model, log_scores
from pyrobnn.curvature.metric import log_probs, score_columns
from pyrobnn.curvature.prior import prior_laws
from pyrobnn.data.batches import Batch
from pyrobnn.guides.laplace import Laplace
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.base import BaseMethod, Offer, Run, registry
from pyrobnn.inference.laplace.around import laplace_around
from pyrobnn.inference.laplace.tuning import normal_of, untuned
from pyrobnn.inference.preparing import fresh_model, prepare_source, running
from pyrobnn.inference.source import Source
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods import Gaussian
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import EngineRecord, EvidenceRecord, StartRecord

_LARGEST_NOISE, _SMALLEST_NOISE = 1.0, 0.05
"""Noise that starts begin from, in units of the spread of the targets."""
_STEPS = 3
"""Updates of the scales in a round."""
_PRECISIONS = (1e-12, 1e8)
_LEAST_NOISE = 1e-5
_BATCH = 4096
_MOST_FULL = 3000
"""Weights whose joint covariance is kept."""
_MEMORY = 20
"""Pairs of steps and gradients that L-BFGS keeps."""
_TOLERANCE, _SLOPE = 1e-12, 1e-8
"""Relative change of the energy, and largest entry of its gradient, at which L-BFGS stops."""


@registry.register
@setting
class EvidenceFramework(BaseMethod[Posterior]):
    """Prior precisions and noise that make the data most probable, then a posterior under them; for small tables.

    In turns, as in MacKay (1992, "A Practical Bayesian Framework for Backpropagation Networks"): L-BFGS on all data
    goes to the mode under the present scales, and the fixed point alpha = gamma / sum w^2 moves these. Starts differ in
    the network's first weights and in the noise, or the width of the prior, that they begin from: much noise leads to
    the simplest function, little to one that follows the data closely. The start with the largest mean of log evidence
    and leave-one-out log score is kept. Both are sums of log predictive densities of held-out targets, the first over
    training sets of all sizes, the second over those of N - 1 (Fong & Holmes 2020, "On the marginal likelihood and
    cross-validation"). The first alone prefers a constant now and then, the second a mode that follows the noise.

    The guide comes last: a Laplace approximation around the mode, or another guide, which stochastic variational
    inference trains from there. The network runs in evaluation mode before, and every step sees all data.

    Attributes:
        guide: the family of the posterior. `Laplace` has curvature "ggn" over all weights; its structure "full" becomes
            "kron" over more than 3,000 weights.
        starts: number of starts.
        rounds: turns of each start; with 0 it goes to the mode alone, and prior and noise stay as they are given.
        iterations: of L-BFGS in a round.
        per: groups of weights with a precision of their own: "input" has one for each site and, in the first layer, for
            each input (automatic relevance determination; MacKay 1994), "site" one for each site.
        guide_steps: steps of the training of another guide than Laplace.

    Example:
        >>> import pyrobnn as bnn
        >>> model = bnn.BNN(bnn.MLP(1, [20], 1, activation="silu"), prior=bnn.priors.Normal("fan_in"))
        >>> method = bnn.EvidenceFramework(starts=2, rounds=3)
        >>> posterior = bnn.fit(model, method, bnn.datasets.sinusoid(), seed=0, progress=False)
        >>> len(posterior.info["evidence"]["starts"])
        2
    """

    guide: Annotated[Any, BeforeValidator(guides.resolve)] = Laplace(structure="full")
    starts: Annotated[int, Field(gt=0)] = 5
    rounds: Annotated[int, Field(ge=0)] = 8
    iterations: Annotated[int, Field(gt=0)] = 150
    per: Literal["input", "site"] = "input"
    guide_steps: Annotated[int, Field(gt=0)] = 1000

    def __post_init__(self) -> None:
        """Refuse a Laplace guide whose evidence is another one."""
        if isinstance(self.guide, Laplace) and not self.takes(self.guide):
            raise InputError(
                "EvidenceFramework: a Laplace guide must have curvature='ggn' over all weights, and not be of low "
                f"rank, got {self.guide!r}."
            )

    @staticmethod
    def takes(guide: Any) -> bool:
        """Return whether a guide is a Laplace one with the curvature that the evidence is made of."""
        is_laplace = isinstance(guide, Laplace) and guide.curvature == "ggn" and guide.subnetwork is None
        return is_laplace and guide.sites == ("*",) and guide.structure != "low_rank"

    def offer(self) -> Offer:
        """Return what the method has beside `run`."""
        return Offer(guide=self.guide, callbacks=False)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        """Infer the posterior. The engine is for guides other than Laplace.

        Returns:
            The posterior of the model with the tuned prior and noise. `info["evidence"]` has, for each of "starts",
            noise, log evidence and leave-one-out log score, the number of the one "chosen", and its "precision" by
            site.

        Raises:
            InputError: priors that are not normal, latent sites other than weights, or a Jacobian that does not fit
                into memory.
            FloatingPointError: no start whose numbers stay finite.
        """
        source = prepare_source(bnn, SVI(), data, run.seed)
        noises = np.geomspace(_LARGEST_NOISE, _SMALLEST_NOISE, max(self.starts, 2))[: self.starts]
        found: list[_Start] = []
        with tqdm(total=self.starts * self.rounds, desc="evidence", disable=not run.progress) as bar:
            for index, noise in enumerate(noises):
                with running(bnn, source.num_data, derive(run.seed, f"start {index}"), "fit") as threads:
                    found.append(self._start(bnn, source, float(noise), run.device, bar))
                    found[-1].threads = threads
        scores = [start.score for start in found]
        if not np.isfinite(scores).any():
            raise FloatingPointError(
                "EvidenceFramework: no start kept to finite numbers. Look for extreme values in the data, standardise "
                "them, or use another network."
            )
        chosen = int(np.nanargmax(scores))
        posterior = self._around(found[chosen], bnn, data, source, run)
        volume = source.total_weight * float(source.y_scaler.log_volume())
        starts = [start.record(volume) for start in found]
        posterior.record = dataclasses.replace(
            posterior.record,
            method=to_dict(self) | {"guide": posterior.record.guide},
            seconds=time.perf_counter() - run.started,
            evidence=EvidenceRecord(starts, chosen, found[chosen].precision_by_site()),
        )
        return posterior

    def _around(self, best: "_Start", bnn: BNN, data: Any, source: Source, run: Run) -> Posterior:
        """Return the posterior around the mode of a start, under its prior and noise."""
        tuned = best.tuned(bnn, source)
        if not isinstance(self.guide, Laplace):
            tuned.start_at(best.bnn.state_at(best.weights))
            training = SVI(guide=self.guide, steps=self.guide_steps, schedule="cosine_annealing_lr")
            return training.infer(tuned, data, run)
        setting = self._structured(best)
        at: dict[str, Any] = {"seed": run.seed, "device": run.device, "progress": False}
        posterior = laplace_around(tuned, data, setting, weights=best.weights, **at)
        used = EngineRecord(run.engine, "eager", "L-BFGS runs no steps that could be captured")
        posterior.record = dataclasses.replace(posterior.record, engine=used, threads=best.threads)
        return posterior

    def _structured(self, start: "_Start") -> Laplace:
        """Return the guide in a structure that can be held."""
        is_large = self.guide.structure == "full" and len(start.group) > _MOST_FULL
        return dataclasses.replace(self.guide, structure="kron") if is_large else self.guide

    def _start(self, bnn: BNN, source: Source, noise: float, device: str, bar: "tqdm[Any]") -> "_Start":
        model, example = fresh_model(bnn, source, device)
        sites = latent_sites(model, *example)
        strange = [site.name for site in sites if site.name not in model.site_names]
        if strange:
            raise InputError(
                f"EvidenceFramework tunes the precision of normal priors, and the model has the latent site "
                f"{strange[0]!r} beside its weights: use MarginalLikelihood, or another method."
            )
        num_outputs = source.outputs
        check_entries(source.num_data, num_outputs, sum(site.start.numel() for site in sites))
        batches = list(source.one_pass(model, _BATCH))
        everything = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
        weights = {site.name: site.start.clone() for site in sites}
        start = _Start(model, weights, everything, noise=noise if self.rounds else None, per=self.per)
        try:
            for _ in range(self.rounds):
                start.to_mode(self.iterations)
                start.tune()
                bar.update()
            start.to_mode(2 * self.iterations)
            start.judge()
        except FloatingPointError:
            bar.update(self.rounds - bar.n % max(self.rounds, 1))
        bar.set_postfix(score=f"{start.score:.1f}")
        return start


class _Start:
    """A mode in progress, with its scales.

    Args:
        bnn: the model in the units of the data, in evaluation mode; its parameters are optimised too.
        weights: starting values by site.
        data: all examples, in the units of the model.
        noise: scale of learned noise to begin from, in units of the spread of the targets; for a likelihood without one
            a factor on the precisions. None to leave the scales as they are.
        per: groups of weights.

    Attributes:
        weights: the mode so far.
        log_evidence, log_left_out: of the model's targets; sums over examples.
        threads: with which the fit ran.
    """

    def __init__(self, bnn: BNN, weights: dict[str, Tensor], data: Batch, *, noise: float | None, per: str) -> None:
        self.bnn, self.weights, (self.x, *self._targets) = bnn, weights, data
        self.y = self._targets[0].double().view(len(self.x), -1)
        self.counts = self._targets[1].double() if len(data) > 2 else torch.ones_like(self.y[:, 0])
        laws = prior_laws(bnn, weights, {})
        normals = {name: normal_of(laws[name], name) for name in weights}
        self.loc = {name: law.loc.detach().expand(weights[name].shape) for name, law in normals.items()}
        scales = torch.cat(
            [law.scale.detach().expand(weights[name].shape).reshape(-1) for name, law in normals.items()]
        )
        num_inputs = self.x.shape[1] if per == "input" and self.x.ndim == 2 else None
        self.group = groups_of_inputs(weights, weights, num_inputs).to(self.x.device)
        self.precision = scales.double().pow(-2)
        likelihood = bnn.settings["likelihood"]
        self.tunes_noise = noise is not None and likelihood == Gaussian(scale="learned")
        self._is_normal = isinstance(likelihood, Gaussian) and likelihood.scale != "heteroscedastic"
        self.first_noise = noise
        self._learned = [p for p in bnn.parameters() if p.requires_grad]
        scale = dict(bnn.likelihood.named_parameters()).get("scale_unconstrained")
        self._late = [] if scale is None or noise is None else [scale]
        if noise is not None and self._late:
            self._late[0].data.copy_((noise * self._spread()).log().view(self._late[0].shape))
        elif noise is not None:
            self.precision *= noise
        self._rounds = 0
        self.log_evidence = self.log_left_out = float("-inf")
        self.threads = 1

    @property
    def score(self) -> float:
        """The mean of log evidence and leave-one-out log score."""
        return (self.log_evidence + self.log_left_out) / 2

    def _by_site(self, flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([value.numel() for value in self.weights.values()])
        return {name: part.view_as(self.weights[name]) for name, part in zip(self.weights, parts, strict=True)}

    def to_mode(self, iterations: int) -> None:
        """Move weights, and what is learned beside them, towards the mode under the present scales."""
        held = self._late if self._rounds == 0 or self.tunes_noise else []
        learned = [p for p in self._learned if all(p is not late for late in held)]
        leaves = {name: value.detach().clone().requires_grad_() for name, value in self.weights.items()}
        tensors = [*leaves.values(), *learned]
        precision = self._by_site(self.precision.to(next(iter(leaves.values()))))

        def energy() -> Tensor:
            ONE_THREAD.let_waiting_in()
            fit = log_probs(self.bnn.likelihood, self.bnn.outputs(leaves, self.x), *self._targets).sum()
            penalty = torch.stack([(precision[n] * (leaves[n] - self.loc[n]).square()).sum() for n in leaves]).sum()
            return 0.5 * penalty - fit

        limits: dict[str, Any] = {"maxiter": iterations, "maxfun": iterations + iterations // 4}
        minimize_in_place(energy, tensors, maxcor=_MEMORY, ftol=_TOLERANCE, gtol=_SLOPE, **limits)
        self.weights = {name: value.detach() for name, value in leaves.items()}
        self._rounds += 1

    def _point(self) -> Point:
        return Point(self.bnn, self.weights, self.bnn.likelihood, list(self.weights))

    def tune(self) -> None:
        """Move the precisions of the prior and of the noise by MacKay's fixed point, with the network linearised."""
        model, f = linear_model(self._point(), self.x, *self._targets)
        deviation = torch.cat([(self.weights[n] - self.loc[n]).reshape(-1) for n in self.weights]).double()
        squares = self._by_group(deviation.square())
        for _ in range(_STEPS):
            ONE_THREAD.let_waiting_in()
            solution = model.solve(self.precision)
            found = self._by_group(solution.determined) / squares.clamp_min(1e-30)
            self.precision = found.clamp(*_PRECISIONS)[self.group]
            if self.tunes_noise:
                ratio = self._tune_noise(f, solution.leverage().diagonal(dim1=1, dim2=2))
                model = dataclasses.replace(model, columns=model.columns / ratio)

    def _tune_noise(self, f: Tensor, leverage: Tensor) -> Tensor:
        """Move the noise of each column to sum of squares / (targets - gamma); return the ratio to the last, (K,)."""
        residual = (self.y - f).square() * self.counts[:, None]
        left = (self.counts[:, None] - leverage).sum(0).clamp_min(1e-3 * float(self.counts.sum()))
        found = (residual.sum(0) / left).sqrt().clamp_min(_LEAST_NOISE)
        if not bool(found.isfinite().all()):
            raise FloatingPointError(f"The noise became {found.tolist()}: look for extreme values in the data.")
        ratio = found / self.noise()
        with torch.no_grad():
            self.bnn.likelihood.scale = found.to(f.device).view(self.bnn.likelihood.scale.shape).to(self.bnn.like.dtype)
        return ratio

    def _spread(self) -> Tensor:
        """Return the standard deviation of each column of targets, (K,), and 1 where it is 0."""
        share = (self.counts / self.counts.sum())[:, None]
        variance = (share * (self.y - (share * self.y).sum(0)).square()).sum(0)
        return torch.where(variance > 0, variance, 1.0).sqrt()

    def noise(self) -> Tensor:
        """Return the standard deviation of the noise of each column, (K,), in the units of the model."""
        return self.bnn.likelihood.scale.detach().double().reshape(-1)

    def _by_group(self, values: Tensor) -> Tensor:
        total = values.new_zeros(int(self.group.max()) + 1)
        return total.index_add(0, self.group, values)

    def judge(self) -> None:
        """Set log evidence and leave-one-out log score, which are -infinity before."""
        point = self._point()
        model, f = linear_model(point, self.x, *self._targets)
        solution = model.solve(self.precision)
        with torch.no_grad():
            fit = log_probs(point.likelihood, f.to(self.bnn.like.dtype), *self._targets).double().sum()
        deviation = torch.cat([(self.weights[n] - self.loc[n]).reshape(-1) for n in self.weights]).double()
        evidence = fit - 0.5 * (self.precision * deviation.square()).sum() - 0.5 * solution.log_det
        (column,) = score_columns(point.likelihood, f.to(self.bnn.like.dtype), self._targets[0])
        score = self.counts[:, None] * column.double()
        mean, covariance = solution.left_out(f, score)
        noise = self.noise().expand(f.shape[1]) if self._is_normal else None
        with torch.no_grad():
            left_out = (self.counts * log_scores(point, self._targets[0], mean, covariance, noise)).sum()
        if bool(evidence.isfinite() & left_out.isfinite()):
            self.log_evidence, self.log_left_out = float(evidence), float(left_out)

    def record(self, volume: float) -> StartRecord:
        """Return what tells starts from each other, in the original units of the targets."""
        return StartRecord(self.first_noise, self.log_evidence - volume, self.log_left_out - volume)

    def precision_by_site(self) -> dict[str, Any]:
        """Return the precision of each site, or of each of its columns, as a number or a list."""
        values = self._by_site(self.precision)
        rows = {name: value.flatten(0, -2)[0] if value.ndim > 1 else value for name, value in values.items()}
        return {name: float(row[0]) if bool((row == row[0]).all()) else row.tolist() for name, row in rows.items()}

    def tuned(self, declared: BNN, source: Source) -> BNN:
        """Return the model with the tuned prior and noise, and all that was learned beside the weights."""
        like = next(iter(self.weights.values()))
        scales = self._by_site(self.precision.rsqrt().to(like))
        chosen = {name: _prior(name, self.loc[name], scale) for name, scale in scales.items()}
        likelihood = declared.settings["likelihood"]
        if self.tunes_noise:
            units = source.y_scaler.scale.reshape(-1).to(like.device)
            noise = (self.noise() * units).tolist()
            likelihood = Gaussian(scale=noise[0] if len(noise) == 1 else tuple(noise))
        bnn = declared.with_parts(prior=chosen | untuned(declared, list(scales)), likelihood=likelihood).to(like.device)
        bnn.net.load_state_dict(self.bnn.net.state_dict())
        if not self.tunes_noise:
            bnn.likelihood.load_state_dict(self.bnn.likelihood.state_dict())
        return bnn


def _prior(name: str, loc: Tensor, scale: Tensor) -> Any:
    """Return the normal prior of a site: with one number for all entries where they have one."""
    if bool((scale == scale.reshape(-1)[0]).all() & (loc == loc.reshape(-1)[0]).all()):
        return priors.Normal(scale=float(scale.reshape(-1)[0]), loc=float(loc.reshape(-1)[0]))
    return priors.FromPosterior({name: (loc.contiguous(), scale.contiguous())})
