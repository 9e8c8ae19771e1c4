"""The verbs with their settings as keyword arguments."""

import dataclasses
from typing import Any

from pyrobnn._core.errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.inference.base import Run
from pyrobnn.inference.fit import fit
from pyrobnn.inference.replicates import fit_replicates
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.posterior.posterior import Posterior

_OF_FIT = {field.name for field in dataclasses.fields(Run) if field.init}


def fit_svi(
    bnn: BNN,
    x: Any,
    y: Any = None,
    *,
    seed: int,
    standardize: bool = False,
    replicates: int | None = None,
    validation: Any = None,
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
        validation: as in `fit`.
        **arguments: settings of `SVI` and arguments of `fit`.
    """
    if y is None and standardize:
        raise InputError("`standardize` belongs to Data here: pass Data(x, y, standardize=True).")
    data = x if y is None else Data(x, y, standardize=standardize)
    method = SVI(**{name: value for name, value in arguments.items() if name not in _OF_FIT})
    own = {name: value for name, value in arguments.items() if name in _OF_FIT}
    if replicates is None:
        return fit(bnn, data, method, seed=seed, validation=validation, **own)
    if validation is not None:
        raise InputError("Replicates are not followed on validation data: leave `validation` out.")
    return fit_replicates(bnn, data, method, seed=seed, replicates=replicates, **own)
