"""Moves inside the SMC of orthants: Gibbs sweeps against exact Hamiltonian trajectories (Ridgway 2015, Figure 3.D.1).

    python examples/benchmarks/orthant_moves.py [--dims 40 60] [--particles 2000] [--runs 20]

The SMC is algorithm 12 of the thesis in Gibson's order: coordinate t is drawn between its bounds, the weight is multiplied by
the probability of these, and with an ESS below one half the particles are resampled and moved once. A move is a sweep of
Gibbs draws over all coordinates, or an exact trajectory of length π/2 that is reflected at the bounds (Pakman & Paninski
2014). Its number of particles is set so that both take the same processor time. The covariances are those of section 3.6.
"""

import argparse
import time
from math import acos, atan2, cos, exp, hypot, log, pi, sin, sqrt

import numba
import numpy as np
from orthants import INF, cauchy, outliers
from scipy.special import log_ndtr

import ppl_backends as pb
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.orthants.ordering import order_rectangle

TINY = 1e-9


@numba.njit(cache=True)
def tail_draw(low, rng):
    """Return a standard normal above ``low``: by inversion near zero and below, else Robert's (1995) exponential proposal."""
    if low < 0.5:
        while True:
            z = rng.standard_normal()
            if z > low:
                return z
    rate = 0.5 * (low + sqrt(low * low + 4.0))
    while True:
        z = low - log(1.0 - rng.random()) / rate
        if rng.random() <= exp(-0.5 * (z - rate) ** 2):
            return z


@numba.njit(cache=True)
def interval_draw(low, high, rng):
    """Return a standard normal between bounds."""
    if high == np.inf:
        return tail_draw(low, rng)
    if low == -np.inf:
        return -tail_draw(-high, rng)
    if low < 0.0 < high and high - low > 1.0:
        while True:
            z = rng.standard_normal()
            if low < z < high:
                return z
    best = low if low > 0.0 else high if high < 0.0 else 0.0
    while True:
        z = low + (high - low) * rng.random()
        if log(1.0 - rng.random()) <= 0.5 * (best * best - z * z):
            return z


@numba.njit(cache=True)
def gibbs(rows, lower, x, rng):
    """Make one sweep over the coordinates of every particle ``x`` ``(n, t)`` under ``rows`` x > ``lower``."""
    n, t = x.shape
    slack = np.empty(t)
    for i in range(n):
        for k in range(t):
            slack[k] = -lower[k]
            for j in range(k + 1):
                slack[k] += rows[k, j] * x[i, j]
        for j in range(t):
            low, high = -np.inf, np.inf
            for k in range(j, t):
                if rows[k, j] > 0.0:
                    low = max(low, x[i, j] - slack[k] / rows[k, j])
                elif rows[k, j] < 0.0:
                    high = min(high, x[i, j] - slack[k] / rows[k, j])
            if low < high:
                new = interval_draw(low, high, rng)
                for k in range(j, t):
                    slack[k] += rows[k, j] * (new - x[i, j])
                x[i, j] = new


@numba.njit(cache=True)
def hamiltonian(rows, lower, x, rng, most=2000):
    """Move every particle by a trajectory of length π/2; return how many met more than ``most`` bounds."""
    n, t = x.shape
    products, stayed = rows @ rows.T, 0
    at, speed, here, v = np.empty(t), np.empty(t), np.empty(t), np.empty(t)
    for i in range(n):
        here[:] = x[i]
        for j in range(t):
            v[j] = rng.standard_normal()
        at[:], speed[:] = rows @ here, rows @ v
        left, last, bounces = 0.5 * pi, -1, 0
        while left > 0.0 and bounces <= most:
            hit, wall = left, -1
            for k in range(t):
                size = hypot(at[k], speed[k])
                if size > abs(lower[k]):
                    when = (atan2(speed[k], at[k]) + acos(lower[k] / size)) % (2.0 * pi)  # downwards through the bound
                    if when < hit and not (k == last and when < TINY):
                        hit, wall = when, k
            c, s = cos(hit), sin(hit)
            for j in range(t):
                here[j], v[j] = here[j] * c + v[j] * s, v[j] * c - here[j] * s
                at[j], speed[j] = at[j] * c + speed[j] * s, speed[j] * c - at[j] * s
            left -= hit
            if wall >= 0:
                turn = 2.0 * speed[wall] / products[wall, wall]
                for j in range(t):
                    v[j] -= turn * rows[wall, j]
                    speed[j] -= turn * products[j, wall]
                last, bounces = wall, bounces + 1
        if bounces <= most and np.all(rows @ here >= lower - TINY * np.maximum(1.0, np.abs(lower))):
            x[i] = here
        else:
            stayed += 1
    return stayed


@numba.njit(cache=True)
def tails(low, x, rng):
    """Draw above ``low`` ``(n,)`` into ``x``."""
    for i in range(len(low)):
        x[i] = tail_draw(low[i], rng)


def log_p(rows, lower, particles, move, rng):
    """Return the estimate of log P by one run of SMC, and the numbers of resamplings and of trajectories that stayed."""
    dim = len(lower)
    x, weight, total, times, stayed = np.empty((particles, dim)), np.zeros(particles), 0.0, 0, 0
    for t in range(dim):
        low = lower[t] - x[:, :t] @ rows[t, :t]  # rows have ones on the diagonal
        weight = weight + log_ndtr(-low)
        drawn = np.empty(particles)
        tails(low, drawn, rng)
        x[:, t] = drawn
        share = np.exp(weight - weight.max())
        if share.sum() ** 2 < 0.5 * particles * (share**2).sum() and t < dim - 1:
            total += weight.max() + np.log(share.mean())
            moved = np.ascontiguousarray(x[systematic_resampling(share / share.sum(), particles, rng), : t + 1])
            stayed += move(np.ascontiguousarray(rows[: t + 1, : t + 1]), lower[: t + 1], moved, rng) or 0
            x[:, : t + 1], weight, times = moved, np.zeros(particles), times + 1
    return total + weight.max() + np.log(np.exp(weight - weight.max()).mean()), times, stayed


def main():
    """Print errors of both moves at equal time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", nargs="+", type=int, default=[40, 60])
    parser.add_argument("--particles", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    print("| d | move | particles | mean error of log P | sd | outliers | resampled | stayed | CPU s a run |")
    print("| --- " * 9 + "|")
    for dim in options.dims:
        cov, lower = cauchy(dim)
        truth = pb.rectangle_probability(cov, lower, np.full(dim, INF), random_seed=12345, n_points=16384).log_p
        rectangle = order_rectangle(cov, lower, np.full(dim, INF))
        rows, bounds = np.ascontiguousarray(rectangle.rows), rectangle.lower
        pace = {}
        for move in (gibbs, hamiltonian):
            log_p(rows, bounds, 20, move, np.random.default_rng(0))
            clock = time.process_time()
            log_p(rows, bounds, options.particles // 4, move, np.random.default_rng(0))
            pace[move] = time.process_time() - clock
        for move in (gibbs, hamiltonian):
            particles = int(options.particles * pace[gibbs] / pace[move])
            clock = time.process_time()
            runs = [log_p(rows, bounds, particles, move, np.random.default_rng(k)) for k in range(options.runs)]
            seconds = (time.process_time() - clock) / options.runs
            found, times, stayed = (np.array(column, dtype=float) for column in zip(*runs, strict=True))
            error = found - truth
            line = f"| {dim} | {move.__name__} | {particles} | {error.mean():+.3f} | {error.std(ddof=1):.3f} |"
            print(f"{line} {outliers(error)} | {times.mean():.1f} | {stayed.mean():.1f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
