"""The Student-t likelihood for real targets with outliers."""

from typing import Annotated, Any, Literal

from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyrobnn._core.settings import setting
from pyrobnn.distributions import targets
from pyrobnn.likelihoods.base import registry
from pyrobnn.likelihoods.noise import NoisyLikelihood, Scale, Spread

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
