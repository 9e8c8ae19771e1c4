"""SciPy's L-BFGS on tensors: for functions without noise, of up to some thousand numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Bounds = tuple[float | None, float | None]


def minimize_in_place(
    loss: Callable[[], Tensor],
    tensors: Sequence[Tensor],
    *,
    slope: Callable[[], Tensor] | None = None,
    bounds: Sequence[Bounds] | None = None,
    **options: Any,
) -> None:
    """Move tensors to where a function of them is smallest.

    Args:
        loss: returns the function at the tensors as they are, ().
        tensors: leaves that require gradients; SciPy sees their entries as one vector in double precision.
        slope: returns the function and its gradient at the tensors as they are, (1 + P,), where that is known to be
            quicker than to differentiate `loss`.
        bounds: a pair of bounds for each entry, or None for none.
        **options: of `scipy.optimize.minimize(method="L-BFGS-B")`.
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    def evaluated(place: np.ndarray) -> tuple[float, np.ndarray]:
        _fill(tensors, place)
        if slope is not None:
            value_and_gradient = slope().numpy()
            return float(value_and_gradient[0]), value_and_gradient[1:].copy()
        with torch.enable_grad():
            value = loss()
            gradients = torch.autograd.grad(value, tensors, materialize_grads=True)
        return value.item(), _flat(gradients)

    with threadpool_limits(1, user_api="blas"):  # SciPy's products are small, and hand-over takes many times longer
        found = minimize(evaluated, _flat(tensors), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    _fill(tensors, found.x)


def _flat(tensors: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([value.detach().reshape(-1) for value in tensors]).double().cpu().numpy()


def _fill(tensors: Sequence[Tensor], values: np.ndarray) -> None:
    parts = torch.from_numpy(values).split([value.numel() for value in tensors])
    with torch.no_grad():
        for value, part in zip(tensors, parts, strict=True):
            value.copy_(part.view_as(value))
