"""Bars of tqdm and words of rich while work takes seconds: where somebody watches, not in a pipe or a file."""

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def progress_bar(steps: Any = None, *, shown: bool, **options: Any) -> Any:
    """Return a bar of tqdm with its options, drawn if it is to be shown on a terminal or in a notebook."""
    from tqdm.std import tqdm

    in_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    return tqdm(steps, disable=not (shown and (in_notebook or _has_terminal())), **options)


@contextmanager
def waiting(words: str, *, shown: bool = True) -> Iterator[None]:
    """Show words on a terminal while the block runs."""
    if not (shown and _has_terminal()):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{words} ..."):
        yield


def _has_terminal() -> bool:
    return sys.stderr.isatty() and multiprocessing.current_process().name == "MainProcess"
