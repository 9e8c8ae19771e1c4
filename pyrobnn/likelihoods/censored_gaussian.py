"""The censored Gaussian (Tobit) likelihood for real targets that a detection limit cuts off."""

from typing import Any, ClassVar

from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.distributions import targets
from pyrobnn.likelihoods.base import registry
from pyrobnn.likelihoods.noise import NoisyLikelihood, Scale, Spread


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
        >>> likelihood = bnn.likelihoods.CensoredGaussian(upper=1.0, scale=0.5)
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=likelihood)
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
        """Return the module that maps outputs to censored normal distributions."""
        return CensoredGaussianNoise(self.scale, (self.lower, self.upper), like, target_scale)


class CensoredGaussianNoise(Spread):
    """Real targets with normal noise around the network's outputs, seen through limits."""

    def __init__(
        self, scale: Any, limits: tuple[float | None, float | None], like: Tensor, target_scale: Tensor
    ) -> None:
        super().__init__(scale, like, target_scale)
        for name, limit in zip(("lower", "upper"), limits, strict=True):
            self.register_buffer(name, None if limit is None else like.new_full((), limit))

    def entries(self, loc: Tensor, number: Tensor, *others: Tensor) -> TorchDistributionMixin:
        """Return censored normal distributions."""
        return targets.CensoredNormal(loc, number, self.lower, self.upper)
