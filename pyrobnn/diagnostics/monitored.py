"""What of the weights a DataTree holds: all of a small network, some named entries and the norms of a large one."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

MAX_WHOLE = 1000
"""Weights up to which every one is kept."""
_PER_SITE = 20
NORM = "site_norm"
"""Variable with the Euclidean norm of each site, one a draw, where not every weight is kept."""


class Monitored:
    """The entries that are kept of each site, with their dimensions and labels.

    Args:
        sites: one value (*event) of each site by name, which tells the shapes.
        weight_names: the sites that are weights of the network.
        feature_names: names of the input columns, to label the inputs of the first layer with.

    Attributes:
        dims: names of the dimensions of each variable, without chain and draw.
        coords: labels along a dimension.
    """

    def __init__(
        self, sites: Mapping[str, Tensor], weight_names: tuple[str, ...], feature_names: tuple[str, ...]
    ) -> None:
        self.dims: dict[str, list[str]] = {}
        self.coords: dict[str, list[str]] = {}
        self._chosen: dict[str, Tensor] = {}
        self._sizes: dict[str, int] = {}
        self.is_whole = sum(sites[name].numel() for name in weight_names) <= MAX_WHOLE
        most = MAX_WHOLE if self.is_whole else max(1, min(_PER_SITE, MAX_WHOLE // len(weight_names)))
        for name, value in sites.items():
            if name in weight_names and value.numel() > most:
                self._choose(name, value, most)
            else:
                self.dims[name] = self._name_dims(name, value)
        self._label_features(sites, weight_names, feature_names)
        if not self.is_whole:
            self.dims[NORM], self.coords["site"] = ["site"], list(weight_names)

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
        if first is not None and first not in self._chosen and sites[first].shape[1] == len(feature_names):
            self.coords[self.dims[first][1]] = list(feature_names)

    def select(self, draws: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Return the variables kept of a block of draws (B, *event), the draws on the leading axis."""
        kept = {}
        for name, values in draws.items():
            rows = (
                values.reshape(len(values), -1)[:, self._chosen[name].to(values.device)]
                if name in self._chosen
                else values
            )
            kept[name] = rows.cpu().numpy()
        if not self.is_whole:
            norms = [
                torch.linalg.vector_norm(draws[name].reshape(len(draws[name]), -1), dim=1)
                for name in self.coords["site"]
            ]
            kept[NORM] = torch.stack(norms, 1).cpu().numpy()
        return kept
