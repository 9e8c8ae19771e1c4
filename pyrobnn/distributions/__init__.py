"""Distributions of latents and of targets, and their quantiles."""
