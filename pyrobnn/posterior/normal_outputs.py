"""Normal distributions of a network's outputs, and those of the network linearised under Gaussian weights."""

import math
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import X
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import Pulled, Tracker, examples_at_once
from pyrobnn.guides.blocks import Block
from pyrobnn.posterior.roots import (
    covariance,
    has_axes,
    joint_covariance,
    root_parts,
    rows_of_layer,
    symmetric_root,
    use_of,
    variances,
)

Link = Literal["probit", "laplace_bridge", "mc"]
_PROBIT = math.pi / 8
_DRAWS = 1000
_MOST_INPUTS = 256
_ENTRIES = 2**20
"""Numbers of draws that are held at once."""
_NODES = 128
"""Points that stand for the normal distribution of an input's outputs."""
MOST_OUTPUTS = 32
"""Outputs up to which these points are close to independent, so that they can have any covariance."""
_CONSTANT = 1e-6
"""Largest share of variance left to the sum of outputs for the sum to count as known."""


class SharedAxes(NamedTuple):
    """Covariances V diag(v) V^T of several inputs with the same V, as those of a Bayesian last layer.

    Attributes:
        vectors: V, (C, K); None for the identity.
        values: v of each input, (N, K).
    """

    vectors: Tensor | None
    values: Tensor


