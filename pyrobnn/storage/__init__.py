"""Posteriors on disk: safetensors with settings (JSON) in the header; nothing in them is executed on loading."""
