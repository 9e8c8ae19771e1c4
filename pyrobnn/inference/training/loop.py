"""The loop of a fit: steps, looks, checkpoints, and the site at fault when numbers cease to be finite."""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pyrobnn._core.lock import ONE_THREAD, ignored_warnings
from pyrobnn._core.random import random_state, set_random_state
from pyrobnn._torch.private import tree_map
from pyrobnn.data.batches import Batch
from pyrobnn.inference.training.checkpoint import Checkpoint
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.inference.training.steps import Stepper
from pyrobnn.inference.training.watch import Stop, Watch
from pyrobnn.posterior.record import EngineRecord

_TURN = 0.1
"""Seconds of steps between two looks for other threads that wait."""
_KEEP_EVERY = 500
"""Steps between two states that are kept, from which the steps before a fault are done again to name its site."""


def train(
    stepper: Stepper,
    watch: Watch,
    num_steps: int,
    *,
    checkpoint: Checkpoint | None = None,
    stop: Stop | None = None,
) -> EngineRecord:
    """Run the steps of fits side by side, and return which engine ran them.

    The fits go on from the place that the checkpoint keeps, if there is one. A flag that puts Ctrl-C
    off ends them after a step; a checkpoint is then written.

    Raises:
        KeyboardInterrupt: an interrupt where none are noted, or after the checkpoint was written.
        FloatingPointError: an estimate of the ELBO or a parameter is not finite; it names the site.
        InputError: a checkpoint of another fit.
    """
    stop = stop or Stop()
    fits, turns = stepper.fits, _Turns(stepper, stop)
    for fit in fits:
        fit.bnn.train()
    with watch, ExitStack() as at_end:
        for fit in fits:
            at_end.callback(fit.batches.close)
        done = 0 if checkpoint is None else _resume(stepper, watch, checkpoint)
        kept = _state(stepper, watch, done)
        finished = checkpoint is not None and checkpoint.finished
        while done < num_steps and not finished:
            count = watch.steps_to_next_look(done, checkpoint.every if checkpoint else None)
            terms = turns.advance(count)
            watch.terms.add(terms)
            done += len(terms)
            fault = _fault(stepper, watch, done)
            if fault is not None:
                stepper.restore(kept["training"])
                raise FloatingPointError(_in_words(fits, *fault, since=kept["done"]))
            for index, move in watch.judge(done).items():
                fits[index].follow(move)
            finished = watch.report(done) or done == num_steps
            due = checkpoint is not None and (finished or done % checkpoint.every == 0)
            if done % _KEEP_EVERY == 0:
                kept = _state(stepper, watch, done)
            if checkpoint is not None and due:
                checkpoint.write(_state(stepper, watch, done), finished=finished)
            if stop.by_ctrl_c and not finished:
                if checkpoint is not None:
                    checkpoint.write(_state(stepper, watch, done), finished=False)
                    raise KeyboardInterrupt(
                        f"The fit was {stop.reason(done)}. Its state is kept in {checkpoint.folder}: the "
                        "same call goes on from there."
                    )
                watch.stop_reason = stop.reason(done)
                break
    for fit in fits:
        fit.bnn.eval()
    return stepper.record


class _Turns:
    """Does steps a tenth of a second at a time, and lets other threads in between that wait."""

    def __init__(self, stepper: Stepper, stop: Stop) -> None:
        self._stepper, self._at_once, self._stop = stepper, 1, stop

    def advance(self, num_steps: int) -> Tensor:
        """Do some steps, fewer if interrupted, and return the log-likelihood and KL of each, (steps, [R,] 2)."""
        terms: list[Tensor] = []
        with ignored_warnings("Encountered NaN"):  # Pyro's word for what `train` raises
            while num_steps and not (terms and self._stop.by_ctrl_c):
                with self._stop.noted():
                    ONE_THREAD.let_waiting_in()
                count, started = min(num_steps, self._at_once), time.perf_counter()
                terms.append(self._stepper.advance(count))
                self._at_once = max(1, int(count * _TURN / (time.perf_counter() - started)))
                num_steps -= count
                self._stop.begun = True
        return torch.cat(terms)


def _resume(stepper: Stepper, watch: Watch, checkpoint: Checkpoint) -> int:
    """Go to the place of a checkpoint, if there is one, and return the steps done."""
    state = checkpoint.read(stepper.fits)
    if state is None:
        return 0
    stepper.resume(state["training"], finished=checkpoint.finished)
    watch.restore(state["watch"], state["done"])
    return int(state["done"])


def _state(stepper: Stepper, watch: Watch, done: int) -> dict[str, Any]:
    copied = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, stepper.state())
    return {"done": done, "training": copied, "watch": watch.state()}