class FunctionalNormal:
    """f ~ N(mean, covariance): the outputs of the network linearised around the mode, in the units of the model.

    Args:
        mean: outputs at the mode, (N, C).
        covariance: of the outputs of each input, (N, C, C); or of all inputs together, (N, C, N, C); or in axes that
            the inputs share, where the matrices are made when they are asked for.

    Attributes:
        mean: as given.
    """

    def __init__(self, mean: Tensor, covariance: Tensor | SharedAxes) -> None:
        self.mean, self._given = mean, covariance

    @cached_property
    def covariance(self) -> Tensor:
        """The covariance of the outputs of each input, (N, C, C), or of all inputs together, (N, C, N, C)."""
        if isinstance(self._given, Tensor):
            return self._given
        vectors, values = self._given
        return values.diag_embed() if vectors is None else vectors * values[:, None] @ vectors.T

    @property
    def variance(self) -> Tensor:
        """Variances of the outputs, (N, C)."""
        if isinstance(self._given, SharedAxes):
            vectors, values = self._given
            return values if vectors is None else values @ vectors.square().T
        if self.covariance.ndim == 3:
            return self.covariance.diagonal(dim1=1, dim2=2)
        return self.covariance.flatten(0, 1).flatten(1).diagonal().view(self.mean.shape)

    def class_probs(self, link: str = "probit", *, seed: int = 0) -> Tensor:
        """Return the mean of softmax(f), (N, C); for a single output, the mean of sigmoid(f), as (N, 2).

        Args:
            link: "probit" divides each output by sqrt(1 + pi / 8 variance) (MacKay 1992, "The Evidence Framework
                Applied to Classification Networks"; Gibbs 1998), exact to some percent; "laplace_bridge" takes the
                Dirichlet with the normal's mode and curvature in the outputs (MacKay 1998; Hobbhahn et al. 2022), after
                removing the direction in which softmax is constant: good where the normal resembles a Dirichlet, at any
                width; "mc" is the mean over 1000 draws in mirrored pairs.
            seed: seed of the draws.

        Raises:
            InputError: another link, or a single output with the Laplace bridge.
        """
        check_link(link)
        if self.mean.shape[1] == 1:
            return self._two_classes(link, seed)
        if link == "probit":
            return torch.softmax(self.mean / (1 + _PROBIT * self.variance).sqrt(), -1)
        if link == "mc":
            return self._over_draws(lambda f: torch.softmax(f, -1), seed)
        return self._bridge()

    def _two_classes(self, link: str, seed: int) -> Tensor:
        if link == "laplace_bridge":
            raise InputError("The Laplace bridge needs one output per class, got a single output: use link='probit'.")
        if link == "probit":
            positive = torch.sigmoid(self.mean / (1 + _PROBIT * self.variance).sqrt())
        else:
            positive = self._over_draws(torch.sigmoid, seed)
        return torch.cat([1 - positive, positive], 1)

    def _bridge(self) -> Tensor:
        """Return the mean of the Dirichlet of the Laplace bridge (Hobbhahn et al. 2022, eq. 8), (N, C)."""
        classes, rows = self.mean.shape[1], self._row_sums()
        total = rows.sum(1, keepdim=True)
        is_wide = total > _CONSTANT * self.variance.sum(1, keepdim=True)
        share = torch.where(is_wide, rows / torch.where(is_wide, total, 1.0), 1 / classes)
        mean = self.mean - share * self.mean.sum(1, keepdim=True)
        variance = self.variance - share * rows
        exponent = mean + torch.logsumexp(-mean, 1, keepdim=True)
        largest = exponent.max(1, keepdim=True).values
        alpha = ((1 - 2 / classes) * torch.exp(-largest) + torch.exp(exponent - largest) / classes**2) / variance
        return alpha / alpha.sum(1, keepdim=True)

    def sample(self, num_draws: int, *, seed: int) -> Tensor:
        """Return draws of the outputs, (S, N, C); they are joint over inputs if the covariance is."""
        with seeded(seed, "outputs"):
            return self.mean + self._deviations(num_draws)

    def points(self) -> Tensor:
        """Return 128 points of each input with its mean and covariance, (128, N, C), for up to 32 outputs.

        In one dimension they are quantiles of levels (s + 1/2) / 128, stretched by 0.4 % to the exact variance. In
        several, each column of a Sobol sequence has these quantiles, and a triangular matrix removes correlations.
        """
        num = self.mean.shape[1]
        root = self.variance.sqrt()[..., None] if num == 1 else self._root
        return self.mean + (root @ _nodes(num).to(self.mean)).permute(2, 0, 1)

    def _deviations(self, num_draws: int) -> Tensor:
        """Return draws of f - mean by the random numbers of the caller."""
        dtype, device = self.mean.dtype, self.mean.device
        if isinstance(self._given, SharedAxes):
            vectors, values = self._given
            noise = torch.randn(num_draws, *values.shape, dtype=dtype, device=device).mul_(values.sqrt())
            return noise if vectors is None else noise @ vectors.T
        noise = torch.randn(num_draws, *self._root.shape[:2], 1, dtype=dtype, device=device)
        return (self._root @ noise).view(num_draws, *self.mean.shape)

    @cached_property
    def _root(self) -> Tensor:
        """A root of the covariance of each input, (N, C, C), or of all together, (1, N C, N C)."""
        size = self.mean.numel()
        joint = self.covariance.ndim == 4
        return symmetric_root(self.covariance.reshape(1, size, size) if joint else self.covariance)

    def _over_draws(self, link: Callable[[Tensor], Tensor], seed: int) -> Tensor:
        """Return the mean of a function of the outputs over pairs of mirrored draws, few of them at a time, (N, C)."""
        pairs = _DRAWS // 2
        at_once = max(1, min(pairs, _ENTRIES // max(1, self.mean.numel())))
        total = torch.zeros_like(self.mean)
        with seeded(seed, "outputs"):
            for start in range(0, pairs, at_once):
                deviations = self._deviations(min(at_once, pairs - start))
                for f in (self.mean + deviations, self.mean - deviations):
                    total += link(f).sum(0)
        return total / _DRAWS

    def _row_sums(self) -> Tensor:
        """Return the covariance of each output with the sum of an input's outputs, (N, C)."""
        if isinstance(self._given, SharedAxes):
            vectors, values = self._given
            return values if vectors is None else (values * vectors.sum(0)) @ vectors.T
        if self.covariance.ndim == 3:
            return self.covariance.sum(2)
        return self.covariance.diagonal(dim1=0, dim2=2).movedim(-1, 0).sum(2)


@cache
def _nodes(num: int) -> Tensor:
    """Return points of mean 0 and covariance 1 in so many dimensions, (num, 128)."""
    z = torch.special.ndtri(torch.quasirandom.SobolEngine(num).draw(_NODES, dtype=torch.float64) + 0.5 / _NODES)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(z.T @ z / _NODES), z.T, upper=False)


def check_link(link: Any) -> None:
    """Refuse an unknown link."""
    if link not in get_args(Link):
        raise InputError(f"`link` must be one of {', '.join(get_args(Link))}, got {link!r}.")


def linear_outputs(
    bnn: BNN, blocks: list[Block], point: Mapping[str, Tensor], inputs: X, *, joint: bool = False
) -> FunctionalNormal:
    """Return the distribution of the outputs of the network linearised around a point.

    The Jacobian is never held for layers that pass each example once. A linear layer with inputs a and derivatives g
    has the covariance g^T diag(V a^2) g, in the eigenbasis of a Kronecker block or directly for a diagonal block.

    Args:
        bnn: the model.
        blocks: of the Gaussian.
        point: values of all weights by site name.
        inputs: x (N, *in), in the units of the model.
        joint: whether to return the covariance of all inputs together.
    """
    sites = [name for block in blocks for name in block.shapes]
    means, roots = list[Tensor](), list[Tensor]()
    covariances = list[Tensor | SharedAxes]()
    tracker = Tracker(bnn, point, sites, inputs[:1])
    for part in inputs.split(_inputs_at_once(tracker, blocks, joint=joint)):
        pulled = tracker.pull(part)
        means.append(pulled.f)
        if joint:
            roots.append(torch.cat([root for block in blocks for _, root in root_parts(block, pulled)], 2))
        else:
            covariances.append(_covariance(blocks, pulled))
    mean = torch.cat(means)
    if joint:
        whole = joint_covariance([torch.cat(roots, 1).transpose(0, 1)])
        return FunctionalNormal(mean, whole.view(*mean.shape, *mean.shape))
    shared = [part for part in covariances if isinstance(part, SharedAxes)]
    if shared:
        return FunctionalNormal(mean, SharedAxes(shared[0].vectors, torch.cat([values for _, values in shared])))
    return FunctionalNormal(mean, torch.cat([part for part in covariances if isinstance(part, Tensor)]))


def _inputs_at_once(tracker: Tracker, blocks: list[Block], *, joint: bool) -> int:
    """Return how many inputs to take at once: fewer where rows of the Jacobian have to be held."""
    rows = sum(sum(block.sizes) for block in blocks if joint or not has_axes(block, tracker))
    if not joint and rows and rows_of_layer(blocks[0], tracker.pull_alone()) is not None:
        rows = 0
    most = min(_MOST_INPUTS, examples_at_once(tracker.num_outputs * rows)) if rows else _MOST_INPUTS
    return tracker.inputs_at_once(most)


def _covariance(blocks: list[Block], pulled: Pulled) -> Tensor | SharedAxes:
    """Return the covariance of the outputs of each input, (B, C, C), or in shared axes."""
    found = [use_of(block, pulled) for block in blocks] if pulled.is_last_layer else []
    axes = [pair[1] for pair in found if pair is not None]
    if axes and len(axes) == len(blocks):
        values = [variances(part) for part in axes]
        if all(part.g is pulled.gradients[0] for part in axes):
            return SharedAxes(None, torch.stack(values).sum(0))
        return SharedAxes(torch.cat([part.g[:, 0, 0] for part in axes], 1), torch.cat(values, 1))
    return torch.stack([covariance(block, pulled) for block in blocks]).sum(0)
