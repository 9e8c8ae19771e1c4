"""The matrix-normal guide: for each layer a normal with an output covariance times an input covariance."""

from typing import Any, Literal

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyrobnn._core.settings import setting
from pyrobnn._torch.matrices import inverse_softplus
from pyrobnn.guides.base import Model, Part, StartsNarrow, affine, registry
from pyrobnn.guides.joint import JointGuide, RealPart, check_size, normal_part
from pyrobnn.guides.sites import Site, latent_sites


@registry.register
@setting
class MatrixNormal(StartsNarrow):
    """q(W) = MN(M, A A^T, B B^T) for the weights W of each layer, drawn as M + A E B^T with standard normal E.

    Louizos & Welling 2016, "Structured and Efficient Variational Deep Learning with Matrix Gaussian Posteriors",
    sec. 2.2. W has a row for each output; the kernels of a convolution are flattened into its columns. A and B are
    lower triangular, or diagonal as in the paper. Sites that are not matrices (biases, scales) and sites with a
    constrained support are mean-field.

    Attributes:
        factors: "full" for triangular A (rows^2 parameters) and B (columns^2), "diagonal" for rows + columns.
        init_rho: initial standard deviation of every weight, before softplus; None as for `MeanField`. M starts at the
            network's weights.

    Examples:
        >>> guide = bnn.guides.MatrixNormal(factors="diagonal")
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), guide=guide, steps=20, progress=False)
        >>> posterior.draw(100)["0.weight"].shape
        torch.Size([100, 5, 1])
    """

    factors: Literal["full", "diagonal"] = "full"
    init_rho: float | None = None

    def build(self, model: Model, *args: Any) -> PyroModule:
        sites = latent_sites(model, *args)
        numbers = sum(_num_factors(site, self) + site.start.numel() for site in sites)
        instead = "MatrixNormal(factors='diagonal'), or MeanField()"
        check_size(f"{self!r}", numbers, sites[0].start, instead)
        return MatrixNormalGuide(sites, self)


class MatrixNormalGuide(JointGuide):
    """Independent matrix-normals, with a flat parameter `loc` (D,) and the factors of each site."""

    def __init__(self, sites: list[Site], setting: MatrixNormal) -> None:
        super().__init__(sites)
        full, rhos = setting.factors == "full", self._split(setting.start_rho(sites))
        self.factors = nn.ModuleList(
            Sides(rho, full=full) if _is_matrix(site) else Entrywise(rho) for site, rho in zip(sites, rhos, strict=True)
        )

    def draw(self) -> list[RealPart]:
        noises = self._split(torch.randn_like(self.loc))
        spreads = self._split(self.spread())
        each: Any = zip(self.factors, self._split(self.centre), spreads, noises, strict=True)
        return [
            normal_part(loc + factor(noise), noise, factor.log_volume(), loc=loc, scale=spread)
            for factor, loc, spread, noise in each
        ]

    def spread(self) -> Tensor:
        return torch.cat([factor.spread().reshape(-1) for factor in self.factors])  # type: ignore[operator]

    def parts(self) -> list[Part]:
        triples = zip(self._named(), self._split(self.loc), self.factors, strict=True)
        return [affine([name], loc, factor) for (name, _), loc, factor in triples]


class Entrywise(nn.Module):
    """A standard deviation softplus(rho) for each entry, of any shape."""

    def __init__(self, rho: Tensor) -> None:
        super().__init__()
        self.rho = nn.Parameter(rho.clone())

    def forward(self, noise: Tensor) -> Tensor:
        """Return standard normal noise with this standard deviation."""
        return self.spread() * noise

    def spread(self) -> Tensor:
        return softplus(self.rho)

    def log_volume(self) -> Tensor:
        """Return the logarithm of the determinant of the map from noise, ()."""
        return softplus(self.rho).log().sum()


class Side(Entrywise):
    """A triangular factor of the covariance of rows, diag(softplus(rho)) (I + L), L below the diagonal or left out."""

    def __init__(self, rho: Tensor, *, full: bool) -> None:
        super().__init__(rho)
        self.below = nn.Parameter(rho.new_zeros(len(rho), len(rho))) if full and len(rho) > 1 else None

    def forward(self, noise: Tensor) -> Tensor:
        mixed = noise if self.below is None else noise + self.below.tril(-1) @ noise
        return softplus(self.rho)[:, None] * mixed

    def spread(self) -> Tensor:
        scale = softplus(self.rho)
        return scale if self.below is None else scale * (1 + self.below.tril(-1).square().sum(1)).sqrt()


class Sides(nn.Module):
    """The factors A of rows and B of columns, for values of any shape whose first axis counts the rows."""

    def __init__(self, rho: Tensor, *, full: bool) -> None:
        super().__init__()
        # The deviations of rows and columns whose products are closest to those asked for, on the log scale
        logs = softplus(rho.double()).log().flatten(1)
        sides = (logs.mean(1) - logs.mean() / 2, logs.mean(0) - logs.mean() / 2)
        self.rows, self.columns = (Side(inverse_softplus(side.exp()).to(rho), full=full) for side in sides)

    def forward(self, noise: Tensor) -> Tensor:
        """Return A E B^T for noise E."""
        return self.rows(self.columns(noise.flatten(1).T).T).view(noise.shape)

    def spread(self) -> Tensor:
        return self.rows.spread()[:, None] * self.columns.spread()

    def log_volume(self) -> Tensor:
        num_rows, num_columns = len(self.rows.rho), len(self.columns.rho)
        return num_columns * self.rows.log_volume() + num_rows * self.columns.log_volume()


def _is_matrix(site: Site) -> bool:
    return site.transform is None and site.start.ndim > 1


def _num_factors(site: Site, setting: MatrixNormal) -> int:
    if not _is_matrix(site):
        return site.start.numel()
    lengths = (len(site.start), site.start[0].numel())
    return sum(lengths) + (sum(length**2 for length in lengths) if setting.factors == "full" else 0)
