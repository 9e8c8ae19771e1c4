"""Last layers that limit the outputs of a network, where its likelihood expects values beyond these limits."""

import math

from torch import Tensor, nn

from pyrobnn._core.errors import PoorFitWarning, warn_user
from pyrobnn.bnn import BNN
from pyrobnn.likelihoods.base import as_likelihood

_RANGES: dict[type[nn.Module], tuple[float, float]] = {
    nn.Softmax: (0, 1),
    nn.Softmax2d: (0, 1),
    nn.Sigmoid: (0, 1),
    nn.Hardsigmoid: (0, 1),
    nn.Tanh: (-1, 1),
    nn.Hardtanh: (-1, 1),
    nn.Softsign: (-1, 1),
    nn.LogSigmoid: (-math.inf, 0),
    nn.ReLU: (0, math.inf),
    nn.ReLU6: (0, 6),
    nn.Softplus: (0, math.inf),
}
_UNCHANGING = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten)
_MOST_BEYOND = 0.05
"""Share of the variance of targets that may lie beyond a network's range, as noise does."""


def warn_of_limits(bnn: BNN, y: Tensor) -> None:
    """Warn of a network that ends in a layer with a range which the likelihood's outputs need to leave.

    Logits need to pass 0 and to be wide, logs too; locations need to reach the targets.

    Args:
        bnn: the model; only networks of layers in a sequence are judged.
        y: targets in the units of the model.
    """
    layer = _last_layer(bnn.net)
    least, largest = _RANGES.get(type(layer), (-math.inf, math.inf))
    likelihood = as_likelihood(bnn.settings["likelihood"])
    if likelihood.link is not None:
        num_ends = math.isfinite(least) + math.isfinite(largest)
        is_fault = num_ends > (likelihood.link == "logits")
        need = f"takes them as {likelihood.link}"
    else:
        columns = y.reshape(len(y), -1)
        beyond = (columns - columns.clamp(least, largest)).square().mean(0)
        is_fault = likelihood.noise is not None and bool((beyond > _MOST_BEYOND * columns.var(0, correction=0)).any())
        need = f"has targets from {float(y.min()):.3g} to {float(y.max()):.3g} in the units that the network sees"
    if is_fault:
        warn_user(
            f"The network ends in {type(layer).__name__}, whose outputs lie between {least:g} and {largest:g}, and "
            f"{type(bnn.settings['likelihood']).__name__} {need}: leave that layer out. See "
            "docs/how-to/likelihoods.md.",
            PoorFitWarning,
        )


def _last_layer(net: nn.Module) -> nn.Module:
    """Return the last layer of a sequence that changes its input; another network as it is."""
    while isinstance(net, nn.Sequential):
        layers = [layer for layer in net if not isinstance(layer, _UNCHANGING)]
        if not layers:
            break
        net = layers[-1]
    return net
