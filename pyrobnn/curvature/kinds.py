"""The kinds of curvature by name; the settings of `guides.Laplace` name them too, in its annotations."""

from pyrobnn.curvature.base import Kind
from pyrobnn.curvature.hessian import Hessian
from pyrobnn.curvature.outer_products import GGN, EmpiricalFisher
from pyrobnn.curvature.recursion import Recursion

KINDS: dict[str, Kind] = {kind.name: kind for kind in (GGN(), EmpiricalFisher(), Hessian(), Recursion())}


def check_structure(curvature: str, structure: str) -> None:
    """Refuse a structure that a kind of curvature does not have, with `InputError`."""
    kind = KINDS[curvature]
    if structure not in kind.structures:
        raise kind.lacks(structure)
