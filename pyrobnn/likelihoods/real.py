"""Likelihoods of real targets around the network's outputs: Gaussian, Laplace, Student-t."""

from typing import Annotated, Any, Literal

import pyro.distributions as dist
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyrobnn._core.settings import setting
from pyrobnn.distributions import targets
from pyrobnn.likelihoods.base import registry
from pyrobnn.likelihoods.noise import NoisyLikelihood, Scale, Spread


@registry.register
@setting
class Gaussian(NoisyLikelihood):
    """y ~ N(f, scale^2), independently for each target column.

    Attributes:
        scale: noise standard deviation in the units of y: a number, a tuple with a number per target column, "tuned",
            "learned", a prior, or "heteroscedastic"; see `pyrobnn.likelihoods.noise.Scale`.

    Examples:
        >>> likelihood = bnn.likelihoods.Gaussian(scale="heteroscedastic")
        >>> model = bnn.BNN(bnn.MLP(1, [10], 2), likelihood=likelihood)  # outputs: location and scale
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.0], [0.5]]).aleatoric_std.shape
        torch.Size([2])
    """

    scale: Scale = "tuned"

    @property
    def is_normal(self) -> bool:
        """Whether the scale is the same for all inputs."""
        return not self.varies_normally

    @property
    def varies_normally(self) -> bool:
        """Whether the scale is an output."""
        return self.noise == "heteroscedastic"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to Normal distributions."""
        return Spread(self.scale, like, target_scale, dist.Normal)


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
        >>> posterior.predict([[0.0]]).quantile(0.5).shape
        torch.Size([1])
    """

    scale: Scale = "tuned"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to Laplace distributions."""
        return Spread(self.scale, like, target_scale, dist.Laplace)


_FIRST_DF = 4.0


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
        """Return the module that maps outputs to Student-t distributions."""
        return StudentTNoise(self.scale, self.df, like, target_scale)


class StudentTNoise(Spread):
    """Real targets with Student-t noise around the network's outputs."""

    def __init__(self, scale: Any, df: float | Literal["learned"], like: Tensor, target_scale: Tensor) -> None:
        super().__init__(scale, like, target_scale)
        if df == "learned":
            self.df = PyroParam(like.new_full(target_scale.shape, _FIRST_DF), constraints.greater_than(2.0))
        else:
            self.register_buffer("df", like.new_full((), df))

    def entries(self, loc: Tensor, number: Tensor, *others: Tensor) -> TorchDistributionMixin:
        """Return Student-t distributions."""
        return targets.StudentT(self.df, loc, number)
