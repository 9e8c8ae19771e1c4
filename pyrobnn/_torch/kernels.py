"""Fused kernels, which `torch.func` cannot transform, run as the plain operations that they join."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from pyrobnn._torch.private import inside_transformation, is_weight_norm

_RECURRENT: dict[Any, Any] = {
    torch.lstm: torch.ops.aten.lstm.input,
    torch.gru: torch.ops.aten.gru.input,
    torch.rnn_tanh: torch.ops.aten.rnn_tanh.input,
    torch.rnn_relu: torch.ops.aten.rnn_relu.input,
}


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Run recurrent layers, attention and weight norms by plain operations inside a transformation of `torch.func`.

    vmap and forward mode have no rules for the fused kernels; outside of transformations these are faster and stay.
    """
    if not inside_transformation():
        yield
        return
    with plain_operations():
        yield


@contextmanager
def plain_operations() -> Iterator[None]:
    """Run them so in any case: a recorded step is faster with plain operations, which are fused with what follows."""
    with sdpa_kernel(SDPBackend.MATH), _without_fast_path(), _PlainOperations():
        yield


class _PlainOperations(TorchFunctionMode):
    """Unrolls recurrent layers over time; as a function mode it also keeps attention off its fused path.

    Activations stay as they are where a network asks them for gradients: transformations refuse that.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.requires_grad_ and inside_transformation():
            return args[0]
        if func in _RECURRENT and isinstance(args[3], bool):  # else a packed sequence
            with _without_mkldnn():
                return _layer_by_layer(_RECURRENT[func].decompose, *args)
        if is_weight_norm(func):
            direction, length, dim = args
            others = [axis for axis in range(direction.ndim) if axis != dim]  # all of them for -1
            return direction * (length / torch.linalg.vector_norm(direction, dim=others, keepdim=True))
        return func(*args, **(kwargs or {}))


class PlainLayerNorm(TorchFunctionMode):
    """Runs layer norms by plain operations: the forward-mode derivative of torch's kernel has a wrong gradient."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_layer_norm if func is nn.functional.layer_norm else func)(*args, **(kwargs or {}))


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    dims = tuple(range(-len(shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    z = centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt() * (1 if weight is None else weight)
    return z if bias is None else z + bias


def _layer_by_layer(run: Any, *args: Any) -> Any:
    """Run the layers of a recurrent network one by one, with the dropout between them that decompositions omit."""
    x, start, weights, has_biases, num_layers, rate, *modes, batch_first = args
    trains, *_ = modes
    if not (rate and trains):
        return run(*args)
    x = x.transpose(0, 1) if batch_first else x
    is_several = isinstance(start, (tuple, list))  # an LSTM has two states
    starts = zip(*(state.chunk(num_layers) for state in (start if is_several else [start])), strict=True)
    size, ends = len(weights) // num_layers, []
    for layer, first in enumerate(starts):
        x = nn.functional.dropout(x, rate) if layer else x
        matrices = weights[layer * size : (layer + 1) * size]
        x, *end = run(x, first if is_several else first[0], matrices, has_biases, 1, 0.0, *modes, batch_first=False)
        ends.append(end)
    return (x.transpose(0, 1) if batch_first else x, *map(torch.cat, zip(*ends, strict=True)))


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Keep encoders of transformers from using nested tensors for sequences with a padding mask."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Keep LSTM from the fused kernel for the CPU, which even its decomposition uses."""
    mkldnn: Any = torch.backends.mkldnn
    before, mkldnn.enabled = mkldnn.enabled, False
    try:
        yield
    finally:
        mkldnn.enabled = before
