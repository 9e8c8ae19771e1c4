"""Posteriors on disk: a file of safetensors with settings (JSON) in its header; nothing in it is executed on loading."""
