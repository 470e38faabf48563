"""ABC on g-and-k, on Lotka–Volterra by Gillespie's algorithm, and on two modes of equal mass, with checks of each.

    python examples/benchmarks/abc_models.py [runs of the bimodal model]

The octiles of 257 observations of a g-and-k distribution are seven order statistics. Their joint density needs only the
inverse of the quantile function, so their posterior is known. The ABC posterior is adjusted by regression.
Lotka–Volterra is compared at the same ε with rejection of uniform draws from a box with sides of nine posterior sds.
The box uses only the location and scale of the sampler's result. The bimodal model is that of Buchholz (2018, section
3.7.2): θ ~ U[−10, 10]², a hundred observations of ½ N(θ, I) + ½ N(−θ, I), and the earth mover's distance between the
two samples. Lotka–Volterra is that of section 3.5.2: prey and predators from (50, 100), seen sixteen times, log rates
uniform on [−6, 2].
"""

import sys
import time
import warnings

import numpy as np
from numba import njit
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.special import ndtr

import ppl_backends as pb

QUIET = {"progressbar": False}
MOST_EVENTS = 200_000


def box(low, high, names):
    """Return uniform prior on a box."""
    low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    dim = len(low)

    def log_prior(x):
        inside = ((x >= low) & (x <= high)).all(axis=1)
        return np.where(inside, -np.log(high - low).sum(), -np.inf), np.zeros_like(x)

    return pb.FunctionTarget(
        dim,
        lambda x: (np.zeros(len(x)), np.zeros_like(x)),
        log_prior,
        lambda n, rng: rng.uniform(low, high, (n, dim)),
        names=names,
        prior_from_uniform=lambda u: low + u * (high - low),
    )


# -- g-and-k ---------------------------------------------------------------------------------------------------------------


OBSERVATIONS = 257  # of which the octiles are the 33rd, the 65th, … in order


def quantile(theta, z):
    """Return quantiles of g-and-k ``(n, k)`` at normal ones, of parameters ``(n, 4)``."""
    a, b, g, k = theta.T[:, :, None]
    return a + b * (1 + 0.8 * np.tanh(0.5 * g * z)) * (1 + z**2) ** k * z


def g_and_k(parameters, rng):
    """Return octiles ``(n, 7)``."""
    theta = parameters["x"]
    y = quantile(theta, rng.standard_normal((len(theta), OBSERVATIONS)))
    return np.quantile(y, np.arange(1, 8) / 8, axis=1).T


