"""Several fits: replicates, ensembles, averages along a path, processes side by side, candidates to choose from."""
