"""Training data made ready for a model: scaled, cast, moved to its device, and cut into batches."""

import copy
import dataclasses
import functools
import math
import traceback
import warnings
from collections.abc import Iterator
from typing import Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from pyrobnn._core.checks import check_digits
from pyrobnn._core.errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch, Batches, LoaderBatches, TensorBatches, checked_batch
from pyrobnn.data.given import first_rows
from pyrobnn.data.in_memory import Data, Scaler
from pyrobnn.data.loader import Epoch, LoaderData
from pyrobnn.data.stored import StoredData
from pyrobnn.data.stored_batches import StoredBatches
from pyrobnn.inference import defaults
from pyrobnn.inference.checks import trial, tried, warn_of_limits
from pyrobnn.nets import leftovers

_NETWORKS = "how-to/own-network"
_TARGETS = 1000
"""Largest number of targets to compare with the outputs that a network can reach."""
_SHOWN = 2
"""Examples for a trial run of a network; statistics of a batch, as in batch normalisation, need two."""
BatchSize = int | Literal["all"] | None
"""Examples in a mini-batch, "all", or None to choose by the sizes of data and network."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The source of training batches.

    Attributes:
        data: tensors, files or a loader, as given.
        head: some raw inputs and targets: all in memory, the first in a file, or a loader's first batch.
        x_scaler: map of the inputs, fitted on the data, or the identity.
        y_scaler: map of the targets, likewise.
        num_data: N.
        outputs: width of the network's output.
        num_weights: weights of the network.
        epoch: the batches in an epoch of a loader.
    """

    data: Data | StoredData | LoaderData
    head: tuple[Tensor, Tensor]
    x_scaler: Scaler
    y_scaler: Scaler
    num_data: int
    outputs: int
    num_weights: int
    epoch: Epoch | None = None

    @property
    def feature_names(self) -> list[str]:
        """The names of the columns of x, where the data have any."""
        return [] if isinstance(self.data, LoaderData) else list(self.data.feature_names)

    @property
    def total_weight(self) -> float:
        """N, each example counted with its weight."""
        return self.data.total_weight if isinstance(self.data, Data) else float(self.num_data)

    def first(self) -> tuple[Tensor, Tensor]:
        """Return some raw inputs and targets to check the model with."""
        return self.head

    def batch_size(self, asked: BatchSize) -> int:
        """Return the number of examples in a batch.

        Chosen by size: all examples in memory up to 500, if examples times weights are up to 20 million, else 128; 256
        for data in files.
        """
        if isinstance(self.data, LoaderData):
            return self.data.loader.batch_size or len(self.head[0])
        if asked == "all":
            return self.num_data
        if asked is not None:
            return min(asked, self.num_data)
        if isinstance(self.data, StoredData):
            return min(defaults.BATCH_OF_STORED, self.num_data)
        products = self.num_data * self.num_weights
        suits = self.num_data <= defaults.MOST_AT_ONCE and products <= defaults.MOST_PRODUCTS_AT_ONCE
        return self.num_data if suits else min(defaults.BATCH, self.num_data)

    def batches_per_epoch(self, asked: BatchSize) -> int:
        """Return the number of batches in a pass."""
        if not isinstance(self.data, LoaderData):
            return self.num_data // self.batch_size(asked)
        try:
            return len(self.data.loader)
        except TypeError:  # its dataset or sampler has no length
            return math.ceil(self.num_data / self.batch_size(asked))

    def batches(self, bnn: BNN, asked: BatchSize, seed: int) -> Batches:
        """Return endless batches in the units, precision and place of the model; the seed orders them.

        Raises:
            InputError: all of data in files at once.
        """
        batch_size = self.batch_size(asked)
        if isinstance(self.data, Data):
            return TensorBatches(self.scaled(bnn, *self.data.tensors), batch_size, seed)

        def prepare(x: Tensor, y: Tensor) -> Batch:
            return self.scaled(bnn, x, y)

        if isinstance(self.data, StoredData):
            if asked == "all":
                raise InputError(
                    "StoredData are read in mini-batches: give the method a number as `batch_size`, such as 256.",
                    page="how-to/large-data",
                )
            return StoredBatches(self.data, prepare, batch_size, seed)

        def check_and_prepare(x: Tensor, y: Tensor) -> Batch:
            bnn.settings["likelihood"].check_targets(y, self.outputs)
            return prepare(x, y)

        return LoaderBatches(self.data.loader, check_and_prepare, self._mean_rows(), bnn.like)

    def _mean_rows(self) -> int | float | None:
        """Return the rows of an average batch of a loader, judged by the first batch; None if sizes are equal."""
        assert self.epoch is not None  # it is a loader
        if self.epoch.is_even:
            return None
        first = len(self.head[0])
        if self.epoch.num_rows is None:
            return first
        mean = self.epoch.num_rows / self.epoch.num_batches
        return mean * first / self.epoch.first if self.epoch.first else mean

    def check_pass(self) -> None:
        """Refuse a loader whose epochs repeat or skip examples.

        Raises:
            InputError: a loader of this kind.
        """
        if self.epoch is not None and not self.epoch.is_pass:
            self._refuse_pass(str(self.epoch.num_rows))

    def _refuse_pass(self, num_rows: str) -> NoReturn:
        raise InputError(
            f"All {self.num_data} examples are needed here, each once, and a pass of the DataLoader gave {num_rows}: "
            "use drop_last=False, a sampler that takes each once, and no `collate_fn` that leaves out or repeats some."
        )

    def one_pass(self, bnn: BNN, batch_size: int) -> Iterator[Batch]:
        """Return every example once, in parts of at most `batch_size` (a loader keeps its parts), ready for the model.

        Raises:
            InputError: a loader that does not have every example once.
        """
        if not isinstance(self.data, LoaderData):
            for part in self.data.parts(batch_size):
                yield self.scaled(bnn, *part.tensors)
            return
        self.check_pass()
        seen = 0
        for batch in self.data.loader:
            x, y = checked_batch(batch)
            seen += len(x)
            if seen > self.num_data:
                self._refuse_pass(f"{seen} or more")
            yield self.scaled(bnn, x, y)
        if seen < self.num_data:
            self._refuse_pass(str(seen))

    def scaled(self, bnn: BNN, x: Tensor, y: Tensor, *weights: Tensor) -> Batch:
        """Return a batch in the units, precision and place of the model."""
        targets = bnn.cast_targets(self.y_scaler.transform(y), bnn.like)
        return bnn.cast_inputs(self.x_scaler.transform(x)), targets, *(values.to(bnn.like) for values in weights)

    def example(self, bnn: BNN) -> tuple[Tensor, Tensor]:
        """Return the first rows of inputs and targets, two where there are two, to run a model and guide with."""
        x, y = self.scaled(bnn, *(values[:_SHOWN].clone() for values in self.head))
        return x, y


