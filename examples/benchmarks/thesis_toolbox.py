"""Figures of Ridgway (2015, chapter 1): a Student prior by power EP, mean field, and unbiased weights for Skellam data.

``student``     Figure 1.6: linear regression with a Student prior on every coefficient, noise of known variance, by EP and
                by power EP with the fraction −2/(ν + 1), whose moments need no quadrature, beside importance sampling
                with 2¹⁶ scrambled Sobol points. The data are Boston's house prices, as in the thesis: of the package
                ``particles``, or from ``--file``. Columns are standardised, the noise variance is that of least
                squares, the scale of the prior is 0.1.
``mean_field``  Figure 1.7: the best independent normals for a bivariate normal with correlation 0.99 have variances
                1 − ρ².
``skellam``     Figures 1.2 and 1.3: 40 differences of two Poisson(λ) counts, λ ~ Γ(1, 1). Importance sampling from a normal
                that the method of moments gives, each weight the mean over M vectors of latent counts of the likelihood
                given them; and his Gibbs sampler (Algorithm 2) on the target of all M vectors and an index. Beside them a
                mean over M for every observation by itself, the product of which is unbiased as well, in both. Errors of
                the posterior mean of λ over 20 runs of 1,000 points or steps, in posterior standard deviations.

Run: python examples/benchmarks/thesis_toolbox.py student | mean_field | skellam [--file boston_house_prices.csv]
"""

import argparse
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy import stats
from scipy.special import gammaln, logsumexp

import ppl_backends as pb
from ppl_backends.errors import PPLBackendsWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import Normal, StudentT

SCALE = 0.1
LOG_FACTORIAL = gammaln(np.arange(200) + 1.0)


def boston(path):
    """Return Standardised predictors with an intercept, and the response in units of the noise."""
    if path is None:
        path = Path(find_spec("particles").submodule_search_locations[0]) / "datasets" / "boston_house_prices.csv"
    table = np.loadtxt(path, delimiter=",", skiprows=2)
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    X, y = np.column_stack([np.ones(len(table)), table[:, :-1]]), table[:, -1]
    residual = y - X @ np.linalg.lstsq(X, y)[0]
    return X, y, float(np.sqrt(residual @ residual / (len(y) - X.shape[1])))


def student(path):
    """Print errors of EP and power EP, the largest over coefficients and those of the first three."""
    X, y, noise = boston(path)
    d = X.shape[1]
    print(f"{len(y)} rows, {d} coefficients, prior scale {SCALE}, noise {noise:.3f}")
    columns = ["ν", "fraction", "sweeps", "CPU ms", "mean off, sd", "first three", "sd off, %", "log Z", "log Z, exact"]
    print(f"| {' | '.join(columns)} |\n" + "| --- " * len(columns) + "|")
    for nu in (1.0, 4.0, 7.0):
        factors = pb.Factors([X, np.eye(d)], None, [Normal(y, noise), StudentT(np.zeros(d), nu, SCALE)], 0.0, 0.0)
        exact = reference(pb.as_target(factors), pb.fit_ep(factors))
        for fraction in (1.0, "student"):
            clock = time.process_time()
            for _ in range(20):
                q = pb.fit_ep(factors, fraction=fraction)
            milliseconds = 50 * (time.process_time() - clock)
            mean, sd, log_z = exact
            off = np.abs(q.mean - mean) / sd
            print(
                f"| {nu:g} | {fraction} | {q.diagnostics['sweeps']:.0f} | {milliseconds:.1f} | {off.max():.4f} | "
                f"{', '.join(f'{value:.4f}' for value in off[1:4])} | {100 * np.abs(q.sd / sd - 1).max():.2f} | "
                f"{q.log_evidence:.4f} | {log_z:.4f} |",
                flush=True,
            )


def reference(target, q):
    """Return means, standard deviations and log evidence by importance sampling from EP's Gaussian with tails."""
    idata = pb.sample_importance(
        target, approximation=q, proposal="defensive", draws=2**13, chains=8, random_seed=1, progressbar=False
    )
    kept = group(idata, "proposal")
    x = np.concatenate(kept[next(name for name in kept.data_vars if name != "log_weight")].values)
    w = np.exp(kept["log_weight"].values.ravel() - kept["log_weight"].values.max())
    w /= w.sum()
    mean = w @ x
    return mean, np.sqrt(w @ (x - mean) ** 2), group(idata, "posterior").attrs["log_evidence"]


