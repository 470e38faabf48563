"""Matrix completion and mixtures on simulated data: rank, held-out error against alternating least squares, components.

    python examples/benchmarks/mean_field_recovery.py matrices | mixtures

Matrices have standard normal factors, noise of standard deviation 0.5, and 20 % of their entries observed. The error is
that of the mean on the entries that are not observed, without noise. Alternating least squares has a ridge penalty from
a grid, chosen by a tenth of the observed entries that is held back. Its rank is either the largest allowed or the true
one.
"""

import argparse
import time

import numpy as np
from scipy import sparse

from ppl_backends.mean_field import fit_categorical_mixture, fit_gaussian_mixture, fit_matrix_completion

NOISE, SHARE, MAX_RANK = 0.5, 0.2, 20
PENALTIES = (0.3, 1.0, 3.0, 10.0)


def simulate(m, rank, seed):
    """Return triplets and the matrix without noise."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(m, rank)) @ rng.normal(size=(rank, m))
    i, j = np.nonzero(rng.random((m, m)) < SHARE)
    return i, j, truth[i, j] + NOISE * rng.normal(size=len(i)), truth


def least_squares(i, j, y, m, rank, penalty, rng, sweeps=30):
    """Return both factors by alternating ridge regressions."""
    entries = sparse.csr_matrix((y, (i, j)), shape=(m, m))
    pattern = sparse.csr_matrix((np.ones(len(y)), (i, j)), shape=(m, m))
    sides = [rng.normal(size=(m, rank)) / np.sqrt(rank) for _ in range(2)]
    for _ in range(sweeps):
        for side, (values, where) in enumerate(((entries, pattern), (entries.T.tocsr(), pattern.T.tocsr()))):
            other = sides[1 - side]
            gram = (where @ (other[:, :, None] * other[:, None]).reshape(m, -1)).reshape(m, rank, rank)
            sides[side] = np.linalg.solve(gram + penalty * np.eye(rank), (values @ other)[:, :, None])[:, :, 0]
    return sides


def tuned_least_squares(i, j, y, m, rank, seed):
    """Return the fit with the penalty that predicts a tenth of the entries best."""
    rng = np.random.default_rng(seed)
    held = rng.random(len(y)) < 0.1
    scores = []
    for penalty in PENALTIES:
        u, v = least_squares(i[~held], j[~held], y[~held], m, rank, penalty, np.random.default_rng(seed))
        scores.append(np.mean((y[held] - (u[i[held]] * v[j[held]]).sum(axis=1)) ** 2))
    return least_squares(i, j, y, m, rank, PENALTIES[int(np.argmin(scores))], np.random.default_rng(seed))


def matrices(seeds, sizes):
    """Print a row for every size and rank."""
    print("| m₁ = m₂ | rank | found | error | ALS, rank 20 | ALS, true rank | noise found | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for m in sizes:
        for rank in (2, 5, 10):
            found, errors, noise, seconds = [], [], [], []
            for seed in range(seeds):
                i, j, y, truth = simulate(m, rank, seed)
                unseen = np.ones((m, m), dtype=bool)
                unseen[i, j] = False
                started = time.perf_counter()
                fit = fit_matrix_completion(i, j, y, max_rank=MAX_RANK, random_seed=seed, progressbar=False)
                seconds.append(time.perf_counter() - started)
                found.append(fit.rank)
                noise.append(fit.noise_sd)
                means = [fit.offset + fit.rows @ fit.columns.T]
                for size in (MAX_RANK, rank):
                    u, v = tuned_least_squares(i, j, y, m, size, seed)
                    means.append(u @ v.T)
                errors.append([np.sqrt(np.mean((mean - truth)[unseen] ** 2)) for mean in means])
            figures = " | ".join(f"{value:.3f}" for value in np.mean(errors, axis=0))
            ranks = ", ".join(map(str, found))
            print(
                f"| {m:,} | {rank} | {ranks} | {figures} | {np.mean(noise):.3f} | {np.mean(seconds):.2g} |", flush=True
            )


def gaussian_data(k, rng, n=500, d=3):
    """Return clusters with centres at least four standard deviations apart."""
    while True:
        centres = rng.uniform(-8, 8, size=(k, d))
        apart = np.linalg.norm(centres[:, None] - centres, axis=2)[np.triu_indices(k, 1)]
        if k == 1 or apart.min() > 4:
            break
    label = rng.integers(k, size=n)
    shapes = rng.normal(size=(k, d, d)) * 0.2 + np.eye(d)
    return centres[label] + np.einsum("nij,nj->ni", shapes[label], rng.normal(size=(n, d)))


def categorical_data(k, rng, n=1000, variables=15, levels=3):
    """Return latent classes with Dirichlet(0.5) distributions of levels."""
    probabilities = rng.dirichlet(np.full(levels, 0.5), size=(k, variables)).cumsum(axis=2)
    label = rng.integers(k, size=n)
    return (rng.random((n, variables, 1)) > probabilities[label]).sum(axis=2).clip(max=levels - 1)


def mixtures(seeds):
    """Print how often the number of components is found among those that differ from it by at most two."""
    print("| components | Gaussian | categorical |")
    print("| --- | --- | --- |")
    for k in (1, 2, 3, 4, 6):
        right = [0, 0]
        for seed in range(seeds):
            rng = np.random.default_rng([k, seed])
            tried = range(max(1, k - 2), k + 3)
            options = {"components": tried, "restarts": 2, "random_seed": seed, "progressbar": False}
            right[0] += fit_gaussian_mixture(gaussian_data(k, rng), **options).k == k
            right[1] += fit_categorical_mixture(categorical_data(k, rng), **options).k == k
        print(f"| {k} | {right[0]} of {seeds} | {right[1]} of {seeds} |", flush=True)


def main():
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["matrices", "mixtures"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 500, 1000])
    chosen = parser.parse_args()
    if chosen.task == "matrices":
        matrices(chosen.seeds, chosen.sizes)
    else:
        mixtures(chosen.seeds)


if __name__ == "__main__":
    main()
