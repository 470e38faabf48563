"""ABC on two problems with exact answers: nets against random points, and a batched sampler against ``pm.sample_smc``.

    python examples/benchmarks/abc_toys.py [runs]

First table: adaptive importance sampling of the mixture toy of Buchholz (2018, section 3.7.1), d = 3, ε = 1. The error is the
mean square of the average of the three posterior means, times the data sets simulated, as in its table 3.2 (20.6 and 72.9
there). Second: θ ~ N(0, 1), y | θ ~ N(θ, 0.2²) observed as 1, Gaussian kernel: CPU seconds and squared error of the posterior
mean, in posterior variances.
"""

import logging
import sys
import time
import warnings

import numpy as np
import pymc as pm

import ppl_backends as pb

HALF = 10.0
EVIDENCE = 4 / 3 * np.pi / (2 * HALF) ** 3
QUIET = {"progressbar": False}


def box(dim):
    """θ ~ U[−10, 10]^dim."""

    def log_prior(x):
        inside = (np.abs(x) <= HALF).all(axis=1)
        return np.where(inside, -dim * np.log(2 * HALF), -np.inf), np.zeros_like(x)

    return pb.FunctionTarget(
        dim,
        lambda x: (np.zeros(len(x)), np.zeros_like(x)),
        log_prior,
        lambda n, rng: rng.uniform(-HALF, HALF, (n, dim)),
        prior_from_uniform=lambda u: HALF * (2 * u - 1),
    )


def mixture(parameters, rng):
    """Data y | θ ~ ½ N(θ, 0.1 I) + ½ N(θ, 0.001 I)."""
    theta = parameters["x"]
    sd = np.where(rng.random(len(theta)) < 0.5, np.sqrt(0.1), np.sqrt(0.001))
    return theta + sd[:, None] * rng.standard_normal(theta.shape)


def toy(runs, **options):
    """Adjusted error of the mean, bias and sd of the evidence, simulations."""
    found = []
    for seed in range(runs):
        idata = pb.sample_abc(
            box(3), simulate=mixture, observed=np.zeros(3), epsilon=1.0, random_seed=seed, **options, **QUIET
        )
        attrs = idata.posterior.attrs
        mean = float(idata["estimates"]["x_mean"].mean())
        found.append([mean**2, np.exp(attrs["log_evidence"]) / EVIDENCE - 1, attrs["simulations"]])
    square, ratio, simulations = np.array(found).T
    return square.mean() * simulations.mean(), ratio.mean(), ratio.std(), simulations.mean()


def normal_model(epsilon):
    """A pm.Simulator that draws many data sets at once."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pm.Simulator("y", lambda rng, t, size: rng.normal(t, 0.2, size=size), theta, epsilon=epsilon, observed=[1.0])
    return model


def conjugate(runs, epsilon, sample):
    """CPU seconds of a run times its squared error of the mean."""
    noise = 0.04 + epsilon**2
    variance = 1 / (1 + 1 / noise)
    model = normal_model(epsilon)
    started = time.process_time()
    errors = [sample(model, seed) - variance / noise for seed in range(runs)]
    seconds = (time.process_time() - started) / runs
    return seconds, np.mean(np.square(errors)) / variance


def ours(model, seed):
    """Posterior mean by ``sample_abc``."""
    idata = pb.sample_abc(model, draws=2**15, data_sets=4, random_seed=seed, **QUIET)
    return float(idata["estimates"]["theta_mean"])


def pymc_smc(model, seed):
    """Posterior mean by ``pm.sample_smc``."""
    with model:
        idata = pm.sample_smc(1000, chains=4, cores=1, random_seed=seed, **QUIET)
    return float(idata.posterior["theta"].mean())


def main(runs):
    """Print both tables."""
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    print("| points | M | adjusted MSE | bias of Z | sd of Z | simulations |\n| --- | --- | --- | --- | --- | --- |")
    for data_sets in (4, 10):
        for qmc in (True, False):
            error, bias, sd, simulations = toy(runs, qmc=qmc, data_sets=data_sets)
            print(
                f"| {'nets' if qmc else 'random'} | {data_sets} | {error:.2f} | {bias:.4f} | {sd:.4f} | {simulations:.0f} |"
            )
    print(
        "\n| ε | CPU s | squared error | pm.sample_smc CPU s | squared error | ratio |\n| --- | --- | --- | --- | --- | --- |"
    )
    for epsilon in (0.3, 0.1, 0.03):
        (a, b), (c, d) = (conjugate(max(runs // 4, 4), epsilon, sample) for sample in (ours, pymc_smc))
        print(f"| {epsilon} | {a:.2f} | {b:.1e} | {c:.2f} | {d:.1e} | {c * d / (a * b):.0f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
