"""
Accuracy of expectation propagation
===================================

Binary regressions of Chopin & Ridgway (2017) in their four scenarios, Gaussian or Cauchy prior and probit or logit
link, compared with importance sampling from a mixture of EP's Gaussian and a Student t around it, with scrambled Sobol
points.

``scenarios`` prints EP's errors of means (in posterior sds), of sds and of the log evidence, the error of Laplace's
evidence, and the smallest marginal accuracy 1 − ½∫|q − p| over coefficients: for EP's Gaussian, for the Gaussian with
the exact mean and sd (the best Gaussian), for EP's corrected marginals, and for Laplace. ``short`` is the largest
difference between the exact Gaussian and EP's. ``efficiency`` prints the efficiency factor of importance sampling from
EP's Gaussian with 5·10⁵ independent draws, several times, with standard deviations that divide by n or by n − 1.

    python examples/benchmarks/ep_accuracy.py scenarios | efficiency [data sets]
"""

import sys

import numpy as np
from scipy import stats
from scipy.special import logsumexp, ndtri, stdtr

from ppl_backends.approximations import fit_laplace
from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit, Probit, StudentT, fit_ep
from ppl_backends.datasets import load_binary_regression

DATA = ("pima", "breast_wisconsin", "plasma", "german_credit")
POINTS, DF = 2**17, 6
EDGES = np.linspace(-6, 6, 97)  # of the bins that accuracies are measured with, in EP's standard deviations


def scenarios(name):
    """Yield the four posteriors of one data set."""
    X, y, *_ = load_binary_regression(name, scaling="gelman")
    d = X.shape[1]
    scale = np.r_[10.0, np.full(d - 1, 2.5)]
    for family in (Probit, Logit):
        yield f"Gaussian/{family.__name__.lower()}", Factors(X, None, family(y), 0.0, 1 / (2 * scale) ** 2)
    for family in (Probit, Logit):
        sites = [family(y), StudentT(np.zeros(d), 1.0, scale)]
        yield f"Cauchy/{family.__name__.lower()}", Factors([X, np.eye(d)], None, sites, 0.0, 0.0)


def reference(factors, q, seed=0):
    """Return weighted points, standardised by EP's Gaussian: z ``(n, d)``, weights, log evidence and its standard error."""
    d, root = factors.dim, np.linalg.cholesky(q.cov)
    u = stats.qmc.Sobol(d + 1, seed=seed).random(2 * POINTS)
    normal = ndtri(np.clip(u[:, :d], 1e-16, 1 - 1e-16))
    stretch = np.where(np.arange(2 * POINTS) < POINTS, 1.0, np.sqrt(DF / stats.chi2.ppf(u[:, d], DF)))
    white = normal * stretch[:, None]
    theta = q.mean + white @ root.T
    log_jacobian = np.log(np.diagonal(root)).sum()
    log_normal = stats.norm.logpdf(white).sum(axis=1)
    log_student = stats.multivariate_t(shape=np.eye(d), df=DF).logpdf(white)
    log_q = np.logaddexp(log_normal, log_student) - np.log(2) - log_jacobian
    log_w = factors.log_density(theta) - log_q
    log_z = logsumexp(log_w) - np.log(len(log_w))
    w = np.exp(log_w - log_z) / len(log_w)
    efficiency = 1 / (w @ w) / len(w)
    plain = np.exp(factors.log_density(theta[:POINTS]) - log_normal[:POINTS] + log_jacobian - log_z)
    own = plain.sum() ** 2 / (plain @ plain) / len(plain)
    return (theta - q.mean) / q.sd, w, log_z, np.sqrt((1 / efficiency - 1) / len(w)), own


def bin_masses(z, w):
    """Return the posterior mass ``(d, bins)`` of every bin: the mean weight in it times the proposal's mass."""
    proposal = 0.5 * np.diff(stats.norm.cdf(EDGES)) + 0.5 * np.diff(stdtr(DF, EDGES))
    masses = []
    for column in z.T:
        place = np.digitize(column, EDGES) - 1
        inside = (place >= 0) & (place < len(EDGES) - 1)
        count = np.bincount(place[inside], minlength=len(EDGES) - 1)
        total = np.bincount(place[inside], w[inside], minlength=len(EDGES) - 1)
        masses.append(proposal * total / np.maximum(count, 1))
    masses = np.array(masses)
    return masses / masses.sum(axis=1, keepdims=True)


