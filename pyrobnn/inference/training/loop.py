"""The loop of a fit: steps by an engine, eager or captured, looks at them, checkpoints, and one flag that ends it."""

import dataclasses
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

import pyrobnn
from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import check_writable
from pyrobnn._core.lock import ONE_THREAD, ignored_warnings
from pyrobnn._core.random import random_state, seeded, set_random_state
from pyrobnn._core.tree_files import digest, read_tree, write_tree
from pyrobnn._torch.private import tree_leaves, tree_map
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.data.batches import Batch, StateDict
from pyrobnn.data.in_memory import Data
from pyrobnn.inference.capture.graph import capture, choose_engine
from pyrobnn.inference.data import Source, changes
from pyrobnn.inference.method import Engine, Run
from pyrobnn.inference.training.captured import Captured
from pyrobnn.inference.training.state import Asked, TrainingState
from pyrobnn.inference.training.watch import BLOCK, Ended, Stop, Watch
from pyrobnn.nets import is_custom
from pyrobnn.posterior.record import EngineRecord

FILE = "checkpoint.safetensors"
FORMAT_VERSION = 4
_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_log = logging.getLogger("pyrobnn")
_KEEP_EVERY = 500  # steps between two states that are kept, from which those before a fault are done again to name it
_TURN = 0.1  # seconds of steps between two looks for other threads that wait


class Checkpoint:
    """The file in which a fit keeps its place every so many steps, replaced whole; `finished` if the fit has ended."""

    def __init__(self, run: Run, asked: Sequence[Asked]) -> None:
        assert run.checkpoint is not None
        check_count(run.every, "every")
        self.folder, self.every, self.finished = Path(run.checkpoint), run.every, False
        self._path = self.folder / FILE
        check_writable(self._path, "file")
        of_validation, validation = None, run.validation
        if validation is not None:
            with seeded(run.seed, "data"):
                tensors = validation.tensors if isinstance(validation, Data) else validation.head
            of_validation = digest(tree_leaves(tensors))
        request = {
            "seed": run.seed,
            "method": [fit.method for fit in asked],
            "model": [fit.bnn for fit in asked],
            "engine": run.engine,
            "data": [_fingerprint(fit.source) for fit in asked],
            "validation data": of_validation,
        }
        self._request = {name: _ADDRESS.sub("", str(value)) for name, value in request.items()}

    def read(self, fits: Sequence[TrainingState]) -> dict[str, Any] | None:
        """Return the state to go on from; None if there is no file yet."""
        tensors = [value for fit in fits for value in (*fit.trained.parameters(), *fit.trained.buffers())]
        densities = ", ".join(map(_log_joint, fits))  # of the start, with constants of priors
        self._request["starting values"] = f"{digest(tensors)}, log joint densities {densities}"
        if not self._path.exists():
            return None
        tree = read_tree(self._path)
        if tree.get("format_version") != FORMAT_VERSION:
            found = f"format version {tree.get('format_version')}, this pyrobnn reads {FORMAT_VERSION}"
            raise InputError(f"{self._path} has {found}: finish with the pyrobnn that began it, or remove it.")
        for name, value in self._request.items():
            if tree["request"].get(name) != value:
                differ = f"the {name} differ: there {tree['request'].get(name)}, here {value}"
                raise InputError(f"{self._path} is of another fit, {differ}. Choose another folder, or remove it.")
        if tree["versions"] != _versions():
            words = "%s was written by %s, this is %s: bits may differ."
            _log.warning(words, self._path, tree["versions"], _versions())
        self.finished = tree["finished"]
        _log.info("goes on from step %d, kept in %s", tree["state"]["done"], self._path)
        return dict(tree["state"])

    def write(self, done: int, training: StateDict, watch: StateDict, *, finished: bool) -> None:
        """Replace the file; where that is not possible the fit goes on without, and the last file stays."""
        state = {"done": done, "training": training, "watch": watch}
        tree = {"format_version": FORMAT_VERSION, "versions": _versions(), "request": self._request, "state": state}
        try:
            write_tree(self._path, tree | {"finished": finished})
        except OSError as error:
            words = "The checkpoint of step %d could not be written, and the fit goes on: %s"
            _log.warning(words, done, error.strerror or error)


def _fingerprint(source: Source) -> str:
    """Return what tells data apart, their weights included."""
    data = source.data
    if isinstance(data, Data):
        return f"{digest(tree_leaves(data.tensors))}, standardize={data.standardize}"
    batches = f"{source.batches_per_epoch(None)} batches, standardize={data.standardize}"
    return f"Loader of {source.num_data} examples, {batches}, the first {digest(tree_leaves(source.head))}"


def _log_joint(fit: TrainingState) -> str:
    """Return the log density of starting weights and an example: functions as priors are known by it."""
    was_training = fit.bnn.training
    with seeded(0), torch.no_grad(), fast_pyro(), poutine.block():
        model = poutine.condition(fit.bnn.eval(), data=fit.bnn.initial_values)
        log_joint = poutine.trace(model).get_trace(*fit.example).log_prob_sum()
    fit.bnn.train(was_training)
    return f"{float(log_joint):.6g}"


