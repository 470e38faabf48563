"""Inclusion probabilities of probit regressions: search over models against the joint Gibbs sampler of Holmes & Held (2006).

    python examples/benchmarks/model_search_against_gibbs.py german_credit --runs 8 --seconds 15 > german.jsonl
    python examples/benchmarks/model_search_against_gibbs.py musk --runs 6 --seconds 20 --draws 1000 > musk.jsonl
    python examples/benchmarks/model_search_against_gibbs.py table musk.jsonl

The Gibbs sampler draws (γ, β) given the latent normal z, γ by switching one candidate with β integrated over, and z
given β. It runs for the requested CPU seconds, after a tenth of them as burn-in. The search has ``--draws`` particles.
Variances are those of the inclusion probabilities between independent runs, times CPU seconds. The interval of the
ratio of their sums comes from 10,000 bootstrap samples of the runs of each method.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numba
import numpy as np

from ppl_backends.datasets import load_binary_regression
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence, LaplaceEvidence
from ppl_backends.model_search.evidences.laplace_kernels import cholesky, solve
from ppl_backends.model_search.forms import design_form
from ppl_backends.model_search.sampler import run_search
from ppl_backends.model_search.space import make_space

BLOCK, BURN_IN = 200, 0.1
RESAMPLES = 10_000
METHODS = ("search", "gibbs")
EDGE = 0.01  # from which inclusions vary enough for their variances to be compared

jit = numba.njit(nogil=True)


@jit
def above(bound, rng):
    """Return a standard normal number above ``bound``."""
    if bound <= 0.0:
        while True:
            draw = rng.standard_normal()
            if draw > bound:
                return draw
    rate = 0.5 * (bound + math.sqrt(bound * bound + 4.0))  # Robert (1995)
    while True:
        draw = bound + rng.standard_exponential() / rate
        if math.log(rng.random()) < -0.5 * (draw - rate) ** 2:
            return draw


@jit
def log_marginal(gram, right, precision, columns, factor, half):
    """Return log p(z | γ) without terms that models share; write the Cholesky factor of A and L⁻¹r."""
    k, total = len(columns), 0.0
    for a in range(k):
        for b in range(a + 1):
            factor[a, b] = gram[columns[a], columns[b]]
        factor[a, a] += precision[columns[a]]
        total += 0.5 * math.log(precision[columns[a]])
    total -= 0.5 * cholesky(factor, k)
    for a in range(k):
        half[a] = right[columns[a]]
        for b in range(a):
            half[a] -= factor[a, b] * half[b]
        half[a] /= factor[a, a]
        total += 0.5 * half[a] ** 2
    return total


@jit
def gibbs(design, sign, gram, precision, always, on, z, steps, rng):
    """Make steps in place; return how often each column was on ``(p,)``."""
    p, n = design.shape
    counts, right, eta = np.zeros(p), np.empty(p), np.empty(n)
    factor, other, half, theta = np.empty((p, p)), np.empty((p, p)), np.empty(p), np.empty(p)
    candidates = np.flatnonzero(~always)
    for _ in range(steps):
        j = candidates[int(len(candidates) * rng.random())]
        for i in range(p):
            if on[i] or i == j:
                right[i] = np.dot(design[i], z)
        columns = np.flatnonzero(on)
        value = log_marginal(gram, right, precision, columns, factor, half)
        on[j] = not on[j]
        switched = np.flatnonzero(on)
        proposed = log_marginal(gram, right, precision, switched, other, theta)
        if math.log(rng.random()) < proposed - value:
            columns, factor, other = switched, other, factor
        else:
            on[j] = not on[j]
        k = len(columns)
        for a in range(k):
            theta[a] = right[columns[a]]
        solve(factor, theta, k)
        for a in range(k):
            half[a] = rng.standard_normal()
        for a in range(k - 1, -1, -1):  # L'⁻¹ of the noise
            for b in range(a + 1, k):
                half[a] -= factor[b, a] * half[b]
            half[a] /= factor[a, a]
        eta[:] = 0.0
        for a in range(k):
            eta += (theta[a] + half[a]) * design[columns[a]]
        for i in range(n):
            z[i] = eta[i] + sign[i] * above(-sign[i] * eta[i], rng)
        counts += on
    return counts


def run_gibbs(form, seconds, seed):
    """Return inclusion probabilities of one chain with a given CPU time, and its number of steps."""
    compiled, rng = form.regression.compiled, np.random.default_rng(seed)
    design, sign, precision = compiled.design, compiled.y, compiled.prior[:, 1]
    gram = design @ design.T
    on, z = form.always.copy(), 0.5 * sign
    counts, steps, kept, burnt, clock = np.zeros(len(on)), 0, 0, False, time.process_time()
    while (spent := time.process_time() - clock) < seconds:
        if not burnt and spent > BURN_IN * seconds:
            counts[:], burnt = 0.0, True
        counts += gibbs(design, sign, gram, precision, form.always, on, z, BLOCK, rng)
        steps += BLOCK
        kept += BLOCK if burnt else 0
    return counts / max(kept, 1), steps


def interval(gibbs, search, seconds, rng):
    """Return the central 95 % of the ratio of summed variances times CPU, over resampled runs of either."""
    sums = {}
    for name, each in (("gibbs", gibbs), ("search", search)):
        runs, times = np.asarray(each), np.asarray(seconds[name])
        chosen = rng.integers(len(runs), size=(RESAMPLES, len(runs)))
        sums[name] = np.array([runs[rows].var(axis=0).sum() * times[rows].mean() for rows in chosen])
    return np.nanquantile(sums["gibbs"] / sums["search"], [0.025, 0.975])


def measure(arguments):
    """Print the inclusion probabilities of both methods, a line of JSON for each seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--points", type=int, default=0, help="of unbiased estimates; 0 for Laplace itself")
    given = parser.parse_args(arguments)
    data = load_binary_regression(given.data)
    form = design_form(data.X, data.y, "binomial", "probit", None, None)
    space = make_space(form.names, form.always, None, None, "uniform")

    def search(draws, seed):
        evidence = LaplaceEvidence(form.regression)
        if given.points:
            evidence = ImportanceEvidence(evidence, given.points)
        return run_search(space, evidence, draws, np.random.default_rng([1, seed]))

    run_gibbs(form, 0.01, 0)  # the first ones compile
    search(50, 0)
    for seed in range(given.first, given.first + given.runs):
        clock = time.process_time()
        run = search(given.draws, seed + 1)
        seconds = {"search": time.process_time() - clock}
        clock = time.process_time()
        inclusion, steps = run_gibbs(form, given.seconds, [2, seed])
        seconds["gibbs"] = time.process_time() - clock
        found = {"search": run.population.share.mean(axis=0).tolist(), "gibbs": inclusion[~form.always].tolist()}
        row = {"seed": seed, "seconds": seconds, "found": found, "steps": steps, "log_evidence": run.log_evidence}
        print(json.dumps(row), flush=True)


