"""The normal distribution of the outputs of a network linearised around the mode of a Gaussian, and its covariance."""

import math
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import gradients
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import X
from pyrobnn.curvature.tracker import Pulled, Tracker, examples_at_once
from pyrobnn.guides.base import built
from pyrobnn.guides.blocks import Axes, Block
from pyrobnn.posterior.mixture import require_single
from pyrobnn.posterior.output_draws import has_axes, joint_covariance, passes_once, root_parts, symmetric_root, use_of
from pyrobnn.posterior.posterior import Posterior

Link = Literal["probit", "laplace_bridge", "mc"]
_PROBIT = math.pi / 8
_LINK_DRAWS = 1000
_ENTRIES_AT_ONCE = 2**20
_MOST_INPUTS = 256
_CONSTANT = 1e-6
"""Largest share of variance left to the sum of outputs for the sum to count as known."""


class SharedAxes(NamedTuple):
    """Covariances V diag(v) V^T of several inputs with the same V, as those of a Bayesian last layer."""

    vectors: Tensor | None  # V, (C, K); None for the identity
    values: Tensor  # v of each input, (N, K)


class FunctionalNormal:
    """f ~ N(mean, covariance): the outputs of the network linearised around the mode, in the units of the model.

    Args:
        mean: outputs at the mode, (N, C).
        covariance: of the outputs of each input, (N, C, C); or of all inputs together, (N, C, N, C); or in axes that
            the inputs share.
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
            link: "probit" divides each output by sqrt(1 + pi / 8 variance) (MacKay 1992), exact to some percent;
                "laplace_bridge" takes the Dirichlet with the normal's mode and curvature in the outputs (MacKay 1998;
                Hobbhahn et al. 2022); "mc" is the mean over 1000 draws in mirrored pairs.
            seed: seed of the draws.

        Raises:
            InputError: another link, or a single output with the Laplace bridge.
        """
        if link not in get_args(Link):
            raise InputError(f"`link` must be one of {', '.join(get_args(Link))}, got {link!r}.")
        is_single = self.mean.shape[1] == 1
        if link == "laplace_bridge":
            if is_single:
                raise InputError("The Laplace bridge needs one output per class, got one output: use link='probit'.")
            return self._bridge()
        if link == "probit":
            scaled = self.mean / (1 + _PROBIT * self.variance).sqrt()
            probs = torch.sigmoid(scaled) if is_single else torch.softmax(scaled, -1)
        else:
            probs, pairs = torch.zeros_like(self.mean), _LINK_DRAWS // 2
            at_once = max(1, min(pairs, _ENTRIES_AT_ONCE // max(1, self.mean.numel())))
            with seeded(seed, "outputs"):
                for start in range(0, pairs, at_once):
                    deviations = self._deviations(min(at_once, pairs - start))
                    for f in (self.mean + deviations, self.mean - deviations):
                        probs += (torch.sigmoid(f) if is_single else torch.softmax(f, -1)).sum(0)
            probs = probs / _LINK_DRAWS
        return torch.cat([1 - probs, probs], 1) if is_single else probs

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

    def _deviations(self, num_draws: int) -> Tensor:
        """Return draws of f - mean by the random numbers of the caller."""
        like: dict[str, Any] = {"dtype": self.mean.dtype, "device": self.mean.device}
        if isinstance(self._given, SharedAxes):
            vectors, values = self._given
            noise = torch.randn(num_draws, *values.shape, **like).mul_(values.sqrt())
            return noise if vectors is None else noise @ vectors.T
        return (self._root @ torch.randn(num_draws, *self._root.shape[:2], 1, **like)).view(-1, *self.mean.shape)

    @cached_property
    def _root(self) -> Tensor:
        """A root of the covariance of each input, (N, C, C), or of all together, (1, N C, N C)."""
        size, covariance = self.mean.numel(), self.covariance
        return symmetric_root(covariance.reshape(1, size, size) if covariance.ndim == 4 else covariance)

    def _row_sums(self) -> Tensor:
        """Return the covariance of each output with the sum of an input's outputs, (N, C)."""
        if isinstance(self._given, SharedAxes):
            vectors, values = self._given
            return values if vectors is None else (values * vectors.sum(0)) @ vectors.T
        if self.covariance.ndim == 3:
            return self.covariance.sum(2)
        return self.covariance.diagonal(dim1=0, dim2=2).movedim(-1, 0).sum(2)


@gradients()
def functional(posterior: Posterior, x: Any, *, joint: bool = False) -> FunctionalNormal:
    """Return the distribution of the outputs under the network linearised around the mode, in closed form.

    Args:
        posterior: of a `Laplace` guide.
        x: inputs (N, *in) in original units.
        joint: whether to return the covariance of all inputs together.

    Raises:
        InputError: a mixture, a posterior of another guide, or inputs without the columns of training.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide="laplace", steps=20, seed=0, progress=False)
        >>> outputs = bnn.functional(posterior, [[0.0], [0.25], [1.0]], joint=True)
        >>> outputs.mean.shape, outputs.covariance.shape
        (torch.Size([3, 1]), torch.Size([3, 1, 3, 1]))
    """
    require_single(posterior, "functional")
    guide = posterior.guide
    blocks = built(guide).gaussian_blocks()
    if not blocks:
        text = f"has a closed form for Laplace guides alone, this is {type(guide).__name__}"
        raise InputError(f"The distribution of the outputs {text}: use predict(x, linearized=True).")
    inputs = posterior.inputs(x)
    values = guide.mean()
    weights = {name: values[name] for name in posterior.bnn.site_names}
    with seeded(posterior.seed, "functional"):
        means, roots, covariances = list[Tensor](), list[Tensor](), list[Tensor | SharedAxes]()
        tracker = Tracker(posterior.bnn, weights, [name for block in blocks for name in block.shapes], inputs[:1])
        for part in inputs.split(_inputs_at_once(tracker, blocks, inputs[:1], joint=joint)):
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


def _inputs_at_once(tracker: Tracker, blocks: list[Block], example: X, *, joint: bool) -> int:
    """Return how many inputs to take at once: fewer where rows of the Jacobian have to be held."""
    rows = sum(sum(block.sizes) for block in blocks if joint or not has_axes(block, tracker))
    if not joint and rows and _rows_of_layer(blocks[0], tracker.pull(example)) is not None:
        rows = 0
    most = min(_MOST_INPUTS, examples_at_once(tracker.look.num_outputs * rows)) if rows else _MOST_INPUTS
    return tracker.inputs_at_once(most)


def _covariance(blocks: list[Block], pulled: Pulled) -> Tensor | SharedAxes:
    """Return the covariance of the outputs of each input, (B, C, C), or in shared axes.

    The Jacobian is never held for layers that pass each example once. A linear layer with inputs a and derivatives g
    has the covariance g^T diag(V a^2) g, in the eigenbasis of a Kronecker block or directly for a diagonal block.
    """
    found = [use_of(block, pulled) for block in blocks] if pulled.is_last_layer else []
    axes = [pair[1] for pair in found if pair is not None]
    if axes and len(axes) == len(blocks):
        values = [_variances(part) for part in axes]
        if all(part.g is pulled.gradients[0] for part in axes):
            return SharedAxes(None, torch.stack(values).sum(0))
        return SharedAxes(torch.cat([part.g[:, 0, 0] for part in axes], 1), torch.cat(values, 1))
    return torch.stack([_covariance_of(block, pulled) for block in blocks]).sum(0)


def _covariance_of(block: Block, pulled: Pulled) -> Tensor:
    """Return the part of the covariance that a block makes."""
    rows = _rows_of_layer(block, pulled)
    if rows is not None:
        return rows @ rows.mT
    found = use_of(block, pulled)
    if found is not None and passes_once(found[1]):
        g = found[1].g[:, :, 0]
        return torch.einsum("cbo,dbo->bcd", g * _variances(found[1]), g)
    total = pulled.f.new_zeros(len(pulled.f), *(pulled.f.shape[1],) * 2)
    for _, root in root_parts(block, pulled):
        total += root.transpose(0, 1) @ root.permute(1, 2, 0)
    return total


def _variances(axes: Axes) -> Tensor:
    """Return the variance of each output of a layer that each example passes once, in its axes, (B, O)."""
    return axes.a[:, 0].square() @ axes.scale.square().T


def _rows_of_layer(block: Block, pulled: Pulled) -> Tensor | None:
    """Return roots (B, C, D) for a block with all correlations of one linear layer, None for other blocks.

    Inputs are multiplied with the root first, and derivatives then.
    """
    whole = block.whole_root
    layer = None if whole is None else pulled.only_matrix(list(block.shapes))
    if whole is None or layer is None:
        return None
    g, a, order = layer
    root = torch.empty_like(whole)
    root[order] = whole
    by_output = (a @ root.view(g.shape[2], a.shape[1], -1)).transpose(0, 1)
    return g.transpose(0, 1) @ by_output
