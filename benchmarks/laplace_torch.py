"""laplace-torch, as measures fit it beside pyrobnn."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Batches:
    """The parts of a DataLoader that laplace-torch needs, without the time to collate examples."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int) -> None:
        self.dataset, self.batch_size = torch.utils.data.TensorDataset(x, y), batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.dataset.tensors
        return zip(x.split(self.batch_size), y.split(self.batch_size), strict=True)


def fit(net: nn.Module, batches: Iterable[Any], structure: str, sites: str = "all", **options: Any) -> Any:
    """Return the approximation of the weights of all layers or of the last, after its evidence."""
    import laplace

    fitted = laplace.Laplace(
        net, "classification", subset_of_weights=sites, hessian_structure=structure, prior_precision=1.0, **options
    )
    fitted.fit(batches)
    fitted.log_marginal_likelihood()
    return fitted