def table(files):
    """Print the comparison of the runs in files."""
    rows = [json.loads(row) for file in files for row in Path(file).read_text().splitlines()]
    found, seconds = ({name: [row[key][name] for row in rows] for name in METHODS} for key in ("found", "seconds"))
    middle = np.abs(np.mean(found["search"], axis=0) - 0.5) < 0.5 - EDGE
    cost = {}
    print(f"{len(rows)} runs, {np.mean([row['steps'] for row in rows]):,.0f} Gibbs steps a run")
    for name, each in found.items():
        variance = np.var(each, axis=0, ddof=1)
        cost[name] = variance * np.mean(seconds[name])
        sd, mean = np.sqrt(variance.max()), np.sqrt(variance.mean())
        print(f"{name}: {np.mean(seconds[name]):.1f} CPU s a run, sd of an inclusion {sd:.4f} at most, rms {mean:.4f}")
    ratio = np.sort(cost["gibbs"][middle] / cost["search"][middle])
    total = cost["gibbs"].sum() / cost["search"].sum()
    low, high = interval(found["gibbs"], found["search"], seconds, np.random.default_rng(0))
    print(
        f"variance × CPU, Gibbs over search: of the sum {total:.1f} [{low:.1f}, {high:.1f}]; of the {len(ratio)} "
        "candidates of inclusion in"
    )
    print(
        f"    ({EDGE}, {1 - EDGE}): median {np.median(ratio):.1f}, smallest {ratio[0]:.1f}, {np.mean(ratio > 1):.0%} > 1"
    )
    gap = np.abs(np.mean(found["gibbs"], axis=0) - np.mean(found["search"], axis=0))
    error = np.sqrt((np.var(found["gibbs"], axis=0, ddof=1) + np.var(found["search"], axis=0, ddof=1)) / len(rows))
    print(f"means differ by {gap.max():.4f} at most, ± {error[np.argmax(gap)]:.4f}")


if __name__ == "__main__":
    if sys.argv[1] == "table":
        table(sys.argv[2:])
    else:
        measure(sys.argv[1:])
