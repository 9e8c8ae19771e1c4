"""Training data made ready for a model: the network tried on two examples, rows scaled, cast, and cut into batches."""

import copy
import dataclasses
import math
import operator
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.utils import checkpoint

from pyrobnn._core.checks import check_digits, check_range
from pyrobnn._core.errors import REFUSALS, InputError, PoorFitWarning, warn_user
from pyrobnn._core.random import mark, seeded
from pyrobnn._torch.devices import has_gpu, resolve_device
from pyrobnn._torch.inputs import Inputs, X, shape_of, tensors_of
from pyrobnn._torch.private import written
from pyrobnn._torch.pyro import local_parameters
from pyrobnn._torch.transforms import are_close, first_sentence
from pyrobnn._torch.work import Work
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import mixes_examples
from pyrobnn.data.batches import Batch, Batches, LoaderBatches, TensorBatches, several_inputs_advice
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import Epoch, Loader
from pyrobnn.distributions.units import Scaler
from pyrobnn.inference import limits
from pyrobnn.likelihoods.base import as_likelihood, require_rows, target_units, with_offset
from pyrobnn.nets import is_custom, leftovers
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import FitRecord

_PAGE = "how-to/own-network"
_TARGETS = 1000  # largest number of targets to compare with the outputs that a network can reach
SHOWN = 2  # examples of a trial run; statistics of a batch, as in batch normalisation, need two
_RANGES: dict[type[nn.Module], tuple[float, float]] = {
    **dict.fromkeys((nn.Softmax, nn.Softmax2d, nn.Sigmoid, nn.Hardsigmoid), (0, 1)),
    **dict.fromkeys((nn.Tanh, nn.Hardtanh, nn.Softsign), (-1, 1)),
    **dict.fromkeys((nn.ReLU, nn.Softplus), (0, math.inf)),
    nn.LogSigmoid: (-math.inf, 0),
    nn.ReLU6: (0, 6),
}
_UNCHANGING = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten)
_ATOMS = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MOST_BEYOND = 0.05  # share of the variance of targets that may lie beyond a network's range, as noise does
_NUMBERS = 2**11  # numbers of inputs, of as many rows, for which outputs must not be nan
_MOST_APART = 0.05  # share by which outputs for a row may differ among batches, as by rounding in half precision


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
        likelihood, has_positions = bnn.settings["likelihood"], as_likelihood(bnn.settings["likelihood"]).has_positions
        if y.ndim > 2 and not has_positions:
            fault = f"{likelihood!r} needs targets (N,) or (N, K), got {tuple(y.shape)}"
            remedy = "take DenseCategorical for labels of pixels or tokens, else flatten targets and outputs to one row"
            raise InputError(f"{fault}: {remedy} per example.", page="how-to/likelihoods")
        likelihood.check_targets(y, outputs=f.shape[1])
        some = bnn.cast_targets(y_scaler.transform(y[:: len(y) // _TARGETS + 1]), f)
        if not has_positions:
            require_rows(likelihood, likelihood.build(bnn.like, y_scaler.scale.expand(y.shape[1:])), some, f)
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
        is_fault = math.isfinite(least) + math.isfinite(largest) > (likelihood.link == "logits")
        need = f"takes them as {likelihood.link}"
    else:
        columns = y.reshape(len(y), -1)
        beyond = (columns - columns.clamp(least, largest)).square().mean(0)
        is_fault = likelihood.noise is not None and bool((beyond > _MOST_BEYOND * columns.var(0, correction=0)).any())
        need = f"has targets from {float(y.min()):.3g} to {float(y.max()):.3g} in the units that the network sees"
    if is_fault:
        ends = f"ends in {type(layer).__name__}, whose outputs lie between {least:g} and {largest:g}"
        name = type(bnn.settings["likelihood"]).__name__
        warn_user(f"The network {ends}, and {name} {need}: leave that layer out.", PoorFitWarning)


@contextmanager
def trial(bnn: BNN) -> Iterator[None]:
    """Have the network in evaluation mode and without gradients; random states and attributes are put back after."""
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
            f = tried(bnn, weights, inputs, shape + ", less the offset" * bnn.has_offset, advice)
    if changed := [name for name, value in weights.items() if written(value) != before[name]]:
        text = f"The network changes its parameter {changed[0]!r} when it is called: take that out of `forward` and "
        raise InputError(f"{text}hooks.", page=_PAGE)
    if has_drawn():
        text = "The network draws random numbers in evaluation mode: have it draw in training alone, as F.dropout("
        raise InputError(f"{text}x, training=self.training) does.", page=_PAGE)
    if leaves and not _is_used(leaves, f):
        text = "The network gives outputs that do not follow from its parameters: `forward` uses others, as of a copy, "
        raise InputError(f"{text}or cuts gradients off, by torch.no_grad or detach.", page=_PAGE)
    if is_custom(bnn.settings["net"]):  # declared ones keep rows apart
        _try_other_rows(bnn, weights, x, x_scaler, f)
    if work is None or not work.operations:  # torch counts none
        return f.detach(), math.inf
    parameters = {**dict(bnn.net.named_parameters()), **weights}  # torch counts none of recurrent layers
    return f.detach(), float(max(work.products / len(inputs), sum(value.numel() for value in parameters.values())))


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
        text = f"The network gives nan for {num_missing} of {num} rows, as logarithms and roots{why} may: compute them"
        raise InputError(f"{text} in the data{way}.", page=_PAGE)
    among, others = again[-1][: len(f)], [f, torch.cat(again[:-1])] if alone else []
    if not all(torch.allclose(each, among, _MOST_APART, _MOST_APART * float(among.abs().max())) for each in others):
        text = "The outputs of the network for a row depend on the other rows of its batch: have it compute each row "
        raise InputError(f"{text}from its own inputs, as layer normalisation does.", page=_PAGE)


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
        fault = f"The network does not take inputs of shape {shape}"
        raise InputError(f"{fault}:{where} {first_sentence(error)}.{advice}", page=_PAGE) from None


@torch.enable_grad()
def _is_used(weights: dict[str, Tensor], f: Tensor) -> bool:
    try:
        gradients = torch.autograd.grad(f.sum(), list(weights.values()), allow_unused=True) if f.requires_grad else ()
    except RuntimeError:  # of checkpoints, say, which the fit refuses
        return True
    return any(value is not None for value in gradients)


def check_calls(bnn: BNN, x: X, *, training: bool) -> None:
    """Note in `moving` what calls of a network of the user's change in Python, in a mode, and refuse checkpointing.

    A copy runs forward and back, on two examples; the first call may set up what later ones use. What moves unseen,
    such as a clock, gives two copies other outputs. Other errors are left to the fit.
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
        network = "The network checkpoints its activations (torch.utils.checkpoint)"
        fault = "which runs layers again when the draw has left them"
        raise InputError(f"{network}, {fault}: fit without it, with a smaller `batch_size`.") from None


def changes(bnn: BNN) -> Callable[[], str | None]:
    """Return a function that names what of a network, but numbers of tensors, has since then changed in Python."""
    kept = list[Any]()

    def look() -> dict[str, Any]:
        modules = dict(bnn.net.named_modules())
        parts: dict[str, Any] = {"a random stream of Python or NumPy": [random.getstate(), np.random.get_state()]}
        for name, module in modules.items():
            held = {**vars(module), **module._parameters, **module._buffers, "_buffers": 0, "_parameters": 0}
            parts |= {repr(f"{name}.{key}".lstrip(".")): part for key, part in held.items()}
        known = {id(module) for module in modules.values()}
        return {name: _picture(part, known, kept) for name, part in parts.items()}

    before = look()

    def changed() -> str | None:
        now = look()
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
        parts: Any = value
        if not isinstance(value, (list, tuple, set, frozenset)):  # what makes an object, as for a copy
            made: Any = value.__reduce_ex__(4)
            parts = [made] if isinstance(made, str) else [*made[:3], *(list(more or ()) for more in made[3:5])]
        return [id(type(value)), *(_picture(part, known, kept) for part in parts)]
    except REFUSALS:  # a lock, say
        return id(value)


BatchSize = int | Literal["all"] | None
"""Examples in a mini-batch, "all", or None to choose by the sizes of data and network."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The source of training batches."""

    data: Data | Loader  # tensors or a loader, as given
    head: tuple[X, Tensor]  # some raw inputs and targets: all in memory, or a loader's first batch
    x_scaler: Scaler  # map of the inputs, fitted on the data, or the identity
    y_scaler: Scaler  # map of the targets, likewise
    num_data: int  # N
    shown: Tensor  # outputs of the network for the first rows, two where there are two
    num_weights: int  # weights of the network
    products: float  # multiplications of a forward pass for one example; infinite where no device is to be chosen
    epoch: Epoch | None = None  # the batches in an epoch of a loader, if it tells
    independent: bool = False  # whether each batch is drawn anew from all examples in memory

    @property
    def outputs(self) -> int:
        return self.shown.shape[1]

    @property
    def total_weight(self) -> float:
        return self.data.total_weight if isinstance(self.data, Data) else float(self.num_data)

    @property
    def target_scale(self) -> Tensor:
        """The scale of each target of an example, in the shape of these."""
        return self.y_scaler.scale.expand(self.head[1].shape[1:])

    def batch_size(self, asked: BatchSize) -> int:
        """Return the number of examples in a batch; where it is not asked for, all of few in memory, else 128."""
        if isinstance(self.data, Loader):
            return len(self.head[0]) if self.epoch is None else self.epoch.size
        if asked == "all":
            return self.num_data
        if asked is not None:
            return min(asked, self.num_data)
        products = self.num_data * self.num_weights
        suits = self.num_data <= limits.MOST_AT_ONCE and products <= limits.MOST_PRODUCTS_AT_ONCE
        return self.num_data if suits else min(limits.BATCH, self.num_data)

    def batches_per_epoch(self, asked: BatchSize) -> int:
        if not isinstance(self.data, Loader):
            return self.num_data // self.batch_size(asked)
        return operator.length_hint(self.data.loader) or math.ceil(self.num_data / self.batch_size(asked))

    def batches(self, bnn: BNN, asked: BatchSize, seed: int) -> Batches:
        """Return endless batches in the units, precision and place of the model; the seed orders them."""
        if isinstance(self.data, Data):
            rows, size = self.scaled(bnn, *self.data.tensors), self.batch_size(asked)
            return TensorBatches(rows, size, seed, independent=self.independent)

        data, first = self.data, len(self.head[0])

        def prepare(batch: Any) -> Batch:
            x, y = data.pair(batch)
            self.check_targets(bnn, y)
            return self.scaled(bnn, x, y)

        mean = first if self.epoch is None else self.epoch.mean_rows(first)
        return LoaderBatches(data.loader, prepare, mean, bnn.like, head=self.scaled(bnn, *self.head))

    def check_targets(self, bnn: BNN, y: Tensor) -> None:
        """Refuse targets of a batch that the likelihood cannot produce; their positions may differ in number."""
        likelihood = bnn.settings["likelihood"]
        has_positions = as_likelihood(likelihood).has_positions
        likelihood.check_targets(y, likelihood.num_outputs(y) if has_positions else self.outputs)

    def check_pass(self) -> None:
        if self.epoch is not None and not (self.epoch.is_pass and self.epoch.num_data == self.num_data):
            self._refuse_pass(str(self.epoch.num_rows))

    def _refuse_pass(self, num_rows: str) -> NoReturn:
        need = f"All {self.num_data} examples are needed here, each once"
        remedy = "use drop_last=False, and no sampler or `collate_fn` that leaves out or repeats some"
        raise InputError(f"{need}, and a pass of the DataLoader gave {num_rows}: {remedy}.")

    def one_pass(self, bnn: BNN, batch_size: int) -> Iterator[Batch]:
        """Return every example once, ready for the model, in parts of at most `batch_size`, or as a loader has them."""
        if not isinstance(self.data, Loader):
            for part in self.data.parts(batch_size):
                yield self.scaled(bnn, *part.tensors)
            return
        self.check_pass()
        seen = 0
        for x, y in self.data.one_pass(self.data.pair):
            seen += len(x)
            if seen > self.num_data:
                self._refuse_pass(f"{seen} or more")
            yield self.scaled(bnn, x, y)
        if seen < self.num_data:
            self._refuse_pass(str(seen))

    def scaled(self, bnn: BNN, x: X, y: Tensor, *weights: Tensor) -> Batch:
        """Return a batch in the units, precision and place of the model."""
        targets = bnn.cast_targets(self.y_scaler.transform(y), bnn.like)
        return bnn.cast_inputs(self.x_scaler.transform(x)), targets, *(values.to(bnn.like) for values in weights)

    def posterior(
        self, bnn: BNN, guide: PyroModule, example: Batch, *, seed: int, outputs: Tensor | None = None, **more: Any
    ) -> Posterior:
        """Return a posterior in the units of the data, with further fields of its record."""
        units: dict[str, Any] = {"x_scaler": self.x_scaler, "y_scaler": self.y_scaler}
        names = [] if isinstance(self.data, Loader) else list(self.data.feature_names)
        device = str(example[0].device)
        record = FitRecord(num_data=self.num_data, feature_names=names, device=device, **more)
        return Posterior(bnn, guide, example=example, seed=seed, record=record, outputs=outputs, **units)

    def fresh_model(self, bnn: BNN, device: str) -> tuple[BNN, tuple[X, Tensor]]:
        """Return an untrained copy in the units of the data, in evaluation mode, and a row of data to run it with."""
        model = bnn.fresh(device=resolve_device(device, self.products), target_scale=self.target_scale)
        example = self.example(model.eval())
        check_range(torch.stack([self.y_scaler.loc, self.y_scaler.scale]).to(example[1].dtype), "y")
        return model, example

    def example(self, bnn: BNN) -> tuple[X, Tensor]:
        """Return the first rows of inputs and targets, two where there are two, to run a model and guide with."""
        x, y = self.head
        inputs, targets = self.scaled(bnn, x[:SHOWN].clone(), y[:SHOWN].clone())
        return inputs, targets


def make_source(data: Data | Loader, bnn: BNN, batch_size: BatchSize, *, seed: int) -> Source:
    """Return the source for data, checked against the model, in the units of the model if it has any."""
    if isinstance(data, Loader) and batch_size is not None:
        raise InputError("`batch_size` belongs to the DataLoader here: leave it out of the method.")
    data = with_offset(bnn.settings["likelihood"], data)
    with seeded(seed, "data"):
        head = data.head
        num_data, epoch = data.counted(len(head[0])) if isinstance(data, Loader) else (len(data), None)
        standard = data.x_scaler, target_units(bnn.settings["likelihood"], data.y_scaler)
        x_scaler, y_scaler = standard if bnn.units is None else bnn.units
        shown, products = checked_outputs(bnn, data, head, x_scaler, y_scaler)
    return Source(data, head, x_scaler, y_scaler, num_data, shown, bnn.num_weights, products, epoch)


def check_validation(data: Data | Loader, bnn: BNN, source: Source, *, seed: int) -> None:
    """Refuse data that a model cannot score in the units of its source."""
    with seeded(seed, "data"):
        checked_outputs(bnn, data, data.head, source.x_scaler, source.y_scaler)
