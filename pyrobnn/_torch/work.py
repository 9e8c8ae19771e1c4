"""Counting the operations of torch in a block, to tell its seconds without a clock."""

from typing import Any

from torch import Tensor

from pyrobnn._torch.private import OperationMode, tree_leaves

_ON_CPU, _ON_ACCELERATOR = (1e-5, 1e-9, 5e-11), (1e-5, 1e-11, 2e-13)
"""Seconds for an operation, a number that it writes, and a product: medians of eight models on one thread of an x86
server; of accelerators not measured."""


class Work(OperationMode):
    """Counts the operations of torch in its block, backward passes included, their numbers and products."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # with the compiler of GPU kernels

        super().__init__()
        self._products_of = flop_registry
        self.operations = self.numbers = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.operations += 1
        if not func.is_view:
            self.numbers += sum(value.numel() for value in tree_leaves(result) if isinstance(value, Tensor))
        if func.overloadpacket in self._products_of:
            self.products += self._products_of[func.overloadpacket](*args, **kwargs, out_val=result) // 2
        return result

    def seconds(self, device: str = "cpu") -> float:
        """Return the predicted seconds of the block on a type of device."""
        operation, number, product = _ON_CPU if device == "cpu" else _ON_ACCELERATOR
        return self.operations * operation + self.numbers * number + self.products * product
