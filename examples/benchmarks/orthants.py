"""Rectangle probabilities against exact values: error, reported standard error, CPU seconds, and error² × CPU.

    python examples/benchmarks/orthants.py table | scipy | ridgway | draws | margins | student | coverage | thesis | order |
        student_ghk
        [--runs 10] [--rows "AR 200,Cauchy 180"] [--first 0]

``table``: every method by name on instances whose probability is known, or known to far more digits than the error;
one line an instance and method, over runs with different seeds. ``scipy`` adds SciPy's ``multivariate_normal.cdf``, and
OpenTURNS' where it is installed. ``ridgway`` compares SMC with and without a tilt, and GHK, at Ridgway's instances.
``draws`` gives the acceptance and time of exact draws, and the effective sample size of particles. ``margins``
compares draws with margins by quadrature: p-values of Kolmogorov and Smirnov's test. ``student`` has t₃ vectors whose
probability is known. ``coverage`` counts the 95 % intervals that contain the truth, where the errors of tilting alone
are too small and on the Pima probit as an orthant of 532 variables. ``thesis`` has the comparisons of Ridgway (2015,
chapter 3): Ridgway's SMC and GHK in the same time, on Cauchy covariances and on panel probits; and truncated Student
draws against Gibbs sampling given 100 times the time. ``student_ghk`` has Ridgway's SMC and GHK for Student vectors,
and ``order`` has GHK with and without Gibson's order of the variables.

Instances: exchangeable orthants (log P = −log(d + 1)); autoregressions in a box [0, 15]^T, ρ = 0.7; two factors; rankings of
equal items (−log p!); X'X with X_ij ~ Cauchy(0, 0.01) and lower bounds of the same distribution (Ridgway 2015, section 3.6).
"""

import argparse
import time

import numba
import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy import integrate, interpolate, special, stats
from scipy.special import gammaln

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.math import panel_cholesky
from ppl_backends.orthants.ordering import order_rectangle
from ppl_backends.orthants.solvers import Net

INF = np.inf
METHODS = ("auto", "low_rank", "tilting", "tilted_smc", "particle_filter", "ghk", "ridgway", "ep")


def exchangeable(dim, rho=0.5):
    """Return equal correlations."""
    return np.full((dim, dim), rho) + (1 - rho) * np.eye(dim)


def autoregression(length, rho=0.7):
    """Return stationary, with unit variances."""
    return rho ** np.abs(np.subtract.outer(np.arange(length), np.arange(length)))


def ranking(items):
    """Return differences of neighbours among independent standard normals."""
    return 2 * np.eye(items - 1) - np.eye(items - 1, k=1) - np.eye(items - 1, k=-1)


def two_factors(dim):
    """Return the covariance and lower bounds."""
    g = np.random.default_rng(dim)
    loadings, noise = 0.8 * g.normal(size=(dim, 2)), g.uniform(0.3, 1, dim)
    cov = loadings @ loadings.T + np.diag(noise)
    return cov, -g.uniform(0, 1.5, dim) * np.sqrt(np.diag(cov))


def cauchy(dim):
    """Return the covariance and lower bounds."""
    g = np.random.default_rng(dim + 2)
    x = 0.01 * g.standard_cauchy((dim, dim))
    return x.T @ x, 0.01 * g.standard_cauchy(dim)


def instances():
    """Return the covariance, lower and upper bounds, and log P, by name."""
    rows = {f"exchangeable {d}": (exchangeable(d), 0, INF, -np.log(d + 1)) for d in (16, 64, 200, 1000)}
    rows["exchangeable 0.9 1000"] = (exchangeable(1000, 0.9), 1, 3, -6.338041)
    for length, value in [(50, -12.129288), (200, -46.804072), (500, -116.153641), (1000, -231.736256)]:
        rows[f"AR {length}"] = (autoregression(length), 0, 15, value)
    for dim, value in [(64, -16.019739), (256, -56.813992), (1000, -210.809045)]:
        rows[f"factors {dim}"] = (*two_factors(dim), INF, value)
    for items in (10, 40, 200, 1000):
        rows[f"ranking {items}"] = (ranking(items), 0, INF, -gammaln(items + 1))
    for dim, value in [(40, -32.667), (80, -64.21), (180, -185.70)]:
        rows[f"Cauchy {dim}"] = (*cauchy(dim), INF, value)
    return rows


