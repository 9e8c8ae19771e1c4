"""The loop of a fit: steps, looks at them, checkpoints, and one flag that ends it."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from torch import Tensor

from pyrobnn._core.lock import ONE_THREAD, ignored_warnings
from pyrobnn._torch.private import tree_map
from pyrobnn.inference.method import Run
from pyrobnn.inference.svi.svi import Length
from pyrobnn.inference.training.checkpoint import Checkpoint
from pyrobnn.inference.training.convergence import ConvergenceRule
from pyrobnn.inference.training.engines import Stepper
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.inference.training.watch import BLOCK, Ended, Stop, Watch

_TURN = 0.1
"""Seconds of steps between two looks for other threads that wait."""
_KEEP_EVERY = 500
"""Steps between two states that are kept, from which the steps before a fault are done again to name its site."""


def train(
    fits: Sequence[TrainingState],
    run: Run,
    length: Length,
    *,
    rules: Sequence[ConvergenceRule] = (),
    validate: Callable[[], float] | None = None,
    checkpoint: Checkpoint | None = None,
    stop: Stop | None = None,
    block: int = BLOCK,
) -> list[Ended]:
    """Run the steps of fits side by side, and return how each ended.

    Convergence, patience, a callback, or Ctrl-C where it is put off, set a flag that ends them after a step.

    Args:
        fits: of one shape, with the same method.
        run: engine, progress and callbacks.
        length: numbers of steps.
        rules: the judges of the convergence of each fit; none for fits of a given length.
        validate: returns a validation score.
        checkpoint: keeps the place of the fits, which go on from there.
        stop: the flag.
        block: steps between two looks.

    Raises:
        KeyboardInterrupt: an interrupt where none are noted, or after the checkpoint was written.
        FloatingPointError: an estimate of the ELBO or a parameter is not finite; it names the site.
        InputError: a checkpoint of another fit.
    """
    stop = stop or Stop()
    stepper = Stepper(fits, run.engine, length.expected)
    watch = Watch(fits, run, length.most, rules=rules, validate=validate, stop=stop, block=block)
    turns = _Turns(stepper, stop)
    for fit in fits:
        fit.bnn.train()
    with watch.bar, ExitStack() as at_end:
        for fit in fits:
            at_end.callback(fit.batches.close)
        done = 0 if checkpoint is None else _resume(stepper, watch, checkpoint)
        kept = done, _copied(stepper)
        while done < length.most and stop.by is None:
            terms = turns.advance(watch.steps_to_next_look(done, checkpoint.every if checkpoint else None))
            watch.blocks.append(terms)
            done += len(terms)
            fault = _fault(fits, terms, done)
            if fault is not None:
                stepper.restore(kept[1])
                raise FloatingPointError(_in_words(fits, *fault, since=kept[0]))
            watch.look(done)
            if done % _KEEP_EVERY == 0:
                kept = done, _copied(stepper)
            if checkpoint is not None and done % checkpoint.every == 0 and done < length.most and stop.by is None:
                checkpoint.write(_place(done, stepper, watch), finished=False)
        if checkpoint is not None and not checkpoint.finished:
            interrupted = stop.by_ctrl_c and done < length.most
            checkpoint.write(_place(done, stepper, watch), finished=not interrupted)
            if interrupted:
                raise KeyboardInterrupt(
                    f"The fit was {stop.reason(done)}. Its state is kept in {checkpoint.folder}: the same call goes on "
                    "from there."
                )
    for fit in fits:
        fit.bnn.eval()
    watch.restore_best()
    return watch.ended(done, stepper.record)


class _Turns:
    """Does steps a tenth of a second at a time, and lets other threads in between that wait."""

    def __init__(self, stepper: Stepper, stop: Stop) -> None:
        self._stepper, self._at_once, self._stop = stepper, 1, stop

    def advance(self, num_steps: int) -> np.ndarray:
        """Do some steps, fewer if interrupted, and return the log-likelihood and KL of each, (steps, R, 2)."""
        terms: list[np.ndarray] = []
        with ignored_warnings("Encountered NaN"):  # Pyro's word for what `train` raises
            while num_steps and not (terms and self._stop.by_ctrl_c):
                with self._stop.noted():
                    ONE_THREAD.let_waiting_in()
                count, started = min(num_steps, self._at_once), time.perf_counter()
                each = self._stepper.advance(count).double().cpu().numpy()
                terms.append(each.reshape(count, -1, 2))
                self._at_once = max(1, int(count * _TURN / (time.perf_counter() - started)))
                num_steps -= count
                self._stop.begun = True
        return np.concatenate(terms)


def _resume(stepper: Stepper, watch: Watch, checkpoint: Checkpoint) -> int:
    """Go to the place of a checkpoint, if there is one, and return the steps done."""
    state = checkpoint.read(stepper.fits)
    if state is None:
        return 0
    stepper.resume(state["training"], finished=checkpoint.finished)
    watch.restore(state["watch"], state["done"])
    return int(state["done"])


def _place(done: int, stepper: Stepper, watch: Watch) -> dict[str, Any]:
    return {"done": done, "training": _copied(stepper), "watch": watch.state()}


def _copied(stepper: Stepper) -> Any:
    return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, stepper.state())


def _fault(fits: Sequence[TrainingState], terms: np.ndarray, done: int) -> tuple[int, int, float] | None:
    """Return step, replicate and value of the first ELBO that is not finite; a parameter counts as NaN, at the end."""
    elbo = terms[..., 0] - terms[..., 1]
    good = np.isfinite(elbo)
    if not good.all():
        index, replicate = np.argwhere(~good)[0]
        return done - len(elbo) + int(index) + 1, int(replicate), float(elbo[index, replicate])
    lost = [index for index, fit in enumerate(fits) if not fit.is_finite()]
    return (done, lost[0], float("nan")) if lost else None


def _in_words(fits: Sequence[TrainingState], step: int, replicate: int, value: float, *, since: int) -> str:
    """Return what became of the ELBO of a fit at a step, and the site at fault, after the state of an earlier step."""
    from pyrobnn.inference.training.faults import explain  # sound fits do without

    of_which = f" of replicate {replicate}" if len(fits) > 1 else ""
    why = explain(fits[replicate], step - since)
    advice = "Lower the learning rate, standardise the data, or start the guide narrower."
    return f"The ELBO{of_which} became {value} at step {step}: {why}. {advice}"