def _versions() -> dict[str, str]:
    threads = str(torch.get_num_threads())
    return {"pyrobnn": pyrobnn.__version__, "torch": str(torch.__version__), "threads": threads}


class Stepper:
    """Fits in progress, one or R replicates, under an engine, which `record` names; the first step is eager."""

    def __init__(self, fits: Sequence[TrainingState], engine: Engine, num_steps: int) -> None:
        self.fits, self._choice = fits, choose_engine(engine, num_steps)
        self._captured: Captured | None = None
        self._at_once = 1
        self._moved: list[Callable[[], str | None]] = []
        self._waits = self._choice.used == "captured" and num_steps > 1
        self.record = EngineRecord(engine, "eager", self._choice.reason)

    def advance(self, num_steps: int) -> Tensor:
        """Do some steps and return the log-likelihood and KL of each, (steps, [R,] 2)."""
        terms = []
        if self._waits:
            self._waits = False
            terms.append(self._eager_steps(1))
            self._capture(self._choice)
            num_steps -= 1
        if num_steps:
            terms.append(self._captured.advance(num_steps) if self._captured else self._eager_steps(num_steps))
        return torch.cat(terms)

    def in_turns(self, num_steps: int, stop: Stop) -> np.ndarray:
        """Do steps, fewer if interrupted, with turns for other threads; return both terms of each, (steps, R, 2)."""
        terms: list[np.ndarray] = []
        with ignored_warnings("Encountered NaN"):  # Pyro's word for what `train` raises
            while num_steps and not (terms and stop.by_ctrl_c):
                with stop.noted():
                    ONE_THREAD.let_waiting_in()
                count, started = min(num_steps, self._at_once), time.perf_counter()
                each = self.advance(count).double().cpu().numpy()
                terms.append(each.reshape(count, -1, 2))
                self._at_once = max(1, int(count * _TURN / (time.perf_counter() - started)))
                num_steps -= count
                stop.begun = True
        return np.concatenate(terms)

    def state(self) -> StateDict:
        """Return everything that the next steps depend on; tensors are shared."""
        return {
            "fits": [fit.state() for fit in self.fits],
            "engine": dataclasses.asdict(self.record) | {"waits": self._waits},
            "random": random_state(),
        }

    def resume(self, state: StateDict, *, finished: bool) -> None:
        """Go on from a state of another process, under the engine that was used there, if there is anything to do."""
        engine = dict(state["engine"])
        self._waits = engine.pop("waits")
        before = EngineRecord(**engine)
        self.restore(state)
        if not finished and before.used != "eager":
            self._capture(before)
            self.restore(state)
        if finished or self._captured or before.used == "eager":
            self.record = before

    def restore(self, state: StateDict) -> None:
        for fit, saved in zip(self.fits, state["fits"], strict=True):
            fit.restore(saved)
        set_random_state(state["random"])

    def _eager_steps(self, num_steps: int) -> Tensor:
        """Do some steps of all fits, in turn: what is drawn does not depend on how steps are put into blocks."""
        steps = [[fit.advance(1)[0] for fit in self.fits] for _ in range(num_steps)]
        return torch.stack([terms[0] if len(terms) == 1 else torch.stack(terms) for terms in steps])

    def _capture(self, choice: EngineRecord) -> None:
        from_step = self.fits[0].done + 1
        make = partial(Captured, self.fits)
        self._captured, self.record = capture(choice, make, what="fit runs", from_step=from_step)
        if self._captured:
            self._moved = [changes(fit.bnn) for fit in self.fits if is_custom(fit.bnn.settings["net"])]

    def check_still(self) -> None:
        """Go on eagerly from where a callback, say, has changed a network in Python."""
        what = next((words for moved in self._moved if (words := moved())), None)
        if what is not None:
            reason = f"{self.record.reason}, until {what} of the network changed after step {self.fits[0].done}"
            self.record = dataclasses.replace(self.record, used="eager", reason=reason)
            self._captured, self._moved = None, []
            for fit in self.fits:
                fit.count_steps()


