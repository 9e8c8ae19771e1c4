"""Bayesian neural networks on Pyro: declare a network, a prior, a likelihood and a guide; infer; audit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrobnn import datasets, guides, likelihoods, metrics, plots, priors, report, testing
    from pyrobnn._core.errors import FewDrawsWarning, InputError, PoorFitWarning
    from pyrobnn.bnn import BNN
    from pyrobnn.data.in_memory import Data
    from pyrobnn.data.loader import LoaderData
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
        IVON,
        NUTS,
        SGHMC,
        SGLD,
        SVI,
        SWAG,
        Automatic,
        DataParallel,
        Ensemble,
        EvidenceFramework,
        MarginalLikelihood,
    )
    from pyrobnn.inference.fit import fit
    from pyrobnn.inference.scales.tune_prior import tune_prior
    from pyrobnn.inference.several.replicates import fit_replicates
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
    "IVON",
    "MLP",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SVI",
    "SWAG",
    "Automatic",
    "BNNClassifier",
    "BNNRegressor",
    "Data",
    "DataParallel",
    "Ensemble",
    "EvidenceFramework",
    "FewDrawsWarning",
    "InputError",
    "LoaderData",
    "MarginalLikelihood",
    "Mixture",
    "PoorFitWarning",
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

_NAMES_OF = {
    "_core.errors": "FewDrawsWarning InputError PoorFitWarning",
    "bnn": "BNN",
    "data.in_memory": "Data",
    "data.loader": "LoaderData",
    "data.stored": "StoredData",
    "diagnostics.audit": "elbo_report",
    "diagnostics.comparison": "compare",
    "diagnostics.convergence": "function_rhat",
    "diagnostics.convert": "eval_datatree to_datatree",
    "diagnostics.cross_validation": "heldout_elpd kfold",
    "diagnostics.diagnosis": "diagnose",
    "diagnostics.importance": "importance_weights",
    "diagnostics.leave_one_out": "loo",
    "diagnostics.simulation": "vsbc",
    "diagnostics.trees": "load_datatree save_datatree",
    "estimators": "BNNClassifier BNNRegressor",
    "inference": "Automatic DataParallel Ensemble EvidenceFramework HMC IVON MarginalLikelihood NUTS SGHMC SGLD SVI "
    "SWAG fit fit_replicates",
    "inference.scales.tune_prior": "tune_prior",
    "metrics": "compare_scores score score_ood",
    "nets": "MLP",
    "posterior.linearized": "functional",
    "posterior.mixture": "Mixture",
    "posterior.posterior": "Posterior",
    "posterior.prediction": "Prediction",
    "posterior.weights": "prune sample_function update_prior weight_table",
    "storage": "load save",
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
_OWN_NAMES = {"load": "load_posterior", "save": "save_posterior"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import pyrobnn` and `pyrobnn --help` are quick."""
    if name not in __all__:
        raise AttributeError(f"module 'pyrobnn' has no attribute {name!r}")
    value: Any = import_module(f"pyrobnn.{_HOMES.get(name, name)}")
    if name in _HOMES:
        value = getattr(value, _OWN_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
