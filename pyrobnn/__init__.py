"""Bayesian neural networks on Pyro: declare a network, a prior, a likelihood and a guide; infer; audit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrobnn import datasets, guides, likelihoods, plots, priors, report, testing
    from pyrobnn._errors import InputError
    from pyrobnn.bnn import BNN
    from pyrobnn.data import Data
    from pyrobnn.diagnostics.audit import elbo_report
    from pyrobnn.diagnostics.convergence import function_rhat
    from pyrobnn.diagnostics.convert import to_datatree
    from pyrobnn.inference import HMC, NUTS, SGHMC, SGLD, SVI, SWAG, Ensemble, MarginalLikelihood
    from pyrobnn.inference.fit import fit
    from pyrobnn.inference.tuning import tune_prior
    from pyrobnn.linearized import functional
    from pyrobnn.metrics import score
    from pyrobnn.mixture import Mixture
    from pyrobnn.nets import MLP
    from pyrobnn.posterior import Posterior
    from pyrobnn.prediction import Prediction
    from pyrobnn.storage import load_posterior as load
    from pyrobnn.storage import save_posterior as save
    from pyrobnn.weights import prune, sample_function, update_prior, weight_table

__all__ = [
    "BNN",
    "HMC",
    "MLP",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SVI",
    "SWAG",
    "Data",
    "Ensemble",
    "InputError",
    "MarginalLikelihood",
    "Mixture",
    "Posterior",
    "Prediction",
    "datasets",
    "elbo_report",
    "fit",
    "fit_replicates",
    "function_rhat",
    "functional",
    "guides",
    "likelihoods",
    "load",
    "plots",
    "priors",
    "prune",
    "report",
    "sample_function",
    "save",
    "score",
    "testing",
    "to_datatree",
    "tune_prior",
    "update_prior",
    "weight_table",
]
__version__ = "0.1.0"

_HOMES = {
    "BNN": "bnn:BNN",
    "HMC": "inference:HMC",
    "MLP": "nets:MLP",
    "NUTS": "inference:NUTS",
    "SGHMC": "inference:SGHMC",
    "SGLD": "inference:SGLD",
    "SVI": "inference:SVI",
    "SWAG": "inference:SWAG",
    "Data": "data:Data",
    "Ensemble": "inference:Ensemble",
    "InputError": "_errors:InputError",
    "MarginalLikelihood": "inference:MarginalLikelihood",
    "Mixture": "mixture:Mixture",
    "Posterior": "posterior:Posterior",
    "Prediction": "prediction:Prediction",
    "elbo_report": "diagnostics.audit:elbo_report",
    "fit": "inference:fit",
    "fit_replicates": "inference:fit_replicates",
    "function_rhat": "diagnostics.convergence:function_rhat",
    "functional": "linearized:functional",
    "load": "storage:load_posterior",
    "prune": "weights:prune",
    "sample_function": "weights:sample_function",
    "save": "storage:save_posterior",
    "score": "metrics:score",
    "to_datatree": "diagnostics.convert:to_datatree",
    "tune_prior": "inference.tuning:tune_prior",
    "update_prior": "weights:update_prior",
    "weight_table": "weights:weight_table",
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
