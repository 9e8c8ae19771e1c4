"""Weights of layers as matrices (outputs, inputs): a window of a convolution counts as inputs."""

import torch
from torch import Tensor


def as_matrix(values: Tensor, shape: torch.Size, *, transposed: bool = False) -> Tensor:
    """Return entries of a weight, or of a bias as a column, as matrices, (*, O, I).

    Args:
        values: flat entries, (*, size).
        shape: of the weight or bias.
        transposed: whether the first two axes of the weight are (inputs, outputs), as in embeddings and transposed
            convolutions, instead of (outputs, inputs).
    """
    if len(shape) == 1 or not transposed:
        return values.reshape(*values.shape[:-1], shape[0], -1)
    return values.reshape(*values.shape[:-1], *shape[:2], -1).transpose(-3, -2).flatten(-2)


def from_matrix(matrix: Tensor, shape: torch.Size, *, transposed: bool = False) -> Tensor:
    """Return the flat entries (*, size) of a weight or bias from matrices (*, O, I), as `as_matrix` takes them."""
    if len(shape) == 1 or not transposed:
        return matrix.flatten(-2)
    return matrix.unflatten(-1, (shape[0], -1)).transpose(-3, -2).flatten(-3)
