"""The GPU kit: proves and measures what runs on a card, `python -m benchmarks.gpu`."""
