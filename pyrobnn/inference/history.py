"""The record of a fit: the ELBO and its two parts at every step."""

import dataclasses

import numpy as np
import torch
from torch import Tensor


@dataclasses.dataclass(eq=False)
class History:
    """Estimates of the ELBO along a fit, on the scale of the whole data set in nats.

    Attributes:
        log_likelihood: expected log-likelihood at each step, (steps,).
        kl: KL(q || prior) at each step, (steps,), whatever weight the objective gave it.
        validation_steps: steps after which the validation score was computed.
        validation_scores: mean log score on the validation data at those steps.
    """

    log_likelihood: np.ndarray
    kl: np.ndarray
    validation_steps: list[int]
    validation_scores: list[float]

    @property
    def elbo(self) -> np.ndarray:
        """The ELBO at each step, log_likelihood - kl."""
        return self.log_likelihood - self.kl

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.kl)


class Recorder:
    """Collects the terms of each step on the device and fetches them in blocks."""

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []
        self._fetched: list[np.ndarray] = []
        self.validation_steps: list[int] = []
        self.validation_scores: list[float] = []

    def add(self, log_likelihood: Tensor, kl: Tensor) -> None:
        """Note one step."""
        self._waiting.append(torch.stack([log_likelihood, kl]))

    def fetch(self) -> np.ndarray:
        """Bring the waiting steps from the device, (steps, 2)."""
        if not self._waiting:
            return np.empty((0, 2))
        block = torch.stack(self._waiting).double().cpu().numpy()
        self._waiting.clear()
        self._fetched.append(block)
        return block

    def history(self) -> History:
        """Return everything noted so far."""
        self.fetch()
        terms = np.concatenate([np.empty((0, 2)), *self._fetched])
        return History(terms[:, 0], terms[:, 1], self.validation_steps, self.validation_scores)
