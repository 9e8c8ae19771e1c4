"""Foundations of every room: checks, errors, settings, registries, random state, the lock, files and tables."""
