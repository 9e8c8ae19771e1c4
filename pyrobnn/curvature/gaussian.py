"""From curvature to a Gaussian: blocks filled with that of the likelihood and of the prior, and what was repaired."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.func import jvp, vjp

from pyrobnn._torch.forward_mode import load_forward_mode
from pyrobnn._torch.symmetric import eigh
from pyrobnn.curvature.likelihood import (
    LikelihoodCurvature,
    Passes,
    Point,
    columns_of,
    likelihood_curvature,
    require_finite,
)
from pyrobnn.guides.blocks import BlockSpec, matrix_shape
from pyrobnn.guides.laplace import Laplace

_PRODUCT_TOLERANCE = 1e-3


@dataclasses.dataclass(eq=False)
class Result:
    """The blocks of a Gaussian.

    Attributes:
        specs: what each block covers.
        fills: the arguments of each block's `fill`.
        index: which entries a "full" block covers, if not all.
        repaired: number of eigenvalues or entries of the precision that were not positive and were replaced.
        product_error: by site, the largest factor by which the prior's precision differs from the product that a
            Kronecker block takes it for.
        slow: sites whose layer is not known, and whose derivatives were taken example by example.
        log_likelihood: that of all data in the units of the model, if the curvature brought it about.
    """

    specs: list[BlockSpec]
    fills: list[tuple[Tensor, ...]]
    index: Tensor | None = None
    repaired: int = 0
    product_error: dict[str, float] = dataclasses.field(default_factory=dict)
    slow: list[str] = dataclasses.field(default_factory=list)
    log_likelihood: float | None = None


def gaussian(setting: Laplace, point: Point, passes: Passes) -> Result:
    """Return the blocks of the Gaussian with the curvature that a setting names.

    Args:
        setting: curvature and structure.
        point: where.
        passes: gives the data.

    Raises:
        InputError: a network that the curvature does not take.
        FloatingPointError: curvature that is not finite.
    """
    if setting.structure == "low_rank":
        return _low_rank(setting, point, passes)
    return assemble(point, likelihood_curvature(setting, point, passes))


def assemble(point: Point, curvature: LikelihoodCurvature) -> Result:
    """Return the blocks with the curvature of the likelihood and that of the point's prior."""
    result = Result([], [], curvature.index, slow=curvature.slow, log_likelihood=curvature.log_likelihood)
    if curvature.full is not None:
        _add_full(point, curvature.full, result)
    for one in curvature.factors:
        spec = BlockSpec("kron", one.sites, transposed=one.transposed and point.weights[one.sites[0]].ndim > 1)
        outer_prior, inner_prior, error = product_of(_prior_matrix(point, spec))
        if error > 1 + _PRODUCT_TOLERANCE:
            result.product_error[one.sites[0]] = error
        result.specs.append(spec)
        result.fills.append((one.outer, one.inner, outer_prior, inner_prior))
    for name, value in curvature.diagonal.items():
        prior = point.prior.precision[name]
        result.specs.append(BlockSpec("diag", (name,)))
        result.fills.append((_positive(value + prior, prior, result).flatten(),))
    return result


def _add_full(point: Point, total: Tensor, result: Result) -> None:
    index = result.index
    diagonal = torch.cat([point.prior.precision[name].flatten() for name in point.sites])
    prior = _with_joint(point, torch.diag(diagonal)) if point.prior.joint else torch.diag(diagonal)
    prior = prior if index is None else prior[index][:, index]
    result.specs.append(BlockSpec("full", tuple(point.sites), None if index is None else len(index)))
    precision = (total + prior).double()
    result.fills.append((_positive_definite(precision, prior.diagonal().min().double(), result),))


def _positive(precision: Tensor, prior: Tensor, result: Result) -> Tensor:
    """Return the precision with the prior's in the place of entries that are not positive."""
    is_bad = ~(precision > 1e-6 * prior)
    result.repaired += int(is_bad.sum())
    return torch.where(is_bad, prior, precision)


