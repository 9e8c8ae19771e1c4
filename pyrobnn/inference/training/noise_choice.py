"""The choice of noise: how the examples of a mini-batch best share the draws of a guide."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import X
from pyrobnn._torch.per_example import Layer, attach
from pyrobnn.bnn import BNN
from pyrobnn.guides.base import Noise
from pyrobnn.guides.given import leaves_noise_open, with_noise_chosen
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import Source


def with_least_noise(guide: Any, bnn: BNN, source: Source, batch_size: int, seed: int) -> Any:
    """Return the guide with the noise that suits layers and batches where it is "auto"."""
    if not leaves_noise_open(guide):
        return guide
    with seeded(seed, "noise"):
        example = source.example(bnn)
        calls = layer_calls(bnn, example[0])
        names = [site.name for site in latent_sites(bnn, *example)]
    sees_all = batch_size >= source.num_data

    def choose(covered: Sequence[str]) -> Noise:
        return choose_noise([call for name in covered for call in calls.get(name, [])], sees_all=sees_all)

    return with_noise_chosen(guide, names, choose)


class Call(NamedTuple):
    """A call of a layer that can give each example separate noise."""

    plain: bool  # whether inputs are rows (B, units), each of which passes the weight once
    again: bool  # whether the weight was used before in the same pass


class _CallNotes:
    """A perturbation that changes nothing and notes the calls of its weight."""

    def __init__(self, value: Tensor, calls: list[Call]) -> None:
        self._value, self._calls = value, calls

    def outputs(self, layer: Layer) -> Tensor:
        """Return the outputs of the layer as it is."""
        result = layer.function(layer.x, self._value, layer.bias)
        self._calls.append(Call(layer.channel == -1 and layer.x.ndim == 2, bool(layer.memory)))
        layer.memory["seen"] = result
        return result


def layer_calls(bnn: BNN, x: X) -> dict[str, list[Call]]:
    """Return the calls of layers that can give each example separate noise, by the name of the weight.

    None where a weight is used in two ways, for which such noise would be refused.
    """
    calls: dict[str, list[Call]] = {name: [] for name in bnn.initial_values}
    weights = {}
    for name, value in bnn.initial_values.items():
        copy = value.detach().clone()
        weights[name] = attach(copy, _CallNotes(copy, calls[name]))
    try:
        with torch.no_grad():
            bnn.perturbed_outputs(weights, x)
    except InputError:
        return {}
    return {name: noted for name, noted in calls.items() if noted}


def choose_noise(calls: list[Call], *, sees_all: bool) -> Noise:
    """Return how the examples of a mini-batch best share the draws of the weights that these calls use.

    "local" wherever it is exact, else "flipout" if each step sees all data, and "shared" in mini-batches, of which the
    choice of examples is most of the variance. See benchmarks/results/least-noise.md.
    """
    if any(call.plain for call in calls) and not any(call.again for call in calls):
        return "local"
    return "flipout" if calls and sees_all else "shared"
