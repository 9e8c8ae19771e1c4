"""The Laplace guide: a mode first, then a Gaussian with the curvature of the log joint density as precision."""

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pyro
import pyro.distributions as dist
import torch
from pydantic import BeforeValidator, Field
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import Count, setting
from pyrobnn.guides.base import Model, Part, affine, registry
from pyrobnn.guides.blocks import Block, BlockSpec, make_block
from pyrobnn.guides.joint import GuideWithMoments, JointPart, RealPart
from pyrobnn.guides.map import MapGuide, SeeksMode
from pyrobnn.guides.sites import Site, latent_sites

Curvature = Literal["ggn", "hessian", "fisher", "recursion"]
Structure = Literal["kron", "full", "diag", "low_rank"]


def _as_patterns(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


@registry.register
@setting
class Laplace(SeeksMode):
    """The Laplace approximation: `fit` finds a mode of the log joint density, then puts a Gaussian around it.

    Its precision is the curvature of the negative log joint density over all data (MacKay 1992; Ritter et al. 2018;
    Daxberger et al. 2021). Other sites than weights stay at the mode. See docs/how-to/laplace.md.

    Attributes:
        curvature: "ggn", J^T F J with F the Fisher information of the likelihood in the outputs, never negative;
            "hessian", exact second derivatives; "fisher", the empirical Fisher, the sum of outer products of the
            gradients; "recursion", the diagonal from back-propagation of second derivatives without off-diagonal terms
            (Becker & LeCun 1989; Bishop 1992).
        structure: the part of the curvature to keep: "full"; "kron", for each layer the Kronecker product of two small
            matrices (Martens & Grosse 2015), exact if inputs and derivatives of a layer are independent; "diag";
            "low_rank", the `rank` largest directions relative to the prior. None: "full" for up to 3,000 Gaussian
            weights, but "kron" for labels, for more weights, and if `sharing` or `joint_bias` is changed. If the
            curvature has no such structure, it is "diag". `posterior.record.laplace.setting` names the one taken.
        sites: patterns of the names of the Gaussian weights, "*" for all, "last_layer" for the last layer; other
            weights stay at the mode.
        subnetwork: number of Gaussian weights to keep, with all their correlations: those of the largest variances.
        rank: number of directions of "low_rank".
        sharing: for "kron" of weights used at many positions, "expand" takes positions as examples, "reduce" adds
            derivatives and averages inputs over them first (Eschenhagen et al. 2023).
        joint_bias: whether "kron" takes a layer's bias as a further column of its weight, or as a separate block.
        batch_size: examples taken at once while curvature is added up.
        linearized: predict with the network linearised around the mode, the model behind the "ggn" (Immer et al. 2021),
            or with the network itself.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1), prior=bnn.priors.Normal(1.0))
        >>> guide = bnn.guides.Laplace(structure="full", sites="last_layer")
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide=guide, steps=50, seed=0, progress=False)
        >>> posterior.record.laplace.dimension  # of the last layer
        11
    """

    curvature: Curvature = "ggn"
    structure: Structure | None = None
    sites: Annotated[tuple[str, ...], BeforeValidator(_as_patterns)] = ("*",)
    subnetwork: Count | None = None
    rank: Count = 20
    sharing: Literal["expand", "reduce"] = "expand"
    joint_bias: bool = True
    batch_size: Count = 1024
    linearized: bool = True

    def __post_init__(self) -> None:
        from pyrobnn.curvature.kinds import check_structure

        structure = "full" if self.structure is None and self.subnetwork is not None else self.structure
        if structure is not None:
            check_structure(self.curvature, structure)
        if self.subnetwork is not None and structure != "full":
            said = "Laplace: a subnetwork has all its correlations: it needs structure='full'"
            raise InputError(f"{said}, got {self.structure!r}.")

    def build(self, model: Model, *args: Any) -> PyroModule:
        return MapGuide(latent_sites(model, *args))


@registry.register
@setting
class BlockGaussian:
    """A Gaussian made of independent blocks, around a point: what `fit` makes of `Laplace`.

    Attributes:
        blocks: the spec of each block; other sites stay at the point.
        linearized: predict with the network linearised around the point.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide="laplace", steps=20, seed=0, progress=False)
        >>> [block.sites for block in bnn.guides.resolve(posterior.record.guide).blocks]
        [('0.weight', '0.bias', '2.weight', '2.bias')]
    """

    blocks: Annotated[tuple[BlockSpec, ...], Field(min_length=1)]
    linearized: bool = True

    def __post_init__(self) -> None:
        counts = Counter(name for spec in self.blocks for name in spec.sites)
        for name, count in counts.items():
            if count > 1:
                raise InputError(f"BlockGaussian: {name!r} is in {count} blocks: keep it in one block.")

    def build(self, model: Model, *args: Any) -> PyroModule:
        return BlockGuide(latent_sites(model, *args), self)


class BlockGuide(GuideWithMoments):
    """A point `loc`, and Gaussian `blocks` around it, which are buffers."""

    trainable = False

    def __init__(self, sites: list[Site], setting: BlockGaussian) -> None:
        super().__init__(sites)
        self.linearized = setting.linearized
        shapes = {site.name: site.start.shape for site in sites}
        self.blocks = nn.ModuleList(make_block(spec, shapes, self.loc.detach()) for spec in setting.blocks)
        require_real(sites, [name for block in self.gaussian_blocks() for name in block.shapes])

    def gaussian_blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def gaussian_points(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self._values().items()}

    def _values(self) -> dict[str, Tensor]:
        segments = self._segments(self.loc)
        return {name: point if transform is None else transform(point) for name, transform, point in segments}

    def fixed_sites(self) -> frozenset[str]:
        return frozenset(self.points_by_name()).difference(*(block.shapes for block in self.gaussian_blocks()))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        drawn = {name: part for block in self.gaussian_blocks() for name, part in self._draw(block)}
        return {
            name: pyro.sample(name, drawn.get(name) or dist.Delta(value, event_dim=value.ndim))
            for name, value in self._values().items()
        }

    def _draw(self, block: Block) -> Iterator[tuple[str, Any]]:
        """Return the parts of a draw; the first site has the density of the whole block, the others have none."""
        noise = torch.randn(block.dimension, dtype=self.loc.dtype, device=self.loc.device)
        deviations, spreads = block.split(block.transform(noise)), block.split(block.spread())
        density, entropy, points = block.log_density(noise), block.entropy(), self.points_by_name()
        is_whole = block.dimension == sum(block.sizes)
        for name, deviation in deviations.items():
            value = points[name] + deviation
            whole = functools.partial(RealPart, loc=points[name], scale=spreads[name], entropy=entropy)
            yield name, whole(value, density) if is_whole else JointPart(value, density)
            density, entropy = torch.zeros_like(density), torch.zeros_like(entropy)

    def points_by_name(self) -> dict[str, Tensor]:
        """Return the point of each site by name, on the unconstrained side for constrained sites."""
        return {name: point for name, _, point in self._segments(self.loc)}

    def spread(self) -> Tensor:
        spreads = {name: part for block in self.gaussian_blocks() for name, part in block.split(block.spread()).items()}
        points = self.points_by_name().items()
        return torch.cat([spreads.get(name, torch.zeros_like(point)).reshape(-1) for name, point in points])

    def parts(self) -> list[Part]:
        points = self.points_by_name()
        return [
            affine(list(block.shapes), torch.cat([points[name].reshape(-1) for name in block.shapes]), block.transform)
            for block in self.gaussian_blocks()
            if block.dimension == sum(block.sizes)
        ]

    def log_det(self) -> Tensor:
        """Return the log determinant of the precision of all blocks together, ()."""
        return torch.stack([block.log_det() for block in self.gaussian_blocks()]).sum()


def require_real(sites: list[Site], names: list[str]) -> None:
    """Refuse sites with a constrained support."""
    bounded = {site.name for site in sites if site.transform is not None}
    for name in names:
        if name in bounded:
            raise InputError(
                f"Laplace puts a Gaussian on weights of the whole real line, and the prior of {name!r} has another "
                "support: leave it out of `sites`.",
                page="how-to/laplace",
            )
