"""Single operations of torch, seen as they run: the one place that imports the mode of torch which sees them."""

from torch.utils._python_dispatch import TorchDispatchMode as OperationMode

__all__ = ["OperationMode"]
