"""Data in memory and on disk, and the batches that fits take from them."""

from typing import Literal

InputColumns = Literal["plain", "ranks", "waves"]
"""What a network sees of a table: its columns, or more inputs beside them."""
