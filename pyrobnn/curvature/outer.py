"""Sums of outer products of derivatives in the outputs of a layer, for each example."""

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Outer(Protocol):
    """A matrix (O, O) for each of B examples, never held: a sum of outer products."""

    def squares(self) -> Tensor:
        """Return the diagonals, (B, O)."""
        ...

    def total(self) -> Tensor:
        """Return the sum over examples, (O, O)."""
        ...

    def row(self, o: int) -> Tensor:
        """Return the entries of row o from the diagonal on, (B, O - o)."""
        ...


class Columns(NamedTuple):
    """sum_k g_k g_k^T.

    Attributes:
        g: (K, B, O).
    """

    g: Tensor

    def squares(self) -> Tensor:
        """Return the diagonals, (B, O)."""
        return self.g.square().sum(0)

    def total(self) -> Tensor:
        """Return the sum over examples, (O, O)."""
        rows = self.g.flatten(0, 1)
        return rows.T @ rows

    def row(self, o: int) -> Tensor:
        """Return the entries of row o from the diagonal on, (B, O - o)."""
        return (self.g[:, :, o, None] * self.g[:, :, o:]).sum(0)


class DiagonalLess(NamedTuple):
    """diag(d) - v v^T, as the information of a label in C logits, where d = v = p: C columns as two vectors.

    Attributes:
        d: (B, O).
        v: (B, O).
    """

    d: Tensor
    v: Tensor

    def squares(self) -> Tensor:
        """Return the diagonals, (B, O)."""
        return self.d - self.v.square()

    def total(self) -> Tensor:
        """Return the sum over examples, (O, O), which has no entry above 0 off its diagonal."""
        return self.d.sum(0).diag() - self.v.T @ self.v

    def row(self, o: int) -> Tensor:
        """Return the entries of row o from the diagonal on, (B, O - o)."""
        row = -self.v[:, o, None] * self.v[:, o:]
        row[:, 0] += self.d[:, o]
        return row

    def weighted(self, weights: Tensor) -> "DiagonalLess":
        """Return the matrices, each times the weight of its example, (B,)."""
        return DiagonalLess(self.d * weights[:, None], self.v * weights.sqrt()[:, None])
