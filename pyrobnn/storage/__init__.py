"""Posteriors on disk: a folder with tensors (safetensors) and settings (JSON); nothing in it is executed on loading."""
