"""Comparisons of a fit with a constant, a linear model, and itself without an example."""