def gaussian_masses(mean, sd):
    """Return the mass of every bin under N(mean, sd²), in EP's units."""
    return np.diff(stats.norm.cdf((EDGES - mean[:, None]) / sd[:, None]), axis=1)


def corrected_masses(q):
    """Return the mass of every bin under EP's corrected marginals."""
    marginals = q.marginals()
    masses = []
    for grid, density, mean, sd in zip(marginals.grid, marginals.density, q.mean, q.sd, strict=True):
        steps = 0.5 * (density[1:] + density[:-1]) * np.diff(grid)
        cumulative = np.concatenate([[0.0], np.cumsum(steps)])
        masses.append(np.diff(np.interp(mean + sd * EDGES, grid, cumulative / cumulative[-1])))
    return np.array(masses)


def table_of_scenarios():
    """Print errors and accuracies of every posterior."""
    print(
        f"{'data':17s} {'scenario':16s} {'EF %':>5s} {'mean':>6s} {'sd %':>5s} {'log Z':>10s} {'se':>7s} {'EP':>8s} "
        f"{'+2nd':>8s} {'Laplace':>8s} {'acc EP':>7s} {'exact N':>7s} {'short':>7s} {'corr.':>6s} {'avg EP':>7s} "
        f"{'avg Lap':>7s} {'min Lap':>7s}"
    )
    for name in DATA:
        for scenario, factors in scenarios(name):
            q, laplace = fit_ep(factors), fit_laplace(FactorsTarget(factors))
            z, w, log_z, se, efficiency = reference(factors, q)
            mean = w @ z
            sd = np.sqrt(w @ (z - mean) ** 2)
            exact = bin_masses(z, w)

            def accuracy(masses, exact=exact):
                return 1 - 0.5 * np.abs(masses - exact).sum(axis=1)

            ones = np.ones(q.dim)
            ep, best = accuracy(gaussian_masses(0 * ones, ones)), accuracy(gaussian_masses(mean, sd))
            of_laplace = accuracy(gaussian_masses((laplace.mean - q.mean) / q.sd, laplace.sd / q.sd))
            corrected = accuracy(corrected_masses(q))
            print(
                f"{name:17s} {scenario:16s} {100 * efficiency:5.1f} {np.abs(mean / sd).max():6.3f} "
                f"{100 * np.abs(1 / sd - 1).max():5.1f} {log_z:10.3f} {se:7.4f} {q.log_evidence - log_z:8.4f} "
                f"{q.log_evidence + q.evidence_correction() - log_z:8.4f} {laplace.log_evidence - log_z:8.4f} "
                f"{ep.min():7.3f} {best.min():7.3f} {np.max(best - ep):7.4f} {corrected.min():6.3f} {ep.mean():7.4f} "
                f"{of_laplace.mean():7.4f} {of_laplace.min():7.3f}",
                flush=True,
            )


def table_of_efficiencies(*names, draws=500_000):
    """Print efficiency factors of importance sampling, Gaussian prior and probit link."""
    print(f"\n{'data':17s} {'divisor':>7s} {'runs':>5s} {'median':>7s} {'lowest':>7s} {'highest':>7s}   (EF %)")
    for name in names or ("plasma", "breast_wisconsin", "pima", "australian"):
        repeats = 10 if name == "plasma" else 4
        X, y, *_ = load_binary_regression(name, scaling="gelman")
        n = len(y)
        binary = np.array([len(np.unique(column)) == 2 for column in X.T])
        for divisor, shrink in (("n", 1.0), ("n - 1", np.sqrt((n - 1) / n))):
            design = np.where(binary | (np.ptp(X, axis=0) == 0), X, shrink * X)
            factors = Factors(design, None, Probit(y), 0.0, 1 / np.r_[20.0, np.full(X.shape[1] - 1, 5.0)] ** 2)
            q, runs = fit_ep(factors), []
            for seed in range(repeats):
                theta = q.sample(draws, np.random.default_rng(seed))
                log_w = factors.log_density(theta) - q.log_density(theta)
                w = np.exp(log_w - log_w.max())
                runs.append(100 * w.sum() ** 2 / (w @ w) / draws)
            print(
                f"{name:17s} {divisor:>7s} {repeats:5d} {np.median(runs):7.1f} {min(runs):7.1f} {max(runs):7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    part, *names = sys.argv[1:]
    {"scenarios": table_of_scenarios, "efficiency": table_of_efficiencies}[part](*names)
