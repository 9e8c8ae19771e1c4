"""Blocks of a Gaussian over weights, each held in the structure of its precision."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn._torch.matrices import as_matrix, eigh, from_matrix, settled
from pyrobnn.guides.joint import HALF_LOG_2PI

Kind = Literal["diag", "kron", "full", "low_rank"]


@setting
class BlockSpec:
    """The sites of a block, and its kind.

    "diag" has independent entries of a single site; "kron" a weight, a bias, or both in this order, with a Kronecker
    product plus a prior; "full" all correlations; "low_rank" a prior plus a few directions.
    """

    kind: Kind
    sites: Annotated[tuple[str, ...], Field(min_length=1)]
    size: int | None = None  # of "full", the number of entries, if not all; of "low_rank", the rank
    transposed: bool = False  # of "kron", whether the first axes of the weight are (inputs, outputs)

    def as_dict(self) -> dict[str, Any]:
        fields = {"kind": self.kind, "sites": list(self.sites), "size": self.size, "transposed": self.transposed}
        return {name: value for name, value in fields.items() if value is not None}


class Axes(NamedTuple):
    """A matrix of weights, in axes in which its entries are independent, of standard deviations `scale` (O, I).

    `g` (C, B, T, O) are derivatives of the network's outputs in the layer's at T positions, `a` (B, T, I) its inputs.
    """

    g: Tensor
    a: Tensor
    scale: Tensor


class Block(nn.Module, ABC):
    """A centred Gaussian over the entries of some sites, of these shapes, independent in some axes if `has_axes`."""

    has_axes: ClassVar[bool] = False

    def __init__(self, spec: BlockSpec, shapes: dict[str, torch.Size]) -> None:
        super().__init__()
        self.spec, self.shapes = spec, shapes

    @property
    def sizes(self) -> list[int]:
        """The number of entries of each site."""
        return [shape.numel() for shape in self.shapes.values()]

    @property
    def dimension(self) -> int:
        """The number of entries that have a density; the others of its sites stay at the mode."""
        return sum(self.sizes)

    @property
    def whole_root(self) -> Tensor | None:
        """R (entries, dimension) with R R^T the covariance of all entries of the sites, if the block holds it."""
        return None

    @abstractmethod
    def fill(self, *curvature: Any) -> None:
        """Take the precision, in the form that its structure gives it."""

    @abstractmethod
    def transform(self, noise: Tensor) -> Tensor:
        """Return standard normal noise (dimension,) as a deviation from the mode, flat over the sites."""

    @abstractmethod
    def spread(self) -> Tensor:
        """Return the standard deviation of every entry, flat over the sites."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """Return the log determinant of the precision, ()."""

    @abstractmethod
    def root(self, rows: Tensor) -> Tensor:
        """Return rows R with R R^T = J Sigma J^T for rows J (M, entries of the sites)."""

    def axes(self, g: Tensor, a: Tensor, *, transposed: bool) -> Axes | None:
        """Return the matrix that the block describes in the axes of its independent entries; None if there are none.

        `g` and `a` are as in `Axes`, with an input of 1 for the bias.
        """
        return None

    def noise_in_axes(self, noise: Tensor, axes: Axes, *, transposed: bool) -> Tensor:
        """Return the noise (S, dimension) that `transform` takes, as it belongs to the entries in `axes`, (S, O, I)."""
        return noise.view(-1, *axes.scale.shape)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector over the sites, by name and in their shapes."""
        parts = flat.split(self.sizes, -1)
        return {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}

    def log_density(self, noise: Tensor) -> Tensor:
        """Return the log density of the draw that noise makes, ()."""
        return -0.5 * noise.square().sum() - self.dimension * HALF_LOG_2PI + 0.5 * self.log_det()

    def entropy(self) -> Tensor:
        """Return minus the expected log density, ()."""
        return self.dimension * (HALF_LOG_2PI + 0.5) - 0.5 * self.log_det()


