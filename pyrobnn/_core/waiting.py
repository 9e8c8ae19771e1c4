"""A word on the terminal while work takes seconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(words: str, *, shown: bool = True) -> Iterator[None]:
    """Show words on standard error while the block runs, if it is a terminal, and take them away at its end."""
    shown = shown and sys.stderr.isatty()
    if shown:
        print(f"{words} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
