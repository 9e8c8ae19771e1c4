"""The distribution of a network's outputs under a Gaussian of curvature, in closed form, by linearising it."""

import dataclasses
import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import gradients, under
from pyrobnn._core.random import seeded
from pyrobnn.curvature.tracker import Pulled, Tracker, examples_at_once
from pyrobnn.curvature.uses import Use
from pyrobnn.guides.blocks import Block
from pyrobnn.guides.built import built
from pyrobnn.posterior.mixture import require_single
from pyrobnn.posterior.posterior import Posterior

Link = Literal["probit", "laplace_bridge", "mc"]
_PROBIT = math.pi / 8
_DRAWS = 1000
_MOST_INPUTS = 256
_CONSTANT = 1e-6
"""Largest share of variance left to the sum of outputs for the sum to count as known."""


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionalNormal:
    """f ~ N(mean, covariance): the outputs of the network linearised around the mode, in the units of the model.

    Attributes:
        mean: outputs at the mode, (N, C).
        covariance: of the outputs of each input, (N, C, C); or of all inputs together, (N, C, N, C).
    """

    mean: Tensor
    covariance: Tensor

    @property
    def variance(self) -> Tensor:
        """Variances of the outputs, (N, C)."""
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
                width; "mc" is the mean over 1000 draws.
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
            return torch.softmax(self.sample(_DRAWS, seed=seed), -1).mean(0)
        return self._bridge()

    def _two_classes(self, link: str, seed: int) -> Tensor:
        if link == "laplace_bridge":
            raise InputError("The Laplace bridge needs one output per class, got a single output: use link='probit'.")
        if link == "probit":
            positive = torch.sigmoid(self.mean / (1 + _PROBIT * self.variance).sqrt())
        else:
            positive = torch.sigmoid(self.sample(_DRAWS, seed=seed)).mean(0)
        return torch.cat([1 - positive, positive], 1)

    def _bridge(self) -> Tensor:
        """Return the mean of the Dirichlet of the Laplace bridge (Hobbhahn et al. 2022, eq. 8), (N, C)."""
        covariance = self._own_covariance()
        classes = self.mean.shape[1]
        rows = covariance.sum(2)
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
        joint = self.covariance.ndim == 4
        size = self.mean.numel()
        covariance = self.covariance.reshape(1, size, size) if joint else self.covariance
        mean = self.mean.reshape(1, size) if joint else self.mean
        values, vectors = torch.linalg.eigh(covariance.double())
        root = (vectors * values.clamp_min(0).sqrt()[:, None, :]).to(mean)
        with seeded(seed, "outputs"):
            noise = torch.randn(num_draws, *mean.shape, dtype=mean.dtype, device=mean.device)
        return (mean + (root @ noise[..., None])[..., 0]).view(num_draws, *self.mean.shape)

    def _own_covariance(self) -> Tensor:
        if self.covariance.ndim == 3:
            return self.covariance
        return self.covariance.diagonal(dim1=0, dim2=2).movedim(-1, 0)


def check_link(link: Any) -> None:
    """Refuse an unknown link."""
    if link not in get_args(Link):
        raise InputError(f"`link` must be one of {', '.join(get_args(Link))}, got {link!r}.")


