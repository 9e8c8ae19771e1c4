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
    """

    name: str
    script: str
    mode: str = ""
    own_environment: bool = True

    def command(self, python: str | None) -> list[str]:
        """Return the command that starts a worker, by uv or by the given interpreter."""
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
        compiles = self.name in ("pyrobnn", "torch_compiled")
        if case.kind == "compile":
            return compiles
        if case.kind == "predict":
            return self.name != "numpyro_scan"  # the same as numpyro_jit
        if case.replicates > 1 or case.name.startswith("replicates"):
            return self.name in ("pyrobnn", "numpyro_scan")  # the others: as the case sine, one at a time
        if case in GROWTH:
            return self.name in ("pyrobnn", "numpyro_scan", "pyro")
        return case.device == "cpu" or not self.name.startswith("numpyro")


_ALL = (
    Engine("pyrobnn", "engine_pyrobnn.py", "captured", own_environment=False),
    Engine("pyrobnn_eager", "engine_pyrobnn.py", "eager", own_environment=False),
    Engine("tyxe", "engine_tyxe.py"),
    Engine("pyro", "engine_pyro.py"),
    Engine("torch_eager", "engine_torch.py", "eager"),
    Engine("torch_compiled", "engine_torch.py", "compiled"),
    Engine("bayesian_torch", "engine_bayesian_torch.py"),
    Engine("numpyro_jit", "engine_numpyro.py", "jit"),
    Engine("numpyro_scan", "engine_numpyro.py", "scan"),
)
ENGINES = {engine.name: engine for engine in _ALL}
