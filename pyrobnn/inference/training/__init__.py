"""Training: the state of a fit in progress, its start, the loop of steps, what watches it and what ends it."""
