"""Two versions of the package side by side: error² × CPU time of samplers, and CPU time of fits and single calls.

Each version is a checkout of the repository and has its own process. Both run seed by seed in turn, so that other work
on the machine affects both. Time is CPU time of the process on one core. The ratio of a row is the cost of the old
version divided by that of the new version, so above one the new version is better. Intervals are 95 % intervals of the
bootstrap over seeds.

    python examples/benchmarks/compare_versions.py OLD NEW --seeds 10 --file versions.jsonl [--rows smc-auto/Pima ...]
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from rows import append_row, keys_of, read_rows

HERE = Path(__file__).parent
SMC = [
    f"smc-{start}/{name}"
    for start in ("auto", "prior")
    for name in ("Pima", "Sonar-I", "Sonar-5", "Hierarchical", "Cox-400")
]
ROWS = [*SMC, "ep/pima", "ep/sonar", "ep/german_credit", "stan/call", "step/HMC"]
ROWS += [f"{kind}/1e6" for kind in ("informed", "metropolis", "hmc", "scalable", "tuna")]


# -- the rows: each is made once in a process, and called with a seed -------------------------------------------------------


def smc(start, name):
    """Return tempering SMC with its defaults."""
    from models import MODELS
    from peers.samplers import Ours

    ours = Ours(name, MODELS, start)

    def run(seed):
        found = ours(seed)
        return {key: found[key] for key in ("seconds", "log_evidence", "mean")}

    return run


def ep(name):
    """Return twenty fits of expectation propagation."""
    from ppl_backends import Factors, fit_ep
    from ppl_backends.datasets import load_binary_regression
    from ppl_backends.targets.factors import Logit

    X, y, *_ = load_binary_regression(name, scaling="gelman")
    scale = np.r_[10.0, np.full(X.shape[1] - 1, 2.5)]
    factors = Factors(X, None, Logit(y), 0.0, 1 / (2 * scale) ** 2)
    fit_ep(factors)

    def run(seed):
        clock = time.process_time()
        for _ in range(20):
            found = fit_ep(factors)
        return {"seconds": (time.process_time() - clock) / 20, "log_evidence": float(found.log_evidence)}

    return run


def subsampling(kind):
    """Return CPU seconds an effective draw of a sub-sampling step on a logistic regression of 10⁶ rows."""
    import arviz as az
    import pymc as pm

    import ppl_backends as pb

    rng = np.random.default_rng(20)
    design = np.concatenate([np.ones((10**6, 1)), rng.normal(size=(10**6, 9))], axis=1)
    y = (rng.random(10**6) < 1 / (1 + np.exp(-design @ (0.3 * rng.normal(size=10))))).astype(np.int64)
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=10)
        pm.Bernoulli("y", logit_p=pm.math.dot(pm.Data("design", design), beta), observed=y)
        target = pb.as_target(cores=1)
    kinds = {"informed": "InformedSubsampling", "metropolis": "SubsampledMetropolis", "hmc": "SubsampledHMC"}
    kinds |= {"scalable": "ScalableMetropolis", "tuna": "TunaMetropolis"}
    step = getattr(pb.steps, kinds[kind])()
    options = {"step": step, "chains": 1, "progressbar": False}
    pb.sample_mcmc(target, draws=20, tune=20, random_seed=0, **options)

    def run(seed):
        clock = time.process_time()
        idata = pb.sample_mcmc(target, draws=2000, tune=500, random_seed=seed, **options)
        seconds = time.process_time() - clock
        ess = az.ess(idata)["beta"]
        return {"seconds": seconds / float(np.mean(np.asarray(ess)))}

    return run


def stan_call(_):
    """Return one evaluation of density and gradient of a small Stan program."""
    import ppl_backends as pb

    folder = HERE.parents[1] / "stan_models"
    target = pb.as_target(
        str(folder / "hierarchical_logit.stan"), data=str(folder / "hierarchical_logit.data.json"), cores=1
    )
    x = np.zeros((1, target.dim))
    target.log_density_and_gradient(x)

    def run(seed):
        clock = time.process_time()
        for _ in range(2000):
            target.log_density_and_gradient(x)
        return {"seconds": (time.process_time() - clock) / 2000}

    return run


def hmc_step(_):
    """Return ``pm.sample`` with the calibrated Hamiltonian step: seconds an effective draw."""
    import arviz as az
    import pymc as pm
    from models import MODELS

    import ppl_backends as pb

    model = MODELS["Pima"]()

    def run(seed):
        options = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
        with model:
            step = pb.steps.HMC()
            clock = time.process_time()
            idata = pm.sample(draws=1000, tune=500, step=step, random_seed=seed, **options)
        seconds = time.process_time() - clock
        return {"seconds": seconds / float(np.mean(np.asarray(az.ess(idata)["beta"])))}

    run(10_000)
    return run


def make(row):
    """Return the function of a row, ready to be called with a seed."""
    kind, _, name = row.partition("/")
    if kind.startswith("smc-"):
        return smc(kind.removeprefix("smc-"), name)
    return {"ep": ep, "stan": stan_call, "step": hmc_step}.get(kind, lambda _: subsampling(kind))(name)


def serve(row):
    """Answer seeds on standard input with lines of JSON."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print does not mix with the answers
    run = make(row)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(int(line))), file=out, flush=True)