def scipy_log_p(cov, lower, upper, seed):
    """Return SciPy's probability, by Genz's method with 20,000 points; its default, a million a dimension, takes minutes."""
    dim = len(cov)
    low, high = np.broadcast_to(lower, dim), np.broadcast_to(upper, dim)
    with np.errstate(divide="ignore"):
        normal = stats.multivariate_normal(np.zeros(dim), cov, allow_singular=True, seed=seed, maxpts=20_000)
        return np.log(normal.cdf(high, lower_limit=low))


def openturns_log_p(cov, lower, upper, seed):
    """Return OpenTURNS' probability of an interval."""
    import openturns as ot

    dim = len(cov)
    ot.RandomGenerator.SetSeed(seed)
    normal = ot.Normal([0.0] * dim, ot.CovarianceMatrix(cov.tolist()))
    low, high = np.broadcast_to(lower, dim), np.broadcast_to(upper, dim)
    interval = ot.Interval(
        np.maximum(low, -1e3).tolist(),
        np.minimum(high, 1e3).tolist(),
        np.isfinite(low).tolist(),
        np.isfinite(high).tolist(),
    )
    with np.errstate(divide="ignore"):
        return np.log(normal.computeProbability(interval))


def measure(name, method, runs, estimate, truth):
    """Print one line: figures of independent runs of a method on an instance."""
    values, errors, trusted, clock = [], [], [], time.process_time()
    for seed in range(runs):
        log_p, se, trust = estimate(seed)
        values.append(log_p - truth)
        errors.append(se)
        trusted.append(trust)
    seconds = (time.process_time() - clock) / runs
    rmse = np.sqrt(np.mean(np.square(values)))
    print(
        f"{name:22s} {method:16s} mean error {np.mean(values):+9.4f}  rmse {rmse:9.5f}  se {np.mean(errors):9.5f}  "
        f"trusted {np.mean(trusted):4.2f}  CPU {seconds:7.3f} s  error² × CPU {rmse**2 * seconds:9.2e}",
        flush=True,
    )


def by_method(cov, lower, upper, method, **options):
    """Return the function of a seed that :func:`measure` calls."""

    def estimate(seed):
        result = pb.rectangle_probability(cov, lower, upper, method=method, random_seed=seed, **options)
        return result.log_p, result.log_p_se, result.trusted

    return estimate


def table(rows, runs):
    """Run every method that applies."""
    for name, (cov, lower, upper, truth) in rows.items():
        for method in METHODS:
            if method == "ridgway" and len(cov) > 256:
                continue
            try:
                measure(name, method, 1 if method == "ep" else runs, by_method(cov, lower, upper, method), truth)
            except ValueError:
                continue


def against_scipy(rows, runs):
    """Run the default, tilting with SciPy's number of points, SciPy and OpenTURNS."""
    for name, (cov, lower, upper, truth) in rows.items():
        if not 16 <= len(cov) <= 256:
            continue
        measure(name, "auto", runs, by_method(cov, lower, upper, "auto"), truth)
        few = by_method(cov, lower, upper, "tilting", n_points=2048, replicates=2)
        measure(name, "tilting 2 × 2048", runs, few, truth)
        for peer in (scipy_log_p, openturns_log_p):
            try:
                label = peer.__name__.split("_")[0]
                measure(name, label, runs, lambda s, p=peer: (p(cov, lower, upper, s), np.nan, False), truth)  # noqa: B023
            except ImportError:
                continue