def _fault(stepper: Stepper, watch: Watch, done: int) -> tuple[int, int, float] | None:
    """Return step, replicate and value of the first ELBO that is not finite; a parameter counts as NaN, at the end."""
    terms = watch.terms.fetch()
    elbo = (terms[..., 0] - terms[..., 1]).reshape(len(terms), -1)
    good = np.isfinite(elbo)
    if not good.all():
        index, replicate = np.argwhere(~good)[0]
        return done - len(elbo) + int(index) + 1, int(replicate), float(elbo[index, replicate])
    lost = [index for index, fit in enumerate(stepper.fits) if not fit.is_finite()]
    return (done, lost[0], float("nan")) if lost else None


def _in_words(fits: Sequence[TrainingState], step: int, replicate: int, value: float, *, since: int) -> str:
    """Return what became of the ELBO of a fit at a step, and the site at fault, after the state of an earlier step."""
    of_which = f" of replicate {replicate}" if len(fits) > 1 else ""
    why = explain(fits[replicate], step - since)
    advice = "Lower the learning rate, standardise the data, or start the guide narrower."
    return f"The ELBO{of_which} became {value} at step {step}: {why}. {advice}"


def explain(fit: TrainingState, num_steps: int) -> str:
    """Do the steps again, eagerly, after which a fit had failed, and say in words what is not finite first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pyro warns of NaN, which is looked for here
        return _redo(fit, num_steps)


def _redo(fit: TrainingState, num_steps: int) -> str:
    for _ in range(num_steps):
        seen: list[tuple[Any, Batch]] = []
        terms = fit.differentiate(_noted(fit, seen))
        if not _is_finite(fit, terms):
            return next(_findings_in(fit, seen), "no single site is to blame")
        fit.update()
    if not fit.is_finite():
        return "the update of the optimiser is not finite, though the gradient is"
    return "with other rounding the same steps are finite: the fit is at the edge of what its precision can hold"


def _noted(fit: TrainingState, seen: list[tuple[Any, Batch]]) -> Iterator[Batch]:
    """Yield the batches of the next step, and note each with the random state of its noise."""
    for batch in fit.next_batches():
        seen.append((random_state(), batch))
        yield batch


def _findings_in(fit: TrainingState, seen: list[tuple[Any, Batch]]) -> Iterator[str]:
    """Yield what is not finite in the first faulty batch of a step; each has the random state of its noise.

    Processes that share out batches all stop at the same one, since they average terms and gradients.
    """
    for noise, batch in seen:
        set_random_state(noise)
        if not _is_finite(fit, fit.differentiate([batch])):
            set_random_state(noise)
            yield from _findings(fit, batch)
            return


def _is_finite(fit: TrainingState, terms: Tensor) -> bool:
    """Return whether the terms of a step and all gradients are finite."""
    return bool(terms.isfinite().all()) and fit.has_finite_gradients()


def _findings(fit: TrainingState, batch: Batch) -> Iterator[str]:
    """Yield what is not finite in a step: the guide's sites, the model's, and then gradients."""
    guide_trace = poutine.trace(fit.guide).get_trace(*batch, num_data=fit.num_data)
    for name, node in _sites(guide_trace):
        if not node["value"].isfinite().all():
            yield f"the guide draws {_first_bad(node['value'])} at site {name!r}"
        if node["value"].requires_grad:
            node["value"].retain_grad()
        density = node["fn"].log_prob(node["value"])
        if not density.isfinite().all():
            yield f"the guide's log density at site {name!r} is {_first_bad(density)}"
    model = poutine.replay(fit.bnn, trace=guide_trace)
    model_trace = poutine.trace(model).get_trace(*batch, num_data=fit.num_data)
    for name, node in _sites(model_trace):
        density = node["fn"].log_prob(node["value"])
        if not density.isfinite().all():
            count = f" for {int((~density.isfinite()).sum())} of {density.numel()} examples" if name == "y" else ""
            kind = "log-likelihood" if node["is_observed"] else "log prior density"
            yield f"the {kind} at site {name!r} is {_first_bad(density)}{count}"
    (model_trace.log_prob_sum() - guide_trace.log_prob_sum()).backward()
    for name, node in _sites(guide_trace):
        gradient = node["value"].grad if node["value"].requires_grad else None
        if gradient is not None and not gradient.isfinite().all():
            yield f"the gradient at site {name!r} is {_first_bad(gradient)}"
    for name, parameter in fit.trained.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            yield f"the gradient of the parameter {name.partition('.')[2]!r} is {_first_bad(parameter.grad)}"


def _sites(trace: Any) -> list[tuple[str, Any]]:
    return [
        (name, node)
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and isinstance(node["value"], Tensor) and name != "data"
    ]


def _first_bad(values: Tensor) -> float:
    return float(values.detach()[~values.detach().isfinite()].reshape(-1)[0])
