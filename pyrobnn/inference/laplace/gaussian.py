"""From curvature to a Gaussian: blocks filled with the curvature of likelihood and prior, and the repairs."""

import dataclasses
import math

import torch
from torch import Tensor

from pyrobnn._core.waiting import progress_bar
from pyrobnn._torch.matrices import as_matrix, eigh
from pyrobnn.curvature.base import Curvature, Examples, Point
from pyrobnn.curvature.kinds import KINDS
from pyrobnn.curvature.prior import PriorCurvature
from pyrobnn.guides.blocks import BlockSpec
from pyrobnn.guides.laplace import BlockGuide, Laplace

_PRODUCT_TOLERANCE = 1e-3


@dataclasses.dataclass(eq=False)
class Result:
    """The blocks of a Gaussian, with what `LaplaceRecord` says of repairs.

    Attributes:
        curvature: curvature of the likelihood, the source of the blocks.
        blocks: the spec of each block, and the arguments of its `fill`.
    """

    curvature: Curvature
    blocks: list[tuple[BlockSpec, tuple[Tensor, ...]]] = dataclasses.field(default_factory=list)
    clipped: dict[str, int] = dataclasses.field(default_factory=dict)
    repaired: int = 0
    product_error: dict[str, float] = dataclasses.field(default_factory=dict)

    def fill(self, guide: BlockGuide, *, progress: bool = False) -> None:
        """Give the blocks of a guide their precision."""
        options = {"desc": "Laplace", "unit": "block", "leave": False}
        with torch.no_grad(), progress_bar(total=len(self.blocks), shown=progress, **options) as bar:
            for block, (spec, precision) in zip(guide.gaussian_blocks(), self.blocks, strict=True):
                bar.set_description(f"Laplace, {spec.kind} block of {spec.sites[0]}")
                block.fill(*precision)
                bar.update()


def likelihood_curvature(setting: Laplace, point: Point, prior: PriorCurvature, data: Examples) -> Curvature:
    """Return the curvature that a setting names; the prior decides which part a subnetwork or a low rank keeps.

    Raises:
        InputError: a network that the curvature does not take.
        FloatingPointError: curvature that is not finite.
    """
    kind = KINDS[setting.curvature]
    if setting.structure == "kron":
        curvature = kind.kronecker(point, data, sharing=setting.sharing, joint_bias=setting.joint_bias)
    elif setting.structure == "diag":
        curvature = kind.diagonal(point, data)
    elif setting.structure == "low_rank":
        curvature = kind.low_rank(point, data, point.flat(prior.precision), setting.rank)
    elif setting.subnetwork is None:
        curvature = kind.full(point, data)
    else:  # the weights of largest marginal variance, by the diagonal
        rough = kind.diagonal(point, data).diagonal
        precision = torch.cat([(rough[name] + prior.precision[name]).flatten() for name in point.sites])
        curvature = kind.full(point, data, precision.argsort(stable=True)[: setting.subnetwork].sort().values)
    curvature.require_finite(point.sites)
    return curvature


def assemble(point: Point, prior: PriorCurvature, curvature: Curvature) -> Result:
    """Return the blocks with the curvature of likelihood and prior."""
    result = Result(curvature, clipped={name: count for name, count in prior.clipped.items() if count})
    if curvature.full is not None:
        _add_full(point, prior, curvature.full, result)
    if curvature.low_rank is not None:
        spec = BlockSpec("low_rank", tuple(point.sites), len(curvature.low_rank[1]))
        result.blocks.append((spec, (point.flat(prior.precision), *curvature.low_rank)))
    for factor in curvature.factors:
        spec = BlockSpec("kron", factor.sites, transposed=factor.transposed)
        parts = [(prior.precision[name].flatten(), prior.precision[name].shape) for name in spec.sites]
        matrix = torch.cat([as_matrix(*part, transposed=spec.transposed) for part in parts], 1)  # the bias last
        outer_prior, inner_prior, error = product_of(matrix)
        if error > 1 + _PRODUCT_TOLERANCE:
            result.product_error[factor.sites[0]] = error
        result.blocks.append((spec, (factor.outer, factor.inner, outer_prior, inner_prior)))
    for name, value in curvature.diagonal.items():
        added = prior.precision[name]
        is_bad = ~(value + added > 1e-6 * added)
        result.repaired += int(is_bad.sum())
        result.blocks.append((BlockSpec("diag", (name,)), (torch.where(is_bad, added, value + added).flatten(),)))
    return result


def _add_full(point: Point, prior: PriorCurvature, total: Tensor, result: Result) -> None:
    index = result.curvature.index
    prior_matrix = torch.diag(point.flat(prior.precision))
    places = point.by_site(torch.arange(point.size, device=prior_matrix.device))
    for name, joint in prior.joint.items():
        place = places[name].flatten()
        prior_matrix[place[:, None], place] = joint
    prior_matrix = prior_matrix if index is None else prior_matrix[index][:, index]
    precision = (total + prior_matrix).double()
    if int(torch.linalg.cholesky_ex(precision).info):  # eigenvalues below zero, up to rounding, take the prior's least
        floor = prior_matrix.diagonal().min().double()
        values, vectors = eigh(precision)
        is_bad = values <= 1e-6 * floor
        result.repaired = int(is_bad.sum())
        precision = vectors @ (torch.where(is_bad, floor, values)[:, None] * vectors.T)
    spec = BlockSpec("full", tuple(point.sites), None if index is None else len(index))
    result.blocks.append((spec, (precision,) if index is None else (precision, index)))


def product_of(matrix: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return d_O (O,) and d_I (I,) whose product is closest, in logs, to a positive matrix (O, I), and the error.

    The error is the largest factor between the two.
    """
    logs = matrix.log()
    rows, columns = logs.mean(1), logs.mean(0) - logs.mean()
    error = (logs - rows[:, None] - columns).abs().max()
    return rows.exp(), columns.exp(), math.exp(min(700.0, float(error)))
