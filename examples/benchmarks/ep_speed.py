"""
Speed of expectation propagation
================================

Solver times of EP on hand-written factors, beside Newton's method on the same factors (what a Laplace approximation
costs), and how EP grows with the data. The best of several runs is shown; set OMP_NUM_THREADS to fix the threads.

    python examples/benchmarks/ep_speed.py
"""

import time

import numpy as np

from ppl_backends.approximations.ep import Factors, Logit, Probit, StudentT, fit_ep
from ppl_backends.approximations.ep.evidence import working_sites
from ppl_backends.approximations.ep.parallel import laplace_start
from ppl_backends.datasets import load_binary_regression


def best(function, repeats=9):
    """Shortest of several runs, in milliseconds, and the last result."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = function()
        times.append(1e3 * (time.perf_counter() - started))
    return min(times), result


def scenarios(X, y):
    """The four of Chopin & Ridgway (2017): Gaussian or Cauchy prior, probit or logit."""
    d = X.shape[1]
    scale = np.r_[10.0, np.full(d - 1, 2.5)]
    for family in (Probit, Logit):
        name = family.__name__.lower()
        yield f"Gaussian/{name}", Factors(X, None, family(y), 0.0, 1 / (2 * scale) ** 2)
        cauchy = StudentT(np.zeros(d), 1.0, scale)
        yield f"Cauchy/{name}", Factors([X, np.eye(d)], None, [family(y), cauchy], 0.0, 0.0)


def small_data():
    """EP and Newton on the data sets of the paper."""
    print(
        f"{'data':18s} {'n':>5s} {'d':>4s} {'scenario':16s} {'EP ms':>8s} {'Newton ms':>10s} {'ratio':>6s} {'sweeps':>7s}"
    )
    for name in ("plasma", "pima", "breast_wisconsin", "australian", "german_credit", "sonar", "musk"):
        X, y, *_ = load_binary_regression(name, scaling="gelman")
        for scenario, factors in scenarios(X, y):
            ep, q = best(lambda factors=factors: fit_ep(factors))
            sites, _ = working_sites(factors)
            newton, _ = best(lambda sites=sites: laplace_start(sites))
            n, d = X.shape
            print(
                f"{name:18s} {n:5d} {d:4d} {scenario:16s} {ep:8.2f} {newton:10.2f} {ep / newton:6.1f} "
                f"{int(q.diagnostics['sweeps']):7d}{'' if q.converged else '  not converged'}"
            )


def growing_data(d=50):
    """Logistic regression with more and more rows."""
    print(f"\n{'n':>7s} {'d':>4s} {'EP s':>7s} {'sweeps':>7s}")
    rng = np.random.default_rng(0)
    beta = 0.2 * rng.normal(size=d)
    for n in (12_500, 25_000, 50_000, 100_000):
        X = rng.normal(size=(n, d))
        y = rng.random(n) < 1 / (1 + np.exp(-X @ beta))
        elapsed, q = best(lambda X=X, y=y: fit_ep(Factors(X, None, Logit(y), 0.0, 1.0)), repeats=2)
        print(f"{n:7d} {d:4d} {elapsed / 1e3:7.2f} {int(q.diagnostics['sweeps']):7d}")


if __name__ == "__main__":
    small_data()
    growing_data()