def _with_joint(point: Point, prior: Tensor) -> Tensor:
    start = 0
    for name in point.sites:
        end = start + point.weights[name].numel()
        if name in point.prior.joint:
            prior[start:end, start:end] = point.prior.joint[name]
        start = end
    return prior


def _positive_definite(matrix: Tensor, floor: Tensor, result: Result) -> Tensor:
    """Return the matrix with eigenvalues below zero, up to rounding, replaced by a floor."""
    if int(torch.linalg.cholesky_ex(matrix).info) == 0:
        return matrix
    values, vectors = eigh(matrix)
    is_bad = values <= 1e-6 * floor
    result.repaired = int(is_bad.sum())
    return vectors @ (torch.where(is_bad, floor, values)[:, None] * vectors.T)


def _prior_matrix(point: Point, spec: BlockSpec) -> Tensor:
    """Return the prior precision of a Kronecker block's sites as an (outputs, inputs) matrix, the bias last."""
    parts = [point.prior.precision[name] for name in spec.sites]
    outputs, inputs = matrix_shape(spec, {name: part.shape for name, part in zip(spec.sites, parts, strict=True)})
    first = parts[0].flatten(1) if parts[0].ndim > 1 else parts[0][:, None]
    first = first.T if spec.transposed else first
    return torch.cat([first, *(part[:, None] for part in parts[1:])], 1).reshape(outputs, inputs)


def product_of(matrix: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the closest product of a positive matrix, and the largest factor between the two.

    Args:
        matrix: (O, I).

    Returns:
        d_O (O,) and d_I (I,) with log d_O + log d_I closest to log matrix in squares, and exp of the largest distance.
    """
    logs = matrix.log()
    rows, columns = logs.mean(1), logs.mean(0) - logs.mean()
    error = (logs - rows[:, None] - columns).abs().max()
    return rows.exp(), columns.exp(), math.exp(min(700.0, float(error)))


def _low_rank(setting: Laplace, point: Point, passes: Passes) -> Result:
    """Return the largest eigenvectors of the curvature whitened by the prior, by Lanczos' method."""
    load_forward_mode()
    size = point.size
    prior = torch.cat([point.prior.precision[name].flatten() for name in point.sites])
    root = prior.rsqrt()

    def product(vector: Any) -> Any:
        v = torch.from_numpy(np.ascontiguousarray(vector)).reshape(-1).to(root) * root
        found = _curvature_times(setting, point, passes, v)
        require_finite(found, ", ".join(point.sites))
        return (root * found).double().cpu().numpy()

    start = np.random.default_rng(0).standard_normal(size)
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    values, vectors = eigsh(operator, k=setting.rank, which="LA", v0=start)
    order = np.argsort(-values)
    fill = [torch.from_numpy(np.ascontiguousarray(part)).to(prior) for part in (vectors[:, order], values[order])]
    spec = BlockSpec("low_rank", tuple(point.sites), setting.rank)
    return Result([spec], [(prior, fill[0], fill[1].clamp_min(0))])


def _curvature_times(setting: Laplace, point: Point, passes: Passes, vector: Tensor) -> Tensor:
    """Return J^T F J v for a vector over the sites, with two passes through the network for each part of the data."""
    names, shapes = point.sites, [point.weights[name].shape for name in point.sites]
    primal = tuple(point.weights[name].detach() for name in names)
    tangent = tuple(
        part.view(shape) for part, shape in zip(vector.split([s.numel() for s in shapes]), shapes, strict=True)
    )
    total = torch.zeros_like(vector)
    for x, y in passes():

        def outputs(*values: Tensor, x: Tensor = x) -> Tensor:
            return point.bnn.outputs({**point.weights, **dict(zip(names, values, strict=True))}, x)

        f, change, *_ = jvp(outputs, primal, tangent)
        columns = columns_of(setting, point, f, y)
        pushed = (columns * (columns * change).sum(-1, keepdim=True)).sum(0)
        total += torch.cat([part.reshape(-1) for part in vjp(outputs, *primal)[1](pushed)])
    return total
