"""Data in memory and on disk, and the batches that fits take from them."""
