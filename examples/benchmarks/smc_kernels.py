"""Measure error and cost of every kernel of ``sample_smc`` on problems of several dimensions, to choose ``kernel="auto"``.

``gaussian d``  N(0, I) to N(2, Ξ), correlation 0.7 and variances from 0.1 to 10 (exact).
``skewed d``    independent Poisson counts with Gamma rates, on the log scale (exact).
``toy λ``, ``pima λ``  pseudo-posteriors of the 0–1 risk of a linear classifier, with learning rate λ and prior N(0, I): of
                80 made-up points and of Pima. Their log evidence is that of all kernels' runs together.
the others      the models of the comparison with peers, from the prior, against ``references.json``.

A repeat is a single run with the defaults. Load is the number of density evaluations per run, where one with a gradient
counts as ``--gradient`` evaluations (its cost here is 2 to 3). The figure is the mean squared error of the log evidence
times load, divided by that of HMC, so below one is better than HMC. There is the same figure for the variance of the
posterior means, over coordinates. Without gradients the random walk takes the place of HMC.

Run: python examples/benchmarks/smc_kernels.py [--problems gaussian-2 Pima ...] [--repeats 20]
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group

sys.path.insert(0, str(Path(__file__).parent))
from buchholz_chapter5 import gaussian

HERE = Path(__file__).parent
KERNELS = ("hmc", "mala", "random_walk", "independent", "mixed")
GAUSSIANS = (1, 2, 5, 10, 20, 50)
ZERO_ONE = ("toy-30", "toy-100", "pima-100", "pima-500")


def skewed(dim):
    """Return Poisson counts 3 and 1 in turn with Gamma(1.5, 0.5) rates, on the log scale."""
    from scipy.special import gammaln

    a, b, counts = 1.5, 0.5, np.resize([3.0, 0.0, 1.0], dim)

    def log_prior(x):
        return (a * x - b * np.exp(x)).sum(axis=1) + dim * (a * np.log(b) - gammaln(a)), a - b * np.exp(x)

    def log_likelihood(x):
        return (counts * x - np.exp(x) - gammaln(counts + 1)).sum(axis=1), counts - np.exp(x)

    def sample(n, rng):
        return np.log(rng.gamma(a, 1 / b, size=(n, dim)))

    each = a * np.log(b) - gammaln(a) + gammaln(a + counts) - (a + counts) * np.log(b + 1) - gammaln(counts + 1)
    return pb.FunctionTarget(dim, log_likelihood, log_prior, sample), float(each.sum())


def zero_one(name, rate):
    """Return the pseudo-posterior of a linear classifier's 0–1 risk."""
    if name == "pima":
        X, y, *_ = load_binary_regression("pima")
    else:
        rng = np.random.default_rng(0)
        X = np.column_stack([np.ones(80), rng.standard_normal(80)])
        y = X @ [0.3, 1.0] + 0.7 * rng.standard_normal(80) > 0
    return pb.GibbsPosterior((0.0, 1.0), "zero_one", X, np.where(y, 1.0, -1.0), learning_rate=rate)


def problem(name):
    """Return the target and exact or reference log evidence, None where there is neither."""
    kind, _, number = name.partition("-")
    if kind == "gaussian":
        return gaussian(int(number))[:2]
    if kind == "skewed":
        return skewed(int(number))
    if kind in ("toy", "pima"):
        return zero_one(kind, float(number)), None
    from models import MODELS

    references = json.loads((HERE / "references.json").read_text())
    return pb.as_target(MODELS[name](), cores=1), references[name]["log_evidence"]


def run(target, kernel, repeats, seed):
    """Log evidences, means per repeat, sds, evaluations per run, CPU seconds per run, whether it was trusted."""
    clock = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PPLBackendsWarning)
        idata = pb.sample_smc(target, chains=repeats, kernel=kernel, random_seed=seed, progressbar=False)
    seconds = (time.process_time() - clock) / repeats
    stats, posterior = group(idata, "sample_stats"), group(idata, "posterior")
    values = [v.values.reshape(*v.shape[:2], -1) for v in posterior.data_vars.values()]
    x = np.concatenate(values, axis=2)
    evaluations = (1.0 + float(stats["n_evaluations"].sum("stage").mean())) * x.shape[1]  # the start is evaluated too
    mean_error = np.mean(x.mean(axis=1).var(axis=0, ddof=1) / x.var(axis=(0, 1)))
    return stats["log_evidence_single_run"].values, mean_error, evaluations, seconds, posterior.attrs


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exact = [f"{kind}-{dim}" for kind in ("gaussian", "skewed") for dim in GAUSSIANS]
    parser.add_argument("--problems", nargs="+", default=[*exact, *ZERO_ONE, "EightSchools", "Pima"])
    parser.add_argument("--kernels", nargs="+", default=KERNELS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--gradient", type=float, default=2.5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| problem | kernel | evaluations | CPU s | log Z − truth | sd | error² × load | means | trusted |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in options.problems:
        target, truth = problem(name)
        kernels = [kernel for kernel in options.kernels if target.has_gradient or kernel not in ("hmc", "mala")]
        runs = [run(target, kernel, options.repeats, options.seed) for kernel in kernels]
        if truth is None:
            together = np.concatenate([log_evidence for log_evidence, *_ in runs])
            truth = logsumexp(together) - np.log(len(together))
        first = None
        for kernel, (log_evidence, mean_error, evaluations, seconds, attrs) in zip(kernels, runs, strict=True):
            error = log_evidence - truth
            load = evaluations * (options.gradient if kernel in ("hmc", "mala") else 1.0)
            figures = (float(np.mean(error**2)) * load, mean_error * load)
            first = first or figures
            line = f"| {name} | {kernel} | {evaluations:,.0f} | {seconds:.2f} |"
            line += f" {error.mean():+.3f} | {error.std(ddof=1):.3f} |"
            line += "".join(f" {one / base:.2f} |" for one, base in zip(figures, first, strict=True))
            print(line, "yes |" if attrs["warnings"] == "" else "no |", flush=True)


if __name__ == "__main__":
    main()
