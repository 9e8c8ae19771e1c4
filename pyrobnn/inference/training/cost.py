"""The cost of steps under each engine, from their operations and figures kept here; nothing is timed."""

import dataclasses
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from pyrobnn._torch.private import OperationMode, tree_leaves

_RECORDING, _COMPILING, _COMPILING_OPERATION = 0.4, 4.5, 0.0085
"""Seconds to record a step for replay, to record and compile it, and more for each of its operations: what new
processes with an empty cache took for six networks, on two cores of an x86 server. A library kept from before counts as
one still to compile, so that the same call makes the same choice whatever ran before it."""


class Figures(NamedTuple):
    """Seconds for what steps do on a kind of device.

    Attributes:
        operation: for an operation of torch, with its share of Python and Pyro.
        replayed: for an operation of torch where neither runs.
        number: for a number that an operation writes.
        product: for two floating-point operations of a matrix product or convolution.
        fused: share of the time for numbers that is left where operations are fused.
    """

    operation: float
    replayed: float
    number: float
    product: float
    fused: float


_FIGURES = {"cpu": Figures(1e-5, 7e-7, 1e-9, 5e-11, 0.25)}
"""Medians of eight models (perceptrons of 50 to 1200 units, a convolution, an LSTM), one thread of an x86 server."""
_ACCELERATOR = Figures(1e-5, 2e-6, 1e-11, 2e-13, 0.25)
"""Not measured: operations wait for Python as they do on a CPU, the rest is two orders of magnitude faster."""


@dataclasses.dataclass
class Cost:
    """Seconds of a number of steps.

    Attributes:
        eager: run eagerly.
        replayed: recorded, and replayed one operation after the other.
        captured: recorded and compiled.
        step: a single eager step.
    """

    eager: float
    replayed: float
    captured: float
    step: float


class Work(OperationMode):
    """Counts the operations of torch in its block, backward passes included.

    Attributes:
        operations: how many there were.
        numbers: how many numbers they wrote.
        products: half of the floating-point operations of their matrix products and convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.numbers = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.operations += 1
        if not func.is_view:
            self.numbers += sum(value.numel() for value in tree_leaves(result) if isinstance(value, Tensor))
        if func.overloadpacket in flop_registry:
            self.products += flop_registry[func.overloadpacket](*args, **kwargs, out_val=result) // 2
        return result

    def cost(self, num_steps: int, device: str, *, alike: int = 1) -> Cost:
        """Return what steps cost of which the block was one.

        Args:
            num_steps: how many.
            device: type of the device.
            alike: parts of the block that do the same, such as replicates and particles: a graph holds them once.
        """
        recorded, figures = self.operations / alike, _FIGURES.get(device, _ACCELERATOR)
        products, numbers = self.products * figures.product, self.numbers * figures.number
        step = self.operations * figures.operation + numbers + products
        replayed = recorded * figures.replayed + numbers + products
        compiling = _COMPILING + _COMPILING_OPERATION * recorded
        return Cost(
            eager=num_steps * step,
            replayed=_RECORDING + num_steps * replayed,
            captured=compiling + num_steps * (figures.fused * numbers + products),
            step=step,
        )
