"""Running one network for many draws of its weights, in chunks that stay in the cache."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._torch.inputs import X
from pyrobnn._torch.layers import ENTRYWISE
from pyrobnn._torch.private import tree_leaves
from pyrobnn._torch.transforms import once, vmap_or_loop

_FLOATS_ON_ACCELERATOR = 2**26
"""Floats in the weights of a block of draws, or in a chunk of activations, on an accelerator."""
_WEIGHT_FLOATS_ON_CPU = 2**22
"""16 MiB in float32 for a block of draws, which a process keeps for the next;
larger blocks are given back to the system and mapped anew."""
_WIDTH_FOR_DRAW_BY_DRAW = 512
"""Draw by draw is faster from this width of a layer on."""
_FEW_DRAWS = 4
"""Draw by draw is faster than vmap on a CPU up to so many draws of a chunk."""
_ACTIVATION_FLOATS_ON_CPU = 2**20
_ACTIVATION_FLOATS_OF_LARGE_NETS = 2**21
"""For as many weights or more: each chunk reads all weights."""
_COMPARED_DRAWS = 3
"""Draws of the example that compares vmap with a run of the last draw."""


def is_alike(draws: Tensor) -> bool:
    """Return whether several draws are known to be the same, since they share their memory."""
    return len(draws) > 1 and draws.stride(0) == 0


def widest_activation(net: nn.Module, call: Callable[[], object], names: Collection[str]) -> int:
    """Return the largest number of values that any layer outputs while `call` runs the network.

    Layers before the first parameter of these names, which differ from draw to draw, do not count.
    """
    held = dict(net.named_parameters()) | dict(net.named_buffers())
    differ = {id(held[name]) for name in names}
    own = {module: (*module._parameters.values(), *module._buffers.values()) for module in net.modules()}
    owners = [module for module, values in own.items() if any(id(value) in differ for value in values)]
    started, sizes = False, [1]

    def start(module: nn.Module, inputs: object) -> None:
        nonlocal started
        started = True

    def record(module: nn.Module, inputs: object, output: object) -> None:
        if started:
            sizes.extend(value.numel() for value in tree_leaves(output) if isinstance(value, Tensor))

    with ONE_THREAD:
        handles = [module.register_forward_pre_hook(start) for module in owners]
        handles += [module.register_forward_hook(record) for module in net.modules()]
        try:
            call()
        finally:
            for handle in handles:
                handle.remove()
    return max(sizes)


def draws_at_once(num_weights: int, device: torch.device) -> int:
    """Return how many draws of a network of that many weights to hold at the same time."""
    return max(1, (_WEIGHT_FLOATS_ON_CPU if device.type == "cpu" else _FLOATS_ON_ACCELERATOR) // max(1, num_weights))


def pairs_at_once(per_pair: int, device: torch.device, num_weights: int = 0) -> int:
    """Return the number of pairs of a draw and an input, with so many values each, to run at once."""
    on_cpu = max(_ACTIVATION_FLOATS_ON_CPU, min(num_weights, _ACTIVATION_FLOATS_OF_LARGE_NETS))
    return max(1, (on_cpu if device.type == "cpu" else _FLOATS_ON_ACCELERATOR) // per_pair)


def chunks(num_draws: int, x: X, pairs: int, *, inputs_first: bool = True) -> Iterator[tuple[slice, slice]]:
    """Yield (draws, inputs) of chunks of at most `pairs` pairs: with all inputs if possible, else with a single draw.

    Without `inputs_first`: with all draws if possible, else with a single input.
    """
    some_inputs, some_draws = min(len(x), pairs), min(num_draws, pairs)
    if inputs_first:
        some_draws = max(1, min(num_draws, pairs // some_inputs))
    else:
        some_inputs = max(1, min(len(x), pairs // some_draws))
    for draw in range(0, num_draws, some_draws):
        for row in range(0, len(x), some_inputs):
            yield slice(draw, min(draw + some_draws, num_draws)), slice(row, min(row + some_inputs, len(x)))


class StackedLinear(NamedTuple):
    """A linear layer under many draws, weight (S, out, in) and bias (S, out), and the entrywise modules that follow it.

    Activations are (B, features, inputs): a draw is a single matrix product, and so is the first layer for all draws.
    """

    weight: Tensor
    bias: Tensor | None
    after: list[nn.Module]

    @property
    def width(self) -> int:
        """The number of outputs."""
        return self.weight.shape[1]

    @property
    def is_alike(self) -> bool:
        """Whether all draws are the same."""
        return is_alike(self.weight) and (self.bias is None or is_alike(self.bias))

    def run(self, h: Tensor, draws: slice, memory: Tensor) -> Tensor:
        """Return the activations (B, out, n) for some draws and inputs h, (in, n) or (B, in, n), written to memory."""
        weight = self.weight[draws].contiguous()
        shape = (len(weight), self.width, h.shape[-1])
        out = torch.matmul(weight, h, out=memory[: math.prod(shape)].view(shape))
        if self.bias is not None:
            out.add_(self.bias[draws, :, None])
        return self._entrywise(out)

    def run_one(self, h: Tensor, draw: int, memory: Tensor) -> Tensor:
        """Return the activations (n, out) for a draw and inputs h (n, in), written to memory."""
        out = memory[: len(h) * self.width].view(len(h), self.width)
        if self.bias is None:
            torch.mm(h, self.weight[draw].T, out=out)
        else:
            torch.addmm(self.bias[draw], h, self.weight[draw].T, out=out)
        return self._entrywise(out)

    def _entrywise(self, out: Tensor) -> Tensor:
        for module in self.after:
            out = (ENTRYWISE[type(module)] or module)(out)
        return out


def stack_linear(net: nn.Module, draws: Mapping[str, Tensor]) -> list[StackedLinear] | None:
    """Return a network as linear layers with stacked weights, or None if it is not a plain sequence of such layers.

    Parameters that draws (S, *event) do not name are the same for all.
    """
    layers: list[StackedLinear] = []
    with ONE_THREAD:
        for prefix, module in sequence(net):
            if not _is_plain(module):
                return None
            if isinstance(module, nn.Linear):
                weight, bias = (_stacked(module, name, prefix, draws) for name in ("weight", "bias"))
                if weight is None or (bias is None and module.bias is not None):
                    return None
                layers.append(StackedLinear(weight, bias, []))
            elif layers:
                layers[-1].after.append(module)
            else:
                return None
    return layers or None


def sequence(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that a sequence runs, in order, with the prefixes of their parameters' names."""
    if type(module) is nn.Sequential and has_no_hooks(module):
        for name, child in module._modules.items():
            if child is not None:
                yield from sequence(child, f"{prefix}{name}.")
    else:
        yield prefix, module


