"""Stand-ins for data in a saved posterior: shapes and kinds, and the network's outputs at random inputs."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from pyrobnn._core.errors import REFUSALS
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import Inputs, X
from pyrobnn.bnn import BNN
from pyrobnn.posterior.posterior import Posterior

OUTPUTS, WIDTH, INPUTS = "example.outputs", "example.f", "example.x"
_NUM_INPUTS = 8
_PRECISION = 0.4
"""Power of the machine's epsilon that outputs may differ by: 2e-3 in single precision, more than machines do."""


def outline(posterior: Posterior) -> dict[str, Tensor]:
    """Return a row of zeros like inputs, targets and outputs, by the names of the saved tensors."""
    x, y = posterior.example
    parts = {f"{INPUTS}.{name}": value for name, value in x.parts.items()} if isinstance(x, Inputs) else {INPUTS: x}
    values = {**parts, "example.y": y, WIDTH: posterior.outputs}
    return {name: torch.zeros_like(value[:1]) for name, value in values.items()}


def saved_inputs(tensors: Mapping[str, Tensor]) -> X | None:
    """Return the row of inputs among saved tensors; None if there is none."""
    parts = {name.removeprefix(f"{INPUTS}."): value for name, value in tensors.items() if name.startswith(f"{INPUTS}.")}
    if parts:
        return Inputs({name: parts[name] for name in sorted(parts, key=lambda name: (len(name), name))})
    return tensors.get(INPUTS)


def probe(bnn: BNN, example: X) -> dict[str, Tensor]:
    """Return outputs with the starting weights, at random inputs, by the name of the saved tensor.

    Nothing is saved for a network that draws random numbers itself, takes whole numbers or several tensors, or refuses
    the inputs. It runs
    on the CPU, where an invalid row number of a table is an error that can be caught; nothing is saved either for a
    network on another device that cannot be copied.

    Args:
        bnn: the model, in evaluation mode.
        example: inputs (B, *in), for their shape.
    """
    if isinstance(example, Inputs) or not example.is_floating_point():
        return {}
    example = torch.zeros_like(example[:1], device="cpu")
    try:
        if bnn.like.device.type != "cpu":
            bnn = copy.deepcopy(bnn).cpu()
        outputs, again = (_outputs(bnn, example, seed) for seed in (0, 1))
    except REFUSALS:
        return {}
    return {OUTPUTS: outputs} if torch.equal(outputs, again) else {}


def agrees(bnn: BNN, example: Tensor, saved: Tensor) -> bool:
    """Return whether a network has the saved outputs, up to rounding; False if it refuses the inputs."""
    try:
        outputs = _outputs(bnn, example, 0).double().cpu()
    except REFUSALS:
        return False
    size = saved.double().nan_to_num(posinf=0, neginf=0).abs().max()
    tolerance = float(torch.finfo(saved.dtype).eps ** _PRECISION * size)
    same_shape = outputs.shape == saved.shape
    return same_shape and torch.allclose(outputs, saved.double(), rtol=0, atol=tolerance, equal_nan=True)


def _outputs(bnn: BNN, example: Tensor, seed: int) -> Tensor:
    """Return outputs at random inputs around an example of zeros; at the example itself, if it is of whole numbers."""
    weights = {name: bnn.net.get_buffer(name) for name in bnn.site_names}
    inputs = example
    if example.is_floating_point():
        noise = torch.randn(_NUM_INPUTS, *example.shape[1:], generator=torch.Generator().manual_seed(0))
        inputs = example + noise.to(example)
    with seeded(seed, "probe"), torch.no_grad():
        return bnn.outputs(weights, inputs)
