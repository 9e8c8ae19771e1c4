"""Distributions of latents and of targets, their quantiles, and maps between units."""
