"""Files that must stay as they were when they were opened."""

import dataclasses
import os
from pathlib import Path

from pyrobnn._core.errors import InputError


@dataclasses.dataclass(frozen=True)
class SealedFile:
    """A file with its length in bytes and its time of change in nanoseconds, as they were when it was opened."""

    path: Path
    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> "SealedFile":
        """Return a file as it is now."""
        try:
            status = os.stat(path)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}): check the path.") from None
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Refuse a file that is gone, or no longer the same: reading on would mix two data sets, or crash."""
        now = SealedFile.of(self.path)
        if now != self:
            raise InputError(
                f"{self.path} was changed while in use, from {self.size} to {now.size} bytes: leave files alone during "
                "a fit, and open the data anew."
            )
