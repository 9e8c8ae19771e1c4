"""Posteriors, mixtures of them, their predictions, and their weights."""
