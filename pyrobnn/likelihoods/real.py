"""Likelihoods of real targets: Gaussian, Laplace, Student-t, censored Gaussian, and mixture densities."""

import math
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import softplus

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.distributions import targets
from pyrobnn.likelihoods.base import BaseLikelihood, check_width, num_columns, registry
from pyrobnn.likelihoods.noise import NoisyLikelihood, Scale, Spread

_FIRST_DF = 4.0
_SMALLEST_SCALE = 1e-3


@registry.register
@setting
class Gaussian(NoisyLikelihood):
    """y ~ N(f, scale^2), independently for each target column.

    Attributes:
        scale: noise standard deviation in the units of y: a number, a tuple with a number per target column, "tuned",
            "learned", a prior, or "heteroscedastic"; see `pyrobnn.likelihoods.noise.Scale`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 2), likelihood=bnn.likelihoods.Gaussian(scale="heteroscedastic"))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> noise = posterior.predict([[0.0], [0.5]]).aleatoric_std
    """

    scale: Scale = "tuned"

    @property
    def is_normal(self) -> bool:
        return not self.varies_normally

    @property
    def varies_normally(self) -> bool:
        return self.noise == "heteroscedastic"

    family: ClassVar[Any] = dist.Normal


@registry.register
@setting
class Laplace(NoisyLikelihood):
    """y ~ Laplace(f, scale), independently for each target column; f is the median, as in absolute-error regression.

    Attributes:
        scale: mean absolute deviation of the noise in the units of y, its standard deviation over sqrt(2): a number, a
            tuple with a number per target column, "learned", a prior, or "heteroscedastic"; see
            `pyrobnn.likelihoods.noise.Scale`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.Laplace(scale="learned"))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
    """

    scale: Scale = "tuned"

    family: ClassVar[Any] = dist.Laplace


@registry.register
@setting
class StudentT(NoisyLikelihood):
    """y ~ f + scale t, t Student-t with df degrees of freedom, independently for each target column.

    An outlier pulls at the fit with a force that falls off as 1 / distance (Lange, Little & Taylor 1989,
    "Robust Statistical Modeling Using the t Distribution").

    Attributes:
        scale: scale of the noise in the units of y, its standard deviation over sqrt(df / (df - 2)): a number, a tuple
            with a number per target column, "learned", a prior, or "heteroscedastic"; see
            `pyrobnn.likelihoods.noise.Scale`.
        df: degrees of freedom, or "learned" for a value per target column, optimised with the guide; it starts at 4
            and stays above 2. A number must be above 1, so that targets have a mean. Up to 2, the variance of targets
            and the aleatoric and total variance of predictions are infinite, but log scores and intervals are finite.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.StudentT(scale="learned", df="learned"))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> posterior.bnn.likelihood.df.item() > 2
        True
    """

    scale: Scale = "tuned"
    df: Annotated[float, Field(gt=1)] | Literal["learned"] = _FIRST_DF

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return StudentTNoise(self, like, target_scale)


class StudentTNoise(Spread):
    """Real targets with Student-t noise around the network's outputs."""

    def __init__(self, setting: StudentT, like: Tensor, target_scale: Tensor) -> None:
        super().__init__(setting, like, target_scale)
        if setting.df == "learned":
            self.df = PyroParam(like.new_full(target_scale.shape, _FIRST_DF), constraints.greater_than(2.0))
        else:
            self.register_buffer("df", like.new_full((), setting.df))

    def entries(self, loc: Tensor, number: Tensor, *others: Tensor) -> TorchDistributionMixin:
        return targets.TargetStudentT(self.df, loc, number)


