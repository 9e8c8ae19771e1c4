"""Bayesian neural networks on Pyro: declare a network, a prior, a likelihood and a guide; infer; audit."""

import lazy_loader

__version__ = "0.1.0"
_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__ or name.startswith("_"):
        return _get(name)
    from pyrobnn._core.errors import nearest

    near = nearest(name, __all__)
    hint = f". Did you mean: {near!r}?" if near else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
