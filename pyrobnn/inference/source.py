"""Training data made ready for a model: scaled, cast, moved to its device, and cut into batches."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pyrobnn._errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.data import Data, Scaler
from pyrobnn.inference.batches import Batch, LoaderBatches, TensorBatches, checked_batch


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Where training batches come from.

    Attributes:
        data: tensors or a loader, as given.
        x_scaler: map of the inputs, fitted on these data or the identity.
        y_scaler: map of the targets, likewise.
        num_data: N.
        outputs: width of the network's output.
    """

    data: "Data | DataLoader[Any]"
    x_scaler: Scaler
    y_scaler: Scaler
    num_data: int
    outputs: int

    def first(self) -> Batch:
        """Return some raw examples to check the model with."""
        if isinstance(self.data, Data):
            return self.data.x, self.data.y
        batch = next(iter(self.data), None)
        if batch is None:
            raise InputError("The DataLoader yields no batch: pass more data, a smaller batch, or drop_last=False.")
        return checked_batch(batch)

    def batch_size(self, asked: int | None) -> int:
        """Return the number of examples in a batch."""
        if not isinstance(self.data, Data):
            return self.data.batch_size or self.num_data
        return min(asked or self.num_data, self.num_data)

    def batches_per_epoch(self, batch_size: int | None) -> int:
        """Return the number of batches in one pass."""
        if not isinstance(self.data, Data):
            return len(self.data)
        return max(1, self.num_data // (batch_size or self.num_data))

    def batches(self, bnn: BNN, batch_size: int | None, seed: int) -> TensorBatches | LoaderBatches:
        """Return endless batches in the units, precision and place of the model; the seed orders them."""
        if isinstance(self.data, Data):
            return TensorBatches(*self.scaled(bnn, self.data.x, self.data.y), batch_size, seed)

        def prepare(x: Tensor, y: Tensor) -> Batch:
            bnn.settings["likelihood"].check_targets(y, self.outputs)
            return self.scaled(bnn, x, y)

        return LoaderBatches(self.data, prepare)

    def one_pass(self, bnn: BNN, batch_size: int) -> Iterator[Batch]:
        """Return every example once, in parts of at most that many (a loader keeps its own), ready for the model."""
        if isinstance(self.data, Data):
            x, y = self.scaled(bnn, self.data.x, self.data.y)
            yield from zip(x.split(batch_size), y.split(batch_size), strict=True)
            return
        for batch in self.data:
            yield self.scaled(bnn, *checked_batch(batch))

    def scaled(self, bnn: BNN, x: Tensor, y: Tensor) -> Batch:
        """Return examples in the units, precision and place of the model."""
        inputs = bnn.cast_inputs(self.x_scaler.transform(x))
        return inputs, bnn.cast_targets(self.y_scaler.transform(y), inputs)

    def example(self, bnn: BNN) -> Batch:
        """Return one row of zeros like the data, to run a model and guide with."""
        x, y = self.first()
        return self.scaled(bnn, torch.zeros_like(x[:1]), torch.zeros_like(y[:1]))


def make_source(data: Any, bnn: BNN, batch_size: int | None) -> Source:
    """Return the source for `Data`, a pair (x, y), or a DataLoader, after checking it against the model.

    Raises:
        InputError: not data, targets that the likelihood cannot produce, or a network that does not take the inputs.
    """
    data = as_data(data)
    if isinstance(data, DataLoader):
        if batch_size is not None:
            raise InputError("`batch_size` belongs to the DataLoader here: leave it out of the method.")
        x_scaler = y_scaler = Scaler.identity()
        num_data = _num_examples(data)
    else:
        real = bnn.settings["likelihood"].standardizes_targets
        x_scaler = Scaler.fit(data.x) if data.standardize else Scaler.identity()
        y_scaler = Scaler.fit(data.y) if data.standardize and real else Scaler.identity()
        num_data = len(data)
    source = Source(data, x_scaler, y_scaler, num_data, outputs=0)
    return dataclasses.replace(source, outputs=_checked_outputs(bnn, source))


def as_data(data: Any) -> "Data | DataLoader[Any]":
    """Return data as `Data` or a DataLoader; a pair (x, y) becomes `Data`."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return Data(*data)
    if not isinstance(data, (Data, DataLoader)):
        raise InputError(f"Expected Data(x, y), a pair (x, y) or a DataLoader, got {type(data).__name__}.")
    return data


def _num_examples(loader: "DataLoader[Any]") -> int:
    if loader.batch_sampler is None:
        raise InputError(
            "The DataLoader yields ready-made batches, so the number of examples is unknown: give it single examples "
            "and a batch_size."
        )
    try:
        return min(len(loader.dataset), len(loader.sampler))  # type: ignore[arg-type]
    except TypeError:
        raise InputError(
            "The DataLoader's dataset must have a length: the ELBO needs the number of examples."
        ) from None


def _checked_outputs(bnn: BNN, source: Source) -> int:
    """Run the network on two examples, refuse shapes and targets that do not fit together, and return its width."""
    x, y = source.first()
    inputs = bnn.cast_inputs(source.x_scaler.transform(x[:2]))
    was_training = bnn.training
    try:
        with torch.no_grad():
            f = bnn.eval().outputs(bnn.initial_values, inputs)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        raise InputError(f"The network does not take inputs of shape {tuple(x.shape)}: {first_line}") from None
    finally:
        bnn.train(was_training)
    if f.ndim != 2 or len(f) != len(inputs):
        raise InputError(
            f"The network must map inputs (N, ...) to outputs (N, outputs); {tuple(inputs.shape)} became "
            f"{tuple(f.shape)}."
        )
    bnn.settings["likelihood"].check_targets(y, f.shape[1])
    return f.shape[1]
