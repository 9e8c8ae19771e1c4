"""The weights that are to be Gaussian: picked by patterns, and refused before training where they do not fit."""

import dataclasses
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor
from torch.func import grad

from pyrobnn._core.errors import InputError
from pyrobnn._core.registry import assign
from pyrobnn._torch.inputs import X
from pyrobnn._torch.transforms import missing_forward_mode
from pyrobnn.bnn import BNN
from pyrobnn.curvature.kinds import KINDS
from pyrobnn.curvature.tracker import Tracker, refuse_mixed_examples
from pyrobnn.data.batches import Batch
from pyrobnn.guides.laplace import Laplace, Structure, require_real
from pyrobnn.guides.sites import Site
from pyrobnn.inference import limits
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.output_draws import MOST_DERIVATIVES, Tangent

_MOST_MATRIX_BYTES = 2**35
"""Of three copies in double precision."""


def checked_setting(setting: Laplace, bnn: BNN, example: Batch, latents: list[Site]) -> tuple[Laplace, list[str]]:
    """Return the setting with its structure chosen, and the names of the weights that are to be Gaussian."""
    refuse_mixed_examples(bnn.net)
    weights = {name: value for name, value in bnn.initial_values.items() if name in bnn.site_names}
    names = _choose(bnn, weights, example[0], setting.sites)
    size = sum(weights[name].numel() for name in names)
    if setting.structure is None:
        # labels get Kronecker factors, as the whole curvature leaves them too much in doubt (explanations/defaults)
        takes_whole = size <= limits.MOST_FULL and not as_likelihood(bnn.settings["likelihood"]).has_labels
        takes_whole &= setting.sharing == "expand" and setting.joint_bias
        wanted: tuple[Structure, ...] = ("full", "kron", "diag")
        wanted = wanted if takes_whole or setting.subnetwork is not None else wanted[1:]
        possible = KINDS[setting.curvature].structures
        setting = dataclasses.replace(setting, structure=next(name for name in wanted if name in possible))
    if setting.structure == "low_rank" and setting.rank >= size:
        raise InputError(f"Laplace: a rank of {setting.rank} was asked for of {size} weights: use structure='full'.")
    if setting.subnetwork is not None and setting.subnetwork > size:
        raise InputError(f"Laplace: a subnetwork of {setting.subnetwork} weights was asked for of {size}.")
    dimension = setting.subnetwork or size
    needed = 3 * 8 * dimension**2
    if setting.structure == "full" and needed > _MOST_MATRIX_BYTES:
        raise InputError(
            f"Laplace(structure='full') over {dimension:,} weights needs {needed / 2**30:,.0f} GiB: use "
            "structure='kron' or 'diag', the last layer alone (sites='last_layer'), or a subnetwork."
        )
    if setting.structure == "kron":
        _check_sides(bnn, weights, names, example[0][:1])
    require_real(latents, names)
    KINDS[setting.curvature].check(bnn, weights)
    _check_derivatives(setting, bnn, weights, names, example[0][:1])
    return setting, names


def _choose(bnn: BNN, weights: Mapping[str, Tensor], example: X, patterns: tuple[str, ...]) -> list[str]:
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


def _check_derivatives(setting: Laplace, bnn: BNN, weights: Mapping[str, Tensor], names: list[str], x: X) -> None:
    """Refuse a network whose operations lack a derivative that curvature or predictions need."""

    def outputs(*values: Tensor) -> Tensor:
        return bnn.outputs({**weights, **dict(zip(names, values, strict=True))}, x)

    values = [weights[name].detach() for name in names]
    is_second = setting.curvature == "hessian"
    if is_second or setting.structure == "low_rank":
        slope = grad(lambda *moved: outputs(*moved).square().sum(), tuple(range(len(values))))
        fault = missing_forward_mode(slope if is_second else outputs, *values)
        if fault:
            option, instead = (
                ("curvature='hessian'", "'ggn'") if is_second else ("structure='low_rank'", "'kron' or 'diag'")
            )
            raise InputError(
                f"Laplace: {option} needs forward-mode derivatives, which torch lacks for this network ({fault}): use "
                f"{instead}.",
                page="how-to/laplace",
            )
    with torch.no_grad():
        num_outputs = outputs(*values).shape[1]
    if setting.linearized and num_outputs * sum(value.numel() for value in values) > MOST_DERIVATIVES:
        Tangent(bnn, weights, x).function(tuple(names))


def _check_sides(bnn: BNN, weights: Mapping[str, Tensor], names: list[str], x: X) -> None:
    """Refuse Kronecker factors that do not fit into memory; a table of embeddings has none."""
    most = math.isqrt(_MOST_MATRIX_BYTES // 24)
    if all(max(len(w), w[0].numel()) <= most for w in (weights[name] for name in names) if w.ndim):
        return
    for use in Tracker(bnn, weights, names, x).alone.uses:
        side = max(use.inputs.shape[2], use.positions(use.output).shape[2]) if use.kind == "matrix" else 0
        if side > most:
            raise InputError(
                f"Laplace(structure='kron') takes the eigenvectors of a {side:,} x {side:,} matrix for "
                f"{use.sites[0]!r}, which needs {24 * side**2 / 2**30:,.0f} GiB: use structure='diag', or "
                "sites='last_layer'."
            )