# -- the driver -------------------------------------------------------------------------------------------------------------


class Version:
    """A process that runs one row with one checkout."""

    def __init__(self, checkout, row):
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        paths = {"PYTHONPATH": f"{Path(checkout).resolve()}:{HERE}", "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", row],
            env={**os.environ, **threads, **paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait(self):
        """Wait until it is ready."""
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError("a version cannot run this row")

    def __call__(self, seed):
        """Return what the row gives with a seed."""
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def measure(row, checkouts, seeds, file, done):
    """Run what is not in the file yet, version by version in turn."""
    left = [seed for seed in range(seeds) if (row, seed) not in done]
    if not left:
        return
    versions = [Version(checkout, row) for checkout in checkouts]
    try:
        for version in versions:
            version.wait()
        for seed in left:
            order = (0, 1) if seed % 2 else (1, 0)
            found = {("old", "new")[k]: versions[k](seed) for k in order}
            append_row(file, row=row, seed=seed, **found)
    finally:
        for version in versions:
            version.close()


def costs(row, results):
    """Return the figure → (old, new) arrays over seeds of what is compared: squared errors × seconds, or seconds."""
    seconds = np.array([[line[v]["seconds"] for v in ("old", "new")] for line in results])
    figures = {"seconds": (np.ones_like(seconds), seconds)}
    if row.startswith("smc-"):
        known = json.loads((HERE / "references.json").read_text())[row.partition("/")[2]]
        mean, sd = np.array(known["mean"]), np.array(known["sd"])
        evidence = [[line[v]["log_evidence"] - known["log_evidence"] for v in ("old", "new")] for line in results]
        means = [[np.mean(((line[v]["mean"] - mean) / sd) ** 2) for v in ("old", "new")] for line in results]
        figures |= {"evidence": (np.array(evidence) ** 2, seconds), "means": (np.array(means), seconds)}
    return figures


def ratio(errors, seconds, rng):
    """Return the old over new of mean squared error × mean seconds, with its bootstrap interval."""

    def of(index):
        both = errors[index].mean(axis=0) * seconds[index].mean(axis=0)
        return both[0] / both[1]

    n = len(seconds)
    draws = [of(rng.integers(0, n, n)) for _ in range(2000)]
    return of(np.arange(n)), *np.quantile(draws, [0.025, 0.975])


def table(file):
    """Print the ratios."""
    lines = read_rows(file)
    print("| row | figure | old / new | seeds | seconds, new |\n| --- | --- | --- | --- | --- |")
    for row in dict.fromkeys(line["row"] for line in lines):
        results = [line for line in lines if line["row"] == row]
        for figure, (errors, seconds) in costs(row, results).items():
            value, low, high = ratio(errors, seconds, np.random.default_rng(0))
            spent = f"{seconds[:, 1].mean():.3g}"
            print(f"| {row} | {figure} | {value:.2f} [{low:.2f}, {high:.2f}] | {len(results)} | {spent} |")


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", metavar="OLD NEW")
    parser.add_argument("--rows", nargs="+", default=ROWS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--file", type=Path, default=Path("versions.jsonl"))
    parser.add_argument("--serve", metavar="ROW")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    done = keys_of(read_rows(options.file), "row", "seed")
    for row in options.rows if options.checkouts else []:
        measure(row, options.checkouts, options.seeds, options.file, done)
    table(options.file)


if __name__ == "__main__":
    main()
