"""Bayesian neural networks on Pyro: declare a network, a prior, a likelihood and a guide; infer; audit."""

import lazy_loader

__version__ = "0.1.0"
_member, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _member(name)
    except AttributeError as error:
        if name in __all__ or name.startswith("__"):
            raise
        from pyrobnn._core.errors import did_you_mean

        raise AttributeError(f"{error}.{did_you_mean(name, __all__)}", name=name) from None
