"""Posteriors on disk: a folder with tensors (safetensors) and settings (JSON); nothing in it is executed on loading."""

from pyrobnn.storage.load import load_posterior
from pyrobnn.storage.save import save_posterior

__all__ = ["load_posterior", "save_posterior"]
