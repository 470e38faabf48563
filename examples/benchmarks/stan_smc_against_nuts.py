"""Compare ``sample_smc`` on Stan programs with ``pymc.sample_smc`` and nutpie's NUTS: effective draws per second on one core.

Logistic regression (Pima) and eight schools, non-centred, from ``stan_models/``. NUTS runs on the same compiled library
as our target, and PyMC has the same models written in PyMC. All have their own defaults: ours 4 chains of 2,000 draws,
PyMC 2 chains of 2,000, NUTS 4 chains of 1,000 draws after its own tuning.

Particles are not a time series, so effective sample sizes come from repeated runs for all methods: 1 over the mean
squared error of posterior means in posterior sds, averaged over the parameters and the seeds, against one long run of
NUTS. Seconds are processor time, which other work on the machine affects little. They do not include compilation, and
include tuning, and for ours the start (prior, Laplace or EP). Intervals are 95 % bootstrap intervals over seeds.

Run: python examples/benchmarks/stan_smc_against_nuts.py [--seeds 20] [--core 0]
"""

import argparse
import json
import logging
import os
import time
import warnings
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--seeds", type=int, default=20)
parser.add_argument("--core", type=int, default=0)
arguments = parser.parse_args()
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {arguments.core})
for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[pool] = "1"

import numpy as np  # noqa: E402
import nutpie  # noqa: E402
import pymc as pm  # noqa: E402
from nutpie import _lib  # noqa: E402
from nutpie.compile_stan import CompiledStanModel  # noqa: E402
from pymc.smc.kernels import IMH  # noqa: E402

import ppl_backends as pb  # noqa: E402
from ppl_backends.results.inference_data import group  # noqa: E402

MODELS = Path(__file__).parents[2] / "stan_models"
REFERENCE_DRAWS = 25_000
logging.getLogger("pymc").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class TimedIMH(IMH):
    """PyMC's default kernel, with the time of its set-up and compilation recorded."""

    setup_seconds = 0.0

    def __init__(self, *args, **kwargs):
        clock = time.process_time()
        super().__init__(*args, **kwargs)
        TimedIMH.setup_seconds += time.process_time() - clock


def logistic(data):
    """Return the PyMC twin of ``logit_gaussian.stan``."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, np.array(data["prior_scale"]), shape=data["P"])
        pm.Bernoulli("y", logit_p=pm.math.dot(np.array(data["X"]), beta), observed=np.array(data["y"]))
    return model


def eight_schools(data):
    """Return the PyMC twin of ``eight_schools_noncentered.stan``."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Deterministic("theta", mu + tau * pm.Normal("theta_std", 0, 1, shape=data["J"]))
        pm.Normal("y", theta, np.array(data["sigma"]), observed=np.array(data["y"]))
    return model


CASES = {
    "logit_gaussian": (logistic, ("beta",), ("prior", "laplace", "ep")),
    "eight_schools_noncentered": (eight_schools, ("mu", "tau", "theta"), ("prior", "ep")),
}


def means_and_sds(idata, variables):
    """Return the posterior means and sds of all elements of the variables."""
    draws = [np.asarray(group(idata, "posterior")[name]) for name in variables]
    flat = np.concatenate([values.reshape(*values.shape[:2], -1) for values in draws], axis=2)
    return flat.mean(axis=(0, 1)), flat.std(axis=(0, 1))


def run_ours(target, start, seed):
    """Return InferenceData and seconds."""
    clock = time.process_time()
    idata = pb.sample_smc(target, initial=start, random_seed=seed, progressbar=False, cores=1)
    return idata, time.process_time() - clock


def run_pymc(model, seed):
    """Return the same by PyMC, without its compilation."""
    TimedIMH.setup_seconds, clock = 0.0, time.process_time()
    with model:
        idata = pm.sample_smc(kernel=TimedIMH, chains=2, cores=1, random_seed=seed, progressbar=False)
    return idata, time.process_time() - clock - TimedIMH.setup_seconds


def nuts(target, data):
    """Return a function that runs NUTS on the library of a target."""
    library = _lib.StanLibrary(os.fspath(target.library))
    bare = CompiledStanModel(dims={}, _coords={}, code="", data=None, library=library, model=None)
    compiled = bare.with_data(**{name: np.asarray(value) for name, value in data.items()})

    def run(seed, draws=1000, tune=None):
        clock = time.process_time()
        options = {} if tune is None else {"tune": tune}
        idata = nutpie.sample(compiled, draws=draws, chains=4, cores=1, seed=seed, progress_bar=False, **options)
        return idata, time.process_time() - clock

    return run


def rate_interval(table, rng, resamples=4000):
    """Return the effective draws a second, and its 95 % bootstrap interval; columns are (squared error, seconds)."""
    index = rng.integers(0, len(table), size=(resamples, len(table)))
    rates = 1 / (table[index, 0].mean(axis=1) * table[index, 1].mean(axis=1))
    return 1 / (table[:, 0].mean() * table[:, 1].mean()), *np.quantile(rates, [0.025, 0.975])


def compare(name):
    """Run all seeds of one model and print its rows."""
    twin, variables, starts = CASES[name]
    path = MODELS / f"{name}.data.json"
    data = json.loads(path.read_text())
    target, model = pb.as_target(MODELS / f"{name}.stan", path, cores=1), twin(data)
    by_nuts = nuts(target, data)
    mean, sd = means_and_sds(by_nuts(0, REFERENCE_DRAWS, 2000)[0], variables)
    methods = {f"sample_smc, {s}": lambda seed, s=s: run_ours(target, s, seed) for s in starts}
    methods |= {"pm.sample_smc": lambda seed: run_pymc(model, seed), "NUTS (nutpie)": by_nuts}
    for run in methods.values():
        run(10_000)  # compile and warm up
    rows = {method: [] for method in methods}
    for seed in range(1, arguments.seeds + 1):
        for method, run in methods.items():
            idata, seconds = run(seed)
            rows[method].append((np.mean(((means_and_sds(idata, variables)[0] - mean) / sd) ** 2), seconds))
    rng = np.random.default_rng(0)
    for method, values in rows.items():
        table = np.array(values)
        rate, low, high = rate_interval(table, rng)
        ess = 1 / table[:, 0].mean()
        print(f"| {name} | {method} | {table[:, 1].mean():.2f} | {ess:,.0f} | {rate:,.0f} ({low:,.0f}–{high:,.0f}) |")


def main():
    """Print the table."""
    print("| model | method | seconds a run | effective draws a run | effective draws a second |")
    print("| --- | --- | --- | --- | --- |")
    for name in CASES:
        compare(name)


if __name__ == "__main__":
    main()
