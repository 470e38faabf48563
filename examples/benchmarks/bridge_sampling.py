"""Check the errors of the evidence by bridge sampling and by tempering on known answers.

``gaussian d``  a conjugate linear regression with twelve observations (exact).
``gap d``       N(0, I) to N(2, Ξ), correlation 0.7 and variances from 0.1 to 10 (exact).
``skewed d``    independent Poisson counts with Gamma rates, on the log scale (exact).
``wide d``      a linear regression with d coefficients N(0, 10²) and a noise scale of prior half-N(0, 10²), whose path from
                the prior leads through a funnel (exact given the scale, over which it is integrated on a grid).
``t d``         Student's t with three degrees of freedom, from N(0, 4 I) (0).
``modes s``     two modes at ±s in the plane, of sd 0.7 and masses 0.3 and 0.7 (exact).
``funnel d``    v ~ N(0, 3²) and d variables N(0, exp v), from a Gaussian (0).

A repeat is one call of ``sample_smc`` with its defaults, from the prior (Student and the funnel from a Gaussian), with
four chains or one. Coverage is that of nominal 95 % intervals. The coverage of the reported evidence counts all runs,
trusted or not.

Run: python examples/benchmarks/bridge_sampling.py [--problems wide-5 ...] [--repeats 100] [--chains 4]
"""

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
from scipy.special import gammaln

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
from buchholz_chapter5 import gaussian
from smc_kernels import skewed

from tests.smc.test_bridge_sampling import wide_regression
from tests.toys import bimodal, conjugate_gaussian, funnel

PROBLEMS = ("gaussian-2", "gaussian-10", "gap-10", "skewed-2", "skewed-10", "t-5", "wide-5", "modes-6", "funnel-5")


def heavy(dim, df=3.0):
    """Return Student's t."""
    constant = gammaln((df + dim) / 2) - gammaln(df / 2) - dim / 2 * np.log(df * np.pi)

    def density(x):
        square = (x**2).sum(axis=1)
        return constant - (df + dim) / 2 * np.log1p(square / df), -(df + dim) * x / (df + square)[:, None]

    return pb.FunctionTarget(dim, density)


def problem(name):
    """Return the target, start and exact log evidence."""
    kind, size = name.split("-")
    size = int(size)
    if kind in ("t", "funnel"):
        target = heavy(size) if kind == "t" else funnel(size)
        scale = np.full(target.dim, 4.0)
        scale[0] = 4.0 if kind == "t" else 9.0
        return target, pb.GaussianApproximation(np.zeros(target.dim), np.diag(scale)), 0.0
    if kind in ("gaussian", "modes"):
        known = conjugate_gaussian(size) if kind == "gaussian" else bimodal(separation=float(size))
        return known.target, "prior", known.log_evidence
    target, truth = {"gap": gaussian, "skewed": skewed, "wide": lambda d: wide_regression(dim=d)}[kind](size)[:2]
    return target, "prior", truth


def errors(rows, name):
    """Return errors of one evidence, over the runs that have it, and their standard errors."""
    error = np.array([row[name] - row["truth"] for row in rows if name in row])
    return error, np.array([row[f"{name}_se"] for row in rows if name in row])


def coverage(error, size):
    """Return the coverage of nominal 95 % intervals, in per cent."""
    return 100 * np.mean(np.abs(error) < 1.96 * size)


def figures(error, size, digits):
    """Return the bias, sd, mean standard error and coverage."""
    summary = (f"{error.mean():+.{digits}f}", f"{error.std():.{digits}f}", f"{size.mean():.{digits}f}")
    return f" {' | '.join(summary)} | {coverage(error, size):.0f} % |"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--chains", type=int, default=4)
    options = parser.parse_args()
    warnings.simplefilter("ignore", PPLBackendsWarning)
    columns = ["problem", "chains", "repeats", "bridge: bias", "sd", "mean se", "coverage"]
    columns += [
        "tempering: bias",
        "sd",
        "mean se",
        "coverage",
        "bridge reported",
        "trusted",
        "coverage of the reported",
    ]
    print(f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|", flush=True)
    for name in options.problems:
        target, initial, truth = problem(name)
        rows = []
        for seed in range(options.repeats):
            idata = pb.sample_smc(
                target, initial=initial, chains=options.chains, random_seed=1000 + seed, progressbar=False
            )
            rows.append(group(idata, "posterior").attrs | {"truth": truth})
        bridged, trusted = (
            100 * np.mean([row[key] == value for row in rows])
            for key, value in (("log_evidence_method", "bridge sampling"), ("log_evidence_trusted", 1))
        )
        print(
            f"| {name.replace('-', ' ')} | {options.chains} | {len(rows)} |"
            + figures(*errors(rows, "log_evidence_bridge"), 4)
            + figures(*errors(rows, "log_evidence_tempering"), 3)
            + f" {bridged:.0f} % | {trusted:.0f} % | {coverage(*errors(rows, 'log_evidence')):.0f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()