def make_source(data: Data | StoredData | LoaderData, bnn: BNN, batch_size: BatchSize) -> Source:
    """Return the source for data, after checking them against the model.

    The units come from the model if it has any, else from the data.

    Raises:
        InputError: targets that the likelihood cannot produce, or a network that does not take the inputs.
    """
    epoch = None
    x_scaler = y_scaler = Scaler.identity()
    if isinstance(data, LoaderData):
        if batch_size is not None:
            raise InputError("`batch_size` belongs to the DataLoader here: leave it out of the method.")
        head = data.head
        num_data, epoch = data.counted(len(head[0]))
    else:
        num_data, x_scaler, head = len(data), data.x_scaler, first_rows(data)
        if bnn.settings["likelihood"].standardizes_targets:
            y_scaler = data.y_scaler
    if bnn.units is not None:
        x_scaler, y_scaler = bnn.units
    source = Source(data, head, x_scaler, y_scaler, num_data, outputs=0, num_weights=bnn.num_weights, epoch=epoch)
    return dataclasses.replace(source, outputs=_checked_outputs(bnn, source))


def _checked_outputs(bnn: BNN, source: Source) -> int:
    """Run the network on two examples, refuse shapes and targets that do not fit together, and return its width."""
    x, y = source.head
    for given, cast, scaler, name in (
        (x, bnn.cast_inputs(x), source.x_scaler, "x"),
        (y, bnn.cast_targets(y, bnn.like), source.y_scaler, "y"),
    ):
        if scaler.is_identity:
            check_digits(given, cast, name)
    with trial(bnn):
        inputs, f = _called(bnn, source)
        if f.ndim != 2 or len(f) != len(inputs):
            raise InputError(
                f"The network must map inputs (N, ...) to outputs (N, outputs); {tuple(inputs.shape)} became "
                f"{tuple(f.shape)}.",
                page=_NETWORKS,
            )
        check = functools.partial(bnn.settings["likelihood"].check_targets, outputs=f.shape[1])
        if isinstance(source.data, StoredData):
            source.data.check_targets(check)
        else:
            check(y)
        some = source.y_scaler.transform(y[:: len(y) // _TARGETS + 1])
        warn_of_limits(bnn, inputs, f, bnn.cast_targets(some, f))
    return f.shape[1]


def _called(bnn: BNN, source: Source) -> tuple[Tensor, Tensor]:
    """Return two examples and the outputs of the network for them."""
    blocks = _looked_at(bnn, source)
    inputs = next(blocks)
    try:
        copies = {name: bnn.initial_values[name].detach().clone() for name in bnn.site_names}
        bnn.outputs(copies, inputs)  # which may create state that the network keeps, such as a table of positions
        before = _state(bnn)
        bnn.outputs(copies, inputs)
        _refuse_state(_changed(before, bnn))
        _refuse_new_state(bnn)
        f = tried(bnn, inputs)
        for block in blocks:
            bnn.outputs(bnn.initial_values, block)
    except InputError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        first_line = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"The network does not take inputs of shape {tuple(source.head[0].shape)}: {first_line}.", page=_NETWORKS
        ) from None
    return inputs, f


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
            page=_NETWORKS,
        )


