"""The life of a fit: checkpoint, kill, resume, save, load on a CPU, a data-parallel process, and too little memory."""

import multiprocessing
import os
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

import pyrobnn as bnn
from benchmarks.gpu import Checks, measure_of, size
from benchmarks.measures.harness import Options
from benchmarks.rows import Row

_STEPS, _KILLED_AT, _EVERY = 300, 200, 75


def checks(options: Options) -> Checks:
    """Yield the checks."""
    for engine in ("eager", "captured")[: size(options, 2, 1)]:
        yield f"killed and resumed, {engine}", partial(_killed, options, engine)
    yield "saved, and loaded on the CPU", partial(_loaded, options)
    yield "data-parallel, one process", partial(_parallel, options)
    if options.device == "cuda":  # on a CPU memory ends without an error
        yield "out of memory", _too_much


KEY, OPTIONS, jobs, run, page = measure_of("The life of a fit on a GPU", checks)


def _problem() -> tuple[bnn.BNN, bnn.Data]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    return bnn.BNN(
        bnn.MLP(4, [20], 1), likelihood=bnn.likelihoods.Gaussian(0.1), prior=bnn.priors.Normal(1.0)
    ), bnn.Data(x, x.sum(1))


def _fit(device: str, engine: Any, callbacks: Any = (), **settings: Any) -> bnn.Posterior:
    model, data = _problem()
    method = bnn.SVI(steps=_STEPS, batch_size=50)
    return bnn.fit(
        model, data, method, seed=0, device=device, engine=engine, progress=False, callbacks=callbacks, **settings
    )


def _fit_until_killed(device: str, engine: str, folder: str) -> None:
    def kill(progress: Any) -> None:
        if progress.step >= _KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    _fit(device, engine, (kill,), checkpoint=folder, every=_EVERY)


def _killed(options: Options, engine: str) -> Row:
    """Compare the bits of a fit that was killed and resumed with those of an uninterrupted fit."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.device, engine, folder)
        child = multiprocessing.get_context("spawn").Process(target=_fit_until_killed, args=arguments)
        child.start()
        child.join()
        resumed = _fit(options.device, engine, checkpoint=folder, every=_EVERY)
    whole = _fit(options.device, engine)
    same = [torch.equal(a, b) for a, b in zip(resumed.guide.parameters(), whole.guide.parameters(), strict=True)]
    return {"holds": child.exitcode == -signal.SIGKILL and all(same), "exit_code": child.exitcode}


def _loaded(options: Options) -> Row:
    """Compare predictions of a stored posterior, on the CPU, with those on the device, for the same draws."""
    posterior, (_, data) = _fit(options.device, "eager"), _problem()
    with tempfile.TemporaryDirectory() as folder:
        loaded = bnn.load(posterior.save(Path(folder) / "posterior"), device="cpu")
    draws = posterior.draw(8)
    here = posterior.predict(data.x, draws=draws).mean.cpu()
    there = loaded.predict(data.x, draws={name: value.cpu() for name, value in draws.items()}).mean
    error = float((here - there).abs().max())
    on_cpu = all(value.device.type == "cpu" for value in loaded.guide.parameters())
    return {"holds": on_cpu and error < 1e-3, "largest_difference": error}


def _parallel(options: Options) -> Row:
    """Compare a fit by a single data-parallel process with the plain fit."""
    model, data = _problem()
    method = bnn.SVI(steps=50, batch_size=50)
    shared: dict[str, Any] = {"seed": 0, "device": options.device, "engine": "eager", "progress": False}
    alone = bnn.fit(model, data, method, **shared)
    together = bnn.fit(model, data, bnn.DataParallel(method), **shared)
    pairs = zip(alone.guide.parameters(), together.guide.parameters(), strict=True)
    error = max(float((a - b).abs().max()) for a, b in pairs)
    return {"holds": error < 1e-5, "largest_difference": error, **together.info["data_parallel"]}


def _too_much() -> Row:
    """Ask for a step of 2^20 examples through a layer of 2^20 units: 4 TiB of activations."""
    model = bnn.BNN(bnn.MLP(1, [2**20], 1), likelihood=bnn.likelihoods.Gaussian(0.1), prior=bnn.priors.Normal(1.0))
    data = bnn.Data(torch.zeros(2**20, 1), torch.zeros(2**20), standardize=False)
    said = []
    for engine in ("eager", "auto"):
        try:
            bnn.fit(
                model, data, bnn.SVI(steps=3, batch_size="all"), seed=0, device="cuda", engine=engine, progress=False
            )
        except torch.OutOfMemoryError as error:
            said.append(str(error))
    named = all(f"batch_size={2**20}" in message for message in said)
    bnn.fit(*_small(), seed=0, device="cuda", engine="eager", progress=False)
    return {"holds": len(said) == 2 and named, "message": said[0][:200] if said else "no error"}


def _small() -> tuple[bnn.BNN, bnn.Data, bnn.SVI]:
    """Return a small fit, which must still run afterwards."""
    model, data = _problem()
    return model, data, bnn.SVI(steps=10)
