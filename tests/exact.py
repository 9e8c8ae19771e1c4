"""Exact answers that several tests compare with: linear models with normal noise, and how far chains are from them."""

import arviz as az
import numpy as np
from scipy import stats


def with_ones(x):
    """The columns of a linear model with a bias, (N, D + 1), in double precision."""
    return np.c_[np.asarray(x, float), np.ones(len(x))]


def linear_posterior(design, y, noise, scale=1.0):
    """Mean and covariance of the coefficients under independent normal priors around 0 of a scale, or scales."""
    design, y = np.asarray(design, float), np.asarray(y, float)
    precision = design.T @ design / noise**2 + np.eye(design.shape[1]) / np.asarray(scale) ** 2
    covariance = np.linalg.inv(precision)
    return covariance @ design.T @ y / noise**2, covariance


def linear_evidence(design, y, noise, scale=1.0):
    """Log density of the targets (N,) of the same model."""
    design = np.asarray(design, float) * scale
    covariance = design @ design.T + noise**2 * np.eye(len(design))
    return stats.multivariate_normal(cov=covariance).logpdf(np.asarray(y, float))


def z_scores(chains, mean, covariance):
    """Distances of means and covariances of chains (chain, draw, P) from exact ones, in standard errors by ESS."""
    centred = chains - mean
    pairs = [(i, j) for i in range(len(mean)) for j in range(i + 1)]
    series = [centred[..., i] for i in range(len(mean))]
    series += [centred[..., i] * centred[..., j] - covariance[i, j] for i, j in pairs]
    return np.array([values.mean() / float(az.mcse(values, method="mean")) for values in series])
