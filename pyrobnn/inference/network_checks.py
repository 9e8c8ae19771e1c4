"""Calls of a network on two examples before a fit: whether it uses its weights, keeps state, draws, or checkpoints."""

import copy
import math
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from pyrobnn._core.checks import check_digits
from pyrobnn._core.errors import REFUSALS, InputError
from pyrobnn._core.random import mark, seeded
from pyrobnn._torch.batching import first_sentence
from pyrobnn._torch.devices import has_gpu
from pyrobnn._torch.inputs import Inputs, X, shape_of, tensors_of
from pyrobnn._torch.private import written
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch, several_inputs_advice
from pyrobnn.data.in_memory import Data, Scaler
from pyrobnn.data.loader import Loader
from pyrobnn.inference.output_limits import warn_of_limits
from pyrobnn.inference.training.engines import Work
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.nets import is_custom, leftovers

_PAGE = "how-to/own-network"
_ROUNDING = 1e-3
"""Difference of two calls, as a share of the largest output, that the order of sums on a GPU may make."""
_TARGETS = 1000
"""Largest number of targets to compare with the outputs that a network can reach."""
SHOWN = 2
"""Examples for a trial run of a network; statistics of a batch, as in batch normalisation, need two."""


def checked_outputs(
    bnn: BNN, data: Data | Loader, head: Batch, x_scaler: Scaler, y_scaler: Scaler
) -> tuple[int, float]:
    """Run the network on two examples, and return its width and the products of a forward pass for one.

    Raises:
        InputError: shapes or targets that do not fit together.
    """
    x, y = head
    for given, cast, scaler, name in (
        (x, bnn.cast_inputs(x), x_scaler, "x"),
        (y, bnn.cast_targets(y, bnn.like), y_scaler, "y"),
    ):
        if scaler.is_identity:
            for pair in zip(tensors_of(given), tensors_of(cast), strict=True):
                check_digits(*pair, name)
    with trial(bnn):
        inputs, f, products = _called(bnn, data, x, x_scaler)
        if f.ndim != 2 or len(f) != len(inputs):
            raise InputError(
                f"The network must map inputs (N, ...) to outputs (N, outputs); {shape_of(inputs)} became "
                f"{tuple(f.shape)}. For labels of pixels or tokens take the likelihood DenseCategorical; else flatten "
                "the outputs of each example.",
                page=_PAGE,
            )
        if y.ndim > 2 and not as_likelihood(bnn.settings["likelihood"]).has_positions:
            raise InputError(
                f"{bnn.settings['likelihood']!r} needs targets (N,) or (N, K), got {tuple(y.shape)}: take "
                "DenseCategorical for labels of pixels or tokens, else flatten targets and the network's outputs to "
                "one row per example.",
                page="how-to/likelihoods",
            )
        bnn.settings["likelihood"].check_targets(y, outputs=f.shape[1])
        some = y_scaler.transform(y[:: len(y) // _TARGETS + 1])
        warn_of_limits(bnn, bnn.cast_targets(some, f))
    return f.shape[1], products


@contextmanager
def trial(bnn: BNN) -> Iterator[None]:
    """Have the network in evaluation mode and without gradients in the block, after which random states are put back.

    So are attributes that are no parameters or buffers, such as an activation that a call leaves behind.
    """
    before = [(module, dict(vars(module))) for module in bnn.modules()]
    with torch.no_grad(), seeded(0, "trial"):
        try:
            bnn.eval()
            yield
        finally:
            for module, attributes in before:
                for name in vars(module).keys() - attributes.keys():
                    del vars(module)[name]
                vars(module).update(attributes)


def tried(bnn: BNN, x: X) -> Tensor:
    """Return the outputs of a network in evaluation mode for copies of its starting weights, after two calls.

    Raises:
        InputError: a call changes the weights, draws random numbers, or does not use the weights.
    """
    leaves = {name: bnn.initial_values[name].detach().clone().requires_grad_() for name in bnn.site_names}
    with torch.enable_grad():
        weights = {name: value.clone() for name, value in leaves.items()}
        before, has_drawn = {name: written(value) for name, value in weights.items()}, mark()
        f = bnn.outputs(weights, x)
        changed = next((name for name, value in weights.items() if written(value) != before[name]), None)
        if changed is not None:
            raise InputError(
                f"The network changes its parameter {changed!r} when it is called, so that it is no longer the "
                "guide's draw: take that out of `forward` and hooks. torch.nn.utils.parametrize computes weights from "
                "other parameters, and a prior bounds them.",
                page=_PAGE,
            )
        if has_drawn() or not _agree(f.detach(), bnn.outputs(weights, x).detach()):
            raise InputError(
                "The network draws random numbers in evaluation mode, or gives other outputs at each call: all draws "
                "of the weights would share them, and predictions would not settle. Have it draw in training only, as "
                "F.dropout(x, training=self.training) does, or not at all.",
                page=_PAGE,
            )
        if leaves and not _is_used(leaves, f):
            raise InputError(
                "The outputs of the network do not follow from its parameters: `forward` uses others, such as those of "
                "the network it was copied from, by a closure or a compiled function that is an attribute, "
                "or it cuts gradients off, by torch.no_grad or detach. Take that out.",
                page=_PAGE,
            )
    return f.detach()


def _agree(f: Tensor, again: Tensor) -> bool:
    tolerance = _ROUNDING * float(f.nan_to_num(posinf=0, neginf=0).abs().max()) if f.numel() else 0.0
    return f.shape == again.shape and torch.allclose(f, again, rtol=0, atol=tolerance, equal_nan=True)


def _is_used(weights: dict[str, Tensor], f: Tensor) -> bool:
    if not f.requires_grad:
        return False
    try:
        gradients = torch.autograd.grad(f.sum(), list(weights.values()), allow_unused=True)
    except RuntimeError:  # of checkpoints, say, which the fit refuses
        return True
    return any(value is not None for value in gradients)


def _called(bnn: BNN, data: Data | Loader, x: X, x_scaler: Scaler) -> tuple[X, Tensor, float]:
    """Return two examples, the outputs of the network for them, and the products of a forward pass for one."""
    inputs = bnn.cast_inputs(x_scaler.transform(x[:SHOWN]))
    try:
        copies = {name: bnn.initial_values[name].detach().clone() for name in bnn.site_names}
        bnn.outputs(copies, inputs)  # which may create state that the network keeps, such as a table of positions
        before = _state(bnn)
        products = _products(bnn, copies, inputs) if has_gpu() else math.inf
        bnn.outputs(copies, inputs)
        _refuse_state(_changed(before, bnn))
        _refuse_new_state(bnn)
        f = tried(bnn, inputs)
        if isinstance(data, Data):
            _look_up_all(bnn, data, inputs, x_scaler)
    except InputError:
        raise
    except REFUSALS as error:
        advice = several_inputs_advice(x) if isinstance(data, Loader) and isinstance(x, Inputs) else ""
        raise InputError(
            f"The network does not take inputs of shape {shape_of(x)}: {first_sentence(error)}.{advice}", page=_PAGE
        ) from None
    return inputs, f, products


def _products(bnn: BNN, weights: dict[str, Tensor], inputs: X) -> float:
    """Return the multiplications of a forward pass for one example, infinite where torch counts none.

    They are at least as many as the parameters, since torch does not count those of recurrent layers.
    """
    with Work() as work:
        bnn.outputs(weights, inputs)
    parameters = {**dict(bnn.net.named_parameters()), **weights}
    most = max(work.products / len(inputs), sum(value.numel() for value in parameters.values()))
    return float(most) if work.operations else math.inf


def _state(bnn: BNN) -> dict[str, Tensor]:
    """Return copies of the buffers that are not the weights of the model."""
    return {name: value.clone() for name, value in bnn.net.named_buffers() if name not in bnn.site_names}


def _changed(before: dict[str, Tensor], bnn: BNN) -> list[str]:
    """Return the names of the buffers that are new or hold other numbers than before."""
    buffers = (pair for pair in bnn.net.named_buffers() if pair[0] not in bnn.site_names)
    return [name for name, value in buffers if name not in before or not _same(value, before[name])]


def _refuse_state(changed: list[str]) -> None:
    if changed:
        raise InputError(
            f"The network changes its buffer {changed[0]!r} at each pass in evaluation mode, so that predictions would "
            "depend on those before them: change it in training alone (`if self.training:`), or not at all.",
            page=_PAGE,
        )


def _refuse_new_state(bnn: BNN) -> None:
    """Refuse buffers that a pass makes or resizes: a copy of the network would not have them."""
    given = bnn.settings["net"]
    if not is_custom(given):
        return
    with seeded(0, "state"):
        given = given if isinstance(given, nn.Module) else given.build()
    shapes = {name: value.shape for name, value in given.state_dict().items()}
    name = next((name for name, value in bnn.net.state_dict().items() if shapes.get(name) != value.shape), None)
    if name is not None:
        raise InputError(
            f"The network makes its buffer {name!r} in a pass, so that copies of it would lack it: make it in "
            "`__init__`, or register it with `persistent=False`.",
            page=_PAGE,
        )


def _same(value: Tensor, before: Tensor) -> bool:
    is_nan = value.isnan() & before.isnan() if value.shape == before.shape else None
    return is_nan is not None and bool((is_nan | (value == before)).all())


class _AllLookedUp(Exception):
    """A pass has come to its last table."""


def _look_up_all(bnn: BNN, data: Data, inputs: X, x_scaler: Scaler) -> None:
    """Run the network on all examples, in blocks, up to the last table in which it looks up rows by numbers in them."""
    tables = [module for module in bnn.net.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    calls, last = 0, -1

    def look(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            raise _AllLookedUp

    hooks = [table.register_forward_hook(look) for table in tables]
    try:
        bnn.outputs(bnn.initial_values, inputs)
        last = calls
        for x in data.x.split(1024) if last else ():
            calls = 0
            with suppress(_AllLookedUp):
                bnn.outputs(bnn.initial_values, bnn.cast_inputs(x_scaler.transform(x)))
    finally:
        for hook in hooks:
            hook.remove()


def refuse_checkpoints(bnn: BNN, example: Batch, *, training: bool) -> None:
    """Refuse gradient checkpointing, which runs layers again after the guide's weights have left them.

    A copy of a network given as a module runs forward and back on two examples. Random states are restored, and
    unrelated errors are left to the fit. The reentrant kind silently gives weights no gradient, since vmap does not
    take its function.

    Args:
        bnn: the model.
        example: some rows, in the units of the model.
        training: whether to run in training mode, as SVI does.
    """
    if not is_custom(bnn.settings["net"]):
        return
    bnn = copy.deepcopy(bnn, leftovers(bnn))
    inputs = example[0]
    weights = {name: value.detach().clone().requires_grad_() for name, value in bnn.initial_values.items()}
    try:
        with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
            bnn.train(training)
            alone = torch.func.vmap(lambda _: bnn.outputs(weights, inputs), randomness="same")
            alone(bnn.like.new_empty(1, 0))
            f = bnn.outputs(weights, inputs)
            torch.autograd.grad(f.sum(), list(weights.values()), allow_unused=True)
        kept = next((name for name, value in bnn.net.named_buffers() if value.grad_fn is not None), None)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
        if "setup_context" in str(error) and checkpoint.__file__ in files:
            kind = "use_reentrant=True the weights inside get no gradient (use_reentrant=False is refused, too)"
        elif isinstance(error, checkpoint.CheckpointError):
            kind = "use_reentrant=False torch finds other tensors than it saved (use_reentrant=True is refused, too)"
        else:
            return
        raise InputError(
            "The network checkpoints its activations (torch.utils.checkpoint), which runs layers again in the backward "
            f"pass, when the weights that a guide drew have left them: with {kind}. Fit without checkpointing, with a "
            "smaller `batch_size`."
        ) from None
    if kept is not None:
        raise InputError(
            f"The network keeps the graph of its buffer {kept!r} from one step of a fit to the next: "
            "`detach()` the values that it is computed from.",
            page=_PAGE,
        )
