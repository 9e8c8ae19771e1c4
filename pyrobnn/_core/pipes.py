"""Standard streams into a pipe whose reader goes away, as `head` does: what follows is dropped, and work goes on."""

import io
import sys
from collections.abc import Callable
from typing import Any

_CODE = 128 + 13
"""The exit code of programs that the signal of such a pipe, SIGPIPE, has ended."""


class _Pipe(io.FileIO):
    has_reader = True

    def write(self, data: Any) -> int:
        if self.has_reader:
            try:
                return super().write(data)
            except BrokenPipeError:
                self.has_reader = False
        return len(data)


def outlive_readers() -> Callable[[], int]:
    """Let standard output and error outlive their readers, and return a function that gives the exit code for it."""
    pipes = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__") and not stream.isatty():
            pipes.append(_Pipe(stream.fileno(), "w", closefd=False))
            how = {key: getattr(stream, key) for key in ("encoding", "errors", "line_buffering", "write_through")}
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(pipes[-1]), **how))
    return lambda: 0 if all(pipe.has_reader for pipe in pipes) else _CODE
