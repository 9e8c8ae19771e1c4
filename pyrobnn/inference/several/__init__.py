"""Several fits: replicates, ensembles, averages along a path, candidates to choose from."""
