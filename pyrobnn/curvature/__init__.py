"""Curvature of the log joint density at a point, in the structures that large networks allow."""
