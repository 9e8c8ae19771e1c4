"""The weights that are to be Gaussian: picked by patterns, and refused before training where they do not fit."""

import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor
from torch.func import grad

import pyrobnn
from pyrobnn._core.errors import InputError
from pyrobnn._core.globs import assign
from pyrobnn._torch.forward_mode import missing_forward_mode
from pyrobnn.bnn import BNN
from pyrobnn.curvature.kinds import KINDS
from pyrobnn.curvature.tracker import Tracker, refuse_mixed_examples
from pyrobnn.data.batches import Batch
from pyrobnn.guides.laplace import Laplace, require_real
from pyrobnn.guides.sites import Site
from pyrobnn.posterior.tangent import MOST_DERIVATIVES, Tangent

_PACKAGE = str(Path(pyrobnn.__file__).parent)
_LARGEST_FULL = 2**35
_WIDE = 4000
"""Width of a layer from which the eigenvectors of its Kronecker factors take more than a minute on a CPU."""
_EIGEN_STEPS = 9
"""Operations that eigenvectors of a symmetric matrix take, over its width cubed (Golub & Van Loan 2013, sec. 8.3)."""
_A_MINUTE = 60 * 20e9
"""Operations in a minute at 20 GFLOPS, a usual rate of two CPU cores."""


def checked_sites(setting: Laplace, bnn: BNN, example: Batch, latents: list[Site]) -> list[str]:
    """Return the names of the weights that are to be Gaussian; settings that do not fit are refused before training.

    Raises:
        InputError: sites that do not exist, that are bounded, too few for the rank or subnetwork, or too many for
            memory; or a network that the curvature does not take.
    """
    refuse_mixed_examples(bnn.net)
    weights = {name: value for name, value in bnn.initial_values.items() if name in bnn.site_names}
    names = _choose(bnn, weights, example[0], setting.sites)
    _check_size(setting, sum(weights[name].numel() for name in names))
    if setting.structure == "kron":
        _tell_cost({name: weights[name] for name in names})
    require_real(latents, names)
    KINDS[setting.curvature].check(bnn, weights)
    _check_derivatives(setting, bnn, weights, names, example[0][:1])
    return names


def _choose(bnn: BNN, weights: Mapping[str, Tensor], example: Tensor, patterns: tuple[str, ...]) -> list[str]:
    """Return the names of the weights that patterns pick, in the order of the model."""
    names = list(bnn.site_names)
    if patterns == ("last_layer",):
        recording = Tracker(bnn, weights, names, example[:1]).alone
        last = next((use for use in recording.uses if recording.last in use.sites), None)
        if last is None:
            raise InputError(
                "Laplace(sites='last_layer'): the last layer is of an unknown kind: name its sites instead."
            )
        return [name for name in names if name in last.sites]
    covers_all = all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names)
    by_pattern = assign(patterns if covers_all else [*patterns, "*"], names, "Laplace")
    return [name for name in names if any(name in by_pattern[pattern] for pattern in patterns)]


def _check_size(setting: Laplace, size: int) -> None:
    """Refuse a rank, a subnetwork or a whole matrix that is too large for that many weights."""
    if setting.structure == "low_rank" and setting.rank >= size:
        raise InputError(f"Laplace: a rank of {setting.rank} was asked for of {size} weights: use structure='full'.")
    if setting.subnetwork is not None and setting.subnetwork > size:
        raise InputError(f"Laplace: a subnetwork of {setting.subnetwork} weights was asked for of {size}.")
    dimension = setting.subnetwork or size
    needed = 3 * 8 * dimension**2
    if setting.structure == "full" and needed > _LARGEST_FULL:
        raise InputError(
            f"Laplace(structure='full') over {dimension:,} weights needs {needed / 2**30:,.0f} GiB: use "
            "structure='kron' or 'diag', the last layer alone (sites='last_layer'), or a subnetwork."
        )


def _check_derivatives(setting: Laplace, bnn: BNN, weights: Mapping[str, Tensor], names: list[str], x: Tensor) -> None:
    """Refuse a network whose operations lack a derivative that the curvature, or predictions, will need."""

    def outputs(*values: Tensor) -> Tensor:
        return bnn.outputs({**weights, **dict(zip(names, values, strict=True))}, x)

    values = [weights[name].detach() for name in names]
    is_second = setting.curvature == "hessian"
    if is_second or setting.structure == "low_rank":
        slope = grad(lambda *own: outputs(*own).square().sum(), tuple(range(len(values))))
        fault = missing_forward_mode(slope if is_second else outputs, *values)
        if fault:
            what, instead = (
                ("curvature='hessian'", "'ggn'") if is_second else ("structure='low_rank'", "'kron' or 'diag'")
            )
            raise InputError(
                f"Laplace: {what} needs forward-mode derivatives, which torch lacks for this network ({fault}): use "
                f"{instead}.",
                page="how-to/laplace",
            )
    with torch.no_grad():
        num_outputs = outputs(*values).shape[1]
    if setting.linearized and num_outputs * sum(value.numel() for value in values) > MOST_DERIVATIVES:
        Tangent(bnn, weights, x).function(tuple(names))


def _tell_cost(weights: Mapping[str, Tensor]) -> None:
    """Warn of a layer so wide that the eigenvectors of its Kronecker factors take minutes or hours."""
    sides = {name: max(len(w), w.shape[1:].numel()) for name, w in weights.items() if w.ndim > 1}
    name = max(sides, key=lambda key: sides[key], default="")
    side = sides.get(name, 0)
    if side >= _WIDE:
        warnings.warn(
            f"Laplace: structure='kron' takes the eigenvectors of a {side:,} x {side:,} matrix for {name!r}, some "
            f"{_EIGEN_STEPS * side**3:.0e} operations ({_EIGEN_STEPS * side**3 / _A_MINUTE:.0f} minutes at 20 GFLOPS) "
            f"without a progress bar, and {8 * side**2 / 2**30:.1f} GiB: structure='diag' or 'low_rank', or "
            "sites='last_layer', take less.",
            skip_file_prefixes=(_PACKAGE,),
        )