def _refuse_new_state(bnn: BNN) -> None:
    """Refuse buffers that a pass makes or resizes: a copy of the network would not have them."""
    given = bnn.settings["net"]
    if not isinstance(given, nn.Module):
        return
    shapes = {name: value.shape for name, value in given.state_dict().items()}
    name = next((name for name, value in bnn.net.state_dict().items() if shapes.get(name) != value.shape), None)
    if name is not None:
        raise InputError(
            f"The network makes its buffer {name!r} in a pass, so that copies of it would lack it: make it in "
            "`__init__`, or register it with `persistent=False`.",
            page=_NETWORKS,
        )


def _same(value: Tensor, before: Tensor) -> bool:
    is_nan = value.isnan() & before.isnan() if value.shape == before.shape else None
    return is_nan is not None and bool((is_nan | (value == before)).all())


def _looked_at(bnn: BNN, source: Source) -> Iterator[Tensor]:
    """Yield two examples, and then, in blocks, all others where the network looks up rows by numbers in them."""
    looks_up = any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in bnn.net.modules())
    if looks_up and isinstance(source.data, Data):
        yield bnn.cast_inputs(source.x_scaler.transform(source.data.x[:_SHOWN]))
        for x in source.data.x.tensor_split(math.ceil(len(source.data) / 1024)):
            yield bnn.cast_inputs(source.x_scaler.transform(x))
    else:
        yield bnn.cast_inputs(source.x_scaler.transform(source.head[0][:_SHOWN]))


def refuse_checkpoints(bnn: BNN, source: Source, *, training: bool) -> None:
    """Refuse gradient checkpointing, which runs layers again after the guide's weights have left them.

    A copy of a network given as a module runs forward and back on two examples. Random states are restored, and
    unrelated errors are left to the fit. The reentrant kind silently gives weights no gradient, since vmap does not
    take its function.

    Args:
        bnn: the model.
        source: the data.
        training: whether to run in training mode, as SVI does.
    """
    if not isinstance(bnn.settings["net"], nn.Module):
        return
    bnn = copy.deepcopy(bnn, leftovers(bnn))
    x, y = source.head
    inputs, _ = source.scaled(bnn, x[:_SHOWN], y[:_SHOWN])
    weights = {name: value.detach().clone().requires_grad_() for name, value in bnn.initial_values.items()}
    try:
        with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
            bnn.train(training)
            with torch.no_grad():
                alone = torch.func.vmap(lambda _: bnn.outputs(weights, inputs), randomness="same")
                alone(inputs.new_empty(1, 0))
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
            page=_NETWORKS,
        )
