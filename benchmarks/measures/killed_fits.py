"""Processes killed (SIGKILL) at random moments of a fit, again and again, and resumed until the fit is done."""

import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from benchmarks.faults import outcome, page_of
from benchmarks.measures.harness import Options
from benchmarks.rows import Row
from pyrobnn._core.tree_files import read_tree
from pyrobnn.inference.training.checkpoint import FILE
from pyrobnn.runs import run as runs
from pyrobnn.runs.spec import RunSpec

KEY = ("what",)
OPTIONS = {"count": 40}
KILLS_A_CHAIN = 20
LONGEST_LIFE = {"eager": 2.5, "captured": 5.0}
"""Seconds after which a process is killed at the latest; a captured fit records its step first."""
X = torch.linspace(-1, 1, 64)[:, None]
Y = (3 * X).sin()[:, 0]


def _svi(steps: int, **settings: Any) -> Any:
    return bnn.SVI(steps=steps, lr=0.005, batch_size=16, schedule="cosine_annealing_lr", **settings)


def _loader() -> Any:
    return DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)


CHAINS: dict[str, tuple[int, dict[str, Any]]] = {
    f"{what}, a checkpoint every {every} steps": (every, settings)
    for what, every, settings in (
        ("eager fit", 20, {"method": lambda: _svi(1200), "engine": "eager"}),
        (
            "eager fit from a DataLoader",
            20,
            {"method": lambda: bnn.SVI(steps=1200), "data": _loader, "engine": "eager"},
        ),
        ("eager ensemble", 20, {"method": lambda: bnn.Ensemble(_svi(700, guide="map"), members=2), "engine": "eager"}),
        ("captured fit", 2000, {"method": lambda: _svi(60_000), "engine": "captured"}),
        (
            "captured ensemble",
            2000,
            {"method": lambda: bnn.Ensemble(_svi(60_000, guide="map"), members=3), "engine": "captured"},
        ),
    )
}
"""Steps between checkpoints, and settings of the fit, by what is killed."""
SPEC = {
    "data": {"name": "sinusoid"},
    "net": {"hidden": [8]},
    "prior": {"type": "normal", "scale": 1.0},
    "fit": {"type": "svi", "steps": 1500, "engine": "eager"},
    "predict": {"num_draws": 50},
}


RUN = "`pyrobnn fit`, from the data to the report"


def jobs(options: Options) -> list[Row]:
    """Return the kinds of fit, and whole runs."""
    return [{"what": what} for what in (*CHAINS, RUN)]


def run(job: Row, options: Options) -> list[Row]:
    """Return the row of all kills of a kind of fit, or of whole runs."""
    torch.set_num_threads(1)
    what, count = job["what"], options.count
    with tempfile.TemporaryDirectory() as folder:
        chain = _RunChain(Path(folder)) if what == RUN else _FitChain(Path(folder), *CHAINS[what])
        return [_row(what, chain, count)]


page = page_of("Processes killed while they fit")


def _row(what: str, chain: Any, count: int) -> Row:
    started, killed, most_lost, inside = time.perf_counter(), 0, 0, 0
    failures: list[str] = []
    longest = LONGEST_LIFE["captured" if "captured" in what else "eager"]
    wanted = chain.alone()
    while killed < count:
        chain.begin()
        goal = min(count, killed + KILLS_A_CHAIN)
        finished = False
        while not finished:
            lifetime = random.Random(f"{what} {killed}").uniform(0, longest) if killed < goal else None
            finished = not chain.live(lifetime)
            killed += not finished
            inside += not finished and chain.steps_said() > 0
            try:
                most_lost = max(most_lost, chain.check())
            except Exception as error:
                failures.append(f"after kill {killed}: {type(error).__name__}: {str(error)[:300]}")
        if chain.result() != wanted:
            failures.append(f"after kill {killed}: other bits than without an interruption")
    where = f", {inside} of them after the first look at steps of their own; at most {most_lost} steps lost"
    happened = f"{killed} killed{where if chain.says_steps else ''}; what was kept never went back"
    happened += f"; {len(failures)} failures" if failures else "; the same bits at the end"
    failures += [f"{most_lost} steps lost"] if most_lost > chain.every else []
    asked = "every checkpoint readable, at most an interval lost, and at the end the bits of an uninterrupted fit"
    return outcome(what, killed, asked, happened, failures=failures, started=started)


