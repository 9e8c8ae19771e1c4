"""Data sets: published data sets by name, data sets of scikit-learn, toy problems, and your tables."""

from pyrobnn.datasets.base import Dataset
from pyrobnn.datasets.published import DatasetInfo
from pyrobnn.datasets.registry import fetch, info, load, names
from pyrobnn.datasets.table import load_table
from pyrobnn.datasets.toy import quartic, quartic_curve, sinusoid, sinusoid_curve

__all__ = [
    "Dataset",
    "DatasetInfo",
    "fetch",
    "info",
    "load",
    "load_table",
    "names",
    "quartic",
    "quartic_curve",
    "sinusoid",
    "sinusoid_curve",
]
__dir__ = __all__.copy
