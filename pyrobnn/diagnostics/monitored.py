"""The weights that a DataTree holds: all of a small network, some named entries and the norms of a large network."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.errors import InputError

MAX_WHOLE = 1000
"""Entries of all sites together up to which every entry is kept."""
_PER_SITE = 20
NORM = "site_norm"
"""Variable with the Euclidean norm of each weight site, per draw, if not every weight is kept."""


class Monitored:
    """The entries that are kept of each site, with their dimensions and labels.

    Args:
        sites: a value (*event) of each site by name, for the shapes.
        weight_names: the sites that are weights of the network.
        feature_names: names of the input columns, to label the inputs of the first layer with.
        monitor: as in `to_datatree`.

    Attributes:
        site_dims: names of the dimensions of every site as a whole.
        dims: names of the dimensions of each variable kept, without chain and draw.
        coords: labels along a dimension.
    """

    def __init__(
        self,
        sites: Mapping[str, Tensor],
        weight_names: tuple[str, ...],
        feature_names: tuple[str, ...],
        monitor: Any = "auto",
    ) -> None:
        self._sizes: dict[str, int] = {}
        self.site_dims = {name: self._name_dims(name, value) for name, value in sites.items()}
        self.coords: dict[str, list[str]] = {}
        self._label_features(sites, weight_names, feature_names)
        kept = _wanted(monitor, list(sites))
        self.dims = {name: self.site_dims[name] for name in kept}
        self._chosen: dict[str, Tensor] = {}
        if monitor == "auto" and sum(value.numel() for value in sites.values()) > MAX_WHOLE:
            most = max(1, min(_PER_SITE, MAX_WHOLE // len(sites)))
            for name, value in sites.items():
                if value.numel() > most:
                    self._choose(name, value, most)
        self._normed = [name for name in weight_names if name not in kept or name in self._chosen]
        if self._normed:
            self._normed = list(weight_names)
            self.dims[NORM], self.coords["site"] = ["site"], self._normed

    def _choose(self, name: str, value: Tensor, count: int) -> None:
        order = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(0))
        self._chosen[name] = order[:count].sort().values
        self.dims[name] = [f"{name}.entry"]
        entries = np.stack(np.unravel_index(self._chosen[name].numpy(), tuple(value.shape)), 1)
        self.coords[f"{name}.entry"] = [",".join(map(str, entry)) for entry in entries.tolist()]

    def _name_dims(self, name: str, value: Tensor) -> list[str]:
        layer, _, leaf = name.rpartition(".")
        suffixes = {("weight", 2): ("out", "in"), ("bias", 1): ("out",)}.get((leaf, value.ndim), ())
        dims = [f"{layer}.{suffix}".lstrip(".") for suffix in suffixes]
        sizes = dict(zip(dims, value.shape, strict=False))
        if value.ndim != len(dims) or any(self._sizes.get(dim, size) != size for dim, size in sizes.items()):
            return [f"{name}.dim_{index}" for index in range(value.ndim)]
        self._sizes |= sizes
        return dims

    def _label_features(
        self, sites: Mapping[str, Tensor], weight_names: tuple[str, ...], feature_names: tuple[str, ...]
    ) -> None:
        first = next((name for name in weight_names if sites[name].ndim == 2), None)
        if first is not None and sites[first].shape[1] == len(feature_names):
            self.coords[self.site_dims[first][1]] = list(feature_names)

    def select(self, draws: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Return the variables kept of a block of draws (B, *event), the draws on the leading axis."""
        kept = {}
        for name in (name for name in draws if name in self.dims):
            values = draws[name]
            rows = (
                values.reshape(len(values), -1)[:, self._chosen[name].to(values.device)]
                if name in self._chosen
                else values
            )
            kept[name] = rows.cpu().numpy().copy()  # as a view would hold all the weights of the block
        if self._normed:
            norms = [torch.linalg.vector_norm(draws[n].reshape(len(draws[n]), -1), dim=1) for n in self._normed]
            kept[NORM] = torch.stack(norms, 1).cpu().numpy()
        return kept


def _wanted(monitor: Any, names: list[str]) -> list[str]:
    """Return the names of the sites with kept entries."""
    if isinstance(monitor, str) and monitor in ("auto", "all"):
        return names
    patterns = list(monitor) if isinstance(monitor, (list, tuple)) else []
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"`monitor` must be 'auto', 'all', or a list of patterns of site names, got {monitor!r}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(
                f"The pattern {pattern!r} in `monitor` matches no site: it may name any of {', '.join(names)}."
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
