"""pyrobnn, by its public interface only, in the project's own environment.

    engine_pyrobnn.py captured     steps run by the captured engine
    engine_pyrobnn.py eager        steps run by Pyro

One `bnn.fit` serves a whole case. It runs in a separate thread and is halted inside a callback between two timings,
so that every step timed is a step of a real fit and a halted fit uses no processor.
"""

import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.peers import cases
from benchmarks.peers.protocol import Built, serve
from benchmarks.peers.torch_parts import Loop, make_net, set_up

_LONGEST_FIT = 2_000_000
_MOST_WORK = 2e13


def make_bnn(case: cases.Case, device: torch.device) -> bnn.BNN:
    """Return the model of a case."""
    likelihood: Any = bnn.likelihoods.Gaussian(scale=cases.NOISE)
    if case.task == "classification":
        likelihood = bnn.likelihoods.Categorical()
    prior = bnn.priors.ScaleMixture(pi=cases.PI, sigma1=cases.SIGMA1, sigma2=cases.SIGMA2)
    return bnn.BNN(make_net(case, device), prior=prior, likelihood=likelihood)


def fit(case: cases.Case, engine: str, steps: int, callbacks: tuple[Any, ...] = ()) -> Any:
    """Fit the model of a case for that many steps, by an engine."""
    device = set_up(case)
    x, y = (torch.from_numpy(values) for values in cases.make_data(case))
    guide = bnn.guides.MeanField(init_rho=cases.INIT_RHO)
    method = bnn.SVI(guide=guide, steps=steps, lr=cases.LEARNING_RATE, batch_size=case.batch_size)
    arguments: dict[str, Any] = {"seed": cases.SEED, "device": case.device, "progress": False, "callbacks": callbacks}
    arguments["engine"] = engine
    if case.replicates > 1:
        return bnn.fit_replicates(
            make_bnn(case, device), bnn.Data(x, y), method, replicates=case.replicates, **arguments
        )
    return bnn.fit(make_bnn(case, device), bnn.Data(x, y), method, **arguments)


class Fit:
    """Steps of a long fit, which halts between requests."""

    def __init__(self, case: cases.Case, engine: str) -> None:
        self._changed = threading.Condition()
        self._done = self._wanted = 0
        self._elbo = np.nan
        self._failure: Exception | None = None
        steps = int(min(_LONGEST_FIT / case.replicates, _MOST_WORK / case.work))
        threading.Thread(target=self._fit, args=(case, engine, steps), daemon=True).start()

    def _fit(self, case: cases.Case, engine: str, steps: int) -> None:
        failure: Exception = RuntimeError(f"the fit was at its end after {steps} steps")
        try:
            fit(case, engine, steps, (self._after_block,))
        except Exception as error:  # raised again in the thread that waits for steps
            failure = error
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _after_block(self, progress: Any) -> None:
        """Note where the fit is, and hold it while no more steps are wanted."""
        with self._changed:
            self._done, self._elbo = progress.step, float(np.mean(progress.elbo))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done < self._wanted)

    def run(self, num_steps: int) -> int:
        """Let the fit go on for at least that many steps, to the end of a block."""
        with self._changed:
            before = self._done
            self._wanted = before + num_steps
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= self._wanted or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return self._done - before

    def elbo(self) -> float:
        """Return the mean over the last block."""
        return self._elbo


def make_prediction(case: cases.Case, engine: str) -> Built:
    """Return predictions with new draws each time."""
    posterior = fit(case, engine, cases.STEPS_BEFORE_PREDICTION)
    inputs, seed = cases.prediction_inputs(), cases.SEED

    def predict() -> tuple[Any, Any]:
        nonlocal seed
        seed += 1
        prediction = posterior.predict(inputs, num_draws=cases.NUM_DRAWS, seed=seed)
        return prediction.mean, prediction.std

    return Loop(predict, torch.device(case.device), has_loss=False)


def build(case: cases.Case, engine: str) -> Built:
    """Build a case."""
    return make_prediction(case, engine) if case.kind == "predict" else Fit(case, engine)


if __name__ == "__main__":
    serve(partial(build, engine=sys.argv[1]), ("pyrobnn", "pyro-ppl", "torch", "numpy"))
