"""Rectangles whose probability is known from quadrature in one or two dimensions, or in closed form."""

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

GAUSS = leggauss(400)
FINE = leggauss(2000)


def exchangeable(dim, rho=0.5):
    return np.full((dim, dim), float(rho)) + (1 - rho) * np.eye(dim)


def autoregression(length, rho=0.7):
    return rho ** np.abs(np.subtract.outer(np.arange(length), np.arange(length)))


def ranking(items):
    """Return the covariance of the differences of neighbours among independent standard normals."""
    return 2 * np.eye(items - 1) - np.eye(items - 1, k=1) - np.eye(items - 1, k=-1)


def log_ranking(items):
    return -gammaln(items + 1)


def factors(dim):
    """Return loadings, noise and lower bounds of the two-factor instances of the table."""
    g = np.random.default_rng(dim)
    loadings, noise = 0.8 * g.normal(size=(dim, 2)), g.uniform(0.3, 1, dim)
    sd = np.sqrt((loadings**2).sum(axis=1) + noise)
    return loadings, noise, -g.uniform(0, 1.5, dim) * sd


def correlation(dim):
    x = np.random.default_rng(dim + 1).normal(size=(2 * dim, dim))
    cov = x.T @ x
    return cov / np.sqrt(np.outer(np.diag(cov), np.diag(cov)))


def cauchy(dim):
    """Return the covariance and lower bounds of Ridgway's instances."""
    g = np.random.default_rng(dim + 2)
    x = 0.01 * g.standard_cauchy((dim, dim))
    return x.T @ x, 0.01 * g.standard_cauchy(dim)


def log_one_factor(loadings, noise, lower, upper, half=12.0):
    """Return log P of X = λ f + noise, and what it is the sum of."""
    nodes, weights = FINE
    f = half * nodes
    sd = np.sqrt(noise)
    a, b = ((bound - np.outer(f, loadings)) / sd for bound in (lower, upper))
    inside = np.log(np.maximum(ndtr(b) - ndtr(a), 1e-300))
    log_terms = np.log(half * weights) - 0.5 * f**2 - 0.5 * np.log(2 * np.pi) + inside.sum(axis=1)
    return logsumexp(log_terms), f, log_terms


def means_one_factor(loadings, noise, lower, upper):
    """Return E[X | inside] of the same."""
    log_p, f, log_terms = log_one_factor(loadings, noise, lower, upper)
    sd = np.sqrt(noise)
    a, b = ((bound - np.outer(f, loadings)) / sd for bound in (lower, upper))
    density = (np.exp(-0.5 * a**2) - np.exp(-0.5 * b**2)) / np.sqrt(2 * np.pi)
    given = np.outer(f, loadings) + sd * density / np.maximum(ndtr(b) - ndtr(a), 1e-300)
    return np.exp(log_terms - log_p) @ given


def log_two_factors(loadings, noise, lower):
    nodes, weights = leggauss(200)
    f = 9.0 * nodes
    grid = np.array(np.meshgrid(f, f, indexing="ij")).reshape(2, -1)
    log_w = np.log(9.0 * weights)
    terms = (log_w[:, None] + log_w).ravel() - 0.5 * (grid**2).sum(axis=0) - np.log(2 * np.pi)
    for row, variance, bound in zip(loadings, noise, lower, strict=True):
        terms = terms + log_ndtr((row @ grid - bound) / np.sqrt(variance))
    return logsumexp(terms)


def log_autoregression(rho, lower, upper):
    """Return log P of a stationary autoregression inside intervals, by a recursion over densities at nodes."""
    nodes, weights = GAUSS

    def rule(low, high):
        low, high = max(low, -10.0), min(high, 10.0)
        return 0.5 * (low + high) + 0.5 * (high - low) * nodes, 0.5 * (high - low) * weights

    x, w = rule(lower[0], upper[0])
    density, log_p = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi), 0.0
    sd = np.sqrt(1 - rho**2)
    for low, high in zip(lower[1:], upper[1:], strict=True):
        total = w @ density
        log_p, density = log_p + np.log(total), density / total
        y, v = rule(low, high)
        kernel = np.exp(-0.5 * ((y[:, None] - rho * x) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
        density, x, w = kernel @ (w * density), y, v
    return log_p + np.log(w @ density)
