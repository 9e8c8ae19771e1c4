"""The library that runs recorded steps, hidden from measures that begin without it."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyrobnn.tape import build


@contextmanager
def no_library() -> Iterator[None]:
    """Hide the library of the installation, if there is one, from processes that start in the block.

    Those that fits compiled lie in the cache folder, which `XDG_CACHE_HOME` names.
    """
    hidden = [(path, path.with_suffix(".hidden")) for path in build.INSTALLED.glob("*.so")]
    for path, aside in hidden:
        path.rename(aside)
    try:
        yield
    finally:
        for path, aside in hidden:
            aside.rename(path)
