"""Checks of a network before a fit, by calls on two examples: it must take the draws of a guide in its weights."""

import copy
import math
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from pyrobnn._core.checks import check_digits, check_range
from pyrobnn._core.errors import REFUSALS, InputError, PoorFitWarning, warn_user
from pyrobnn._core.random import mark, seeded
from pyrobnn._torch.devices import has_gpu
from pyrobnn._torch.inputs import Inputs, X, shape_of, tensors_of
from pyrobnn._torch.private import written
from pyrobnn._torch.pyro import local_parameters
from pyrobnn._torch.transforms import are_close, first_sentence
from pyrobnn._torch.work import Work
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import mixes_examples
from pyrobnn.data.batches import Batch, several_inputs_advice
from pyrobnn.data.in_memory import Data, Scaler
from pyrobnn.data.loader import Loader
from pyrobnn.likelihoods.base import as_likelihood, require_rows
from pyrobnn.nets import is_custom, leftovers

_PAGE = "how-to/own-network"
_TARGETS = 1000
"""Largest number of targets to compare with the outputs that a network can reach."""
SHOWN = 2
"""Examples of a trial run; statistics of a batch, as in batch normalisation, need two."""
_RANGES: dict[type[nn.Module], tuple[float, float]] = {
    **dict.fromkeys((nn.Softmax, nn.Softmax2d, nn.Sigmoid, nn.Hardsigmoid), (0, 1)),
    **dict.fromkeys((nn.Tanh, nn.Hardtanh, nn.Softsign), (-1, 1)),
    **dict.fromkeys((nn.ReLU, nn.Softplus), (0, math.inf)),
    nn.LogSigmoid: (-math.inf, 0),
    nn.ReLU6: (0, 6),
}
_UNCHANGING = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten)
_ATOMS = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MOST_BEYOND = 0.05
"""Share of the variance of targets that may lie beyond a network's range, as noise does."""
_NUMBERS = 2**11
"""Numbers of inputs, of as many rows, for which outputs must not be nan."""
_MOST_APART = 0.05
"""Share by which outputs for a row may differ among batches, as by rounding in half precision."""


