"""How pyrobnn runs Pyro: parameters live in the modules, never in the global parameter store."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
from pyro.nn import PyroModule

from pyrobnn._exclusive import ONE_THREAD


@contextmanager
def local_parameters() -> Iterator[None]:
    """Keep parameters of Pyro modules made and used inside the block in the modules; other threads wait with theirs."""
    with ONE_THREAD, pyro.settings.context(module_local_params=True):
        yield


@contextmanager
def fast_pyro() -> Iterator[None]:
    """Keep parameters local, and leave out the argument checks that Pyro and torch make at every sample statement."""
    with local_parameters(), pyro.validation_enabled(is_validate=False):
        yield


def allow_new_home(part: PyroModule) -> None:
    """Let a part that has run once, to make its parameters, become a child: Pyro refuses nested modules that have."""
    for module in part.modules():
        if isinstance(module, PyroModule):
            module._pyro_context.used = False
