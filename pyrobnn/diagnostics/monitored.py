"""The variables that a DataTree keeps, the names of their dimensions, and norms in place of large weights."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, listed
from pyrobnn.posterior.posterior import Posterior

MAX_WHOLE = 1000  # entries of all sites together, up to which all are kept
_SMALL = 20  # entries of a site that is kept anyway
NORM = "site_norm"  # the Euclidean norm of each weight site, per draw, if not every weight is kept
_NOISE = "likelihood.scale"  # a site in the units of the targets
_DIMS_OF_LAYERS = {("weight", 2): ("out", "in"), ("bias", 1): ("out",)}
"""The dimensions of a parameter, by the end of its name and their number."""


class Monitored(NamedTuple):
    """The dimensions of the variables that are kept, and their labels: those of "site" are the sites with norms."""

    dims: dict[str, list[str]]
    coords: dict[str, list[str]]

    @classmethod
    def of(
        cls, sites: Mapping[str, Tensor], weight_names: Sequence[str], feature_names: Sequence[str], monitor: Any
    ) -> "Monitored":
        """Return what is kept of sites, given a value (*event) of each; features name the inputs of the first layer."""
        site_dims, coords = _site_dims(sites), dict[str, list[str]]()
        dims = {name: site_dims[name] for name in _kept(monitor, sites)}
        first = next((name for name in weight_names if sites[name].ndim == 2), None)
        if first is not None and sites[first].shape[1] == len(feature_names):
            coords[site_dims[first][1]] = list(feature_names)
        if any(name not in dims for name in weight_names):
            dims[NORM], coords["site"] = ["site"], [*weight_names]
        return cls(dims, coords)

    def select(self, draws: Mapping[str, Tensor], member: Posterior) -> dict[str, np.ndarray]:
        """Return the variables kept of a block of draws (B, *event), the draws on the leading axis."""
        if _NOISE in draws:
            draws = {**draws, _NOISE: draws[_NOISE] * member.y_scaler.scale.to(draws[_NOISE])}
        kept = {name: values.cpu().numpy().copy() for name, values in draws.items() if name in self.dims}
        if NORM in self.dims:
            weights = (draws[name].reshape(len(draws[name]), -1) for name in self.coords["site"])
            kept[NORM] = torch.stack([torch.linalg.vector_norm(each, dim=1) for each in weights], 1).cpu().numpy()
        return kept


def _site_dims(sites: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return names of the dimensions of each site: those of a layer, which sites of equal size share, or numbers."""
    known, dims = dict[str, int](), dict[str, list[str]]()
    for name, value in sites.items():
        layer, _, leaf = name.rpartition(".")
        suffixes = _DIMS_OF_LAYERS.get((leaf, value.ndim), ())
        sizes = {f"{layer}.{suffix}".lstrip("."): size for suffix, size in zip(suffixes, value.shape, strict=False)}
        if name == _NOISE:
            dims[name] = ["target"][: value.ndim]
        elif value.ndim == len(sizes) and all(known.get(dim, size) == size for dim, size in sizes.items()):
            known |= sizes
            dims[name] = list(sizes)
        else:
            dims[name] = [f"{name}.dim_{index}" for index in range(value.ndim)]
    return dims


def _kept(monitor: Any, sites: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the sites that are kept."""
    if isinstance(monitor, str) and monitor in ("auto", "all"):
        is_whole = monitor == "all" or sum(value.numel() for value in sites.values()) <= MAX_WHOLE
        return [name for name, value in sites.items() if is_whole or value.numel() <= _SMALL]
    patterns = list(monitor) if isinstance(monitor, (list, tuple)) else []
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"`monitor` must be 'auto', 'all', or a list of patterns of site names, got {monitor!r}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in sites):
            raise InputError(f"{pattern!r} in `monitor` matches no site: it may name any of {listed([*sites])}.")
    return [name for name in sites if any(fnmatchcase(name, pattern) for pattern in patterns)]
