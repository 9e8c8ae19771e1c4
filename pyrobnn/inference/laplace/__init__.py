"""Laplace approximations: modes, curvature around them, and precisions tuned by the evidence."""
