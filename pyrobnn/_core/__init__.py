"""Foundations of every room: checks, errors, settings, registries, random state, the lock, and files."""
