"""How honest the errors of the evidence by bridge sampling are, beside those of tempering, on known answers.

``gaussian d``  a conjugate linear regression with twelve observations (exact).
``gap d``       N(0, I) to N(2, Ξ), correlation 0.7 and variances from 0.1 to 10 (exact).
``skewed d``    independent Poisson counts with Gamma rates, on the log scale (exact).
``wide d``      a linear regression with d coefficients N(0, 10²) and a noise scale of prior half-N(0, 10²), whose path from
                the prior leads through a funnel (exact given the scale, over which it is integrated on a grid).
``t d``         Student's t with three degrees of freedom, from N(0, 4 I) (0).
``modes s``     two modes at ±s in the plane, of sd 0.7 and masses 0.3 and 0.7 (exact).
``funnel d``    v ~ N(0, 3²) and d variables N(0, exp v), from a Gaussian (0).

A repeat is four chains of 1,000 particles, HMC, waste-free in chains of ten; or one. Coverage is of nominal 95 % intervals.

Run: python examples/benchmarks/bridge_sampling.py [--problems wide-5 ...] [--repeats 100] [--chains 4]
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from scipy.special import gammaln
from scipy.stats import t as student

import ppl_backends as pb
from ppl_backends.mcmc.kernels import make_kernel
from ppl_backends.smc.bridge_sampling import Sample, bridge_evidence
from ppl_backends.smc.evidence import combine_evidence
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import BridgePath, PriorPath
from ppl_backends.smc.sampler import run_tempering

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
from buchholz_chapter5 import gaussian
from smc_kernels import skewed

from tests.smc.test_bridge_sampling import wide_regression
from tests.smc.test_calibration import funnel
from tests.toys import bimodal, conjugate_gaussian

PROBLEMS = ("gaussian-2", "gaussian-10", "gap-10", "skewed-2", "skewed-10", "t-5", "modes-4", "wide-5", "funnel-5")
PARTICLES, LENGTH, MOVES = 1000, 10, MoveSettings(1, 40)


def heavy(dim, df=3.0):
    """Student's t."""
    constant = gammaln((df + dim) / 2) - gammaln(df / 2) - dim / 2 * np.log(df * np.pi)

    def density(x):
        square = (x**2).sum(axis=1)
        return constant - (df + dim) / 2 * np.log1p(square / df), -(df + dim) * x / (df + square)[:, None]

    return pb.FunctionTarget(dim, density)


def problem(name):
    """Path and exact log evidence."""
    kind, size = name.split("-")
    size = int(size)
    if kind in ("t", "funnel"):
        target = heavy(size) if kind == "t" else funnel(size)
        scale = np.full(target.dim, 4.0)
        scale[0] = 4.0 if kind == "t" else 9.0
        return BridgePath(target, pb.GaussianApproximation(np.zeros(target.dim), np.diag(scale))), 0.0
    if kind in ("gaussian", "modes"):
        known = conjugate_gaussian(size) if kind == "gaussian" else bimodal(separation=float(size))
        return PriorPath(known.target), known.log_evidence
    target, truth = {"gap": gaussian, "skewed": skewed, "wide": lambda d: wide_regression(dim=d)}[kind](size)[:2]
    return PriorPath(target), truth


def figures(estimates, truth):
    """Bias, sd, mean standard error and coverage of several estimates."""
    error = np.array([estimate.log_evidence for estimate in estimates]) - truth
    size = np.array([estimate.standard_error for estimate in estimates])
    inside = np.abs(error) < size * student.isf(0.025, [estimate.df for estimate in estimates])
    return error.mean(), error.std(), size.mean(), 100 * inside.mean()


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--chains", type=int, default=4)
    options = parser.parse_args()
    print("| problem | repeats | bridge: bias | sd | mean se | coverage | tempering: bias | sd | mean se | coverage |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in options.problems:
        path, truth = problem(name)
        bridged, tempered, rng = [], [], np.random.default_rng(8)
        for repeat in range(options.repeats):
            runs = []
            for chain in range(options.chains):
                generator = np.random.default_rng([77, repeat * options.chains + chain])
                how = {"len_chain": LENGTH, "moves": MOVES}
                runs.append(run_tempering(path, make_kernel("hmc"), PARTICLES, generator, **how))
            samples = [Sample(run.x, run.log_density, run.lineage.eve) for run in runs]
            bridged.append(bridge_evidence(samples, lambda x, p=path: p.evaluate(x, 1.0, False).log_density, rng))
            tempered.append(
                combine_evidence(
                    *np.array([(run.log_evidence, run.lineage.variance, run.lineage.df) for run in runs]).T
                )
            )
        line = f"| {name.replace('-', ' ')} | {options.repeats} |"
        for estimates, digits in ((bridged, 4), (tempered, 3)):
            bias, sd, size, coverage = figures(estimates, truth)
            line += f" {bias:+.{digits}f} | {sd:.{digits}f} | {size:.{digits}f} | {coverage:.0f} % |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
