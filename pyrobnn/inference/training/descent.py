"""Fits of points without noise: L-BFGS and short runs of Adam on all of the data, until they gain nothing."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from pyrobnn._core.errors import progress_bar
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import mark, seeded
from pyrobnn._torch.lbfgs import descend_in_place, joined, polish_in_place
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference import limits
from pyrobnn.inference.capture.graph import recorded_slope
from pyrobnn.inference.capture.objective import Objective
from pyrobnn.inference.data import check_calls
from pyrobnn.inference.method import Progress, Run
from pyrobnn.inference.training.state import Asked, TrainingState, cloned, put_values
from pyrobnn.inference.training.watch import BLOCK, Ended, Stop, ask
from pyrobnn.posterior.record import Convergence, EngineRecord, History

_STOCHASTIC = ("optimizer", "lr", "schedule", "clip_norm", "kl_warmup", "num_particles", "loss", "patience")  # steps
_LBFGS_ITERATIONS = 1000
_ADAM_STEPS = (500, 1000, 2000)  # of the first cycle, the second and others
_LEAST_GAIN_OF_ADAM = 0.1  # in tolerances
_PRODUCTS_OF_A_QUICK_PASS = 20_000_000
_ADAM_STEPS_OF_SLOW_PASSES = 100
_PROGRESS_FORM = "{desc}: {n_fmt} steps [{elapsed}, {rate_fmt}{postfix}]"
_LIMITS: dict[str, Any] = {"maxfun": 2 * _LBFGS_ITERATIONS, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-9}
"""Of `descend_in_place`; it ends where rounding hides what is gained."""


def why_steps(asked: Sequence[Asked], run: Run) -> str | None:
    """Return why fits of modes take steps; None where L-BFGS seeks the modes."""
    if run.callbacks and len(asked) > 1:
        return "callbacks see several fits at once"
    return next(filter(None, (_against_lbfgs(fit, run) for fit in asked)), None)


def _against_lbfgs(fit: Asked, run: Run) -> str | None:
    """A learned noise or prior scale has no finite mode, and is left to early steps."""
    method, source = fit.method, fit.source
    usual = {field.name: field.default for field in dataclasses.fields(method)}
    given = [name for name in _STOCHASTIC if getattr(method, name) != usual[name]]
    if not method.ends_by_itself:
        given.append("steps" if method.epochs is None else "epochs")
    if method.batch_size not in (None, "all"):
        given.append("batch_size")
    given += [name for name in ("validation", "checkpoint") if getattr(run, name) is not None]
    if given:
        return f"{', '.join(given)} asks for steps"
    reasons = {
        "the captured engine has steps": run.engine == "captured",
        "the data are not in memory": not isinstance(source.data, Data),
        "a pass over all data takes too long": source.num_data * source.num_weights > limits.MOST_PRODUCTS_OF_LBFGS
        or source.num_weights > limits.MOST_WEIGHTS_OF_LBFGS,
        "the model learns scales": any(parameter.requires_grad for parameter in fit.bnn.parameters()),
    }
    reason = next((words for words, holds in reasons.items() if holds), None)
    if reason is None and not _is_certain(fit, run):
        return "the network has noise or running statistics, or more than weights is inferred"
    return reason


def _is_certain(fit: Asked, run: Run) -> bool:
    """Return whether all that is inferred are weights, and training passes have no noise and change no buffer."""
    with seeded(run.seed, "descent"), torch.no_grad():
        model, example = fit.source.fresh_model(fit.bnn, run.device)
        check_calls(model, example[0], training=True)
        has_others = {site.name for site in latent_sites(model, *example)} != set(model.site_names)
        if model.moving or has_others or len(example[0]) < 2:
            return False
        weights = model.initial_values
        model.train()
        before, has_drawn = [value.clone() for value in model.buffers()], mark()
        model.outputs(weights, example[0])
        return all(map(torch.equal, before, model.buffers())) and not has_drawn()


class NotFinite(ArithmeticError):
    """L-BFGS came to numbers that are not finite."""


def descend(fits: Sequence[TrainingState], run: Run, stop: Stop) -> list[Ended]:
    """Move each fit to its mode, one after the other, and return how they ended.

    A cycle is L-BFGS, which stops at kinks, and steps of Adam, taken back if they gain nothing that matters. A fit has
    converged when a cycle gains less than the tolerance.
    """
    ended = []
    with progress_bar(shown=run.progress, desc="training", bar_format=_PROGRESS_FORM) as bar:
        for fit in fits:
            fit.bnn.train()
            ended.append(_Descent(fit, run, bar, stop).run())
            fit.bnn.eval()
    if not all(np.isfinite(end.history.elbo).all() and fit.is_finite() for end, fit in zip(ended, fits, strict=True)):
        raise NotFinite
    return ended


class _Descent:
    def __init__(self, fit: TrainingState, run: Run, bar: Any, stop: Stop) -> None:
        self._fit, self._run, self._bar, self._stop = fit, run, bar, stop
        self._batch, self._weight = next(fit.batches), fit.method.temperature
        self._objective = Objective(fit.bnn, fit.guide, num_data=fit.num_data, kl="mc")
        named = self._objective.named_parameters()
        self._tensors: dict[str, Tensor] = {name: p for name, p in named if p.requires_grad}
        recorded = None if run.engine == "eager" else recorded_slope(self._losses, self._tensors)
        self._evaluate = self._eager if recorded is None else recorded
        used = "eager" if recorded is None else "captured"
        self._engine = EngineRecord(run.engine, used, "L-BFGS seeks the mode of a point, on all data")
        self._terms = torch.zeros(2, dtype=torch.float64)
        self._seen: list[Tensor] = []

    def run(self) -> Ended:
        values, ends, elbos, mode = list(self._tensors.values()), list[int](), list[float](), math.inf
        while self._left and (len(elbos) < 2 or elbos[-1] - elbos[-2] >= self._fit.tolerance):
            most = min(_LBFGS_ITERATIONS, self._left)
            done = len(self._seen)
            descend_in_place(self._slope, values, after=self._look, maxiter=most, **_LIMITS)
            if not ends and len(self._seen) - done < most:  # L-BFGS ended by itself: what Adam gains is known
                self._slope()
                mode = -float(self._terms.sum())
            products = len(self._batch[0]) * sum(value.numel() for value in values)
            is_quick = products <= _PRODUCTS_OF_A_QUICK_PASS
            self._anneal(min(_ADAM_STEPS[min(len(ends), 2)] if is_quick else _ADAM_STEPS_OF_SLOW_PASSES, self._left))
            self._slope()
            ends.append(len(self._seen))
            elbos.append(-float(self._terms.sum()))
        if self._stop.by is None and len(self._seen) % BLOCK:
            self._show()
        gain = elbos[-1] - elbos[-2] if len(elbos) > 1 else elbos[-1] - mode if mode < math.inf else None
        converged = gain is not None and gain < self._fit.tolerance and self._left > 0
        if converged:
            polish_in_place(self._slope, values)
        seen: dict[str, Any] = {"elbo": elbos[-1], "elbo_error": 0.0, "gain": gain, "cycle_ends": ends}
        end = Convergence(converged=converged, tolerance=self._fit.tolerance, **seen)
        terms = torch.stack(self._seen or [self._terms]).numpy()
        history = History(-terms[:, 0], terms[:, 1] / self._weight, [], [], self._engine)
        by, why = self._stop.by or "steps", f"not converged within max_steps={self._fit.method.max_steps}"
        if gain is not None and converged:
            gained = f"L-BFGS gained {gain:.2g} nats when it was run again, and Adam after it"
            by, why = "convergence", f"converged: {gained}"
        elif self._stop.by is not None:
            why = self._stop.reason(len(self._seen))
        return Ended(history, by, why, end)

    @property
    def _left(self) -> int:
        return 0 if self._stop.by is not None else self._fit.method.max_steps - len(self._seen)

    def _anneal(self, steps: int) -> None:
        """Run Adam, and take it back if it gains nothing that matters."""
        values, optimizer = list(self._tensors.values()), self._fit.optimizer
        before, start = self._slope()[0], cloned(values)
        for step in range(steps):
            gradient = self._slope()[1:].split([value.numel() for value in values])
            for value, part in zip(values, gradient, strict=True):
                value.grad = part.view_as(value).to(value)
            self._fit.group["lr"] = self._fit.first_settings["lr"] * (0.5 * (1 + math.cos(math.pi * step / steps)))
            optimizer.step()
            if self._look():
                break
        optimizer.zero_grad(set_to_none=True)
        if not self._slope()[0] < before - _LEAST_GAIN_OF_ADAM * self._fit.tolerance:  # nor where it is NaN
            put_values(values, start)

    def _slope(self) -> Tensor:
        ONE_THREAD.let_waiting_in()
        values = self._evaluate()
        self._terms = values[:2].clone()
        return torch.cat([values[:2].sum(0, keepdim=True), values[2:]])

    def _losses(self, values: dict[str, Tensor]) -> Tensor:
        """Return minus the log-likelihood, and the weighted KL, (2,)."""
        log_likelihood, kl = functional_call(self._objective, values, self._batch)
        return torch.stack([-log_likelihood, self._weight * kl])

    def _eager(self) -> Tensor:
        """Return them, and the gradient of their sum, by Pyro's ELBO."""
        log_likelihood, kl = self._fit.differentiate(self._batch).detach()
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in self._tensors.values())
        return joined([-log_likelihood, self._weight * kl, *gradients])

    def _look(self) -> bool:
        """Note the terms after an iteration, and every 50 ask the callbacks whether to stop."""
        self._seen.append(self._terms)
        self._bar.update()
        self._stop.begun = True
        if len(self._seen) % BLOCK == 0:
            self._show()
        return self._left <= 0

    def _show(self) -> None:
        done, fit = len(self._seen), self._fit
        elbo = -float(torch.stack(self._seen[-BLOCK:] or [self._terms]).sum(1).mean())
        self._bar.set_postfix_str(f"elbo={elbo:.1f}", refresh=False)
        ask(self._run.callbacks, Progress(done, fit.method.max_steps, elbo, fit.bnn, fit.guide), self._stop)
