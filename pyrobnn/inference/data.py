"""Training data made ready for a model: scaled, cast, and cut into batches."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal, NoReturn

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.checks import check_range
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.devices import resolve_device
from pyrobnn._torch.inputs import X
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch, Batches, LoaderBatches, TensorBatches
from pyrobnn.data.given import first_rows
from pyrobnn.data.in_memory import Data, Scaler
from pyrobnn.data.loader import Epoch, Loader
from pyrobnn.inference import limits
from pyrobnn.inference.network_checks import SHOWN, checked_outputs
from pyrobnn.likelihoods.base import as_likelihood, target_units
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import FitRecord

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
    epoch: Epoch | None = None  # the batches in an epoch of a loader
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
        """Return the number of examples in a batch.

        Chosen by size: all examples in memory up to 500, if examples times weights are up to 20 million, else 128.
        """
        if isinstance(self.data, Loader):
            return self.data.batch_size or len(self.head[0])
        if asked == "all":
            return self.num_data
        if asked is not None:
            return min(asked, self.num_data)
        products = self.num_data * self.num_weights
        suits = self.num_data <= limits.MOST_AT_ONCE and products <= limits.MOST_PRODUCTS_AT_ONCE
        return self.num_data if suits else min(limits.BATCH, self.num_data)

    def batches_per_epoch(self, asked: BatchSize) -> int:
        """Return the number of batches in a pass."""
        if not isinstance(self.data, Loader):
            return self.num_data // self.batch_size(asked)
        return self.data.num_batches or math.ceil(self.num_data / self.batch_size(asked))

    def batches(self, bnn: BNN, asked: BatchSize, seed: int) -> Batches:
        """Return endless batches in the units, precision and place of the model; the seed orders them."""
        if isinstance(self.data, Data):
            rows, size = self.scaled(bnn, *self.data.tensors), self.batch_size(asked)
            return TensorBatches(rows, size, seed, independent=self.independent)

        def prepare(x: X, y: Tensor) -> Batch:
            self.check_targets(bnn, y)
            return self.scaled(bnn, x, y)

        return LoaderBatches(self.data.loader, prepare, self._mean_rows(), bnn.like, self.data.pair)

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

    def check_targets(self, bnn: BNN, y: Tensor) -> None:
        """Refuse targets of a batch that the likelihood cannot produce; their positions may differ in number."""
        likelihood = bnn.settings["likelihood"]
        has_positions = as_likelihood(likelihood).has_positions
        likelihood.check_targets(y, likelihood.num_outputs(y) if has_positions else self.outputs)

    def check_pass(self) -> None:
        """Refuse a loader whose epochs repeat or skip examples."""
        if self.epoch is not None and not self.epoch.is_pass:
            self._refuse_pass(str(self.epoch.num_rows))

    def _refuse_pass(self, num_rows: str) -> NoReturn:
        raise InputError(
            f"All {self.num_data} examples are needed here, each once, and a pass of the DataLoader gave {num_rows}: "
            "use drop_last=False, a sampler that takes each once, and no `collate_fn` that leaves out or repeats some."
        )

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
    """Return the source for data, after checking them against the model.

    The units come from the model if it has any, else from the data.
    """
    if isinstance(data, Loader) and batch_size is not None:
        raise InputError("`batch_size` belongs to the DataLoader here: leave it out of the method.")
    with seeded(seed, "data"):
        head = first_rows(data)
        num_data, epoch = data.counted(len(head[0])) if isinstance(data, Loader) else (len(data), None)
        standard = data.x_scaler, target_units(bnn.settings["likelihood"], data.y_scaler)
        x_scaler, y_scaler = standard if bnn.units is None else bnn.units
        shown, products = checked_outputs(bnn, data, head, x_scaler, y_scaler)
    return Source(data, head, x_scaler, y_scaler, num_data, shown, bnn.num_weights, products, epoch)


def check_validation(data: Data | Loader, bnn: BNN, source: Source, *, seed: int) -> None:
    """Refuse data that a model cannot score in the units of its source."""
    with seeded(seed, "data"):
        checked_outputs(bnn, data, first_rows(data), source.x_scaler, source.y_scaler)
