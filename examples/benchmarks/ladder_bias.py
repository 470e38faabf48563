"""Bias of tempering's log evidence, without bridge sampling, by the share of particles that a step keeps.

``gap d``           N(0, I) to N(2, Ξ), correlation 0.7 and variances from 0.1 to 10.
``wide p``          a linear regression with p coefficients and a noise scale under wide priors (N(0, 10²), half-N(0, 10²)).
``mixture d``       N(1, 5 I) to 0.3 N(4, Ξ₁) + 0.7 N(−4, Ξ₂); also the share of positive coordinates, 0.3.
``shift d``         N(0, I) to N(m, s² I) with (m, s) = (3, 0.5) in 5, (2, 0.5) in 20, (1.5, 0.7) in 50 and (1, 0.8) in 100
                    dimensions.
``spread d``        N(0, I) to N(1, 3² I).
``student d``       Student with 3 degrees of freedom to a shifted, correlated Student with 10.
``skewed d``        Poisson counts with Gamma rates, on the log scale.
``conjugate d``     a conjugate linear regression.
``hierarchy J``     J group means, non-centred, with mean N(0, 20²) and scale half-N(0, 20²), over which a grid integrates.
``modes s``         two modes at ±s in the plane, of masses 0.3 and 0.7.

A repeat is one call of ``sample_smc`` with its defaults (2,000 draws, 4 chains) from the prior. All evidences are known
exactly. Seconds are CPU seconds.

Run: python examples/benchmarks/ladder_bias.py [--problems gap-10 ...] [--thresholds auto 0.5 0.9] [--repeats 40]
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy import stats
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
from buchholz_chapter5 import Gaussian, bridge, gaussian, mixture, student
from smc_kernels import skewed

from tests.smc.test_bridge_sampling import wide_regression
from tests.toys import bimodal, conjugate_gaussian

PROBLEMS = (
    *("gap-10", "gap-50", "wide-5", "mixture-10"),
    *("shift-5", "shift-20", "shift-50", "shift-100", "spread-2", "spread-10", "gap-5", "gap-20", "student-10"),
    *(
        "skewed-10",
        "skewed-40",
        "conjugate-10",
        "wide-2",
        "wide-10",
        "hierarchy-8",
        "hierarchy-20",
        "mixture-5",
        "modes-6",
    ),
)
SHIFTS = {5: (3.0, 0.5), 20: (2.0, 0.5), 50: (1.5, 0.7), 100: (1.0, 0.8)}
LOG_2PI = np.log(2 * np.pi)


def normal(mean, sd, dim):
    """Return the path from N(0, I) to N(mean, sd² I)."""
    end = Gaussian(np.full(dim, mean), sd**2 * np.eye(dim))
    return bridge(Gaussian(np.zeros(dim), np.eye(dim)), end, dim), 0.0


def hierarchy(groups, prior_sd=20.0):
    """Group means y_j ~ N(m + τ z_j, s_j²) with wide priors on m and τ; coordinates (m, log τ, z)."""
    rng = np.random.default_rng(groups)
    sd = rng.uniform(0.5, 2.0, groups)
    y = 3.0 + rng.standard_normal(groups) * np.hypot(1.0, sd)

    def log_prior(x):
        scale = np.exp(x[:, 1])
        value = -0.5 * ((x[:, 0] ** 2 + scale**2) / prior_sd**2 + (x[:, 2:] ** 2).sum(axis=1)) + x[:, 1]
        value += np.log(2) - 2 * np.log(prior_sd) - (1 + groups / 2) * LOG_2PI
        slope = [-x[:, 0] / prior_sd**2, 1 - scale**2 / prior_sd**2]
        return value, np.concatenate([np.stack(slope, axis=1), -x[:, 2:]], axis=1)

    def log_likelihood(x):
        effect = np.exp(x[:, 1:2]) * x[:, 2:]
        residual = (y - x[:, :1] - effect) / sd
        pull = residual / sd
        slope = [pull.sum(axis=1), (pull * effect).sum(axis=1)]
        value = -0.5 * (residual**2).sum(axis=1) - np.log(sd).sum() - 0.5 * groups * LOG_2PI
        return value, np.concatenate([np.stack(slope, axis=1), pull * np.exp(x[:, 1:2])], axis=1)

    def sample_prior(n, rng):
        z = rng.standard_normal((n, groups + 2))
        return np.concatenate([prior_sd * z[:, :1], np.log(prior_sd * np.abs(z[:, 1:2])), z[:, 2:]], axis=1)

    log_scale = np.linspace(-14, 5, 8001)
    scale = np.exp(log_scale)
    logs = stats.halfnorm(scale=prior_sd).logpdf(scale) + log_scale
    variance = scale[:, None] ** 2 + sd**2
    weight, sums = (1 / variance).sum(axis=1) + prior_sd**-2, (y / variance).sum(axis=1)
    logs += -0.5 * (np.log(variance) + y**2 / variance + LOG_2PI).sum(axis=1)
    logs += 0.5 * sums**2 / weight - 0.5 * np.log(weight) - np.log(prior_sd)
    truth = float(logsumexp(logs) + np.log(log_scale[1] - log_scale[0]))
    return pb.FunctionTarget(groups + 2, log_likelihood, log_prior, sample_prior), truth


def problem(name):
    """Return the target and exact log evidence."""
    kind, size = name.split("-")
    size = int(size)
    if kind in ("conjugate", "modes"):
        known = conjugate_gaussian(size) if kind == "conjugate" else bimodal(separation=float(size))
        return known.target, known.log_evidence
    builders = {
        "gap": gaussian,
        "wide": lambda dim: wide_regression(dim=dim),
        "mixture": mixture,
        "shift": lambda dim: normal(*SHIFTS[dim], dim),
        "spread": lambda dim: normal(1.0, 3.0, dim),
        "student": student,
        "skewed": skewed,
        "hierarchy": hierarchy,
    }
    return builders[kind](size)[:2]


def row(name, threshold, repeats):
    """Return one row of the table."""
    target, truth = problem(name)
    error, size, covered, stages, seconds, positive = ([] for _ in range(6))
    for seed in range(repeats):
        clock = time.process_time()
        idata = pb.sample_smc(target, ess_threshold=threshold, random_seed=1000 + seed, progressbar=False)
        seconds.append(time.process_time() - clock)
        attrs, found = group(idata, "posterior").attrs, group(idata, "sample_stats")
        error.append(attrs["log_evidence_tempering"] - truth)
        size.append(attrs["log_evidence_tempering_se"])
        covered.append(abs(error[-1]) < 1.96 * size[-1])
        stages.append(float(found["beta"].count("stage").mean()))
        draws = group(idata, "posterior")
        positive.append(float(np.mean([(draws[key].values > 0).mean() for key in draws.data_vars])))
    figures = [
        f"{np.mean(error):+.3f} ± {np.std(error) / repeats**0.5:.3f}",
        f"{np.std(error):.3f}",
        f"{np.mean(size):.3f}",
    ]
    figures += [f"{100 * np.mean(covered):.0f} %", f"{np.mean(stages):.1f}", f"{np.median(seconds):.2f}"]
    figures.append(f"{np.mean(positive):.2f} ± {np.std(positive):.2f}" if name.startswith("mixture") else "")
    return f"| {name.replace('-', ' ')} | {threshold} | {repeats} | {' | '.join(figures)} |"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--thresholds", nargs="+", default=["auto", "0.5"])
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    warnings.simplefilter("ignore", PPLBackendsWarning)
    columns = [
        "problem",
        "threshold",
        "repeats",
        "bias",
        "sd",
        "mean se",
        "coverage",
        "stages",
        "CPU s",
        "share positive",
    ]
    print(f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|", flush=True)
    for name in options.problems:
        for threshold in options.thresholds:
            print(row(name, threshold if threshold == "auto" else float(threshold), options.repeats), flush=True)


if __name__ == "__main__":
    main()