class DiagonalBlock(Block):
    """Independent entries; the buffer `scale` has their standard deviations."""

    has_axes: ClassVar[bool] = True
    scale: Tensor

    def __init__(self, spec: BlockSpec, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__(spec, shapes)
        self.register_buffer("scale", like.new_ones(self.dimension))

    def fill(self, precision: Tensor) -> None:
        """Take the precision of each entry, flat."""
        self.scale.copy_(precision.rsqrt())

    def transform(self, noise: Tensor) -> Tensor:
        return self.scale * noise

    def spread(self) -> Tensor:
        return self.scale

    def log_det(self) -> Tensor:
        return -2 * self.scale.log().sum()

    def root(self, rows: Tensor) -> Tensor:
        return rows * self.scale

    def axes(self, g: Tensor, a: Tensor, *, transposed: bool) -> Axes:
        return Axes(g, a, self._matrices(self.scale, transposed=transposed))

    def noise_in_axes(self, noise: Tensor, axes: Axes, *, transposed: bool) -> Tensor:
        return self._matrices(noise, transposed=transposed)

    def _matrices(self, values: Tensor, *, transposed: bool) -> Tensor:
        (shape,) = self.shapes.values()
        return as_matrix(values, shape, transposed=transposed)


class KroneckerBlock(Block):
    """D^(1/2) (B (x) A + 1) D^(1/2) for D = d_B (x) d_A: B and A are whitened by the prior, a product.

    With eigenvectors Q and eigenvalues l of the whitened factors, a draw is left (eps s) right^T, an (outputs, inputs)
    matrix whose last column is the bias, with left = d_B^(-1/2) Q_B, right = d_A^(-1/2) Q_A, and
    s^2 = 1 / (1 + l_B l_A^T).
    """

    has_axes: ClassVar[bool] = True
    left: Tensor
    right: Tensor
    left_values: Tensor
    right_values: Tensor
    log_prior: Tensor

    def __init__(self, spec: BlockSpec, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__(spec, shapes)
        first, *rest = shapes.values()
        outputs = first[1 if spec.transposed and len(first) > 1 else 0]
        inputs = first.numel() // outputs + len(rest)  # with 1 for the bias
        self.register_buffer("left", like.new_zeros(outputs, outputs))
        self.register_buffer("right", like.new_zeros(inputs, inputs))
        self.register_buffer("left_values", like.new_zeros(outputs))
        self.register_buffer("right_values", like.new_zeros(inputs))
        self.register_buffer("log_prior", like.new_zeros(()))

    def fill(self, outer: Tensor, inner: Tensor, outer_prior: Tensor, inner_prior: Tensor) -> None:
        """Take the factors B (O, O) and A (I, I) of the curvature, and d_B (O,) and d_A (I,) of the prior precision."""
        sides = (self.left, self.left_values, outer, outer_prior), (self.right, self.right_values, inner, inner_prior)
        for basis, eigenvalues, factor, prior in sides:
            root = prior.rsqrt()
            values, vectors = eigh(root[:, None] * factor * root)
            basis.copy_(root[:, None] * vectors)
            eigenvalues.copy_(values.clamp_min(0))
        largest = self.left_values.max(), self.right_values.max()
        self.left_values.copy_(settled(self.left_values, outer.dtype, largest[1]))
        self.right_values.copy_(settled(self.right_values, inner.dtype, largest[0]))
        logs = (outer_prior.log().sum(), inner_prior.log().sum())
        self.log_prior.copy_(len(inner_prior) * logs[0] + len(outer_prior) * logs[1])

    @property
    def scale(self) -> Tensor:
        """s, the standard deviations in the eigenbasis, (outputs, inputs)."""
        return (1 + self.left_values[:, None] * self.right_values).rsqrt()

    def transform(self, noise: Tensor) -> Tensor:
        scale = self.scale
        return self._flat(self.left @ (noise.view(scale.shape) * scale) @ self.right.T)

    def spread(self) -> Tensor:
        return self._flat((self.left.square() @ self.scale.square() @ self.right.square().T).sqrt())

    def log_det(self) -> Tensor:
        return -2 * self.scale.log().sum() + self.log_prior

    def axes(self, g: Tensor, a: Tensor, *, transposed: bool) -> Axes:
        """Return the matrix in the eigenbasis; derivatives that examples share, sharing their memory, still do."""
        rotated = (g[:, :1] @ self.left).expand(*g.shape) if g.stride(1) == 0 else g @ self.left
        return Axes(rotated, a @ self.right, self.scale)

    def root(self, rows: Tensor) -> Tensor:
        return (self.left.T @ self._matrix(rows) @ self.right * self.scale).flatten(1)

    def _flat(self, matrix: Tensor) -> Tensor:
        """Return the entries of an (outputs, inputs) matrix in the layout of the sites."""
        first, *rest = self.shapes.values()
        weight, *bias = matrix.split([matrix.shape[1] - len(rest), *[1] * len(rest)], 1)
        return torch.cat([from_matrix(weight, first, transposed=self.spec.transposed), *(part[:, 0] for part in bias)])

    def _matrix(self, rows: Tensor) -> Tensor:
        """Return rows over the sites as (outputs, inputs) matrices, (M, outputs, inputs)."""
        parts = zip(rows.split(self.sizes, -1), self.shapes.values(), strict=True)
        return torch.cat([as_matrix(part, shape, transposed=self.spec.transposed) for part, shape in parts], 2)


class FullBlock(Block):
    """Any covariance R R^T of all entries of the sites, or of some: the buffers are R, `factor`, and their `index`."""

    factor: Tensor
    index: Tensor

    def __init__(self, spec: BlockSpec, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__(spec, shapes)
        self.register_buffer("factor", like.new_zeros(self.dimension, self.dimension))
        self.register_buffer("index", torch.arange(self.dimension, device=like.device))

    @property
    def dimension(self) -> int:
        return self.spec.size or sum(self.sizes)

    @property
    def whole_root(self) -> Tensor | None:
        return self.factor if self.spec.size is None else None

    def fill(self, root: Tensor, index: Tensor | None = None) -> None:
        """Take R, an upper triangle, and the entries of the sites that it is about, if not all."""
        if index is not None:
            self.index.copy_(index)
        self.factor.copy_(root)

    def transform(self, noise: Tensor) -> Tensor:
        return noise.new_zeros(sum(self.sizes)).index_add(0, self.index, self.factor @ noise)

    def spread(self) -> Tensor:
        stds = self.factor.square().sum(1).sqrt()
        return stds.new_zeros(sum(self.sizes)).index_copy(0, self.index, stds)

    def log_det(self) -> Tensor:
        return -2 * self.factor.diagonal().log().sum()

    def root(self, rows: Tensor) -> Tensor:
        return rows[:, self.index] @ self.factor


class LowRankBlock(Block):
    """D^(1/2) (1 + V diag(l) V^T) D^(1/2), with D the prior's precision and V (entries, rank) orthonormal."""

    prior_scale: Tensor
    vectors: Tensor
    values: Tensor

    def __init__(self, spec: BlockSpec, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__(spec, shapes)
        rank = spec.size or 1
        self.register_buffer("prior_scale", like.new_ones(self.dimension))
        self.register_buffer("vectors", like.new_zeros(self.dimension, rank))
        self.register_buffer("values", like.new_zeros(rank))

    def fill(self, prior: Tensor, vectors: Tensor, values: Tensor) -> None:
        """Take D (entries,), V and l, all without negative entries."""
        self.prior_scale.copy_(prior.rsqrt())
        self.vectors.copy_(vectors)
        self.values.copy_(settled(values, values.dtype))

    @property
    def _shrinkage(self) -> Tensor:
        return (1 + self.values).rsqrt() - 1

    def transform(self, noise: Tensor) -> Tensor:
        return self.prior_scale * (noise + self.vectors @ (self._shrinkage * (noise @ self.vectors)))

    def spread(self) -> Tensor:
        removed = (self.vectors.square() * (self.values / (1 + self.values))).sum(1)
        return self.prior_scale * (1 - removed).clamp_min(0).sqrt()

    def log_det(self) -> Tensor:
        return self.values.log1p().sum() - 2 * self.prior_scale.log().sum()

    def root(self, rows: Tensor) -> Tensor:
        scaled = rows * self.prior_scale
        return scaled + (scaled @ self.vectors * self._shrinkage) @ self.vectors.T


_CLASSES: dict[str, Any] = {"diag": DiagonalBlock, "kron": KroneckerBlock, "full": FullBlock, "low_rank": LowRankBlock}


def make_block(spec: BlockSpec, shapes: dict[str, torch.Size], like: Tensor) -> Any:
    """Return an empty block of a model with sites of these shapes, in the precision and on the device of a tensor."""
    missing = [name for name in spec.sites if name not in shapes]
    if missing:
        raise InputError(f"{spec!r} covers {missing[0]!r}, which is no latent site of the model.")
    return _CLASSES[spec.kind](spec, {name: shapes[name] for name in spec.sites}, like)
