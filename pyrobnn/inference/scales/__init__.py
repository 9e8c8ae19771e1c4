"""Scales of priors and noise by the evidence: measured before a fit, tuned with a mode, or tuned after a fit."""
