"""Networks that can be declared; any other `torch.nn.Module` works as well."""

import ast
import copy
import dataclasses
import functools
import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim.swa_utils import AveragedModel

from pyrobnn._core.errors import InputError, shown
from pyrobnn._core.registry import Registry
from pyrobnn._core.settings import Count, setting
from pyrobnn._core.tree_files import digest

UNREAD = "not available"
_BARE = {*vars(nn.Module())}
_VALUES = (bool, int, float, str, tuple, list, functools.partial)


def _name_of(activation: Any) -> Any:
    """Return the name of a class of `torch.nn`; other values as they are."""
    return next((name for name, known in _ACTIVATIONS.items() if known is activation), activation)


def _layers(hidden: Any) -> Any:
    """Return the width of a single layer as widths; other values as they are."""
    return (hidden,) if type(hidden) is int else hidden


Activation = Annotated[Literal["relu", "tanh", "sigmoid", "gelu", "silu", "elu", "softplus"], BeforeValidator(_name_of)]
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
}

_AROUND = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
"""Wrappers that run an inner module unchanged, their attribute `module`."""
_PAGE = "how-to/own-network"

registry = Registry("net", accepts=lambda value: isinstance(value, nn.Module) or hasattr(value, "build"), page=_PAGE)


def resolve(value: Any) -> Any:
    """Return `registry.resolve`; widths of layers lead to `MLP`."""
    widths = _layers(list(value) if isinstance(value, tuple) else value)
    if isinstance(widths, (list, tuple)) and all(type(width) is int for width in widths):
        raise InputError(
            f"A network is no list of widths, got {shown(value)}: pass bnn.MLP(hidden={tuple(widths)}) to an "
            "estimator, bnn.MLP(inputs, [hidden, ...], outputs) to BNN.",
            page=_PAGE,
        )
    return registry.resolve(value)


@registry.register
@setting
class MLP:
    """A multilayer perceptron, Linear layers with an activation between them.

    Attributes:
        in_features: number of inputs; in a spec file it is taken from the data.
        hidden: width of each hidden layer, or of the only one; empty for a linear model.
        out_features: number of outputs; in a spec file it follows from the data and the likelihood.
        activation: name of the activation, or its class, such as torch.nn.ReLU.
        bias: give each layer a bias.
        dtype: precision of the weights, and of everything that is computed with them.

    Examples:
        >>> [tuple(value.shape) for value in bnn.MLP(3, [50, 20], 1, bias=False).build().parameters()]
        [(50, 3), (20, 50), (1, 20)]
    """

    in_features: Count | None = None
    hidden: Annotated[tuple[Count, ...], BeforeValidator(_layers)] = (50,)
    out_features: Count | None = None
    activation: Activation = "relu"
    bias: bool = True
    dtype: Literal["float32", "float64"] = "float32"

    def build(self) -> nn.Sequential:
        """Return the network with PyTorch's default starting weights, drawn from the current random state."""
        if self.in_features is None or self.out_features is None:
            raise InputError("MLP needs `in_features` and `out_features`: pass MLP(inputs, [hidden, ...], outputs).")
        widths = [self.in_features, *self.hidden, self.out_features]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=self.bias), _ACTIVATIONS[self.activation]()]
        return nn.Sequential(*layers[:-1]).to(getattr(torch, self.dtype))


@dataclasses.dataclass(frozen=True)
class Made:
    """A network that a function `make` without arguments makes, so that each fit draws new starting weights."""

    make: Callable[[], nn.Module]

    def build(self) -> nn.Module:
        """Return a new network, with starting weights drawn from the current random state."""
        net = self.make()
        if not isinstance(net, nn.Module):
            raise InputError(f"A function in the place of a network must return a module, got {type(net).__name__}.")
        made: nn.Module = owned(net)
        return made


def is_custom(net: Any) -> bool:
    """Return whether a network, a part of a model, is the user's own and not a declared one."""
    return isinstance(net, (nn.Module, Made))


def described(net: nn.Module) -> dict[str, str]:
    """Return what a state does not tell of a network: layers, code, plain attributes, and tensors that are not in it.

    Code counts without comments, that of libraries by name, and tensors by two digits.
    """
    found = {"the list of layers": ", ".join(dict(net.named_modules()))}
    for path, module in net.named_modules():
        found[f"the class of {path or 'the network'}"] = type(module).__name__
        codes = {kind.__qualname__: _code_of(kind) for kind in type(module).__mro__[:-1]}
        found |= {f"the code of {name}": code for name, code in codes.items() if code != name}
        others = {name: module._buffers[name] for name in module._non_persistent_buffers_set}
        for name, value in (vars(module) | others).items():
            text = re.sub(" at 0x[0-9a-f]+", "", repr(value)) if isinstance(value, _VALUES) else None
            text = None if text is not None and ("tensor(" in text or "<weakref" in text) else text
            if isinstance(value, Tensor) and torch.func.debug_unwrap(value) is value:
                text = digest([value.bfloat16() if value.is_floating_point() else value])[:12]
            elif inspect.isroutine(value):
                text = _code_of(value)
            if text is not None and name not in _BARE:
                found[f"{path}.{name}".lstrip(".")] = text
    return found


