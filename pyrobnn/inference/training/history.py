"""The record of a fit: the ELBO and its two parts at every step."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn.posterior.record import Convergence, EngineRecord


@dataclasses.dataclass(eq=False)
class History:
    """Estimates of the ELBO along a fit, on the scale of the whole data set in nats.

    Attributes:
        log_likelihood: expected log-likelihood at each step, (steps,).
        kl: KL(q || prior) at each step, (steps,), whatever weight the objective gave it.
        validation_steps: steps after which the validation score was computed.
        validation_scores: mean log score on the validation data at those steps.
        engine: how the steps were run.
    """

    log_likelihood: np.ndarray
    kl: np.ndarray
    validation_steps: list[int]
    validation_scores: list[float]
    engine: EngineRecord = dataclasses.field(default_factory=lambda: EngineRecord("eager", "eager", "asked for"))

    @property
    def elbo(self) -> np.ndarray:
        """The ELBO at each step, log_likelihood - kl."""
        return self.log_likelihood - self.kl

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.kl)


@dataclasses.dataclass
class Ended:
    """The end of a fit.

    Attributes:
        history: its steps.
        stop_reason: why it ended, in words.
        convergence: of a fit of automatic length, how it ended.
        rewinds: where it went back after numbers had ceased to be finite.
    """

    history: History
    stop_reason: str
    convergence: Convergence | None = None
    rewinds: list[dict[str, Any]] | None = None


class Recorder:
    """Collects the terms of each step on the device and fetches them in blocks."""

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []
        self._fetched: list[np.ndarray] = []
        self.validation_steps: list[int] = []
        self.validation_scores: list[float] = []

    def add(self, terms: Tensor) -> None:
        """Note some steps, (steps, [R,] 2)."""
        self._waiting.append(terms)

    def fetch(self) -> np.ndarray:
        """Bring the waiting steps from the device, (steps, [R,] 2)."""
        if not self._waiting:
            return np.empty((0, 2))
        block = torch.cat(self._waiting).double().cpu().numpy()
        self._waiting.clear()
        self._fetched.append(block)
        return block

    def last(self, count: int) -> np.ndarray:
        """Return the terms of the last steps that were fetched, at most so many, (steps, [R,] 2)."""
        found: list[np.ndarray] = []
        for block in reversed(self._fetched):
            found.insert(0, block)
            if sum(map(len, found)) >= count:
                break
        return np.concatenate(found)[-count:]

    @property
    def terms(self) -> np.ndarray:
        """Everything fetched so far, (steps, [R,] 2)."""
        return np.concatenate(self._fetched) if self._fetched else np.empty((0, 2))

    def state(self) -> dict[str, Any]:
        """Return everything noted so far."""
        validation = {"steps": [*self.validation_steps], "scores": [*self.validation_scores]}
        return {"blocks": [*self._fetched], "validation": validation}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back, or on, to what was noted then."""
        self._waiting.clear()
        self._fetched = [*state["blocks"]]
        validation = state["validation"]
        self.validation_steps, self.validation_scores = [*validation["steps"]], [*validation["scores"]]

    def histories(self, engine: EngineRecord, ends: Sequence[int | None]) -> list[History]:
        """Return what was noted of each replicate, until the step at which it ended by itself, or all."""
        self.fetch()
        columns = self.terms.reshape(len(self.terms), -1, 2)
        pairs = zip(columns.transpose(1, 2, 0), itertools.cycle(ends), strict=False)
        return [
            History(log_likelihood[:end], kl[:end], [*self.validation_steps], [*self.validation_scores], engine)
            for (log_likelihood, kl), end in pairs
        ]
