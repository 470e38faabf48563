"""``sample_smc`` compared with ``pymc.sample_smc``: squared error × time on the same models, in one process on one core.

Every seed runs all methods in turn with their default settings (PyMC: 2,000 draws, 2 chains, independent Metropolis–
Hastings; here: 2,000 draws, 4 chains), so that other work on the machine affects all of them equally. Times do not
include compilation: our target is compiled before, and the set-up time of PyMC's kernel is subtracted. Squared errors
are against long reference runs (``--references`` makes them; evidence from a long run of tempering SMC with its
standard error, means from NUTS). The ratio is mean squared error × mean time, PyMC over ours, with a 95 % bootstrap
interval over seeds; above one, ours is better.

Run: python examples/benchmarks/smc_against_pymc.py [--references] [--seeds 40] [--models Pima Sonar-I Sonar-5] [--core 0]
"""

import argparse
import json
import logging
import os
import time
import warnings
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--references", action="store_true")
parser.add_argument("--seeds", type=int, default=40)
parser.add_argument("--models", nargs="+", default=["Pima", "Sonar-I", "Sonar-5"])
parser.add_argument("--starts", nargs="+", default=["laplace", "prior"])
parser.add_argument("--core", type=int, default=0)
parser.add_argument("--save", type=Path, default=None)
arguments = parser.parse_args()
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {arguments.core})
for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[pool] = "1"

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
from models import MODELS  # noqa: E402
from pymc.smc.kernels import IMH  # noqa: E402

import ppl_backends as pb  # noqa: E402
from ppl_backends.results.inference_data import group  # noqa: E402

REFERENCES = Path(__file__).with_name("references.json")
logging.getLogger("pymc").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class TimedIMH(IMH):
    """PyMC's default kernel, with the time of its set-up and compilation recorded."""

    setup_seconds = 0.0

    def __init__(self, *args, **kwargs):
        clock = time.perf_counter()
        super().__init__(*args, **kwargs)
        TimedIMH.setup_seconds += time.perf_counter() - clock


def run_pymc(model, seed):
    """Log evidence, posterior means and seconds without compilation."""
    TimedIMH.setup_seconds, clock = 0.0, time.perf_counter()
    with model:
        idata = pm.sample_smc(kernel=TimedIMH, chains=2, cores=1, random_seed=seed, progressbar=False)
    seconds = time.perf_counter() - clock - TimedIMH.setup_seconds
    final = [_last(chain) for chain in group(idata, "sample_stats")["log_marginal_likelihood"].values]
    log_evidence = np.logaddexp.reduce(final) - np.log(len(final))
    return (
        log_evidence,
        group(idata, "posterior")["beta"].values.reshape(-1, model["beta"].eval().size).mean(0),
        seconds,
    )


def _last(nested):
    """Return the last number of PyMC's nested, ragged lists of stages."""
    while isinstance(nested, (list, np.ndarray)):
        nested = nested[-1]
    return float(nested)


def run_ours(target, start, seed):
    """Return the same for ours; the Laplace fit counts as part of the run."""
    clock = time.perf_counter()
    idata = pb.sample_smc(target, initial=start, random_seed=seed, progressbar=False)
    seconds = time.perf_counter() - clock
    posterior = group(idata, "posterior")
    attrs = posterior.attrs
    return attrs["log_evidence"], posterior["beta"].values.mean((0, 1)), seconds, attrs["log_evidence_se"]


def make_reference(model):
    """Return long runs: evidence by SMC, means by NUTS."""
    target = pb.as_target(model)
    smc = group(
        pb.sample_smc(target, initial="laplace", draws=20_000, chains=8, random_seed=1, progressbar=False), "posterior"
    )
    with model:
        nuts = pm.sample(10_000, tune=2_000, chains=4, cores=1, random_seed=1, progressbar=False, nuts_sampler="nutpie")
    beta = group(nuts, "posterior")["beta"].values
    return {
        "log_evidence": smc.attrs["log_evidence"],
        "log_evidence_se": smc.attrs["log_evidence_se"],
        "mean": beta.mean((0, 1)).tolist(),
        "sd": beta.std((0, 1)).tolist(),
        "smc_mean": smc["beta"].values.mean((0, 1)).tolist(),
    }


def ratio_interval(theirs, ours, rng, resamples=4000):
    """Return MSE × time, theirs over ours, with its 95 % bootstrap interval; columns are (squared error, seconds)."""

    def product(table, index):
        return table[index, 0].mean(axis=-1) * table[index, 1].mean(axis=-1)

    index = rng.integers(0, len(ours), size=(resamples, len(ours)))
    ratios = product(theirs, index) / product(ours, index)
    whole = np.arange(len(ours))
    return float(product(theirs, whole) / product(ours, whole)), *np.quantile(ratios, [0.025, 0.975])


def compare(name):
    """Run all seeds of one model and print its rows."""
    reference, model = json.loads(REFERENCES.read_text())[name], MODELS[name]()
    mean, sd = np.array(reference["mean"]), np.array(reference["sd"])
    target = pb.as_target(model, cores=1)
    methods = {start: lambda seed, start=start: run_ours(target, start, seed) for start in arguments.starts}
    methods["pymc"] = lambda seed: run_pymc(model, seed)
    for run in methods.values():
        run(10_000)  # compile and warm up
    rows = {method: [] for method in methods}
    for seed in range(arguments.seeds):
        for method, run in methods.items():
            log_evidence, means, seconds, *standard_error = run(seed)
            error = (log_evidence - reference["log_evidence"]) ** 2, np.mean(((means - mean) / sd) ** 2)
            rows[method].append((*error, seconds, log_evidence, *standard_error))
    tables = {method: np.array(values) for method, values in rows.items()}
    if arguments.save:
        np.savez(arguments.save / f"{name}.npz", **tables)
    rng = np.random.default_rng(0)
    for method, table in tables.items():
        line = f"{name:9}{method:9}{table[:, 2].mean():8.2f}{table[:, 0].mean():12.2e}{table[:, 1].mean():12.2e}"
        if method != "pymc":
            for column in (0, 1):
                ours, theirs = table[:, [column, 2]], tables["pymc"][:, [column, 2]]
                line += "{:9.0f} [{:.0f}, {:.0f}]".format(*ratio_interval(theirs, ours, rng))
            calibration = table[:, 4].mean() / table[:, 3].std(ddof=1)
            line += f"   log Z {table[:, 3].mean():.3f}, mean(se)/sd {calibration:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    if arguments.references:
        known = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
        for name in arguments.models:
            known[name] = make_reference(MODELS[name]())
            print(name, known[name]["log_evidence"], known[name]["log_evidence_se"], flush=True)
            REFERENCES.write_text(json.dumps(known, indent=1) + "\n")
    else:
        print(
            f"{'model':9}{'start':9}{'seconds':>8}{'MSE log Z':>12}{'MSE means':>12}  ratio log Z [95 %]   ratio means [95 %]"
        )
        for name in arguments.models:
            compare(name)
