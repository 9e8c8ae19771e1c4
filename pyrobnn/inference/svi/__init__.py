"""Stochastic variational inference: the objective, gradients of less noise, modes by L-BFGS, and IVON."""
