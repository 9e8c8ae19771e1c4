"""Running one function for many draws, in chunks whose memory is bounded."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

_BUDGET = 2**26
"""Floats that one chunk of activations may hold: 256 MiB in float32."""


def widest_activation(net: nn.Module, call: Callable[[], object]) -> int:
    """Return the largest number of values that any layer outputs while `call` runs the network."""
    sizes = [1]

    def record(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    handles = [module.register_forward_hook(record) for module in net.modules()]
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return max(sizes)


def draws_at_once(num_weights: int) -> int:
    """Return how many draws of a network of that many weights to hold at the same time."""
    return max(1, _BUDGET // max(1, num_weights))


def map_draws(
    function: Callable[[dict[str, Tensor], Tensor], Tensor], draws: Mapping[str, Tensor], x: Tensor, per_pair: int
) -> Tensor:
    """Return function(draw, x) for every draw through `torch.func.vmap`, in chunks of bounded memory.

    A function that vmap cannot take (recurrent layers, branches on values) runs draw by draw instead.

    Args:
        function: function of one draw and a batch of inputs (B, *in), with results (B, ...).
        draws: values with the draws on the leading axis, (S, *event) by name.
        x: inputs (N, *in).
        per_pair: values that the function holds for one draw and one input.

    Returns:
        The results, (S, N, ...).
    """
    num_draws = len(next(iter(draws.values())))
    some_draws = max(1, min(num_draws, _BUDGET // per_pair))
    some_inputs = max(1, _BUDGET // (some_draws * per_pair))
    mapped = torch.func.vmap(function, in_dims=(0, None), randomness="same")
    try:
        mapped({name: value[:1] for name, value in draws.items()}, x[:1])
    except RuntimeError:
        mapped = _one_by_one(function)
    rows = []
    for start in range(0, num_draws, some_draws):
        part = {name: value[start : start + some_draws] for name, value in draws.items()}
        rows.append(torch.cat([mapped(part, chunk) for chunk in x.split(some_inputs)], 1))
    return torch.cat(rows)


def _one_by_one(
    function: Callable[[dict[str, Tensor], Tensor], Tensor],
) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    def mapped(draws: dict[str, Tensor], x: Tensor) -> Tensor:
        num_draws = len(next(iter(draws.values())))
        return torch.stack([function({name: value[s] for name, value in draws.items()}, x) for s in range(num_draws)])

    return mapped