def train(
    fits: Sequence[TrainingState],
    run: Run,
    stop: Stop,
    *,
    validate: Callable[[], float] | None = None,
    checkpoint: Checkpoint | None = None,
    block: int = BLOCK,
) -> list[Ended]:
    """Run the steps of fits of one shape and method side by side, and return how each ended.

    Convergence, patience in the score of `validate`, a callback, or Ctrl-C if it is put off, set `stop`, which ends
    them after a step.
    """
    most = fits[0].most_steps
    stepper = Stepper(fits, run.engine, most)
    watch = Watch(fits, run, stop, validate=validate, block=block)
    for fit in fits:
        fit.bnn.train()
    with watch.bar, ExitStack() as at_end:
        for fit in fits:
            at_end.callback(fit.batches.close)
        state, done = None if checkpoint is None else checkpoint.read(fits), 0
        if checkpoint is not None and state is not None:
            stepper.resume(state["training"], finished=checkpoint.finished)
            watch.restore(state["watch"], done := int(state["done"]))
        kept, saves = (done, _copied(stepper)), [] if checkpoint is None else [checkpoint.every]
        while done < most and stop.by is None:
            terms = stepper.in_turns(watch.steps_to_next_look(done, *saves), stop)
            done += len(terms)
            if fault := _fault(fits, terms, done):
                stepper.restore(kept[1])
                raise _error(fits, *fault, since=kept[0])
            watch.look(terms, done)
            if run.callbacks or validate is not None:
                stepper.check_still()
            if done % _KEEP_EVERY == 0:
                kept = done, _copied(stepper)
            goes_on = done < most and stop.by is None
            if checkpoint is not None and goes_on and done % checkpoint.every == 0:
                checkpoint.write(done, _copied(stepper), watch.state(), finished=False)
        if checkpoint is not None and not checkpoint.finished:
            interrupted = stop.by_ctrl_c and done < most
            checkpoint.write(done, _copied(stepper), watch.state(), finished=not interrupted)
            if interrupted:
                kept_in = f"Its state is kept in {checkpoint.folder}: the same call goes on from there."
                raise KeyboardInterrupt(f"The fit was stopped by Ctrl-C after step {done}. {kept_in}")
    for fit in fits:
        fit.bnn.eval()
    return watch.ended(done, stepper.record)


def _copied(stepper: Stepper) -> Any:
    return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, stepper.state())


def _fault(fits: Sequence[TrainingState], terms: np.ndarray, done: int) -> tuple[int, int, float] | None:
    """Return step, replicate and value of the first bad ELBO, by terms (steps, R, 2); a bad parameter counts as NaN."""
    elbo = terms[..., 0] - terms[..., 1]
    good = np.isfinite(elbo)
    if not good.all():
        index, replicate = np.argwhere(~good)[0]
        return done - len(elbo) + int(index) + 1, int(replicate), float(elbo[index, replicate])
    lost = [index for index, fit in enumerate(fits) if not fit.is_finite()]
    return (done, lost[0], float("nan")) if lost else None


def _error(fits: Sequence[TrainingState], step: int, replicate: int, value: float, *, since: int) -> FloatingPointError:
    of_which = f" of replicate {replicate}" if len(fits) > 1 else ""
    why = _explained(fits[replicate], step - since)
    advice = "Lower the learning rate, standardise the data, or start the guide narrower."
    return FloatingPointError(f"The ELBO{of_which} became {value} at step {step}: {why}. {advice}")


def _explained(fit: TrainingState, num_steps: int) -> str:
    """Do the steps again, eagerly, after which a fit had failed, and say in words what is not finite first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pyro warns of NaN, which is looked for here
        for _ in range(num_steps):
            noise, batch = random_state(), next(fit.batches)
            terms = fit.differentiate(batch)
            gradients = (p.grad for p in fit.parameters if p.grad is not None)
            if not all(bool(values.isfinite().all()) for values in (terms, *gradients)):
                set_random_state(noise)
                for words, values in _parts(fit, batch):
                    if values is not None and (bad := ~values.detach().isfinite()).any():
                        count = f" for {int(bad.sum())} of {bad.numel()} examples" if words.endswith("site 'y'") else ""
                        return f"{words} is {float(values.detach()[bad].reshape(-1)[0])}{count}"
                return "no single site is to blame"
            fit.update()
    if not fit.is_finite():
        return "the update of the optimiser is not finite, though the gradient is"
    return "with other rounding the same steps are finite: the fit is at the edge of what its precision can hold"


def _parts(fit: TrainingState, batch: Batch) -> Iterator[tuple[str, Tensor | None]]:
    """Yield the numbers of a step with their names: the guide's sites, the model's, and then gradients."""
    guide_trace = poutine.trace(fit.guide).get_trace(*batch, num_data=fit.num_data)
    for name, node in _sites(guide_trace):
        yield f"the guide's draw at site {name!r}", node["value"]
        if node["value"].requires_grad:
            node["value"].retain_grad()
        yield f"the guide's log density at site {name!r}", node["fn"].log_prob(node["value"])
    model_trace = poutine.trace(poutine.replay(fit.bnn, trace=guide_trace)).get_trace(*batch, num_data=fit.num_data)
    for name, node in _sites(model_trace):
        kind = "log-likelihood" if node["is_observed"] else "log prior density"
        yield f"the {kind} at site {name!r}", node["fn"].log_prob(node["value"])
    (model_trace.log_prob_sum() - guide_trace.log_prob_sum()).backward()
    for name, node in _sites(guide_trace):
        yield f"the gradient at site {name!r}", node["value"].grad if node["value"].requires_grad else None
    for name, parameter in fit.trained.named_parameters():
        yield f"the gradient of the parameter {name.partition('.')[2]!r}", parameter.grad


def _sites(trace: Any) -> list[tuple[str, Any]]:
    nodes = trace.nodes.items()
    return [(n, at) for n, at in nodes if at["type"] == "sample" and isinstance(at["value"], Tensor) and n != "data"]
