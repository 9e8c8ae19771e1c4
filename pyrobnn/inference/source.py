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
from pyrobnn.inference.batches import Batch, checked_batch, cycle_loader, cycle_tensors


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Where training batches come from.

    Attributes:
        data: tensors or a loader, as given.
        x_scaler: map of the inputs, fitted on these data or the identity.
        y_scaler: map of the targets, likewise.
        num_data: N.
    """

    data: "Data | DataLoader[Any]"
    x_scaler: Scaler
    y_scaler: Scaler
    num_data: int

    def first(self) -> Batch:
        """Return some raw examples to check the model with."""
        if isinstance(self.data, Data):
            return self.data.x, self.data.y
        return checked_batch(next(iter(self.data)))

    def batches_per_epoch(self, batch_size: int | None) -> int:
        """Return the number of batches in one pass."""
        if not isinstance(self.data, Data):
            return len(self.data)
        return max(1, self.num_data // (batch_size or self.num_data))

    def batches(self, bnn: BNN, batch_size: int | None) -> Iterator[Batch]:
        """Yield batches for ever, in the units, precision and place of the model."""
        if isinstance(self.data, Data):
            yield from cycle_tensors(*self.scaled(bnn, self.data.x, self.data.y), batch_size)
        else:
            for x, y in cycle_loader(self.data):
                yield self.scaled(bnn, x, y)

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
    if isinstance(data, (tuple, list)) and len(data) == 2:
        data = Data(*data)
    if isinstance(data, Data):
        likelihood = bnn.settings["likelihood"]
        real = data.y.is_floating_point() and likelihood.standardizes_targets
        x_scaler = Scaler.fit(data.x) if data.standardize else Scaler.identity()
        y_scaler = Scaler.fit(data.y) if data.standardize and real else Scaler.identity()
        source = Source(data, x_scaler, y_scaler, len(data))
    elif isinstance(data, DataLoader):
        if batch_size is not None:
            raise InputError("`batch_size` belongs to the DataLoader here: leave it out of the method.")
        source = Source(data, Scaler.identity(), Scaler.identity(), _num_examples(data))
    else:
        raise InputError(f"Expected Data(x, y), a pair (x, y) or a DataLoader, got {type(data).__name__}.")
    check_fits(bnn, source)
    return source


def _num_examples(loader: "DataLoader[Any]") -> int:
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(
            "The DataLoader's dataset must have a length: the ELBO needs the number of examples."
        ) from None


def check_fits(bnn: BNN, source: Source) -> None:
    """Run the network on two examples and refuse shapes and targets that do not fit together."""
    x, y = source.first()
    inputs = bnn.cast_inputs(source.x_scaler.transform(x[:2]))
    try:
        with torch.no_grad():
            f = bnn.outputs(bnn.initial_values, inputs)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        raise InputError(f"The network does not take inputs of shape {tuple(x.shape)}: {first_line}") from None
    if f.ndim != 2 or len(f) != len(inputs):
        raise InputError(
            f"The network must map inputs (N, ...) to outputs (N, outputs); {tuple(inputs.shape)} became "
            f"{tuple(f.shape)}."
        )
    bnn.settings["likelihood"].check_targets(y, f.shape[1])
