"""Measures: each file measures what no suite does. `harness` says what such a file has, and runs it."""
