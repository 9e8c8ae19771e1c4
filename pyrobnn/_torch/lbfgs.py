"""SciPy's L-BFGS on tensors: for functions without noise."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.lock import ONE_THREAD

Bounds = tuple[float | None, float | None]
_POLISH = {"maxiter": 50, "maxfun": 100, "maxcor": 20, "ftol": 0.0, "gtol": 1e-9}


def minimize_in_place(loss: Callable[[], Tensor], tensors: Sequence[Tensor], **options: Any) -> None:
    """Move leaves to the minimum of a loss of them, (); options are those of `descend_in_place`."""
    descend_in_place(slope_of(loss, tensors), tensors, **options)


def slope_of(loss: Callable[[], Tensor], tensors: Sequence[Tensor]) -> Callable[[], Tensor]:
    """Return a function that gives a loss and its gradient at the tensors as they are, as for `descend_in_place`."""

    def slope() -> Tensor:
        with torch.enable_grad():
            value = loss()
            gradients = torch.autograd.grad(value, tensors, materialize_grads=True)
        return joined([value, *gradients])

    return slope


def descend_in_place(
    slope: Callable[[], Tensor],
    tensors: Sequence[Tensor],
    *,
    bounds: Sequence[Bounds] | None = None,
    after: Callable[[], bool] | None = None,
    **options: Any,
) -> None:
    """Move tensors to the minimum of a function of them, by its value and gradient.

    Args:
        slope: returns the function and its gradient at the present tensors, (1 + P,) in double precision.
        tensors: the tensors, with P entries.
        bounds: a pair of bounds for each entry, or None for none.
        after: called after each iteration, with the tensors moved; True ends the descent.
        **options: options of `scipy.optimize.minimize(method="L-BFGS-B")`.
    """
    from scipy.optimize import minimize

    failed, gradient = list[StopIteration](), np.zeros(0)

    def evaluated(place: np.ndarray) -> float:
        nonlocal gradient  # which SciPy asks for next
        _fill(tensors, place)
        value_and_gradient = slope().numpy()
        gradient = value_and_gradient[1:].copy()
        return float(value_and_gradient[0])

    def look(_: np.ndarray) -> None:
        try:
            if after is None or not after():
                return
        except StopIteration as error:  # of a callback: SciPy would treat it as a stop request
            failed.append(error)
        raise StopIteration

    options = {"bounds": bounds, "callback": None if after is None else look, "options": options}
    with _one_blas_thread():  # SciPy's products are small, and handing them to threads takes many times longer
        result = minimize(evaluated, joined(tensors).numpy(), jac=lambda _: gradient, method="L-BFGS-B", **options)
    if failed:
        raise failed[0]
    _fill(tensors, result.x)


def polish_in_place(slope: Callable[[], Tensor], tensors: Sequence[Tensor]) -> None:
    """Move tensors in single precision from the end of a descent to a zero of the gradient, up to its rounding.

    There rounding hides the gain, and gradients carry more information: from the end w0 the function is taken as
    (g(w) + g(w0)) (w - w0) / 2, exact up to third order. Tensors stay if their gradient does not shrink.
    """
    from scipy.optimize import minimize

    rounding = max(torch.finfo(value.dtype).eps for value in tensors)
    if rounding <= torch.finfo(torch.float64).eps:
        return
    start, at_start = joined(tensors).numpy(), slope().numpy().copy()
    first, largest = at_start[1:], at_start[0] + 10 * rounding * abs(at_start[0])
    places = [(float(np.linalg.norm(first)), start)]

    def evaluated(place: np.ndarray) -> tuple[float, np.ndarray]:
        _fill(tensors, place)
        value_and_gradient = slope().numpy().copy()
        gradient = value_and_gradient[1:]
        gain = 0.5 * float((gradient + first) @ (place - start))
        if gain < 0 and value_and_gradient[0] <= largest:
            places.append((float(np.linalg.norm(gradient)), place.copy()))
        return gain, gradient

    with _one_blas_thread():
        minimize(evaluated, start, jac=True, method="L-BFGS-B", options=_POLISH)
    _fill(tensors, min(places, key=lambda pair: pair[0])[1])


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Run the block with one thread of the BLAS; threads that are let in meanwhile keep their setting."""
    libraries = _blas_libraries()

    def put(counts: list[int]) -> None:
        for library, count in zip(libraries, counts, strict=True):
            library.set_num_threads(count)

    with ONE_THREAD.changed(lambda: [library.num_threads for library in libraries], put):
        put([1] * len(libraries))
        yield


@functools.cache
def _blas_libraries() -> list[Any]:
    """Return the libraries of SciPy, which is imported by now; to look for them takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return [*ThreadpoolController().select(user_api="blas").lib_controllers]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return all entries as a flat vector in double precision, on the CPU."""
    return torch.cat([value.detach().reshape(-1) for value in tensors]).double().cpu()


def _fill(tensors: Sequence[Tensor], values: np.ndarray) -> None:
    flat = torch.from_numpy(values)
    parts = [flat] if len(tensors) == 1 else flat.split([value.numel() for value in tensors])
    with torch.no_grad():
        for value, part in zip(tensors, parts, strict=True):
            value.copy_(part.view_as(value))