def _is_plain(module: nn.Module) -> bool:
    known = type(module) is nn.Linear or type(module) in ENTRYWISE
    return known and not module.training and has_no_hooks(module)


def has_no_hooks(module: nn.Module) -> bool:
    """Return whether a module runs its own `forward` alone."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _stacked(module: nn.Module, name: str, prefix: str, draws: Mapping[str, Tensor]) -> Tensor | None:
    """Return a parameter under each draw, or None if there is none or it is tied to another."""
    if prefix + name in draws:
        return draws[prefix + name]
    fixed = module._parameters.get(name)
    return None if fixed is None else fixed.expand(len(next(iter(draws.values()))), *fixed.shape)


def run_stacked(layers: list[StackedLinear], x: Tensor) -> Tensor:
    """Return the outputs (S, N, outputs) of stacked linear layers for every draw at inputs (N, in).

    Two buffers of the size of a chunk take the activations of all layers in turn, at any depth.
    """
    num_draws = len(layers[0].weight)
    while len(layers) > 1 and layers[0].is_alike:
        x, layers = layers[0].run_one(x, 0, x.new_empty(len(x) * layers[0].width)), layers[1:]
    widest = max(layer.width for layer in layers)
    outputs = x.new_empty(num_draws, len(x), layers[-1].width)
    if x.device.type == "cpu" and widest >= _WIDTH_FOR_DRAW_BY_DRAW:
        _run_in_turn(layers, x, outputs, widest)
        return outputs
    parts = list(chunks(num_draws, x, pairs_at_once(widest, x.device)))
    draws, rows = parts[0]
    memory = x.new_empty(2, draws.stop * rows.stop * widest)
    for draws, rows in parts:
        h = x[rows].T
        for i, layer in enumerate(layers):
            h = layer.run(h, draws, memory[i % 2])
        outputs[draws, rows] = h.mT
    return outputs


def _run_in_turn(layers: list[StackedLinear], x: Tensor, outputs: Tensor, widest: int) -> None:
    """Write the outputs draw by draw: products of wide layers are faster with the inputs in rows."""
    parts = x.split(max(1, _WEIGHT_FLOATS_ON_CPU // widest))
    memory = x.new_empty(2, len(parts[0]) * widest)
    for draw in range(len(outputs)):
        for part, out in zip(parts, outputs[draw].split(len(parts[0])), strict=True):
            h = part
            for i, layer in enumerate(layers):
                h = layer.run_one(h, draw, memory[i % 2])
            out.copy_(h)


class _Question(NamedTuple):
    """The properties that decide whether vmap takes a function of a network."""

    copies: int
    moving: frozenset[str]
    num_draws: int


class DrawMap:
    """A function of a draw and inputs (B, *in) through a network, mapped over draws in chunks of bounded memory.

    Layers before the first parameter that differs from draw to draw run once. A function that vmap cannot take, or gets
    wrong, runs draw by draw; so does, on a CPU, a function of so many inputs that a chunk holds few draws. The function
    holds `copies` activations per layer at the same time.
    """

    def __init__(
        self, function: Callable[[dict[str, Tensor], X], Tensor], x: X, net: nn.Module, *, copies: int = 1
    ) -> None:
        self._function, self._x, self._net, self._copies = function, x, net, copies
        self._looks: dict[_Question, tuple[int, Tensor]] = {}
        self._few = x[:1]

    def __call__(self, draws: Mapping[str, Tensor]) -> Tensor:
        """Return function(draw, x), (S, N, ...), for draws (S, *event) by parameter name."""
        num_draws = len(next(iter(draws.values())))
        moving = {name: value for name, value in draws.items() if not is_alike(value)}
        if not moving:
            single = self({name: value[:1] for name, value in draws.items()})
            return single.expand(num_draws, *single.shape[1:])
        alike = {name: value[0] for name, value in draws.items() if name not in moving}

        def of_moving(values: dict[str, Tensor], part: X) -> Tensor:
            return self._function(alike | values, part)

        few = {name: value[:_COMPARED_DRAWS] for name, value in moving.items()}
        question = _Question(self._copies, frozenset(moving), min(num_draws, _COMPARED_DRAWS))
        width, expected = self._look({name: value[:_COMPARED_DRAWS][-1] for name, value in draws.items()}, question)
        num_weights = sum(value[0].numel() for value in moving.values())
        pairs = pairs_at_once(self._copies * width, self._x.device, num_weights)
        parts_of = list(chunks(num_draws, self._x, pairs, inputs_first=not alike))
        run = _one_by_one(of_moving)
        if alike or self._copies > 1 or self._x.device.type != "cpu" or parts_of[0][0].stop > _FEW_DRAWS:
            mapped = torch.func.vmap(of_moving, in_dims=(0, None), randomness="same")

            def last() -> Tensor:
                return mapped(few, self._few)[-1]

            if once(self._net, question, lambda: vmap_or_loop(last, lambda: expected) is last):
                run = mapped
        by_draws: dict[int, list[Tensor]] = {}
        for some, rows in parts_of:
            part = {name: value[some] for name, value in moving.items()}
            by_draws.setdefault(some.start, []).append(run(part, self._x[rows]))
        return torch.cat([torch.cat(parts, 1) for parts in by_draws.values()])

    def _look(self, draw: dict[str, Tensor], question: _Question) -> tuple[int, Tensor]:
        """Return the widest activation at one input, and the result for the first inputs."""
        if question not in self._looks:
            try:
                width, result = self._widest(draw, question)
            except (RuntimeError, ValueError):  # statistics of a batch, for example, which a single input does not have
                self._few = self._x[:2]
                width, result = self._widest(draw, question)
            self._looks[question] = math.ceil(width / len(self._few)), result
        return self._looks[question]

    def _widest(self, draw: dict[str, Tensor], question: _Question) -> tuple[int, Tensor]:
        results: list[Tensor] = []
        call = lambda: results.append(self._function(draw, self._few))  # noqa: E731
        return widest_activation(self._net, call, question.moving), results[0]


def _one_by_one(function: Callable[[dict[str, Tensor], X], Tensor]) -> Callable[[dict[str, Tensor], X], Tensor]:
    def mapped(draws: dict[str, Tensor], x: X) -> Tensor:
        num_draws = len(next(iter(draws.values())))
        return torch.stack([function({name: value[s] for name, value in draws.items()}, x) for s in range(num_draws)])

    return mapped
