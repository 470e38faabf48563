"""pyABC on the conjugate normal of ``abc_toys.py``, with a Gaussian kernel, in an environment of its own.

python examples/benchmarks/peers/pyabc_worker.py runs epsilon
"""

import json
import logging
import sys
import time

import numpy as np
import pyabc

POPULATION = 1000


def main(runs, epsilon):
    """Print CPU seconds of a run and its squared error of the mean, in posterior variances."""
    logging.disable(logging.WARNING)
    noise = 0.04 + epsilon**2
    variance = 1 / (1 + 1 / noise)
    errors, started = [], time.process_time()
    for seed in range(runs):
        np.random.seed(seed)  # noqa: NPY002  (pyABC draws from it)
        abc = pyabc.ABCSMC(
            lambda p: {"y": p["theta"] + 0.2 * np.random.standard_normal()},  # noqa: NPY002
            pyabc.Distribution(theta=pyabc.RV("norm", 0, 1)),
            pyabc.IndependentNormalKernel(var=[epsilon**2]),
            population_size=POPULATION,
            eps=pyabc.Temperature(),
            acceptor=pyabc.StochasticAcceptor(),
            sampler=pyabc.SingleCoreSampler(),
        )
        abc.new("sqlite://", {"y": 1.0})
        frame, weights = abc.run(max_nr_populations=12).get_distribution()
        errors.append(float(frame["theta"].to_numpy() @ np.asarray(weights)) - variance / noise)
    print(json.dumps([(time.process_time() - started) / runs, float(np.mean(np.square(errors)) / variance)]))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
