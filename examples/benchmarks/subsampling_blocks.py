"""Measure the gain of a step on a subset if another step moves some variables: logistic regression, 200,000 rows.

The model has five coefficients under a common scale. The table has CPU milliseconds per draw, tuning included, for 100
draws after 100 of tuning.

Run: OMP_NUM_THREADS=1 python examples/benchmarks/subsampling_blocks.py      (prints a markdown table)
"""

import logging
import time
import warnings

import numpy as np
import pymc as pm

from ppl_backends.steps import SubsampledMetropolis

ROWS, DRAWS = 200_000, 100


def regression():
    """Return the model."""
    rng = np.random.default_rng(0)
    X = np.c_[np.ones(ROWS), rng.normal(size=(ROWS, 4))]
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-X @ np.array([-0.5, 1.0, 0.3, 0.0, -0.7])))).astype(int)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        beta = pm.Normal("beta", 0, tau, shape=5)
        pm.Bernoulli("y", logit_p=pm.math.dot(pm.Data("X", X), beta), observed=y)
    return model


def milliseconds(make):
    """Return CPU milliseconds a draw, without compilation."""
    options = {"chains": 1, "cores": 1, "progressbar": False, "random_seed": 1, "compute_convergence_checks": False}
    pm.sample(1, tune=1, step=make(), **options)
    step, clock = make(), time.process_time()
    pm.sample(DRAWS, tune=DRAWS, step=step, **options)
    return 1000 * (time.process_time() - clock) / (2 * DRAWS)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    with regression() as model:
        steps = {
            "one step on a subset for all variables": SubsampledMetropolis,
            "one for `beta`, one for `tau`": lambda: [SubsampledMetropolis(["beta"]), SubsampledMetropolis(["tau"])],
            "one for `beta`, NUTS for `tau`": lambda: [SubsampledMetropolis(["beta"]), pm.NUTS([model["tau"]])],
            "NUTS": pm.NUTS,
        }
        print("| steps | CPU ms a draw |\n| --- | --- |")
        for name, make in steps.items():
            print(f"| {name} | {milliseconds(make):.1f} |", flush=True)
