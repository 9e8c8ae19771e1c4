"""The parameters of a network: which are trained, which are frozen, and their place as buffers."""

from typing import Any

import torch
from torch import Tensor, nn

from pyrobnn._core.errors import InputError
from pyrobnn._torch.layers import LAYERS

_EMBEDDINGS = LAYERS["embedding"].modules
_HALF_PRECISION = (torch.float16, torch.bfloat16)


def trained_names(net: nn.Module) -> list[str]:
    """Return the names of the parameters that are trained, at least one; those without entries are frozen."""
    for parameter in net.parameters():
        if not parameter.numel():  # nothing to infer, or to train
            parameter.requires_grad = False
    names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    if not names:
        raise InputError(f"The network has no trainable parameters to be Bayesian about: {type(net).__name__}.")
    return names


def frozen_modules(net: nn.Module) -> list[str]:
    """Return the names of modules that have parameters, all of them frozen."""
    return [
        name
        for name, module in net.named_modules()
        if any(True for _ in module.parameters()) and not any(p.requires_grad for p in module.parameters())
    ]


def frozen_values(net: nn.Module, modules: list[str]) -> list[str]:
    """Return the names of frozen parameters, and of the buffers of frozen modules, in the state of a network."""
    named = dict(net.named_parameters(remove_duplicate=False))
    inside = tuple(f"{name}." if name else "" for name in modules)
    return [
        name
        for name in net.state_dict()
        if (not named[name].requires_grad if name in named else name.startswith(inside))
    ]


def train_in_full_precision(net: nn.Module, frozen: list[str]) -> None:
    """Hold everything but frozen modules in float32 where it was in half precision.

    If both are left, each module takes its inputs in the precision of its parameters.
    """
    kept = {id(part) for name in frozen for part in net.get_submodule(name).modules()}
    for module in net.modules():
        if id(module) not in kept:
            for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if value.dtype in _HALF_PRECISION:
                    getattr(module, name).data = value.data.float()
    if any(value.dtype in _HALF_PRECISION for value in net.parameters()):
        for module in net.modules():
            if _precision(module) is not None:
                module.register_forward_pre_hook(_take_in_own_precision, with_kwargs=True)


def _precision(module: nn.Module) -> torch.dtype | None:
    """Return the precision of the tensors that a module itself holds, None if it has none or several."""
    held = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    precisions = {value.dtype for value in held if value.is_floating_point()}
    return precisions.pop() if len(precisions) == 1 else None


def _take_in_own_precision(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    dtype = _precision(module)

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}


def refuse_max_norm(net: nn.Module, names: tuple[str, ...]) -> None:
    """Refuse embeddings that change their weights in place, naming the layer."""
    weights = {id(net.get_parameter(name)) for name in names}
    for prefix, module in net.named_modules():
        if isinstance(module, _EMBEDDINGS) and module.max_norm is not None and id(module.weight) in weights:
            layer = f"{prefix!r}, {type(module).__name__}(max_norm={module.max_norm})"
            fault = "changes its weights in place, so that they are not those that a guide drew"
            raise InputError(f"The layer {layer}, {fault}: leave out max_norm, since a prior bounds weights.")


def make_buffers(net: nn.Module, names: tuple[str, ...]) -> dict[str, list[str]]:
    """Hold parameters as buffers, and return all names of each parameter in the network."""
    first_name = {id(net.get_parameter(name)): name for name in names}
    aliases: dict[str, list[str]] = {name: [] for name in names}
    for prefix, module in net.named_modules():
        for name, parameter in list(module._parameters.items()):
            if id(parameter) in first_name and parameter is not None:
                aliases[first_name[id(parameter)]].append(f"{prefix}.{name}" if prefix else name)
                delattr(module, name)
                module.register_buffer(name, parameter.detach().clone())
    return aliases


def padding_rows(net: nn.Module) -> dict[str, int]:
    """Return the row of each embedding that stands for padding, by the name of its weight."""
    return {
        f"{prefix}.weight" if prefix else "weight": module.padding_idx
        for prefix, module in net.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
