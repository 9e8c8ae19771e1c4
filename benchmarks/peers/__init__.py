"""Engines of other libraries beside pyrobnn, each in its own environment: scripts that a worker runs."""
