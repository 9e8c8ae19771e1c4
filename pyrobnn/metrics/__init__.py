"""Scores of predictions on held-out data with their standard errors over the examples, and the curves behind them."""

from pyrobnn.metrics.base import Score, Scores
from pyrobnn.metrics.calibration import Reliability, pit, reliability_bins
from pyrobnn.metrics.curves import RiskCurves, ood_measures, score_ood, selective_risk, sparsification
from pyrobnn.metrics.permutation import permutation_importance
from pyrobnn.metrics.scoring import compare_scores, confusion, score

__all__ = [
    "Reliability",
    "RiskCurves",
    "Score",
    "Scores",
    "compare_scores",
    "confusion",
    "ood_measures",
    "permutation_importance",
    "pit",
    "reliability_bins",
    "score",
    "score_ood",
    "selective_risk",
    "sparsification",
]
__dir__ = __all__.copy
