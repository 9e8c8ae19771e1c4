"""Curvature of the negative log-likelihood of all data at a point, as a setting asks for it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.globs import assign
from pyrobnn.bnn import BNN
from pyrobnn.curvature import accumulate
from pyrobnn.curvature.hessian import Batch, diagonal_hessian, full_hessian
from pyrobnn.curvature.layers import Tracker, record
from pyrobnn.curvature.metric import Likelihood, fisher_columns, score_columns
from pyrobnn.curvature.prior import PriorCurvature
from pyrobnn.curvature.recursion import recursive_diagonal
from pyrobnn.curvature.sweep import Pulled, examples_at_once, pull_recorded
from pyrobnn.guides.laplace import Laplace
from pyrobnn.likelihoods.weighted import Weighted

_LARGEST_FULL = 2**35


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """Where curvature is taken.

    Attributes:
        bnn: the model, in evaluation mode.
        weights: values of all its weights by name.
        likelihood: maps outputs to the distribution of targets, other latent sites at their values.
        prior: the curvature of the negative log prior of the weights of interest.
        sites: their names.
    """

    bnn: BNN
    weights: Mapping[str, Tensor]
    likelihood: Likelihood
    prior: PriorCurvature
    sites: list[str]

    @property
    def size(self) -> int:
        """The number of weights of interest."""
        return sum(self.weights[name].numel() for name in self.sites)

    @property
    def is_weighted(self) -> bool:
        """Whether targets carry a weight for each example in their last column."""
        return isinstance(self.bnn.settings["likelihood"], Weighted)


@dataclasses.dataclass(eq=False)
class LikelihoodCurvature:
    """Curvature by parts: every site stands in one of them.

    Attributes:
        diagonal: second derivatives by site, in its shape.
        factors: Kronecker factors of layers.
        full: the whole matrix over all sites in their order, or over `index`.
        index: which entries `full` covers, if not all.
        slow: sites whose layer is not known, and whose derivatives were taken example by example.
        log_likelihood: that of all data in the units of the model, if the curvature brought it about.
    """

    diagonal: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    factors: list[accumulate.Factors] = dataclasses.field(default_factory=list)
    full: Tensor | None = None
    index: Tensor | None = None
    slow: list[str] = dataclasses.field(default_factory=list)
    log_likelihood: float | None = None

    def scaled(self, factor: float) -> "LikelihoodCurvature":
        """Return the curvature of a likelihood to that power."""
        return dataclasses.replace(
            self,
            diagonal={name: factor * value for name, value in self.diagonal.items()},
            factors=[dataclasses.replace(one, outer=factor * one.outer) for one in self.factors],
            full=None if self.full is None else factor * self.full,
        )


Passes = Callable[[], Iterable[Batch]]
"""Gives all examples, in parts, each time it is called."""


def choose_sites(bnn: BNN, weights: Mapping[str, Tensor], example: Tensor, patterns: tuple[str, ...]) -> list[str]:
    """Return the names of the weights that patterns pick, in the order of the model.

    Raises:
        InputError: a pattern picks none, or the last layer is not known.
    """
    names = list(bnn.site_names)
    if patterns == ("last_layer",):
        recording = record(bnn, weights, example, names)
        last = next((use for use in recording.uses if recording.last in use.sites), None)
        if last is None:
            raise InputError(
                "Laplace(sites='last_layer'): the last layer is of an unknown kind: name its sites instead."
            )
        return [name for name in names if name in last.sites]
    covers_all = all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names)
    by_pattern = assign(patterns if covers_all else [*patterns, "*"], names, "Laplace")
    return [name for name in names if any(name in by_pattern[pattern] for pattern in patterns)]


def check_size(setting: Laplace, size: int) -> None:
    """Refuse a rank, a subnetwork or a whole matrix that is too large for that many weights.

    Args:
        setting: curvature and structure.
        size: the number of weights of interest.
    """
    if setting.structure == "low_rank" and setting.rank >= size:
        raise InputError(f"Laplace: a rank of {setting.rank} was asked for of {size} weights: use structure='full'.")
    if setting.subnetwork is not None and setting.subnetwork > size:
        raise InputError(f"Laplace: a subnetwork of {setting.subnetwork} weights was asked for of {size}.")
    dimension = setting.subnetwork or size
    needed = 3 * 8 * dimension**2
    if setting.structure == "full" and needed > _LARGEST_FULL:
        raise InputError(
            f"Laplace(structure='full') over {dimension:,} weights needs {needed / 2**30:,.0f} GiB: use "
            "structure='kron' or 'diag', the last layer alone (sites='last_layer'), or a subnetwork."
        )


def likelihood_curvature(setting: Laplace, point: Point, passes: Passes) -> LikelihoodCurvature:
    """Return the curvature that a setting names, of structure "diag", "kron" or "full".

    Args:
        setting: curvature and structure.
        point: where.
        passes: gives the data.

    Raises:
        InputError: a network that the curvature does not take.
        FloatingPointError: curvature that is not finite.
    """
    if setting.structure == "kron":
        found = LikelihoodCurvature()
        parts = _parts(setting, point, passes, found, 1)
        found.factors, found.diagonal = accumulate.kronecker(parts, setting.sharing, joint_bias=setting.joint_bias)
    elif setting.structure == "diag":
        found = _diagonal(setting, point, passes)
    else:
        found = _full(setting, point, passes)
    for name, value in found.diagonal.items():
        require_finite(value, name)
    for one in found.factors:
        require_finite(one.outer, one.sites[0])
        require_finite(one.inner, one.sites[0])
    if found.full is not None:
        require_finite(found.full, ", ".join(point.sites))
    return found


def _diagonal(setting: Laplace, point: Point, passes: Passes) -> LikelihoodCurvature:
    found = LikelihoodCurvature()
    arguments = (point.bnn, point.weights, point.likelihood, passes(), point.sites)
    if setting.curvature == "hessian":
        found.diagonal = diagonal_hessian(*arguments)
    elif setting.curvature == "recursion":
        found.diagonal = recursive_diagonal(*arguments)
    else:
        found.diagonal = accumulate.diagonal(_parts(setting, point, passes, found, 1), point.sites)
    return found


def _full(setting: Laplace, point: Point, passes: Passes) -> LikelihoodCurvature:
    found = LikelihoodCurvature(index=_subnetwork(setting, point, passes))
    if setting.curvature == "hessian":
        total = full_hessian(point.bnn, point.weights, point.likelihood, passes(), point.sites)
        found.full = total if found.index is None else total[found.index][:, found.index]
    else:
        parts = _parts(setting, point, passes, found, point.size)
        found.full = accumulate.full(parts, point.sites, found.index)
    return found


def _subnetwork(setting: Laplace, point: Point, passes: Passes) -> Tensor | None:
    """Return the places of the weights of the largest marginal variance, by the diagonal; None for all weights."""
    if setting.subnetwork is None:
        return None
    rough = _diagonal(dataclasses.replace(setting, structure="diag", subnetwork=None), point, passes).diagonal
    precision = torch.cat([(rough[name] + point.prior.precision[name]).flatten() for name in point.sites])
    return precision.argsort(stable=True)[: setting.subnetwork].sort().values


def _parts(
    setting: Laplace, point: Point, passes: Passes, found: LikelihoodCurvature, numbers: int
) -> Iterable[Pulled]:
    """Return the data as pulled columns, in parts whose layers fit into memory, with so many numbers more.

    Args:
        setting: curvature and structure.
        point: where.
        passes: gives the data.
        found: gets the log-likelihood, and the sites of unknown layers.
        numbers: how many numbers the structure holds for each example and column.
    """
    tracker, size, log_likelihood = None, 1, 0.0
    for batch in passes():
        if tracker is None:
            tracker = Tracker(point.bnn, point.weights, point.sites, batch[0][:1])
            alone = tracker.alone
            found.slow = alone.others
            columns = len(columns_of(setting, point, alone.f.detach(), batch[1][:1]))
            held = sum(use.inputs.numel() + columns * use.output.numel() for use in alone.uses)
            size = min(setting.batch_size, examples_at_once(max(held, columns * numbers)))
        for x, y in zip(batch[0].split(size), batch[1].split(size), strict=True):
            recording = tracker.run(x)
            f = recording.f.detach()
            log_likelihood += float(point.likelihood(f).log_prob(y).detach().double().sum())
            pulled = pull_recorded(point.bnn, point.weights, x, recording, columns_of(setting, point, f, y))
            yield dataclasses.replace(pulled, weights=y[:, -1]) if point.is_weighted else pulled
    found.log_likelihood = log_likelihood


def columns_of(setting: Laplace, point: Point, f: Tensor, y: Tensor) -> Tensor:
    """Return the columns whose outer products are the curvature in the outputs, (K, B, C), weights included."""
    empirical = setting.curvature == "fisher"
    columns = score_columns(point.likelihood, f, y) if empirical else fisher_columns(point.likelihood, f)
    return columns * y[:, -1:].pow(-0.5 if empirical else 0.5) if point.is_weighted else columns


def require_finite(value: Tensor, name: str) -> None:
    """Refuse curvature that is not finite."""
    if not bool(value.isfinite().all()):
        raise FloatingPointError(
            f"Laplace: the curvature in {name} is not finite. Look for infinities in the data, or for weights that "
            "have run away: a smaller learning rate or a narrower prior keeps them."
        )
