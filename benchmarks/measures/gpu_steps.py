"""Time of a step and of a prediction, beside other libraries: the problems and engines of benchmarks/peers.

Each engine runs in a separate process with this interpreter; one whose packages are not installed fails.
`share_of_peak`: multiplications and additions of forward and backward pass in a second, 6 a weight and example (the
first layer's inputs need no derivative, which leaves 4), over what one float32 matrix product reaches on this device.
"""

import sys
from dataclasses import replace
from functools import cache, partial
from statistics import median

import torch

from benchmarks.gpu import Checks, measure_of, size
from benchmarks.measures.harness import Options
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.engines import ENGINES
from benchmarks.peers.processes import EngineProcess
from benchmarks.rows import Row
from benchmarks.timing import milliseconds

_ENGINES = ("pyrobnn", "pyrobnn_eager", "pyro", "tyxe", "torch_eager", "torch_compiled")
_MEASURED = {"replicates": ("pyrobnn",)} | dict.fromkeys(("predict", "sine", "mlp400", "mlp1200"), _ENGINES)
_REHEARSED = {"predict": ("pyrobnn_eager",), "sine": ("pyro",), "replicates": ("pyrobnn",)}


def checks(options: Options) -> Checks:
    """Yield case by case, engine by engine."""
    yield "peak of a float32 product", partial(_peak, options)
    for name, engines in (_REHEARSED if options.rehearse else _MEASURED).items():
        for engine in engines:
            case = _case(name, options)
            yield f"{case.name}, {engine}", partial(_time, case, engine, options)


KEY, OPTIONS, jobs, run, page = measure_of("Steps and predictions on a GPU beside other libraries", checks)


def _case(name: str, options: Options) -> Case:
    replicates = size(options, 100, 5) if name == "replicates" else 1
    return replace(CASES[name], device=options.device, threads=size(options, 2, 1), replicates=replicates)


def _peak(options: Options) -> Row:
    flops = _flops(options.device, size(options, 8192, 512))
    return {"tflops": flops / 1e12, "tf32": torch.backends.cuda.matmul.allow_tf32}


@cache
def _flops(device: str, width: int) -> float:
    """Return the operations a second of a float32 matrix product."""
    left, right = (torch.randn(width, width, device=device) for _ in range(2))
    return 2 * width**3 / (milliseconds(lambda: left @ right, device, seconds=0.5) / 1000)


def _time(case: Case, engine: str, options: Options) -> Row:
    environment = {} if options.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    command = ENGINES[engine].command(sys.executable)
    with EngineProcess(command, threads=case.threads, environment=environment) as process:
        first = process.ask(do="prepare", case=case.to_dict())
        times: list[float] = process.ask(do="time", seconds=1.0 if not options.rehearse else 0.2)["ms"]
    ms = median(times) / case.replicates
    row = {"ms": ms, "first_step_s": first["seconds"], "num_weights": first["num_weights"]}
    if case.name.startswith("mlp"):
        work = 6 * case.num_weights - 2 * case.widths[0] * case.widths[1]
        flops = _flops(options.device, size(options, 8192, 512))
        row["share_of_peak"] = case.rows * work / (ms / 1000) / flops
    return row