def against_ridgway(rows, runs):
    """Make one run of each SMC per replicate, and GHK with points for the same time."""
    for name, (cov, lower, upper, truth) in rows.items():
        for method, moves in [
            ("tilted_smc", "gibbs"),
            *(("ridgway", m) for m in ("gibbs", "block", "over_relaxed", "hmc")),
        ]:
            if (len(cov) > 80 and moves == "hmc") or len(cov) > 256:
                continue
            estimate = by_method(cov, lower, upper, method, moves=moves, n_points=1024, replicates=4)
            measure(name, f"{method} {moves}"[:16], runs, estimate, truth)
        measure(name, "ghk", runs, by_method(cov, lower, upper, "ghk", n_points=16384, replicates=4), truth)


def draws(rows, runs):
    """Print figures of a thousand draws."""
    for name, (cov, lower, upper, _) in rows.items():
        for seed in range(runs):
            clock = time.process_time()
            found = pb.sample_truncated(cov, lower, upper, random_seed=seed)
            seconds = time.process_time() - clock
            label = "exact" if found.exact else "particles"
            print(f"{name:22s} {label:9s} ESS {found.ess:6.0f} acceptance {found.acceptance:8.2g} CPU {seconds:6.2f} s")


def one_factor_margins(loadings, noise, lower, upper, df, at):
    """Return distribution functions ``(dim, len(at[0]))`` at points ``at`` of X = λ f + e inside bounds, by quadrature.

    A Student vector is a Gaussian one over r / √df, r² ~ χ²: at a radius the bounds are multiplied by that scale.
    """
    nodes, weights = leggauss(160)
    f, sd = 8.5 * nodes, np.sqrt(noise)
    radii = (
        [(1.0, 1.0)] if df is None else [(r / np.sqrt(df), w) for r, w in zip(6 * (nodes + 1), weights, strict=True)]
    )
    total, below = 0.0, np.zeros(np.shape(at))
    for scale, weight in radii:
        density = weight * (1.0 if df is None else stats.chi.pdf(scale * np.sqrt(df), df))
        low, high = (stats.norm.cdf((scale * b - np.outer(f, loadings)) / sd) for b in (lower, upper))
        inside = high - low
        joint = density * weights * np.exp(-0.5 * f**2) * inside.prod(axis=1)
        total += joint.sum()
        for k in range(len(loadings)):
            up_to = stats.norm.cdf((scale * at[k][:, None] - f * loadings[k]) / sd[k]) - low[:, k]
            below[k] += (up_to * (joint / np.maximum(inside[:, k], 1e-300))).sum(axis=1)
    return below / total


def autoregression_margins(length, rho, upper, points=1500):
    """Return the same of an autoregression above zero, by recursions over densities forwards and backwards."""
    x = np.linspace(0, upper, points)
    weights = np.full(points, x[1])
    weights[[0, -1]] /= 2
    kernel = np.exp(-0.5 * (x[:, None] - rho * x) ** 2 / (1 - rho**2)) * weights
    forward = [np.exp(-0.5 * x**2)]
    backward = [np.ones(points)]
    for _ in range(length - 1):
        forward.append(kernel @ forward[-1])
        forward[-1] /= forward[-1].max()
        backward.append((kernel.T / weights[:, None]) @ (weights * backward[-1]))
        backward[-1] /= backward[-1].max()
    density = np.array(forward) * np.array(backward[::-1])
    below = integrate.cumulative_trapezoid(density, x, axis=1, initial=0)
    return np.broadcast_to(x, density.shape), below / below[:, -1:]


def margin_cases():
    """Return arguments of sample_truncated, and points and values of the distribution function of every variable, by name."""
    g = np.random.default_rng(10)
    loadings, noise = g.normal(size=10), g.uniform(0.3, 1, 10)
    lower = g.uniform(-2, 0.5, 10)
    upper = lower + g.uniform(1, 3, 10)
    at = lower[:, None] + np.linspace(0, 1, 201) * (upper - lower)[:, None]
    given = (np.outer(loadings, loadings) + np.diag(noise), lower, upper)
    cases = {}
    for df in (None, 3):
        values = one_factor_margins(loadings, noise, lower, upper, df, at)
        cases[f"one factor 10, {'Gaussian' if df is None else 'Student 3'}"] = (given, {"df": df}, at, values)
    cases["AR 50"] = ((autoregression(50), 0, 15), {}, *autoregression_margins(50, 0.7, 8.0))
    return cases


