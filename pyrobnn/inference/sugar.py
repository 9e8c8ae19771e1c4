"""The verbs with their settings as keyword arguments."""

from typing import Any

from pyrobnn._core.errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.inference.fit import fit
from pyrobnn.inference.replicates import fit_replicates
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.posterior.posterior import Posterior

_OF_FIT = ("device", "engine", "progress", "validation", "callbacks", "checkpoint", "every")


def fit_svi(
    bnn: BNN,
    x: Any,
    y: Any = None,
    *,
    seed: int,
    standardize: bool = False,
    replicates: int | None = None,
    **arguments: Any,
) -> Posterior | list[Posterior]:
    """Fit by SVI; x may be inputs (with y), `Data` or a DataLoader.

    Args:
        bnn: the model.
        x: inputs, or data.
        y: targets, if x is inputs.
        seed: seed of the fit.
        standardize: as in `Data`, if x is inputs.
        replicates: number of independent fits; a list is returned if it is given.
        **arguments: settings of `SVI` and arguments of `fit`.
    """
    if y is None and standardize:
        raise InputError("`standardize` belongs to Data here: pass Data(x, y, standardize=True).")
    data = x if y is None else Data(x, y, standardize=standardize)
    own = {name: arguments.pop(name) for name in _OF_FIT if name in arguments}
    method = SVI(**arguments)
    if replicates is None:
        return fit(bnn, method, data, seed=seed, **own)
    if own.pop("validation", None) is not None:
        raise InputError("Replicates are not followed on validation data: leave `validation` out.")
    return fit_replicates(bnn, method, data, seed=seed, replicates=replicates, **own)
