"""Pictures of a fit, a prediction and a posterior; each function returns a matplotlib Figure."""

from pyrobnn.plots.classification import confusion, reliability
from pyrobnn.plots.effect_curves import effects, importance
from pyrobnn.plots.methods import compare_methods
from pyrobnn.plots.one_input import compare_guides, fit_1d
from pyrobnn.plots.parameters import weights
from pyrobnn.plots.predictive import predictive_check
from pyrobnn.plots.prior import prior_predictive
from pyrobnn.plots.regression import observed_vs_predicted
from pyrobnn.plots.training import elbo
from pyrobnn.plots.two_inputs import decision_surface
from pyrobnn.plots.uncertain_images import images
from pyrobnn.plots.uncertainty import ood, pit, selective_risk, sparsification

__all__ = [
    "compare_guides",
    "compare_methods",
    "confusion",
    "decision_surface",
    "effects",
    "elbo",
    "fit_1d",
    "images",
    "importance",
    "observed_vs_predicted",
    "ood",
    "pit",
    "predictive_check",
    "prior_predictive",
    "reliability",
    "selective_risk",
    "sparsification",
    "weights",
]
__dir__ = __all__.copy
