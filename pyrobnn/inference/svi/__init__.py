"""Stochastic variational inference: objective, engines, and the choice between them."""
