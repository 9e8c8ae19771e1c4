"""Bayesian neural networks on Pyro: declare a network, a prior, a likelihood and a guide; infer; audit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrobnn import datasets, guides, likelihoods, plots, priors, report, testing
    from pyrobnn._errors import InputError
    from pyrobnn.bnn import BNN
    from pyrobnn.data import Data
    from pyrobnn.diagnostics.audit import elbo_report
    from pyrobnn.diagnostics.convert import to_datatree
    from pyrobnn.inference import SVI
    from pyrobnn.inference.fit import fit
    from pyrobnn.metrics import score
    from pyrobnn.nets import MLP
    from pyrobnn.posterior import Posterior
    from pyrobnn.prediction import Prediction
    from pyrobnn.storage import load_posterior as load
    from pyrobnn.storage import save_posterior as save

__all__ = [
    "BNN",
    "MLP",
    "SVI",
    "Data",
    "InputError",
    "Posterior",
    "Prediction",
    "datasets",
    "elbo_report",
    "fit",
    "fit_replicates",
    "guides",
    "likelihoods",
    "load",
    "plots",
    "priors",
    "report",
    "save",
    "score",
    "testing",
    "to_datatree",
]
__version__ = "0.1.0"

_HOMES = {
    "BNN": "bnn:BNN",
    "MLP": "nets:MLP",
    "SVI": "inference:SVI",
    "Data": "data:Data",
    "InputError": "_errors:InputError",
    "Posterior": "posterior:Posterior",
    "Prediction": "prediction:Prediction",
    "elbo_report": "diagnostics.audit:elbo_report",
    "fit": "inference:fit",
    "fit_replicates": "inference:fit_replicates",
    "load": "storage:load_posterior",
    "save": "storage:save_posterior",
    "score": "metrics:score",
    "to_datatree": "diagnostics.convert:to_datatree",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import pyrobnn` and `pyrobnn --help` are quick."""
    if name not in __all__:
        raise AttributeError(f"module 'pyrobnn' has no attribute {name!r}")
    module, _, attribute = _HOMES.get(name, name).partition(":")
    found = import_module(f"pyrobnn.{module}")
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
