"""The interface of a kind of curvature, the structures it can be kept in, and its result."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from pyro import poutine
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.curvature.metric import Likelihood
from pyrobnn.data.batches import Batch


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """The point at which curvature is taken: a model in evaluation mode, and values of all its weights by name.

    `likelihood` maps outputs to the distribution of targets, other latents at their values; `sites` are of interest.
    """

    bnn: BNN
    weights: Mapping[str, Tensor]
    likelihood: Likelihood
    sites: list[str]

    @property
    def shapes(self) -> list[torch.Size]:
        return [self.weights[name].shape for name in self.sites]

    @property
    def size(self) -> int:
        """The number of weights of interest."""
        return sum(shape.numel() for shape in self.shapes)

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return values by site as a flat vector over the sites, (D,)."""
        return torch.cat([values[name].reshape(-1) for name in self.sites])

    def by_site(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector over the sites, by name and in their shapes."""
        parts = flat.split([shape.numel() for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.sites, parts, self.shapes, strict=True)}


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """All examples, in parts of at most `at_once`, each time they are iterated over; `passes` gives the parts."""

    passes: Callable[[], Iterable[Batch]]
    at_once: int = 1024

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.passes():
            yield from zip(*(values.split(self.at_once) for values in batch), strict=True)


@dataclasses.dataclass(eq=False)
class Factors:
    """The Kronecker factors of a layer: the curvature is approximately outer (x) inner."""

    sites: tuple[str, ...]
    transposed: bool
    outer: Tensor  # (O, O), the sum of outer products of derivatives in outputs
    inner: Tensor  # (I, I), the sum of outer products of inputs, the bias's 1, later divided by `count`
    count: float = 0.0  # number of examples, with their weights, times positions


@dataclasses.dataclass(frozen=True, eq=False)
class Curvature:
    """Curvature of the negative log-likelihood of all data in parts: every site belongs to exactly one part."""

    diagonal: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    factors: list[Factors] = dataclasses.field(default_factory=list)
    full: Tensor | None = None  # the whole matrix over all sites in their order, or over the entries at `index`
    index: Tensor | None = None
    low_rank: tuple[Tensor, Tensor] | None = None  # eigenvectors (D, rank) and eigenvalues, whitened by the prior
    slow: list[str] = dataclasses.field(default_factory=list)  # sites of unknown layers, taken example by example
    log_likelihood: float | None = None  # of all data in the units of the model, if computed with the curvature

    def scaled(self, factor: float) -> "Curvature":
        """Return the diagonal, factors and whole matrix of a likelihood to that power."""
        return dataclasses.replace(
            self,
            diagonal={name: factor * value for name, value in self.diagonal.items()},
            factors=[dataclasses.replace(layer, outer=factor * layer.outer) for layer in self.factors],
            full=None if self.full is None else factor * self.full,
        )

    def require_finite(self, sites: list[str]) -> None:
        """Refuse values that are not finite; `sites` are the sites of the whole matrix."""
        parts = [(layer.sites[0], value) for layer in self.factors for value in (layer.outer, layer.inner)]
        parts += [] if self.full is None else [(", ".join(sites), self.full)]
        for name, value in (*self.diagonal.items(), *parts):
            require_finite(value, name)


class Kind(ABC):
    """A kind of curvature of the negative log-likelihood of all data in some weights of a network, at a point.

    Attributes:
        structures: of "kron", "full", "diag" and "low_rank"; methods of the others raise `InputError`.
        noise_power: the curvature grows with this power of the precision of Gaussian noise.
    """

    name: ClassVar[str]
    structures: ClassVar[tuple[str, ...]]
    noise_power: ClassVar[int] = 1

    def lacks(self, structure: str) -> InputError:
        """Return the error that says which structures the kind has instead."""
        possible = " or ".join(map(repr, self.structures))
        return InputError(f"Laplace: curvature={self.name!r} has structure {possible}, got {structure!r}.")

    def check(self, bnn: BNN, weights: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Refuse a network that the kind does not take, with `InputError`; most take all."""

    @abstractmethod
    def diagonal(self, point: Point, data: Examples) -> Curvature:
        """Return the diagonal."""

    def full(self, point: Point, data: Examples, index: Tensor | None = None) -> Curvature:
        """Return the whole matrix over the sites, or over the entries at `index`."""
        raise self.lacks("full")

    def kronecker(self, point: Point, data: Examples, *, sharing: str, joint_bias: bool) -> Curvature:
        """Return factors of the layers that are matrices, and the diagonal of all other sites, as `Laplace` says."""
        raise self.lacks("kron")

    def low_rank(self, point: Point, data: Examples, prior: Tensor, rank: int) -> Curvature:
        """Return the largest eigenvalues and their vectors, whitened by the precision of the prior, (D,)."""
        raise self.lacks("low_rank")


def require_finite(value: Tensor, name: str) -> None:
    """Refuse curvature that is not finite."""
    if not bool(value.isfinite().all()):
        advice = "Look for infinities in the data, or for weights that have run away"
        keeps = "a smaller learning rate or a narrower prior keeps them"
        raise FloatingPointError(f"Laplace: the curvature in {name} is not finite. {advice}: {keeps}.")


def conditioned_likelihood(bnn: BNN, others: Mapping[str, Tensor]) -> Any:
    """Return the likelihood with its latent sites, such as a noise scale under a prior, at given values."""
    latents = {name: value for name, value in others.items() if not name.startswith("prior.")}
    return poutine.condition(bnn.likelihood, data=latents) if latents else bnn.likelihood