def mean_field(rho=0.99):
    """Print the variances of the fit and 1 − ρ²."""
    precision = np.linalg.inv([[1.0, rho], [rho, 1.0]])
    target = pb.FunctionTarget(2, lambda x: (-0.5 * np.einsum("ni,ij,nj->n", x, precision, x), -x @ precision))
    q = pb.fit_vi(target, family="diagonal", random_seed=1, progressbar=False)
    print(f"variances {q.sd[0] ** 2:.6f}, {q.sd[1] ** 2:.6f}; 1 − ρ² = {1 - rho**2:.6f}")


def skellam_posterior(y):
    """Return the mean and standard deviation of λ, by quadrature of the exact likelihood."""
    grid = np.linspace(1e-4, 12, 4001)
    log_density = stats.skellam.logpmf(y[:, None], grid, grid).sum(axis=0) - grid
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = weights @ grid
    return mean, np.sqrt(weights @ (grid - mean) ** 2)


def log_poisson(count, level):
    """Log probabilities of counts, impossible below zero."""
    return np.where(count >= 0, count * np.log(level) - level - LOG_FACTORIAL[np.maximum(count, 0)], -np.inf)


def importance(y, count, each, n, rng):
    """Return the posterior mean of λ and the effective sample size, by weights that are right on average."""
    centre = 0.5 * y.var()
    spread = np.sqrt((2 * centre**2 + 0.5 * centre) / len(y))
    level = centre + spread * rng.standard_normal(n)
    level = level[level > 0]
    latent = rng.poisson(level[:, None, None], (len(level), count, len(y)))
    log_p = log_poisson(y + latent, level[:, None, None])
    log_l = logsumexp(log_p, axis=1).sum(axis=1) if each else logsumexp(log_p.sum(axis=2), axis=1)
    log_w = log_l - level - stats.norm.logpdf(level, centre, spread)
    w = np.exp(log_w - log_w.max())
    return w @ level / w.sum(), w.sum() ** 2 / (w @ w)


def skellam_gibbs(y, count, each, n, runs, rng):
    """Return the posterior means of λ ``(runs,)`` by Gibbs: λ given the chosen counts, the other draws, the index."""
    total, chosen, burn_in = np.zeros(runs), rng.poisson(1.0, (runs, len(y))) + np.maximum(0, -y), n // 5
    for step in range(n + burn_in):
        level = rng.gamma(1 + (y + 2 * chosen).sum(axis=1), 1 / (2 * len(y) + 1))[:, None, None]
        latent = rng.poisson(level, (runs, count, len(y)))
        latent[:, 0] = chosen
        log_w = log_poisson(y + latent, level)
        log_w = log_w if each else log_w.sum(axis=2, keepdims=True)
        index = (log_w + rng.gumbel(size=log_w.shape)).argmax(axis=1)
        chosen = np.take_along_axis(latent, index[:, None], axis=1)[:, 0]
        total += level[:, 0, 0] if step >= burn_in else 0.0
    return total / n


def skellam(n=1000, runs=20):
    """Print the errors of both samplers by the number of latent vectors."""
    rng = np.random.default_rng(1)
    y = rng.poisson(2.0, (40, 2)) @ [1, -1]
    mean, sd = skellam_posterior(y)
    print(f"40 observations, exact posterior of λ: {mean:.4f} ± {sd:.4f}; {runs} runs of {n}")
    print("| M | mean of | importance: rms error, sd | ESS | Gibbs: rms error, sd | variance over that of importance |")
    print("| --- " * 6 + "|")
    for each in (False, True):
        for count in (2, 10, 100):
            found = np.array([importance(y, count, each, n, rng) for _ in range(runs)])
            error = np.sqrt(np.mean((found[:, 0] - mean) ** 2)) / sd
            of_gibbs = np.sqrt(np.mean((skellam_gibbs(y, count, each, n, runs, rng) - mean) ** 2)) / sd
            print(
                f"| {count} | {'each observation' if each else 'all observations'} | {error:.3f} | "
                f"{found[:, 1].mean():.0f} | {of_gibbs:.3f} | {(of_gibbs / error) ** 2:.2g} |",
                flush=True,
            )


def main():
    """Print one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["student", "mean_field", "skellam"])
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", PPLBackendsWarning)
    if options.part == "student":
        student(options.file)
    elif options.part == "mean_field":
        mean_field()
    else:
        skellam()


if __name__ == "__main__":
    main()
