"""ABC on models without answers in closed form: g-and-k, Lotka–Volterra by Gillespie's algorithm, two modes of equal mass.

    python examples/benchmarks/abc_models.py [runs of the bimodal model]

The bimodal model is that of Buchholz (2018, section 3.7.2): θ ~ U[−10, 10]², a hundred observations of
½ N(θ, I) + ½ N(−θ, I), and the earth mover's distance between the two samples. Lotka–Volterra is that of section 3.5.2:
prey and predators from (50, 100), seen sixteen times, log rates uniform on [−6, 2].
"""

import sys
import time
import warnings

import numpy as np
from numba import njit
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import ppl_backends as pb

QUIET = {"progressbar": False}
MOST_EVENTS = 200_000


def box(low, high, names):
    """Uniform prior on a box."""
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


def g_and_k(parameters, rng):
    """Octiles ``(n, 7)`` of 250 observations."""
    a, b, g, k = parameters["x"].T[:, :, None]
    z = rng.standard_normal((len(parameters["x"]), 250))
    y = a + b * (1 + 0.8 * np.tanh(0.5 * g * z)) * (1 + z**2) ** k * z
    return np.quantile(y, np.arange(1, 8) / 8, axis=1).T


# -- Lotka–Volterra --------------------------------------------------------------------------------------------------------


@njit(cache=False)
def _gillespie(rates, rng, out):
    """Prey and predators at t = 0, 2, …, 30; NaN after too many events."""
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
    """Two series of sixteen ``(n, 32)``."""
    out = np.empty((len(parameters["x"]), 32))
    _gillespie(np.exp(parameters["x"]), rng, out)
    return out


# -- two modes -------------------------------------------------------------------------------------------------------------


def two_signs(parameters, rng):
    """A hundred observations of two coordinates ``(n, 100, 2)``."""
    theta = parameters["x"]
    sign = np.where(rng.random((len(theta), 100, 1)) < 0.5, -1.0, 1.0)
    return sign * theta[:, None] + rng.standard_normal((len(theta), 100, 2))


def earth_mover(observed, simulated):
    """Mean distance of the best matching of two samples."""
    cost = cdist(observed, simulated)
    return cost[linear_sum_assignment(cost)].mean()


def described(name, idata, seconds, truth):
    """One line on a run."""
    attrs, estimates = idata.posterior.attrs, idata["estimates"]
    mean, sd = estimates["x_mean"].values, estimates["x_sd"].values
    figures = ", ".join(f"{m:.3f} ± {s:.3f} ({t:g})" for m, s, t in zip(mean, sd, truth, strict=True))
    print(
        f"| {name} | {attrs['method']} | {attrs['epsilon']:.3g} | {figures} | {attrs['log_evidence']:.2f} ± "
        f"{attrs['log_evidence_se']:.2f} | {attrs['simulations']:,} | {seconds:.0f} |",
        flush=True,
    )


def main(runs):
    """Print a table, and the shares of the two modes."""
    warnings.simplefilter("ignore")
    print("| model | sampler | ε | mean ± sd (truth) | log E[K] | simulations | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    gk, lv = np.array([3.0, 1.0, 2.0, 0.5]), np.log([1.0, 0.005, 0.6])
    problems = {
        "g-and-k": (box([0] * 4, [10] * 4, list("abgk")), g_and_k, gk, 0.5),
        "Lotka–Volterra": (box([-6] * 3, [2] * 3, ["birth", "meal", "death"]), lotka_volterra, lv, 500.0),
    }
    for name, (prior, simulate, truth, epsilon) in problems.items():
        observed = simulate({"x": truth[None]}, np.random.default_rng(1))[0]
        for method in ("sequential", "smc"):
            started = time.process_time()
            options = {
                "epsilon": epsilon,
                "draws": 500,
                "data_sets": 2,
                "pilot_points": 2048,
                "max_simulations": 200_000,
            }
            idata = pb.sample_abc(
                prior, simulate=simulate, observed=observed, method=method, random_seed=1, **options, **QUIET
            )
            described(name, idata, time.process_time() - started, truth)
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
            max_simulations=7000,
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
