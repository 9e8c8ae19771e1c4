"""Inputs that a network does not take: which of its layers refuses them."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from torch import Tensor, nn

from pyrobnn._core.errors import REFUSALS


def refusal(net: nn.Module, call: Callable[[], Any], error: Exception) -> str:
    """Return why a call of a network has failed, and a remedy where the width of a linear layer is the cause.

    Args:
        net: the network.
        call: calls it again, to find the layer that is running when it fails.
        error: the error of the first call; its first line is the reason where no layer refuses.
    """
    running: list[tuple[str, nn.Module, Any]] = []
    with ExitStack() as hooks, suppress(*REFUSALS):
        for name, module in net.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(_noting(running, name)))
            hooks.enter_context(module.register_forward_hook(lambda *_: running.pop() and None))
        call()
    first_line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    name, layer, given = running[-1] if running else ("", net, None)
    if not isinstance(given, Tensor):
        return first_line
    layer_name = f"its layer {name!r}" if name else "it"
    width = given.shape[-1] if given.ndim else 1
    if isinstance(layer, nn.Linear) and layer.in_features != width:
        return (
            f"{layer_name} takes {layer.in_features} features and was given {width}: build it with "
            f"in_features={width}, or change what it is given"
        )
    shape = tuple(given.shape)
    return f"{layer_name}, {layer}, was given {shape}: {first_line}" if name and not [*layer.children()] else first_line


def _noting(running: list[tuple[str, nn.Module, Any]], name: str) -> Callable[..., None]:
    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        running.append((name, module, next(iter(args), None)))

    return note
