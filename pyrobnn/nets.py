"""Networks that can be declared; any other `torch.nn.Module` works as well."""

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import chain, pairwise, product
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
from pyrobnn._core.settings import Count, Registry, setting


def _layers(hidden: Any) -> Any:
    """Return the width of a single layer as widths; other values as they are."""
    return (hidden,) if type(hidden) is int else hidden


_KINDS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus)
_ACTIVATIONS = {kind.__name__.lower(): kind for kind in _KINDS}
Activation = Annotated[
    Literal["relu", "tanh", "sigmoid", "gelu", "silu", "elu", "softplus"],
    BeforeValidator(lambda given: given.__name__.lower() if given in _KINDS else given),
]

_AROUND = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
_PAGE = "how-to/own-network"

registry = Registry("net", accepts=lambda value: isinstance(value, nn.Module) or hasattr(value, "build"), page=_PAGE)


def resolve(value: Any) -> Any:
    """Return `registry.resolve`; widths of layers lead to `MLP`."""
    widths = _layers(list(value) if isinstance(value, tuple) else value)
    if isinstance(widths, (list, tuple)) and all(type(width) is int for width in widths):
        remedy = f"pass bnn.MLP(hidden={tuple(widths)}) to an estimator, bnn.MLP(inputs, [hidden, ...], outputs) to BNN"
        raise InputError(f"A network is no list of widths, got {shown(value)}: {remedy}.", page=_PAGE)
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
    """A network that a function `make` makes, so that each fit draws new starting weights."""

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


def owned(net: Any) -> Any:
    """Return a setting, also of a function, or a copy of a module without wrappers that change only device or speed."""
    if isinstance(net, torch.export.ExportedProgram):
        raise InputError(f"An ExportedProgram {_EXPORTED}.", page=_PAGE)
    if not isinstance(net, nn.Module):
        if not callable(net) or hasattr(net, "build"):
            return resolve(net)
        try:
            inspect.signature(net).bind()
        except TypeError as error:
            name = getattr(net, "__name__", type(net).__name__)
            what = f"The {'class' if isinstance(net, type) else 'function'} {name!r} in the place of a network"
            remedy = f"pass {name}(...), or lambda: {name}(...), which makes one for each fit"
            raise InputError(f"{what} needs arguments ({error}): {remedy}.", page=_PAGE) from None
        return Made(net)
    for prefix, module in net.named_modules():
        for reason in _obstacles(module):
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
        text = f"cannot be copied: {first_line}. Leave out attributes such as lists of activations and generators."
        raise InputError(f"The network {text}", page=_PAGE) from error


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
_BY_HOOK = {WeightNorm: "weight_norm", SpectralNorm: "spectral_norm", BasePruningMethod: "pruning"}


def _obstacles(module: nn.Module) -> Iterator[str]:
    """Yield why the weights of a module cannot be replaced, in a single call or in a batch, and the remedy."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # which whoever has such a module has imported
    if isinstance(module, torch.jit.ScriptModule):
        yield f"is compiled by torch.jit: {_PLAIN}"
    if type(module).__module__.startswith("torch.ao."):
        yield "is quantised, or prepared for it: pass the network as it was before"
    if fsdp is not None and isinstance(module, (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)):
        yield f"holds its weights in shards (FSDP): {_PLAIN}, with its full state"
    if isinstance(module, PyroModule) and module._pyro_samples:
        remedy = "pass parameters in place of each `PyroSample`, and priors by name, `prior={'0.weight': ...}`"
        yield f"gives its weights priors itself: {remedy}; of a BNN pass `settings['net']`"
    if "train" in vars(module):
        yield _EXPORTED
    for hook, (kind, name) in product(module._forward_pre_hooks.values(), _BY_HOOK.items()):
        if isinstance(hook, kind):
            yield f"computes a weight in a hook, by {name}: remove it, or use torch.nn.utils.parametrizations"
    for name, value in chain(module._parameters.items(), module._buffers.items()):
        for reason in () if value is None else _faults(value):
            yield f"has a {name!r} that {reason}"


def _faults(value: Tensor) -> Iterator[str]:
    if is_lazy(value):
        yield "is lazy, without a shape yet: run the network once before making it a BNN"
    elif value.is_meta:
        yield "is on the meta device, without values: put it on a real device by `to_empty`, and load its values"
    elif type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__ or value.layout != torch.strided:
        yield f"is no plain dense tensor ({type(value).__name__}, {value.layout}): {_PLAIN}"
    elif isinstance(value, nn.Parameter) and value.is_complex():
        yield "is complex: hold its real and imaginary parts in two parameters"
