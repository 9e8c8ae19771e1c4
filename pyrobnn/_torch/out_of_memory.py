"""The message when a device has not enough memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def named_batch_size(batch_size: int) -> Iterator[None]:
    """Say with torch's error how many examples were taken at once.

    Raises:
        OutOfMemoryError: of torch, naming the batch size.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        first_line = str(error).partition("\n")[0]
        raise torch.OutOfMemoryError(
            f"The device ran out of memory with batch_size={batch_size}: set a smaller `batch_size`, or fewer "
            f"particles or replicates. torch says: {first_line}"
        ) from error
