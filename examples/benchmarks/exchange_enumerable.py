"""Measure the error of the acceptance of noisy exchange, and the distance of its distribution, where both can be enumerated.

    python examples/benchmarks/exchange_enumerable.py [--repeats 3000]

A graph on five nodes with independent ties, a grid of twelve parameters, uniform proposals, exact draws. The acceptance
probabilities of every pair of grid points are averaged over repeats, which gives the transition matrix of the noisy
chain and its stationary distribution. C is Mitrophanov's constant of the exact chain, the sum over t of the contraction
after t steps.
"""

import argparse
import itertools

import numpy as np
from scipy.special import logsumexp

NODES, TIES = 5, 3
GRID = np.linspace(-2.0, 2.0, 12)
DRAWS = (1, 2, 4, 8, 16, 32, 64, 128)


def kernel_of(accept: np.ndarray) -> np.ndarray:
    """Return the transition matrix of uniform proposals."""
    kernel = accept / len(accept)
    np.fill_diagonal(kernel, 0.0)
    return kernel + np.diag(1.0 - kernel.sum(axis=1))


def stationary(kernel: np.ndarray) -> np.ndarray:
    """Return left eigenvector of eigenvalue one."""
    values, vectors = np.linalg.eig(kernel.T)
    vector = np.abs(np.real(vectors[:, np.argmax(np.real(values))]))
    return vector / vector.sum()


def constant(kernel: np.ndarray) -> float:
    """Sum over t of the largest total variation between two rows of the t-step kernel."""
    power, total = np.eye(len(kernel)), 0.0
    for _ in range(500):
        total += 0.5 * np.abs(power[:, None] - power[None]).sum(axis=2).max()
        power = power @ kernel
    return total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3_000)
    repeats = parser.parse_args().repeats
    dyads = NODES * (NODES - 1) // 2
    log_post = GRID * TIES - dyads * np.log1p(np.exp(GRID)) - 0.5 * GRID**2
    posterior = np.exp(log_post - logsumexp(log_post))
    exact = np.minimum(1.0, np.exp(log_post[None] - log_post[:, None]))
    size, rng, bound = len(GRID), np.random.default_rng(1), constant(kernel_of(exact))
    print("| N | largest mean of abs(a − â) | total variation to the posterior | bound |\n| --- | --- | --- | --- |")
    for n_draws in DRAWS:
        accept, error = np.eye(size), np.zeros((size, size))
        for i, j in itertools.permutations(range(size), 2):
            ties = rng.binomial(dyads, 1 / (1 + np.exp(-GRID[j])), size=(repeats, n_draws))
            ratio = logsumexp((GRID[i] - GRID[j]) * ties, axis=1) - np.log(n_draws)
            prior = 0.5 * (GRID[i] ** 2 - GRID[j] ** 2)
            estimates = np.minimum(1.0, np.exp(prior + (GRID[j] - GRID[i]) * TIES + ratio))
            accept[i, j], error[i, j] = estimates.mean(), np.abs(estimates - exact[i, j]).mean()
        worst = error.sum(axis=1).max() / size
        distance = 0.5 * np.abs(stationary(kernel_of(accept)) - posterior).sum()
        print(f"| {n_draws} | {worst:.3f} | {distance:.4f} | {bound * worst:.2f} |", flush=True)


if __name__ == "__main__":
    main()
