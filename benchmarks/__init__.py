"""Benchmarks of pyrobnn: suites run by `python -m benchmarks run`, and measures by `python -m benchmarks measure`."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
"""Where results lie that are committed."""
