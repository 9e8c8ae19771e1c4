"""The discretized likelihood for whole-number targets that behave like real ones, such as grades and ages."""

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.data.in_memory import Scaler
from pyrobnn.distributions.rounded import BinnedNormal
from pyrobnn.likelihoods.base import PAGE, registry
from pyrobnn.likelihoods.noise import NoisyLikelihood, NoisyOutputs, Scale


@registry.register
@setting
class Discretized(NoisyLikelihood):
    """y = round(z), z ~ N(f, scale^2), independently for each target column; targets are whole numbers.

    The log score is that of probabilities, P(y - 0.5 < z < y + 0.5), where the density of a Gaussian at whole numbers
    can be made as large as one likes. Predictions are of whole numbers.

    Attributes:
        scale: standard deviation of z in the units of y: a number, a tuple with a number per target column, "tuned",
            "learned", a prior, or "heteroscedastic"; see `pyrobnn.likelihoods.noise.Scale`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood="discretized")
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [5, 6, 8], steps=20, seed=0, progress=False)
        >>> bool(posterior.predict([[1.0]]).log_prob([6]) <= 0)
        True
    """

    scale: Scale = "tuned"

    def target_units(self, standard: Scaler) -> Scaler:
        """Return the map that centres targets on a whole number, so that neighbours are multiples of a width apart."""
        return standard if standard.is_identity else Scaler(standard.loc.round(), standard.scale)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse targets that are not whole numbers, and a network of the wrong width."""
        if y.is_floating_point() and not torch.equal(y, y.round()):
            value = float(y[y != y.round()][0])
            raise InputError(
                f"Discretized needs whole-number targets, got values such as {value:g}: take Gaussian.", page=PAGE
            )
        super().check_targets(y, outputs)

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to rounded normal distributions."""
        return DiscretizedNoise(self.scale, like, target_scale)


class DiscretizedNoise(NoisyOutputs):
    """Whole-number targets with normal noise around the network's outputs before rounding."""

    width: Tensor

    def __init__(self, scale: Scale, like: Tensor, target_scale: Tensor) -> None:
        super().__init__(scale, like, target_scale)
        width = target_scale.double().reciprocal().to(like.device, like.dtype)
        self.register_buffer("width", width, persistent=False)

    def entries(self, loc: Tensor, scale: Tensor) -> TorchDistributionMixin:
        """Return the distribution of rounded numbers, in the units of the model."""
        return BinnedNormal(loc, scale, self.width)
