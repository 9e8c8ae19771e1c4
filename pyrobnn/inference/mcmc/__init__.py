"""Chains: Hamiltonian Monte Carlo and stochastic gradients."""
