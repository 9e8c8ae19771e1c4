"""Posteriors, mixtures of them, what they predict, and their weights."""