def margins(rows, runs):
    """Print p-values of every variable and seed, and of one variable per seed, which are independent."""
    for name, (given, options, at, values) in margin_cases().items():
        cdfs = [interpolate.PchipInterpolator(*pair) for pair in zip(at, values, strict=True)]
        for method in ("exact", "smc"):
            p, clock = [], time.process_time()
            for seed in range(runs):
                found = pb.sample_truncated(*given, **options, method=method, random_seed=seed).draws
                p.append([stats.kstest(x, cdf).pvalue for x, cdf in zip(found.T, cdfs, strict=True)])
            p = np.array(p)
            single = p[np.arange(runs), np.arange(runs) % p.shape[1]]
            uniform = stats.kstest(single, "uniform").pvalue
            print(
                f"{name:24s} {method:6s} below 0.01: {(p < 0.01).sum()} of {p.size}, {(single < 0.01).sum()} of {runs} "
                f"single ones; smallest {p.min():.2g}, {single.min():.2g}; uniform p {uniform:.2f} "
                f"CPU {(time.process_time() - clock) / runs:.2f} s",
                flush=True,
            )


def students(rows, runs):
    """Run exchangeable t vectors of 3 degrees of freedom, with log P by quadrature over factor and radius."""
    nodes, weights = leggauss(400)
    f, r = 9.0 * nodes, 15.0 * (nodes + 1)  # beyond r = 30 there is nothing of χ with 3 degrees of freedom
    for dim, lower in [(10, 0.5), (50, -1.0), (100, -1.0)]:
        gap = np.sqrt(0.5) * f[:, None] - lower * r / np.sqrt(3)
        inside = dim * special.log_ndtr(gap / np.sqrt(0.5))
        joint = np.log(9.0 * weights) - 0.5 * f**2 - 0.5 * np.log(2 * np.pi)
        log_p = special.logsumexp(inside + joint[:, None] + np.log(15.0 * weights * stats.chi.pdf(r, 3)), axis=(0, 1))
        for method in ("auto", "tilting", "tilted_smc"):
            estimate = by_method(exchangeable(dim), lower, INF, method, df=3)
            measure(f"t₃ d = {dim}, {lower:g}: {log_p:.6f}", method, runs, estimate, log_p)


def probit_orthant(name):
    """Return the factor and the covariance of a probit regression as an orthant, under N(0, 20²) and N(0, 5²) priors."""
    data = load_binary_regression(name)
    loadings = np.where(data.y, 1.0, -1.0)[:, None] * data.X * np.where(np.arange(data.X.shape[1]), 5.0, 20.0)
    return loadings @ loadings.T + np.eye(len(loadings))


def coverage(rows, runs, first=0):
    """Print the share of 95 % intervals that contain log P, among trusted runs: a line for each run, then the counts."""
    cases = {name: (*rows[name], "auto") for name in ("AR 500", "Cauchy 180") if name in rows}
    pima = (probit_orthant("pima"), 0, INF, -263.7222)
    cases |= {"Pima, auto": (*pima, "auto"), "Pima, tilting": (*pima, "tilting")}
    for name, (cov, lower, upper, truth, method) in cases.items():
        inside, trusted, found, clock = 0, 0, [], time.process_time()
        for seed in range(first, first + runs):
            result = pb.rectangle_probability(cov, lower, upper, method=method, random_seed=seed)
            half = stats.t.ppf(0.975, result.log_p_df) * result.log_p_se
            trusted += result.trusted
            inside += result.trusted and abs(result.log_p - truth) <= half
            found.append((result.log_p - truth, result.log_p_se))
            print(f"{name:14s} seed {seed:4d} error {found[-1][0]:+.5f} half {half:.5f} {result.trusted}", flush=True)
        error, se = np.transpose(found)
        print(
            f"{name:14s} {result.method:16s} {inside} of {trusted} trusted intervals cover; runs {runs}  "
            f"mean error {error.mean():+.5f}  rmse {np.sqrt(np.mean(error**2)):.5f}  mean se {se.mean():.5f}  "
            f"CPU {(time.process_time() - clock) / runs:.2f} s",
            flush=True,
        )


