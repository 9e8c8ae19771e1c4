"""Time of a step and of a prediction, beside other libraries: the problems and engines of benchmarks/peers.

Each engine runs in a separate process with this interpreter; one whose packages are not installed is a row that says
so. `share_of_peak`: multiplications and additions of forward and backward pass in a second, 6 a weight and example (the
first layer's inputs need no derivative, which leaves 4), over what one float32 matrix product reaches on this device.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.check import Check, Found, NotHere, Setting, milliseconds
from benchmarks.peers.cases import MAIN, Case
from benchmarks.peers.engines import ENGINES
from benchmarks.peers.workers import Worker, WorkerError

_CASES = {case.name: case for case in MAIN}
_ENGINES = ("pyrobnn", "pyrobnn_eager", "pyro", "tyxe", "torch_eager", "torch_compiled", "numpyro_scan")
_MEASURED = {"replicates": ("pyrobnn", "numpyro_scan")} | dict.fromkeys(
    ("predict", "sine", "mlp400", "mlp1200"), _ENGINES
)
_REHEARSED = {"predict": ("pyrobnn_eager",), "sine": ("pyro", "numpyro_scan"), "replicates": ("pyrobnn",)}


def checks(setting: Setting) -> Iterator[Check]:
    """Yield case by case, engine by engine."""
    peak: list[float] = []
    yield "peak of a float32 product", partial(_peak, setting, peak)
    for name, engines in (_REHEARSED if setting.rehearse else _MEASURED).items():
        for engine in engines:
            case = _case(name, setting)
            yield f"{case.name}, {engine}", partial(_time, case, engine, setting, peak)


def _case(name: str, setting: Setting) -> Case:
    settings = vars(_CASES[name]) | {"device": setting.device, "threads": setting.size(2, 1)}
    if name == "replicates":
        settings["replicates"] = setting.size(100, 5)
    return Case(**settings)


def _peak(setting: Setting, peak: list[float]) -> Found:
    size = setting.size(8192, 512)
    left, right = (torch.randn(size, size, device=setting.device) for _ in range(2))
    ms = milliseconds(lambda: left @ right, setting.device, seconds=0.5)
    peak.append(2 * size**3 / (ms / 1000))
    return {"tflops": peak[0] / 1e12, "tf32": torch.backends.cuda.matmul.allow_tf32}


def _time(case: Case, engine: str, setting: Setting, peak: list[float]) -> Found:
    environment = {} if setting.device == "cuda" else {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    try:
        command = ENGINES[engine].command(sys.executable)
        with Worker(command, threads=case.threads, environment=environment | {"PYTHONPATH": path}) as worker:
            first = worker.ask(do="prepare", case=case.to_dict())
            times: list[float] = worker.ask(do="time", seconds=1.0 if not setting.rehearse else 0.2)["ms"]
    except WorkerError as error:
        if error.status == "unsupported" or "No module named" in str(error):
            raise NotHere(str(error)) from None
        raise
    ms = median(times) / case.replicates
    found: dict[str, Any] = {"ms": ms, "first_step_s": first["seconds"], "num_weights": first["num_weights"]}
    if peak and case.name.startswith("mlp"):
        work = 6 * case.num_weights - 2 * case.widths[0] * case.widths[1]
        found["share_of_peak"] = case.rows * work / (ms / 1000) / peak[0]
    return found
