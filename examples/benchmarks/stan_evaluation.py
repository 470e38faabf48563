"""Measure the cost of an evaluation of a Stan program, and that of its compilation.

Logistic regression with 768 rows and 8 columns. The script prints the C++ cost of log density and gradient at one point
(a batch of copies of it on one thread), the overhead of a single-point call from Python, the gain of a second thread on
a batch of 1000 points, subsets of rows, and compile times with an empty cache, with our own part compiled before, and
with a precompiled header.

Run as ``python examples/benchmarks/stan_evaluation.py [--no-compile]``, on an otherwise idle machine.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from ppl_backends.targets.stan import StanProgram, stan_target
from ppl_backends.targets.stan.build import PRECOMPILE_VARIABLE, build_library

CODE = """
data {
  int<lower=0> N;
  int<lower=1> D;
  matrix[N, D] X;
  array[N] int<lower=0, upper=1> y;
}
parameters {
  vector[D] beta;
}
model {
  beta ~ std_normal();
  y ~ bernoulli_logit(X * beta);
}
"""


def seconds(call, repeats, rounds=9):
    """Return the median over rounds of the time of one call."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - start) / repeats)
    return float(np.median(times))


def processor_seconds(call, repeats, rounds=9):
    """Return the median over rounds of the processor time of one call, of all threads together."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(repeats):
            call()
        times.append((time.process_time() - start) / repeats)
    return float(np.median(times))


def interleaved(first, second, repeats, rounds=41):
    """Return times of two calls taken in turn, so that both see the same machine: two arrays of seconds per call."""
    times = np.empty((rounds, 2))
    for row in times:
        for k, call in enumerate((first, second)):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            row[k] = (time.perf_counter() - start) / repeats
    return times.T


def with_quartiles(values):
    """Return the text of a median and the quartiles around it."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{median:.2f} [{low:.2f}, {high:.2f}]"


def evaluation(n_rows, n_columns):
    """Print the cost of evaluation for one size of data."""
    rng = np.random.default_rng(1)
    data = {"N": n_rows, "D": n_columns, "X": rng.normal(size=(n_rows, n_columns)), "y": rng.integers(0, 2, n_rows)}
    rows = {"N": ["X", "y"]}
    alone, both = (stan_target(CODE, data, rows=rows, cores=cores) for cores in (1, 2))
    x = rng.normal(size=(1000, n_columns))
    copies, batch = np.repeat(x[:1], 1000, axis=0), max(1, 200_000 // (n_rows * n_columns) // 10)
    point = x[:1]
    for target in (alone, both):
        target.log_density_and_gradient(x)

    def one_by_one():
        for _ in range(100):
            alone.log_density_and_gradient(point)

    single, inside = interleaved(one_by_one, lambda: alone.log_density_and_gradient(copies[:100]), batch)
    one, two = interleaved(*(lambda t=t: t.log_density_and_gradient(x) for t in (alone, both)), batch)
    print(f"{n_rows} x {n_columns}: log density and gradient, medians [quartiles]")
    print(f"  one point in C++           {with_quartiles(1e4 * inside)} µs")
    print(f"  one point from Python adds {with_quartiles(1e4 * (single - inside))} µs")
    print(f"  1000 points, one thread    {with_quartiles(1e3 * one)} ms")
    print(f"  1000 points, two threads   {with_quartiles(1e3 * two)} ms, {with_quartiles(one / two)} times as fast")
    one, two = (processor_seconds(lambda t=t: t.log_density_and_gradient(x), batch) for t in (alone, both))
    print(
        f"  the same, processor time   {1e3 * one:8.2f} and {1e3 * two:.2f} ms ({2 * one / two:.2f} times on idle cores)"
    )
    index = rng.integers(0, n_rows, size=(1000, 100))
    shared = seconds(lambda: both.observations.sum(x, index[0], gradient=True), batch)
    own = seconds(lambda: both.observations.sum(x, index, gradient=True), batch)
    print(f"  1000 points, 100 shared rows {1e3 * shared:6.2f} ms, 100 rows of their own {1e3 * own:.2f} ms")


def compilation():
    """Print compile times; each program differs in its name, so that none comes from the cache."""
    cache = Path(tempfile.mkdtemp(prefix="ppl-backends-benchmark-"))

    def build(name, what):
        start = time.perf_counter()
        build_library(StanProgram(name, CODE), cache=cache)
        print(f"  {what:<42} {time.perf_counter() - start:6.1f} s")

    print("compilation")
    try:
        build("first", "empty cache")
        build("second", "our part compiled before")
        build("second", "in the cache")
        os.environ[PRECOMPILE_VARIABLE] = "1"
        build("third", "with the header precompiled on the way")
        build("fourth", "with a precompiled header")
        size = sum(path.stat().st_size for path in cache.glob("stan-*/*.gch"))
        print(f"  the precompiled header takes {size / 1e6:.0f} MB")
    finally:
        shutil.rmtree(cache)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-compile", action="store_true", help="leave out the compile times")
    options = parser.parse_args()
    evaluation(768, 8)
    evaluation(10_000, 50)
    if not options.no_compile:
        compilation()