def panel(periods, alternatives):
    """Return covariance and upper bounds of utilities less that of the choice, of one person, with random parameters."""
    g = np.random.default_rng(100 * periods + alternatives)
    factor = panel_cholesky(
        g.uniform(0.3, 1, alternatives), g.uniform(0.2, 0.8, alternatives), np.ones(alternatives), periods
    )
    residuals = factor.eval()
    mean = g.normal(size=periods * alternatives)
    utility = (mean + residuals @ g.standard_normal(len(mean))).reshape(periods, alternatives)
    rows = [
        np.eye(len(mean))[t * alternatives + j] - np.eye(len(mean))[t * alternatives + utility[t].argmax()]
        for t in range(periods)
        for j in range(alternatives)
        if j != utility[t].argmax()
    ]
    differences = np.array(rows)
    root = differences @ residuals
    return root @ root.T, -INF, -differences @ mean


def equal_time(name, cov, lower, upper, runs, particles, df=None, methods=("tilted_smc",)):
    """Return Ridgway's SMC, GHK with points for the same time, and others with as many particles."""
    best = pb.rectangle_probability(cov, lower, upper, df=df, random_seed=12345, n_points=16384)
    given = {"df": df, "replicates": 2}

    def seconds(method, points):
        clock = time.process_time()
        by_method(cov, lower, upper, method, n_points=points, **given)(0)
        return time.process_time() - clock

    seconds("ridgway", 64)
    seconds("ghk", 64)
    share = seconds("ridgway", particles) / seconds("ghk", 4096)
    points = int(min(2 ** np.round(12 + np.log2(share)), 2**18))
    print(f"{name}: log P {best.log_p:.4f} ± {best.log_p_se:.4f} by {best.method}; points of GHK {points}")
    for method, n in [("ridgway", particles), ("ghk", points), *((other, particles) for other in methods)]:
        measure(name, f"{method} {n}", runs, by_method(cov, lower, upper, method, n_points=n, **given), best.log_p)


@numba.njit(cache=True)
def student_gibbs(precision, lower, df, x, sweeps, rng):
    """Draw a Student vector above bounds by Gibbs sampling: its radius, then each variable (Robert 1995)."""
    dim, total = len(x), np.zeros(len(x))
    for _ in range(sweeps):
        scale = rng.standard_gamma(0.5 * (df + dim)) / (0.5 * (df + x @ precision @ x))
        for i in range(dim):
            sd = 1 / np.sqrt(scale * precision[i, i])
            mean = x[i] - precision[i] @ x / precision[i, i]
            at = (lower[i] - mean) / sd
            if at > 0.5:  # from an exponential shifted to the bound
                rate = 0.5 * (at + np.sqrt(at * at + 4))
                z = at - np.log(1 - rng.random()) / rate
                while rng.random() > np.exp(-0.5 * (z - rate) ** 2):
                    z = at - np.log(1 - rng.random()) / rate
            else:
                z = rng.standard_normal()
                while z < at:
                    z = rng.standard_normal()
            x[i] = mean + sd * z
        total += x
    return total / sweeps


