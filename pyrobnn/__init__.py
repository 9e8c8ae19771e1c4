"""Bayesian neural networks on Pyro: declare a network, a prior, a likelihood and a guide; infer; audit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrobnn import datasets, guides, likelihoods, metrics, plots, priors, report, testing
    from pyrobnn._core.errors import InputError
    from pyrobnn.bnn import BNN
    from pyrobnn.data.in_memory import Data
    from pyrobnn.data.stored import StoredData
    from pyrobnn.diagnostics.audit import elbo_report
    from pyrobnn.diagnostics.comparison import compare
    from pyrobnn.diagnostics.convergence import function_rhat
    from pyrobnn.diagnostics.convert import eval_datatree, to_datatree
    from pyrobnn.diagnostics.cross_validation import heldout_elpd, kfold
    from pyrobnn.diagnostics.diagnosis import diagnose
    from pyrobnn.diagnostics.importance import importance_weights
    from pyrobnn.diagnostics.leave_one_out import loo
    from pyrobnn.diagnostics.simulation import vsbc
    from pyrobnn.diagnostics.trees import load_datatree, save_datatree
    from pyrobnn.estimators import BNNClassifier, BNNRegressor
    from pyrobnn.inference import (
        HMC,
        NUTS,
        SGHMC,
        SGLD,
        SVI,
        SWAG,
        DataParallel,
        Ensemble,
        EvidenceFramework,
        MarginalLikelihood,
    )
    from pyrobnn.inference.fit import fit
    from pyrobnn.inference.laplace.tuning import tune_prior
    from pyrobnn.metrics import compare_scores, score, score_ood
    from pyrobnn.nets import MLP
    from pyrobnn.posterior.linearized import functional
    from pyrobnn.posterior.mixture import Mixture
    from pyrobnn.posterior.posterior import Posterior
    from pyrobnn.posterior.prediction import Prediction
    from pyrobnn.posterior.weights import prune, sample_function, update_prior, weight_table
    from pyrobnn.storage import load_posterior as load
    from pyrobnn.storage import save_posterior as save

__all__ = [
    "BNN",
    "HMC",
    "MLP",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SVI",
    "SWAG",
    "BNNClassifier",
    "BNNRegressor",
    "Data",
    "DataParallel",
    "Ensemble",
    "EvidenceFramework",
    "InputError",
    "MarginalLikelihood",
    "Mixture",
    "Posterior",
    "Prediction",
    "StoredData",
    "compare",
    "compare_scores",
    "datasets",
    "diagnose",
    "elbo_report",
    "eval_datatree",
    "fit",
    "fit_replicates",
    "function_rhat",
    "functional",
    "guides",
    "heldout_elpd",
    "importance_weights",
    "kfold",
    "likelihoods",
    "load",
    "load_datatree",
    "loo",
    "metrics",
    "plots",
    "priors",
    "prune",
    "report",
    "sample_function",
    "save",
    "save_datatree",
    "score",
    "score_ood",
    "testing",
    "to_datatree",
    "tune_prior",
    "update_prior",
    "vsbc",
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
    "BNNClassifier": "estimators:BNNClassifier",
    "BNNRegressor": "estimators:BNNRegressor",
    "Data": "data.in_memory:Data",
    "DataParallel": "inference:DataParallel",
    "Ensemble": "inference:Ensemble",
    "EvidenceFramework": "inference:EvidenceFramework",
    "InputError": "_core.errors:InputError",
    "MarginalLikelihood": "inference:MarginalLikelihood",
    "Mixture": "posterior.mixture:Mixture",
    "Posterior": "posterior.posterior:Posterior",
    "Prediction": "posterior.prediction:Prediction",
    "StoredData": "data.stored:StoredData",
    "compare": "diagnostics.comparison:compare",
    "compare_scores": "metrics:compare_scores",
    "diagnose": "diagnostics.diagnosis:diagnose",
    "elbo_report": "diagnostics.audit:elbo_report",
    "eval_datatree": "diagnostics.convert:eval_datatree",
    "fit": "inference:fit",
    "fit_replicates": "inference:fit_replicates",
    "function_rhat": "diagnostics.convergence:function_rhat",
    "functional": "posterior.linearized:functional",
    "heldout_elpd": "diagnostics.cross_validation:heldout_elpd",
    "importance_weights": "diagnostics.importance:importance_weights",
    "kfold": "diagnostics.cross_validation:kfold",
    "load": "storage:load_posterior",
    "load_datatree": "diagnostics.trees:load_datatree",
    "loo": "diagnostics.leave_one_out:loo",
    "prune": "posterior.weights:prune",
    "sample_function": "posterior.weights:sample_function",
    "save": "storage:save_posterior",
    "save_datatree": "diagnostics.trees:save_datatree",
    "score": "metrics:score",
    "score_ood": "metrics:score_ood",
    "to_datatree": "diagnostics.convert:to_datatree",
    "tune_prior": "inference.laplace.tuning:tune_prior",
    "update_prior": "posterior.weights:update_prior",
    "vsbc": "diagnostics.simulation:vsbc",
    "weight_table": "posterior.weights:weight_table",
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
