"""Whether a network passed to `load_posterior` computes what the saved one did, at a few inputs."""

import torch
from torch import Tensor

from pyrobnn._core.random import seeded
from pyrobnn.bnn import BNN

OUTPUTS = "example.outputs"
_NUM_INPUTS = 8
_PRECISION = 0.4
"""Power of the machine's epsilon that outputs may differ by: 2e-3 in single precision, more than machines do."""


def probe(bnn: BNN, example: Tensor) -> dict[str, Tensor]:
    """Return outputs with the starting weights by the name under which they are saved.

    A network that draws random numbers itself has none to save.

    Args:
        bnn: the model, in evaluation mode.
        example: a row of inputs (1, *in); if they are real numbers, rows around it are taken.
    """
    outputs, again = (_outputs(bnn, example, seed) for seed in (0, 1))
    return {OUTPUTS: outputs} if torch.equal(outputs, again) else {}


def agrees(bnn: BNN, example: Tensor, saved: Tensor) -> bool:
    """Whether a network has the saved outputs, to what machines differ by."""
    outputs = _outputs(bnn, example, 0).double().cpu()
    size = saved.double().nan_to_num(posinf=0, neginf=0).abs().max()
    tolerance = float(torch.finfo(saved.dtype).eps ** _PRECISION * size)
    same_shape = outputs.shape == saved.shape
    return same_shape and torch.allclose(outputs, saved.double(), rtol=0, atol=tolerance, equal_nan=True)


def _outputs(bnn: BNN, example: Tensor, seed: int) -> Tensor:
    weights = {name: bnn.net.get_buffer(name) for name in bnn.site_names}
    inputs = example
    if example.is_floating_point():
        noise = torch.randn(_NUM_INPUTS, *example.shape[1:], generator=torch.Generator().manual_seed(0))
        inputs = example + noise.to(example)
    with seeded(seed, "probe"), torch.no_grad():
        return bnn.outputs(weights, inputs)
