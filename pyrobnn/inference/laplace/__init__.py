"""Laplace approximations: modes and the curvature around them."""
