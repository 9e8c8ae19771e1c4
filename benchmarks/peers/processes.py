"""Starts processes of engines, and asks them."""

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

_ROOT = Path(__file__).parents[2]
_SECONDS_TO_START = 1800
"""Enough to install an environment."""
_SECONDS_TO_ANSWER = 600
_SECONDS_TO_END = 10


class EngineError(Exception):
    """A process could not start, gave up, or does not support what was asked."""


class EngineProcess:
    """A resident process of an engine.

    Args:
        command: starts it.
        threads: cores that it may use.
        environment: variables to set.

    Attributes:
        ready: what it said once it had started: versions, and the resident set.
    """

    def __init__(self, command: list[str], *, threads: int, environment: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 closed with the process
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        with _confined_to(threads):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env={**kept, **counts, **environment, "PYTHONPATH": path},
                cwd=_ROOT,
                start_new_session=True,
            )
        try:
            self.ready = self._read(_SECONDS_TO_START)
        except EngineError:
            self.close()
            raise

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            EngineError: it failed, does not support the request, or did not answer.
        """
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise EngineError(self._last_words()) from None
        answer = self._read(_SECONDS_TO_ANSWER)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def _read(self, seconds: float) -> dict[str, Any]:
        timer = threading.Timer(seconds, self._kill)
        timer.start()
        line = self._process.stdout.readline() if self._process.stdout else ""
        timed_out = not timer.is_alive()
        timer.cancel()
        if not line:
            raise EngineError(f"no answer in {seconds:.0f} s" if timed_out else self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1][:300] if lines else "ended without a message"

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin and not self._process.stdin.closed:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()


@contextmanager
def _confined_to(threads: int) -> Iterator[None]:
    """Confine processes that start in the block to the last cores of this process, as many as they have threads."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-threads:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
