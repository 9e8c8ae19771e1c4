"""Mathematics of tensors: weights as matrices (outputs, inputs), eigenvalues, and the inverse of softplus."""

import torch
from torch import Tensor

LARGE = 4000
"""Rows from which on eigenvectors take more than a minute on a CPU."""
_FIRST_RANK = 128
"""The second rank is an eighth of the rows of a large matrix."""
_ROUNDING_UNITS = 10  # of sums of outer products it is 1 to 5 units in float32
_LEAST_TOLERANCE = 1e-13


def as_matrix(values: Tensor, shape: torch.Size, *, transposed: bool = False) -> Tensor:
    """Return entries (*, size) of a weight, or of a bias as a column, as matrices (*, O, I).

    `transposed` weights have the axes (inputs, outputs), as embeddings and transposed convolutions.
    """
    if len(shape) == 1 or not transposed:
        return values.reshape(*values.shape[:-1], shape[0], -1)
    return values.reshape(*values.shape[:-1], *shape[:2], -1).transpose(-3, -2).flatten(-2)


def from_matrix(matrix: Tensor, shape: torch.Size, *, transposed: bool = False) -> Tensor:
    """Return the flat entries (*, size) of a weight or bias from matrices (*, O, I), as `as_matrix` takes them."""
    if len(shape) == 1 or not transposed:
        return matrix.flatten(-2)
    return matrix.unflatten(-1, (shape[0], -1)).transpose(-3, -2).flatten(-3)


def settled(values: Tensor, dtype: torch.dtype, others: float | Tensor = 1.0) -> Tensor:
    """Return eigenvalues, 0 where they are rounding of numbers of a type that, times `others`, would count beside 1."""
    rounding = len(values) * torch.finfo(dtype).eps * values.max()
    return torch.where((values.abs() <= rounding) & (rounding * others > 1), 0.0, values)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, ascending, and eigenvectors of a symmetric matrix (D, D), in its precision.

    The divide and conquer of LAPACK may fail in float32, or give NaN, if many eigenvalues are nearly equal, as those of
    curvature are; it then runs in float64. 4,000 rows or more are first tried for a rank of at most an eighth of them.
    """
    low_rank = _of_low_rank(matrix) if len(matrix) >= LARGE else None
    if low_rank is not None:
        return low_rank
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        values, vectors = torch.linalg.eigh(matrix.double())
    else:
        if matrix.dtype == torch.float32 and not bool(values.isfinite().all() & vectors.isfinite().all()):
            values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)


def _of_low_rank(matrix: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return eigenvalues and eigenvectors if the rank is at most an eighth of the rows, up to rounding, else None.

    Products with random vectors span the range of such a matrix (Halko, Martinsson & Tropp 2011, "Finding Structure
    with Randomness", algorithm 4.4 with one power).
    """
    size, generator = len(matrix), torch.Generator().manual_seed(0)
    tolerance = max(_ROUNDING_UNITS * torch.finfo(matrix.dtype).eps, _LEAST_TOLERANCE) * float(matrix.norm())
    for rank in (_FIRST_RANK, size // 8):
        probes = torch.randn(size, rank, generator=generator, dtype=matrix.dtype).to(matrix.device)
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix @ probes)[0])[0]
        inside = basis.T @ matrix
        if float(torch.addmm(matrix, basis, inside, alpha=-1).norm()) <= tolerance:
            values, vectors = torch.linalg.eigh(inside @ basis)
            values = torch.cat([values.new_zeros(size - rank), values])
            order = values.argsort()
            return values[order], torch.cat([_complement(basis), basis @ vectors], 1)[:, order]
    return None


def _complement(basis: Tensor) -> Tensor:
    """Return orthonormal columns (D, D - r) orthogonal to given columns (D, r), by the reflection of these to axes.

    With the polar factor R of the first r rows of Q, and Y = Q + (R, 0), the reflection 1 - 2 Y (Y^T Y)^-1 Y^T takes Q
    to -(R, 0), so that its other columns are orthogonal to Q. It is twenty times faster than a complete QR.
    """
    rank = basis.shape[1]
    u, s, v = torch.linalg.svd(basis[:rank])
    reflector = basis.clone()
    reflector[:rank] += u @ v
    product = reflector @ ((v.T / (1 + s)) @ v @ reflector[rank:].T)
    product.diagonal(-rank).sub_(1)
    return product.neg_()


def inverse_softplus(scale: Tensor) -> Tensor:
    """Return rho with softplus(rho) = scale, accurate for large and small scales above 0."""
    return scale + torch.log(-torch.expm1(-scale))