@under(gradients)
def functional(posterior: Posterior, x: Any, *, joint: bool = False) -> FunctionalNormal:
    """Return the distribution of the outputs under the network linearised around the mode.

    The Jacobian is never held for layers that pass each example once. A linear layer with inputs a and derivatives g
    has the covariance g^T diag(V a^2) g, in the eigenbasis of a Kronecker block or directly for a diagonal block.

    Args:
        posterior: of a `Laplace` guide.
        x: inputs (N, *in) in original units.
        joint: whether to return the covariance of all inputs together.

    Raises:
        InputError: a mixture, a posterior of another guide, or inputs that are not the training inputs.

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
        raise InputError(
            "The distribution of the outputs has a closed form for Laplace guides alone, this is "
            f"{type(guide).__name__}: use predict(x, linearized=True)."
        )
    inputs = posterior.inputs(x)
    values = guide.mean()
    weights = {name: values[name] for name in posterior.bnn.site_names}
    sites = [name for block in blocks for name in block.shapes]
    means, covariances, roots = [], [], []
    with seeded(posterior.seed, "functional"):
        tracker = Tracker(posterior.bnn, weights, sites, inputs[:1])
        most = _examples_at_once(blocks, tracker.pull_alone(), joint=joint)
        for part in inputs.split(tracker.inputs_at_once(most)):
            pulled = tracker.pull(part)
            means.append(pulled.f)
            if joint:
                roots.append(torch.cat([_root(block, pulled) for block in blocks], 2).transpose(0, 1))
            else:
                covariances.append(torch.stack([_covariance(block, pulled) for block in blocks]).sum(0))
    mean = torch.cat(means)
    if not joint:
        return FunctionalNormal(mean, torch.cat(covariances))
    root = torch.cat(roots).flatten(0, 1)
    return FunctionalNormal(mean, (root @ root.T).view(*mean.shape, *mean.shape))


def _examples_at_once(blocks: list[Block], pulled: Pulled, *, joint: bool) -> int:
    """Return how many inputs to take at once: fewer where rows of the Jacobian have to be held."""
    rows = sum(sum(block.sizes) for block in blocks if joint or _needs_rows(block, pulled))
    return min(_MOST_INPUTS, examples_at_once(pulled.f.shape[1] * rows)) if rows else _MOST_INPUTS


def _needs_rows(block: Block, pulled: Pulled) -> bool:
    return _layer_of(block, pulled) is None and _whole_layer_of(block, pulled) is None


def _root(block: Block, pulled: Pulled) -> Tensor:
    """Return rows R with R R^T the part of the covariance that a block makes, (C, B, R)."""
    rows = pulled.rows(block.shapes)
    return block.root(rows.flatten(0, 1)).view(*rows.shape[:2], -1)


def _covariance(block: Any, pulled: Pulled) -> Tensor:
    """Return the part of the covariance of the outputs that a block makes, (B, C, C)."""
    whole = _whole_layer_of(block, pulled)
    if whole is not None:
        return _covariance_of_layer(block, *whole)
    layer = _layer_of(block, pulled)
    if layer is None:
        root = _root(block, pulled)
        return torch.einsum("cbr,dbr->bcd", root, root)
    g, a, use = layer
    if block.spec.kind == "kron":
        g, a, variance = g @ block.left, a @ block.right, block.scale.square()
    else:
        shape = (a.shape[1], g.shape[2]) if use.transposed else (g.shape[2], a.shape[1])
        variance = block.spread().square().view(shape)
        variance = variance.T if use.transposed else variance
    along = a.square() @ variance.T
    return torch.einsum("cbo,dbo->bcd", g * along, g)


def _layer_of(block: Block, pulled: Pulled) -> tuple[Tensor, Tensor, Use] | None:
    """Return derivatives (C, B, O), inputs (B, I) and the use of the linear layer that a block describes.

    None if the block is of another kind, or if an example passes the layer several times.
    """
    if block.spec.kind not in ("diag", "kron"):
        return None
    names = set(block.shapes)
    for use, g in zip(pulled.uses, pulled.gradients, strict=True):
        if names <= set(use.sites) and use.kind == "matrix" and g.shape[2] == 1:
            return g[:, :, 0], use.inputs_of(names, use.inputs[:, 0]), use
    return None


def _whole_layer_of(block: Block, pulled: Pulled) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return `Pulled.only_matrix` of a block with all correlations of one linear layer, None for other blocks."""
    is_whole = block.spec.kind == "full" and block.spec.size is None
    return pulled.only_matrix(list(block.shapes)) if is_whole else None


def _covariance_of_layer(block: Any, g: Tensor, a: Tensor, order: Tensor) -> Tensor:
    """Return the covariance of a layer with all correlations: inputs times the root first, then derivatives."""
    root = torch.empty_like(block.factor)
    root[order] = block.factor
    by_output = (a @ root.view(g.shape[2], a.shape[1], -1)).transpose(0, 1)
    rows = g.transpose(0, 1) @ by_output
    return rows @ rows.transpose(1, 2)