def _code_of(value: Any) -> str:
    file = getattr(sys.modules.get(value.__module__), "__file__", None)
    if inspect.isbuiltin(value) or "site-packages" in str(file):
        return str(value.__qualname__)
    try:
        text = inspect.getsource(value)
        if value.__name__ == "<lambda>":  # the text is that of all on its line
            text += str(value.__code__.co_names)
        with suppress(SyntaxError):
            tree = ast.parse(textwrap.dedent(text))
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    node.value.value = None
            text = "\n".join(line for line in ast.unparse(tree).splitlines() if line.strip() != "None")
    except (OSError, TypeError):
        return UNREAD
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def owned(net: Any) -> Any:
    """Return a setting, also of a function, or a copy of a module without wrappers that change only device or speed."""
    if not isinstance(net, nn.Module):
        if isinstance(net, torch.export.ExportedProgram):
            raise InputError(f"An ExportedProgram {_EXPORTED}.", page=_PAGE)
        if not callable(net) or hasattr(net, "build"):
            return resolve(net)
        _require_no_arguments(net)
        return Made(net)
    for prefix, module in net.named_modules():
        reason = _obstacle(module)
        if reason is not None:
            layer = f"layer {prefix!r}" if prefix else "network"
            raise InputError(f"The {layer}, {type(module).__name__}, {reason}.", page=_PAGE)
    copies: dict[int, Any] = leftovers(net)
    try:
        for module in reversed(list(net.modules())):
            inner = _inside(module)
            if inner is not None:
                copies[id(module)] = copy.deepcopy(inner, copies)
        return copy.deepcopy(net, copies)
    except (RuntimeError, TypeError) as error:
        first_line = str(error).splitlines()[0].partition(".  ")[0].rstrip(".")
        raise InputError(
            f"The network cannot be copied, as every fit does: {first_line}. Leave out attributes that are no modules, "
            "parameters or buffers, such as lists of activations and generators.",
            page=_PAGE,
        ) from error


def _require_no_arguments(make: Callable[..., Any]) -> None:
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        name = getattr(make, "__name__", type(make).__name__)
        what = "class" if isinstance(make, type) else "function"
        raise InputError(
            f"The {what} {name!r} in the place of a network needs arguments ({error}): pass the network that it makes, "
            f"{name}(...), or lambda: {name}(...), which makes one for each fit.",
            page=_PAGE,
        ) from None


def leftovers(net: nn.Module) -> dict[int, Any]:
    """Return replacements for `copy.deepcopy(net, ...)` of activations that calls left as attributes."""
    copies: dict[int, Any] = {}
    for value in (value for module in net.modules() for value in vars(module).values() if isinstance(value, Tensor)):
        plain = torch.func.debug_unwrap(value)
        if plain is not value or plain.grad_fn is not None:
            copies[id(value)] = plain.detach().clone()
    return copies


def _inside(module: nn.Module) -> nn.Module | None:
    """Return the inner module of a wrapper that only runs it; None if the wrapper computes anything itself."""
    if isinstance(module, _AROUND):
        return module.module
    return module._modules["_orig_mod"] if type(module).__name__ == "OptimizedModule" else None


_PLAIN = "pass the plain network that it was made of"
_EXPORTED = f"comes from torch.export, which fixes its mode and its inputs: {_PLAIN}"
_BY_HOOK = {
    WeightNorm: "weight_norm: use torch.nn.utils.parametrizations.weight_norm, or torch.nn.utils.remove_weight_norm",
    SpectralNorm: "spectral_norm: use torch.nn.utils.parametrizations.spectral_norm, or "
    "torch.nn.utils.remove_spectral_norm",
    BasePruningMethod: "pruning: make it permanent by torch.nn.utils.prune.remove, after which pruned weights move "
    "like all others, or prune the posterior by pyrobnn.prune",
}


def _obstacle(module: nn.Module) -> str | None:
    """Describe why the weights of a module cannot be replaced, in a single call or in a batch, and the remedy."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # which whoever has such a module has imported
    if isinstance(module, torch.jit.ScriptModule):
        return f"is compiled by torch.jit: {_PLAIN}"
    if type(module).__module__.startswith("torch.ao."):
        return "is quantised, or prepared for it: pass the network as it was before"
    if fsdp is not None and isinstance(module, (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)):
        return f"holds its weights in shards (FSDP): {_PLAIN}, with its full state"
    if isinstance(module, PyroModule) and module._pyro_samples:
        return "gives its weights priors itself: pass the network without them, of a BNN its `settings['net']`"
    if "train" in vars(module):
        return _EXPORTED
    hooks = [type(hook) for hook in module._forward_pre_hooks.values()]
    ways = (instead for kind, instead in _BY_HOOK.items() if any(issubclass(hook, kind) for hook in hooks))
    values = chain(module._parameters.items(), module._buffers.items())
    reasons = ((name, _unfit(value)) for name, value in values if value is not None)
    unfit = (f"has a {name!r} that {reason}" for name, reason in reasons if reason is not None)
    return next(chain((f"computes a weight in a hook, by {way}" for way in ways), unfit), None)


def _unfit(value: Tensor) -> str | None:
    if is_lazy(value):
        return "is lazy, without a shape yet: run the network once before making it a BNN"
    if value.is_meta:
        return "is on the meta device, without values: put it on a real device by `to_empty`, and load its values"
    if type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__ or value.layout != torch.strided:
        return f"is no plain dense tensor ({type(value).__name__}, {value.layout}): {_PLAIN}"
    if isinstance(value, nn.Parameter) and value.is_complex():
        return "is complex: hold its real and imaginary parts in two parameters"
    return None