def checked_outputs(
    bnn: BNN, data: Data | Loader, head: Batch, x_scaler: Scaler, y_scaler: Scaler
) -> tuple[Tensor, float]:
    """Run the network on two examples, and return its outputs and the products of a forward pass for one."""
    x, y = head
    for given, cast, scaler, name in (
        (x, bnn.cast_inputs(x), x_scaler, "x"),
        (y, bnn.cast_targets(y, bnn.like), y_scaler, "y"),
    ):
        if scaler.is_identity:
            for pair in zip(tensors_of(given), tensors_of(cast), strict=True):
                check_digits(*pair, name)
    with trial(bnn):
        f, products = _called(bnn, data, x, x_scaler)
        has_positions = as_likelihood(bnn.settings["likelihood"]).has_positions
        if y.ndim > 2 and not has_positions:
            raise InputError(
                f"{bnn.settings['likelihood']!r} needs targets (N,) or (N, K), got {tuple(y.shape)}: take "
                "DenseCategorical for labels of pixels or tokens, else flatten targets and the network's outputs to "
                "one row per example.",
                page="how-to/likelihoods",
            )
        bnn.settings["likelihood"].check_targets(y, outputs=f.shape[1])
        some = bnn.cast_targets(y_scaler.transform(y[:: len(y) // _TARGETS + 1]), f)
        if not has_positions:
            module = bnn.settings["likelihood"].build(bnn.like, y_scaler.scale.expand(y.shape[1:]))
            require_rows(bnn.settings["likelihood"], module, some, f)
        _warn_of_limits(bnn, some)
    return f, products


def _warn_of_limits(bnn: BNN, y: Tensor) -> None:
    """Warn of a network that ends in a layer with a range which the likelihood's outputs need to leave.

    Logits need to pass 0 and to be wide, logs too; locations need to reach the targets y, in the units of the model.
    Only networks of layers in a sequence are judged.
    """
    layer = bnn.net
    while isinstance(layer, nn.Sequential) and (kept := [each for each in layer if not isinstance(each, _UNCHANGING)]):
        layer = kept[-1]  # the last layer of a sequence that changes its input
    least, largest = _RANGES.get(type(layer), (-math.inf, math.inf))
    likelihood = as_likelihood(bnn.settings["likelihood"])
    if likelihood.link is not None:
        num_ends = math.isfinite(least) + math.isfinite(largest)
        is_fault = num_ends > (likelihood.link == "logits")
        need = f"takes them as {likelihood.link}"
    else:
        columns = y.reshape(len(y), -1)
        beyond = (columns - columns.clamp(least, largest)).square().mean(0)
        is_fault = likelihood.noise is not None and bool((beyond > _MOST_BEYOND * columns.var(0, correction=0)).any())
        need = f"has targets from {float(y.min()):.3g} to {float(y.max()):.3g} in the units that the network sees"
    if is_fault:
        warn_user(
            f"The network ends in {type(layer).__name__}, whose outputs lie between {least:g} and {largest:g}, and "
            f"{type(bnn.settings['likelihood']).__name__} {need}: leave that layer out. See "
            "docs/how-to/likelihoods.md.",
            PoorFitWarning,
        )


@contextmanager
def trial(bnn: BNN) -> Iterator[None]:
    """Have the network in evaluation mode and without gradients in the block, after which random states are put back.

    So are attributes that are no parameters or buffers, such as an activation that a call leaves behind.
    """
    before = [(module, dict(vars(module))) for module in bnn.modules()]
    with torch.no_grad(), seeded(0, "trial"), local_parameters():
        try:
            bnn.eval()
            yield
        finally:
            for module, attributes in before:
                for name in vars(module).keys() - attributes.keys():
                    del vars(module)[name]
                vars(module).update(attributes)


def _called(bnn: BNN, data: Any, x: X, x_scaler: Scaler) -> tuple[Tensor, float]:
    """Return the outputs of the network for two examples, and the products of a forward pass for one."""
    inputs = bnn.cast_inputs(x_scaler.transform(x[:SHOWN]))
    leaves = {name: bnn.initial_values[name].detach().clone().requires_grad_() for name in bnn.site_names}
    with torch.enable_grad():
        weights = {name: value.clone() for name, value in leaves.items()}
        before, has_drawn = {name: written(value) for name, value in weights.items()}, mark()
        advice = several_inputs_advice(x) if isinstance(data, Loader) and isinstance(x, Inputs) else ""
        with Work() if has_gpu() else nullcontext() as work:
            is_alone = shape_of(x[0]) == shape_of(inputs[0])
            shape = shape_of(x) if is_alone else f"(N, {inputs[0].numel()}), with those that `inputs` adds"
            f = tried(bnn, weights, inputs, shape, advice)
    if changed := [name for name, value in weights.items() if written(value) != before[name]]:
        raise InputError(
            f"The network changes its parameter {changed[0]!r} when it is called, so that it is no longer the guide's "
            "draw: take that out of `forward` and hooks.",
            page=_PAGE,
        )
    if has_drawn():
        raise InputError(
            "The network draws random numbers in evaluation mode, which all draws of the weights would share: have it "
            "draw in training only, as F.dropout(x, training=self.training) does.",
            page=_PAGE,
        )
    if leaves and not _is_used(leaves, f):
        raise InputError(
            "The network gives outputs that do not follow from its parameters: `forward` uses others, such as those of "
            "the network it was copied from, or cuts gradients off, by torch.no_grad or detach. Take that out.",
            page=_PAGE,
        )
    if is_custom(bnn.settings["net"]):  # declared ones keep rows apart
        _try_other_rows(bnn, weights, x, x_scaler, f)
    return f.detach(), math.inf if work is None else _products(bnn, weights, work, len(inputs))


def _try_other_rows(bnn: BNN, weights: dict[str, Tensor], x: X, x_scaler: Scaler, f: Tensor) -> None:
    """Refuse outputs that are nan for some rows, or that for a row alone are not those beside another, in f."""
    num = max(SHOWN + 1, min(len(x), _NUMBERS // sum(part[0].numel() for part in tensors_of(x))))
    rows = bnn.cast_inputs(x_scaler.transform(x[torch.arange(num) % len(x)]))
    alone = [] if mixes_examples(bnn.net) else [rows[index : index + 1] for index in range(len(f))]
    again = [tried(bnn, weights, some, shape_of(some)) for some in (*alone, rows)]
    for part in tensors_of(rows):
        check_range(part, "x")
    if num_missing := int(again[-1].isnan().flatten(1).any(1).sum()):
        why, way = ("", "") if x_scaler.is_identity else (" of standardised inputs", ", or leave `standardize` out")
        raise InputError(
            f"The network gives nan for {num_missing} of {num} rows, as logarithms and roots{why} may: compute them in "
            f"the data{way}.",
            page=_PAGE,
        )
    among, others = again[-1][: len(f)], [f, torch.cat(again[:-1])] if alone else []
    if not all(torch.allclose(each, among, _MOST_APART, _MOST_APART * float(among.abs().max())) for each in others):
        raise InputError(
            "The outputs of the network for a row depend on the other rows of its batch: have it compute each row "
            "from its own inputs, as layer normalisation does and a mean over rows does not.",
            page=_PAGE,
        )


@torch.enable_grad()
def tried(bnn: BNN, weights: dict[str, Tensor], inputs: X, shape: str, advice: str = "") -> Tensor:
    """Return the outputs for inputs, whose shape an error names, with the layer that does not take them."""
    try:
        return bnn.outputs(weights, inputs)
    except InputError:
        raise
    except REFUSALS as error:
        names = {id(layer): f" layer {name!r}, {layer}, says" for name, layer in bnn.net.named_modules() if name}
        callers = [id(frame.f_locals.get("self")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        where = next((names[each] for each in reversed(callers) if each in names), "")
        raise InputError(
            f"The network does not take inputs of shape {shape}:{where} {first_sentence(error)}.{advice}", page=_PAGE
        ) from None


@torch.enable_grad()
def _is_used(weights: dict[str, Tensor], f: Tensor) -> bool:
    try:
        gradients = torch.autograd.grad(f.sum(), list(weights.values()), allow_unused=True) if f.requires_grad else ()
    except RuntimeError:  # of checkpoints, say, which the fit refuses
        return True
    return any(value is not None for value in gradients)


def _products(bnn: BNN, weights: dict[str, Tensor], work: Work, num_examples: int) -> float:
    """Return the multiplications of a forward pass for one example, infinite where torch counts none.

    They are at least as many as the parameters, since torch does not count those of recurrent layers.
    """
    parameters = {**dict(bnn.net.named_parameters()), **weights}
    most = max(work.products / num_examples, sum(value.numel() for value in parameters.values()))
    return float(most) if work.operations else math.inf


def check_calls(bnn: BNN, x: X, *, training: bool) -> None:
    """Note in `moving` what calls of a network of the user's change in Python, in a mode, and refuse checkpointing.

    A copy runs forward and back, on two examples; the first call may set up what later ones use. What moves unseen,
    such as a clock, gives two copies other outputs. Checkpoints run layers again after the guide's weights have left
    them; the reentrant kind, which vmap does not take, gives weights no gradient. Other errors are left to the fit.
    """
    if not is_custom(bnn.settings["net"]):
        return
    model, starts = copy.deepcopy(bnn, leftovers(bnn)).train(training), bnn.initial_values
    weights = {name: value.detach().clone().requires_grad_() for name, value in starts.items()}

    def outputs(model: BNN) -> Tensor:
        f = model.outputs(weights, x)
        torch.autograd.grad(f.sum(), list(weights.values()), allow_unused=True)
        return f.detach()

    try:
        with torch.enable_grad(), seeded(0, "calls"), warnings.catch_warnings(action="ignore"):
            outputs(model)
            called = changes(model)
            outputs(model)
            bnn.moving, twin = called(), copy.deepcopy(model, leftovers(model))
            with seeded(0, "twin"):
                expected = outputs(twin)
            with seeded(0, "twin"):
                if not are_close(outputs(model), expected):
                    bnn.moving = bnn.moving or "something outside of it"
            alone = torch.func.vmap(lambda _: model.outputs(weights, x), randomness="same")
            alone(bnn.like.new_empty(1, 0))
    except REFUSALS as error:
        files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
        is_reentrant = "setup_context" in str(error) and checkpoint.__file__ in files
        if not is_reentrant and not isinstance(error, checkpoint.CheckpointError):
            return
        raise InputError(
            "The network checkpoints its activations (torch.utils.checkpoint), which runs layers again in the backward "
            "pass, when the weights that a guide drew have left them: use_reentrant=True gives these no gradient, and "
            "use_reentrant=False finds other tensors than it saved. Fit without it, with a smaller `batch_size`."
        ) from None


def changes(bnn: BNN) -> Callable[[], str | None]:
    """Return a function that names what of a network was bound anew since then, or changed in Python.

    These are attributes of all modules, with what they hold, and random streams. Tensors that change in place do not
    count.
    """

    def look() -> tuple[dict[str, Any], list[Any]]:
        modules, kept = dict(bnn.net.named_modules()), list[Any]()
        parts: dict[str, Any] = {"a random stream of Python or NumPy": [random.getstate(), np.random.get_state()]}
        for name, module in modules.items():
            held = {**vars(module), **module._parameters, **module._buffers, "_buffers": 0, "_parameters": 0}
            parts |= {repr(f"{name}.{key}".lstrip(".")): part for key, part in held.items()}
        known = {id(module) for module in modules.values()}
        return {name: _picture(part, known, kept) for name, part in parts.items()}, kept

    first = look()

    def changed() -> str | None:
        before, now = first[0], look()[0]
        return next((name for name in before | now if before.get(name) != now.get(name)), None)

    return changed


def _picture(value: Any, known: set[int], kept: list[Any]) -> Any:
    """Return what an object holds, as nested lists, with tensors by their place; `kept` keeps addresses from reuse."""
    if isinstance(value, _ATOMS):
        return repr(value)
    kept.append(value)
    if isinstance(value, Tensor):
        return id(value), value.data_ptr() if value.layout == torch.strided else 0
    if id(value) in known or isinstance(value, (type, FunctionType, BuiltinFunctionType, ModuleType)):
        return id(value)
    known.add(id(value))
    try:
        parts = list(value) if isinstance(value, (list, tuple, set, frozenset)) else _made_of(value)
        return [id(type(value)), *(_picture(part, known, kept) for part in parts)]
    except REFUSALS:  # a lock, say
        return id(value)


def _made_of(value: Any) -> list[Any]:
    """Return what makes an object, as for a copy."""
    made = value.__reduce_ex__(4)
    return [made] if isinstance(made, str) else [*made[:3], *(list(more or ()) for more in made[3:5])]
