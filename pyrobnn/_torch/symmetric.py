"""Eigenvalues of symmetric matrices."""

import torch
from torch import Tensor


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, ascending, and eigenvectors of a symmetric matrix, in its precision.

    In float32 the divide and conquer of LAPACK may fail to converge, or give NaN without a word, where many eigenvalues
    are nearly equal, as those of curvature are for inputs or units that are always zero; it is then done in float64.

    Args:
        matrix: (D, D), of which the lower triangle counts.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        values, vectors = torch.linalg.eigh(matrix.double())
    else:
        if matrix.dtype == torch.float32 and not bool(values.isfinite().all() & vectors.isfinite().all()):
            values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)
