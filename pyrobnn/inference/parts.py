"""The parts of a model and of its inference, by the names that specs and estimators have for them."""

from types import ModuleType

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn.inference import tables

PARTS: dict[str, ModuleType] = {
    "net": nets,
    "prior": priors,
    "likelihood": likelihoods,
    "guide": guides,
    "method": tables,
}
"""Where each part is declared: `registry` knows the names, and `resolve` turns a name or a table into a setting."""