@registry.register
@setting
class CensoredGaussian(NoisyLikelihood):
    """y = min(max(z, lower), upper), z ~ N(f, scale^2), independently for each target column (Tobin 1958).

    A target at or beyond a limit says that z is there or further out, and counts with the probability of this; any
    other target counts with its density. Predictions are of the observed y, limits included.

    Targets are not standardised: a log score adds densities, which have units, and probabilities, which have none. If
    their spread is far from 1, rescale them yourself, and the limits with them.

    Attributes:
        lower: limit below which values are not distinguished (left-censored), or None.
        upper: limit above which values are not distinguished (right-censored), or None.
        scale: noise standard deviation: a number, a tuple with a number per target column, "learned", a prior, or
            "heteroscedastic"; see `pyrobnn.likelihoods.noise.Scale`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.CensoredGaussian(upper=1.0, scale=0.5))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0.2, 0.9, 1.0], steps=20, seed=0, progress=False)
        >>> bool(posterior.predict([[5.0]]).sample(100, seed=0).max() <= 1)
        True
    """

    lower: float | None = None
    upper: float | None = None
    scale: Scale = "tuned"
    is_symmetric: ClassVar[bool] = False
    standardizes_targets: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse limits that are absent or in the wrong order."""
        if self.lower is None and self.upper is None:
            raise InputError("CensoredGaussian needs a limit, `lower` or `upper` or both: without one use Gaussian.")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise InputError(f"CensoredGaussian: `lower` must lie below `upper`, got {self.lower} and {self.upper}.")

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return CensoredGaussianNoise(self, like, target_scale)


class CensoredGaussianNoise(Spread):
    """Real targets with normal noise around the network's outputs, seen through limits."""

    def __init__(self, setting: CensoredGaussian, like: Tensor, target_scale: Tensor) -> None:
        super().__init__(setting, like, target_scale)
        for name, limit in {"lower": setting.lower, "upper": setting.upper}.items():
            self.register_buffer(name, None if limit is None else like.new_full((), limit))

    def entries(self, loc: Tensor, number: Tensor, *others: Tensor) -> TorchDistributionMixin:
        return targets.CensoredNormal(loc, number, self.lower, self.upper)


@registry.register
@setting
class MixtureDensity(BaseLikelihood):
    """p(y | f) = sum_k softmax(a)_k N(y; m_k, s_k^2): a mixture density network (Bishop 1994), column by column.

    The network has 3 C outputs for each target column and C components: logits a, locations and scales. At outputs of
    0 the locations are normal quantiles, and the mixture has mean 0 and variance 1 in the model's units. Scales are
    softplus(output) + 0.001 in these units.

    Attributes:
        components: C, the number of components.
        df: degrees of freedom of Student-t components, above 2; None for normal components.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 6), likelihood=bnn.likelihoods.MixtureDensity(components=2))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
    """

    components: Annotated[int, Field(ge=1, le=100)] = 3
    df: Annotated[float, Field(gt=2)] | None = None
    is_symmetric: ClassVar[bool] = False
    standardizes_targets: ClassVar[bool] = True
    integer_targets: ClassVar[bool] = False

    def num_outputs(self, y: Tensor) -> int:
        return 3 * self.components * num_columns(y)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        check_width(self, y, outputs)

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return Mixtures(self.components, self.df, like, target_scale.ndim)


class Mixtures(PyroModule):
    """Mixtures whose logits, locations and scales are the network's outputs, for each target column in turn."""

    def __init__(self, components: int, df: float | None, like: Tensor, event_dim: int) -> None:
        super().__init__()
        self._components, self._df, self._event_dim = components, df, event_dim
        first = [NormalDist().inv_cdf((number + 0.5) / components) for number in range(components)]
        self.register_buffer("first", torch.tensor(first, dtype=like.dtype, device=like.device), persistent=False)
        variance = 1 - sum(value**2 for value in first) / components
        scale = math.sqrt(variance if df is None else variance * (df - 2) / df)
        self._shift = math.log(math.expm1(scale - _SMALLEST_SCALE))

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map outputs (..., N, 3 C K) to targets of batch shape (..., N)."""
        f = f.unflatten(-1, (-1, 3, self._components))
        f = f if self._event_dim else f[..., 0, :, :]
        logits, shifts, widths = f.unbind(-2)
        loc, scale = self.first + shifts, _SMALLEST_SCALE + softplus(widths + self._shift)
        each = dist.Normal(loc, scale) if self._df is None else targets.TargetStudentT(self._df, loc, scale)
        return dist.MixtureSameFamily(dist.Categorical(logits=logits), each).to_event(self._event_dim)
