"""Bars where nobody watches: plain lines in a pipe or a file, for work that takes long."""

import io
import sys
from typing import Any

from tqdm.std import tqdm

from pyrobnn._core.counts import length


class Lines(tqdm):
    """Counts as a bar of tqdm, and prints a line after so many seconds, and each time that these have doubled.

    Args:
        steps: what it counts, if it is to count by itself.
        first: seconds until the first line.
        unit: name of what it counts.
        **options: options of tqdm.
    """

    monitor_interval = 0

    def __init__(self, steps: Any = None, *, first: float, unit: str = "step", **options: Any) -> None:
        self._stream, self._next = sys.stderr, first
        self._told: float | None = None
        quietly = {"file": io.StringIO(), "mininterval": 1.0, "miniters": 1, "delay": 0}
        super().__init__(steps, unit=unit, **(options | quietly))

    def display(self, msg: Any = None, pos: Any = None) -> None:
        """Print a line where one is due."""
        state = self.format_dict
        elapsed = state["elapsed"]
        if self.disable or elapsed < self._next or self.n == self.total:
            return
        while self._next <= elapsed:
            self._next *= 2
        print(self._line(elapsed, state["rate"]), file=self._stream, flush=True)

    def _line(self, elapsed: float, rate: float | None) -> str:
        phase, so_far = self.desc.removesuffix(": "), f"{length(elapsed)} so far"
        if not self.n:
            return f"{phase}: {so_far}"
        stands, self._told = self.n == self._told, self.n
        if not self.total:
            return f"{phase}: {self.n:,} {self.unit}s, {so_far}"
        if stands:  # one of few long steps: what is left is not known better than before
            return f"{phase}: {self.n:,} of {self.total:,} {self.unit}s, {so_far}"
        left = length((self.total - self.n) / (rate or self.n / elapsed))
        return f"{phase}: {self.n:,} of {self.total:,} {self.unit}s, about {left} left"
