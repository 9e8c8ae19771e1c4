"""The engines: the command that starts each, and the cases that it takes part in."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.cases import GROWTH, Case

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Engine:
    """An engine: a column of the tables.

    Attributes:
        name: unique name.
        script: file in this folder.
        mode: argument of the script.
        own_environment: whether the script declares its requirements itself; if not it runs where the driver runs.
        compiles: whether it leaves something compiled on disk, of which the case compile times the use.
        predicts: whether its predictions are timed; no where another engine's are the same.
        fits_replicates: whether it fits replicates side by side; the others take as long as the case sine for each.
        grows: whether it is timed over sizes.
        runs_on_gpu: whether its environment has what a GPU needs.
    """

    name: str
    script: str
    mode: str = ""
    own_environment: bool = True
    compiles: bool = False
    predicts: bool = True
    fits_replicates: bool = False
    grows: bool = False
    runs_on_gpu: bool = True

    def command(self, python: str | None) -> list[str]:
        """Return the command that starts a process, by uv or by the given interpreter."""
        script = [str(HERE / self.script), *([self.mode] if self.mode else [])]
        if not self.own_environment:
            return [sys.executable, *script]
        if python is not None:
            return [python, *script]
        uv = os.environ.get("UV") or shutil.which("uv")
        if uv is None:
            raise FileNotFoundError("uv was not found: pip install uv")
        return [uv, "run", "--quiet", "--script", *script]

    def takes(self, case: Case) -> bool:
        """Whether the case is run with the engine."""
        if case.kind != "step":
            return self.compiles if case.kind == "compile" else self.predicts
        if case.name.startswith("replicates"):
            return self.fits_replicates
        if case in GROWTH:
            return self.grows
        return case.device == "cpu" or self.runs_on_gpu


_OURS = {"script": "engine_pyrobnn.py", "own_environment": False}
_NUMPYRO = {"script": "engine_numpyro.py", "runs_on_gpu": False}
_ALL = (
    Engine("pyrobnn", mode="captured", compiles=True, fits_replicates=True, grows=True, **_OURS),
    Engine("pyrobnn_eager", mode="eager", **_OURS),
    Engine("tyxe", "engine_tyxe.py"),
    Engine("pyro", "engine_pyro.py", grows=True),
    Engine("torch_eager", "engine_torch.py", "eager"),
    Engine("torch_compiled", "engine_torch.py", "compiled", compiles=True),
    Engine("numpyro_jit", mode="jit", **_NUMPYRO),
    Engine("numpyro_scan", mode="scan", predicts=False, fits_replicates=True, grows=True, **_NUMPYRO),
)
ENGINES = {engine.name: engine for engine in _ALL}