def log_density_of_octiles(theta, octiles):
    """Log density ``(n,)`` of seven order statistics, up to a constant; the quantile function is inverted by bisection."""
    low, high = np.full((len(theta), 7), -12.0), np.full((len(theta), 7), 12.0)
    for _ in range(45):
        middle = 0.5 * (low + high)
        below = quantile(theta, middle) < octiles
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    z, (_, b, g, k) = 0.5 * (low + high), theta.T[:, :, None]
    t = np.tanh(0.5 * g * z)
    slope = (1 + 0.8 * t) * (1 + (2 * k + 1) * z**2) / (1 + z**2) + 0.4 * g * z * (1 - t**2)
    between = np.diff(ndtr(z), axis=1, prepend=0.0, append=1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = stats.norm.logpdf(z) - np.log(b * (1 + z**2) ** k * slope)
        value = logs.sum(axis=1) + np.log(between) @ np.array([32, *[31] * 6, 32])
    return np.where(((theta >= 0) & (theta <= 10)).all(axis=1) & np.isfinite(value), value, -np.inf)


def exact_of_octiles(octiles, truth, rng):
    """Return posterior means and sds of the octiles, by importance sampling from Student t's that are fitted twice."""
    mean, cov = truth, np.diag([0.1, 0.1, 0.5, 0.1]) ** 2 * 4
    for n in (10_000, 10_000, 40_000):
        proposal = stats.multivariate_t(mean, 1.5 * cov, df=5)
        theta = proposal.rvs(n, random_state=rng)
        log_weights = log_density_of_octiles(theta, octiles) - proposal.logpdf(theta)
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        mean = weights @ theta
        cov = (weights * (theta - mean).T) @ (theta - mean)
    return mean, np.sqrt(np.diag(cov)), 1 / np.sum(weights**2)


def check_g_and_k():
    """Print the posterior of the octiles, and that of ABC, adjusted."""
    truth, rng = np.array([3.0, 1.0, 2.0, 0.5]), np.random.default_rng(1)
    octiles = g_and_k({"x": truth[None]}, rng)[0]
    scale = g_and_k({"x": np.repeat(truth[None], 4000, axis=0)}, rng).std(axis=0)
    mean, sd, size = exact_of_octiles(octiles, truth, rng)
    print(f"g-and-k, octiles, exact (effective size {size:,.0f}): mean {mean.round(3)}, sd {sd.round(3)}")
    options = {"kernel": "epanechnikov", "epsilon": 2.0, "method": "smc", "draws": 1000, "adjust": "heteroscedastic"}
    started = time.process_time()
    idata = pb.sample_abc(
        box([0] * 4, [10] * 4, list("abgk")),
        simulate=g_and_k,
        observed=octiles,
        summary=lambda y: y / scale,
        random_seed=1,
        **options,
        **QUIET,
    )
    x = idata.posterior["x"].values.reshape(-1, 4)
    print(
        f"SMC-ABC, ε = 2, adjusted: errors of means {((x.mean(axis=0) - mean) / sd).round(2)} sd, ratios of sds "
        f"{(x.std(axis=0) / sd).round(2)}, {idata.posterior.attrs['simulations']:,} simulations, "
        f"{time.process_time() - started:.0f} CPU s",
        flush=True,
    )


# -- Lotka–Volterra --------------------------------------------------------------------------------------------------------


@njit(cache=False)
def _gillespie(rates, rng, out):
    """Simulate prey and predators at t = 0, 2, …, 30; NaN after too many events."""
    for i in range(len(rates)):
        alpha, beta, gamma = rates[i]
        prey, predators, t, seen, events = 50.0, 100.0, 0.0, 0, 0
        while seen < 16:
            birth, meal, death = alpha * prey, beta * prey * predators, gamma * predators
            total = birth + meal + death
            t = np.inf if total <= 0 else t - np.log(1.0 - rng.random()) / total
            while seen < 16 and 2.0 * seen <= t:
                out[i, seen], out[i, 16 + seen] = prey, predators
                seen += 1
            events += 1
            if events > MOST_EVENTS:
                out[i] = np.nan
                break
            u = rng.random() * total
            if u < birth:
                prey += 1
            elif u < birth + meal:
                prey, predators = prey - 1, predators + 1
            else:
                predators -= 1


def lotka_volterra(parameters, rng):
    """Return two series of sixteen ``(n, 32)``."""
    out = np.empty((len(parameters["x"]), 32))
    _gillespie(np.exp(parameters["x"]), rng, out)
    return out


def check_lotka_volterra():
    """Print the ABC posterior, and that of plain rejection."""
    truth, epsilon, n = np.log([1.0, 0.005, 0.6]), 400.0, 40_000
    observed = lotka_volterra({"x": truth[None]}, np.random.default_rng(1))[0]
    options = {"draws": 500, "data_sets": 2, "pilot_points": 2048, "max_simulations": 200_000}
    started = time.process_time()
    idata = pb.sample_abc(
        box([-6] * 3, [2] * 3, ["birth", "meal", "death"]),
        simulate=lotka_volterra,
        observed=observed,
        epsilon=epsilon,
        method="sequential",
        random_seed=1,
        **options,
        **QUIET,
    )
    attrs, found = idata.posterior.attrs, idata["estimates"]
    mean, error, sd = (found[f"x_{what}"].values for what in ("mean", "mean_se", "sd"))
    print(
        f"Lotka–Volterra, ε = {epsilon:g}: mean {mean.round(3)} ± {error.round(3)}, sd {sd.round(3)}, log E[K] "
        f"{attrs['log_evidence']:.2f} ± {attrs['log_evidence_se']:.2f}, {attrs['simulations']:,} simulations, "
        f"{time.process_time() - started:.0f} CPU s"
    )
    rng, started = np.random.default_rng(5), time.process_time()
    x = rng.uniform(mean - 4.5 * sd, mean + 4.5 * sd, (n, 3))
    near = np.linalg.norm(lotka_volterra({"x": x}, rng) - observed, axis=1) <= epsilon
    kept = x[near]
    print(
        f"rejection in a box, {n:,} simulations, {len(kept)} kept: mean {kept.mean(axis=0).round(3)} ± "
        f"{(kept.std(axis=0) / len(kept) ** 0.5).round(3)}, sd {kept.std(axis=0).round(3)}, log E[K] "
        f"{np.log(near.mean() * np.prod(9 * sd / 8)):.2f} ± {len(kept) ** -0.5:.2f}, "
        f"{time.process_time() - started:.0f} CPU s",
        flush=True,
    )


# -- two modes -------------------------------------------------------------------------------------------------------------


def two_signs(parameters, rng):
    """Return a hundred observations of two coordinates ``(n, 100, 2)``."""
    theta = parameters["x"]
    sign = np.where(rng.random((len(theta), 100, 1)) < 0.5, -1.0, 1.0)
    return sign * theta[:, None] + rng.standard_normal((len(theta), 100, 2))


def earth_mover(observed, simulated):
    """Return the mean distance of the best matching of two samples."""
    cost = cdist(observed, simulated)
    return cost[linear_sum_assignment(cost)].mean()


def main(runs):
    """Print the checks, and the shares of the two modes."""
    warnings.simplefilter("ignore")
    check_g_and_k()
    check_lotka_volterra()
    bimodal(runs)


def bimodal(runs):
    """Print in how many runs both modes have half of the mass."""
    observed = two_signs({"x": np.array([[3.0, 2.0]])}, np.random.default_rng(1))[0]
    shares, simulations, started = [], [], time.process_time()
    for seed in range(runs):
        idata = pb.sample_abc(
            box([-10, -10], [10, 10], ["first", "second"]),
            simulate=two_signs,
            observed=observed,
            distance=earth_mover,
            epsilon=1.0,
            draws=500,
            data_sets=2,
            pilot_points=512,
            max_simulations=14_000,
            random_seed=seed,
            **QUIET,
        )
        shares.append(float((idata.posterior["x"][..., 0] > 0).mean()))
        simulations.append(idata.posterior.attrs["simulations"])
    right = np.mean(np.abs(np.array(shares) - 0.5) <= 0.05)
    print(
        f"\nBimodal, earth mover's distance, {runs} runs: both modes at 50 ± 5 % in {right:.1%}, sd of the share "
        f"{np.std(shares):.4f}, ε = {idata.posterior.attrs['epsilon']:.3g}, acceptance "
        f"{float(idata.sample_stats['acceptance'][-1]):.2f}, {np.mean(simulations):,.0f} simulations, "
        f"{(time.process_time() - started) / runs:.0f} CPU s a run"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