class _Chain:
    """A fit that is killed and resumed: `work` runs in a separate process, `steps` is the number it reported."""

    says_steps = True

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self.kept = 0
        self.steps = mmap.mmap(-1, 8)
        self.outcome = folder / "outcome"

    def alone(self) -> str:
        """Return the result without an interruption."""
        self.begin()
        if self.live(None):
            raise RuntimeError("the fit failed on its own")
        return self.result()

    def live(self, lifetime: float | None) -> bool:
        """Work in a separate process, and return whether it was killed before its end."""
        self.steps[:] = struct.pack("q", 0)
        child = os.fork()
        if child == 0:
            _end(self.work)
        deadline = None if lifetime is None else time.monotonic() + lifetime
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if deadline is not None and time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return True
            time.sleep(0.002)
        return False

    def note(self, progress: Any) -> None:
        """Report the number of steps from inside the process."""
        self.steps[:] = struct.pack("q", progress.step)

    def steps_said(self) -> int:
        """Return the number of steps done, as the process said last."""
        return int(struct.unpack("q", self.steps[:])[0])

    def lost(self, kept: int) -> int:
        """Return the steps done beyond those kept, which must never go back."""
        if kept < self.kept:
            raise AssertionError(f"step {self.kept} had been kept, and now {kept} is")
        self.kept = kept
        return max(0, self.steps_said() - kept)

    def result(self) -> str:
        """Return the result of the work."""
        return self.outcome.read_text()

    def work(self) -> None:
        """Work from the last checkpoint to the end."""
        raise NotImplementedError


class _FitChain(_Chain):
    def __init__(self, folder: Path, every: int, settings: dict[str, Any]) -> None:
        super().__init__(folder, every)
        self.settings, self.place = settings, folder / "checkpoint"

    def begin(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        self.outcome.unlink(missing_ok=True)
        self.kept = 0

    def work(self) -> None:
        method = self.settings["method"]()
        model = bnn.BNN(bnn.MLP(1, [8], 1), prior=bnn.priors.Normal(1.0))
        data = self.settings.get("data", lambda: (X, Y))()
        arguments = {"engine": self.settings["engine"], "callbacks": [self.note], "progress": False, "device": "cpu"}
        fitted = bnn.fit(model, data, method, seed=0, checkpoint=self.place, every=self.every, **arguments)
        members = getattr(fitted, "members", [fitted])
        tensors = [value for member in members for value in member.guide.state_dict().values()]
        content = b"".join(value.numpy().tobytes() for value in tensors)
        self.outcome.write_text(hashlib.sha256(content).hexdigest())

    def check(self) -> int:
        """Read the checkpoint, and return the steps lost."""
        file = self.place / FILE
        return self.lost(read_tree(file)["state"]["done"]) if file.exists() else self.lost(0)


class _RunChain(_Chain):
    says_steps = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, runs.CHECKPOINT_EVERY)
        self.path = folder / "run"

    def begin(self) -> None:
        for place in (self.path, runs.unfinished_folder(self.path)):
            shutil.rmtree(place, ignore_errors=True)
        self.outcome.unlink(missing_ok=True)
        self.kept = 0

    def work(self) -> None:
        if runs.unfinished_folder(self.path).exists() or self.path.exists():
            try:
                runs.resume(self.path, progress=False)
            except bnn.InputError as error:
                if "is complete" not in str(error) and "There is no interrupted run" not in str(error):
                    raise
        if not self.path.exists():
            shutil.rmtree(runs.unfinished_folder(self.path), ignore_errors=True)
            runs.run(RunSpec.from_dict(SPEC), self.path, progress=False)
        self.outcome.write_text((self.path / "metrics.json").read_text())

    def check(self) -> int:
        """Read everything that is there."""
        for file in self.path.glob("*.json"):
            json.loads(file.read_text())
        if self.path.exists():
            bnn.load(self.path / "posterior")
        checkpoint = runs.unfinished_folder(self.path) / FILE
        if self.path.exists():
            return self.lost(SPEC["fit"]["steps"])
        return self.lost(read_tree(checkpoint)["state"]["done"] if checkpoint.exists() else 0)


def _end(work: Callable[[], None]) -> None:
    """Do the work of a forked process, and end it without the clean-up of the parent."""
    code = 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