def student_means(dim, runs, df=3.0):
    """Return errors of the means of all variables by a thousand draws, and by Gibbs sampling with 100 times their time."""
    cov, lower = cauchy(dim)
    precision = np.linalg.inv(cov)

    def draw(seed, draws=1000):
        return pb.sample_truncated(cov, lower, df=df, draws=draws, random_seed=seed)

    def chain(seed, sweeps):
        return student_gibbs(precision, lower, df, start.copy(), sweeps, np.random.default_rng(seed))

    long = np.concatenate([draw(1000 + i, 4000).draws for i in range(3)])
    start = long[0]
    chain(0, 10)
    clock = time.process_time()
    ours = [draw(seed) for seed in range(runs)]
    seconds = (time.process_time() - clock) / runs
    clock = time.process_time()
    chain(0, 2000)
    sweeps = int(100 * seconds / (time.process_time() - clock) * 2000)
    print(f"draws {seconds:.2f} CPU s, exact: {ours[0].exact}; sweeps of Gibbs {sweeps}", flush=True)
    means = {"draws": [run.draws.mean(axis=0) for run in ours], "Gibbs": [chain(seed, sweeps) for seed in range(runs)]}
    for name, found in means.items():
        error = np.sqrt(np.mean((np.array(found) - long.mean(axis=0)) ** 2, axis=0)) / long.std(axis=0)
        print(f"Student {dim} {name:6s} rmse of means in sds: median {np.median(error):.4f} largest {error.max():.4f}")


def thesis(rows, runs):
    """Print the figures of chapter 3."""
    equal_time("Cauchy 40", *cauchy(40), INF, runs, 4096)
    for dim in (130, 180):
        equal_time(f"Cauchy {dim}", *cauchy(dim), INF, runs, 4096)
    for size in ((5, 4), (10, 6)):
        equal_time(f"panel {size[0]} × {size[1]}", *panel(*size), runs, 1024, methods=("tilted_smc", "tilting"))
    for dim in (50, 100):
        student_means(dim, runs)


def student_against_ghk(rows, runs):
    """Print Figure 3.8: Student vectors at equal time."""
    for dim in (20, 40):
        equal_time(f"Cauchy {dim}, Student 3", *cauchy(dim), INF, runs, 512, df=3.0)


def order(rows, runs, points=4096):
    """Print Figure 3.3: GHK by scrambled Sobol points, with one estimate of log P per run."""
    for dim in (40, 50, 60):
        cov, lower = cauchy(dim)
        upper = np.full(dim, INF)
        truth = pb.rectangle_probability(cov, lower, upper, random_seed=12345, n_points=16384)
        print(f"Cauchy {dim}: log P {truth.log_p:.3f} ± {truth.log_p_se:.3f} by {truth.method}")
        for reorder in (True, False):
            rectangle = order_rectangle(cov, lower, upper, reorder=reorder)
            log_p = Net(rectangle, points, False).run(1.0, np.random.SeedSequence(dim).spawn(runs)).log_p - truth.log_p
            low, middle, high = np.quantile(log_p, [0.1, 0.5, 0.9])
            print(
                f"{'in order' if reorder else 'as they come':12s} {runs} runs of {points} points: mean {log_p.mean():+.2f}, "
                f"sd {log_p.std(ddof=1):.2f}, deciles {low:+.2f} {high:+.2f}, median {middle:+.2f}, range "
                f"{log_p.min():+.2f} {log_p.max():+.2f}, outside the box plot's whiskers {outliers(log_p)}",
                flush=True,
            )


def outliers(values):
    """Return number of values that are more than one and a half times the interquartile range beyond the quartiles."""
    low, high = np.quantile(values, [0.25, 0.75])
    reach = 1.5 * (high - low)
    return int(((values < low - reach) | (values > high + reach)).sum())


COMPARISONS = {
    "table": table,
    "scipy": against_scipy,
    "ridgway": against_ridgway,
    "draws": draws,
    "margins": margins,
    "student": students,
    "coverage": coverage,
    "thesis": thesis,
    "student_ghk": student_against_ghk,
    "order": order,
}


def main():
    """Run one of the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(COMPARISONS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rows", default="")
    given = parser.parse_args()
    rows = instances()
    if given.rows:
        rows = {name: rows[name] for name in given.rows.split(",")}
    if given.what == "coverage":
        coverage(rows, given.runs, given.first)
    else:
        COMPARISONS[given.what](rows, given.runs)


if __name__ == "__main__":
    main()
