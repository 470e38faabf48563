"""ABC on two problems with exact answers: nets against random points and other samplers, and a batched one against peers.

    python examples/benchmarks/abc_toys.py [runs] [python with pyABC]

First table: the mixture toy of Buchholz (2018, section 3.7.1), d = 3, ε = 1, by adaptive importance sampling, by
SMC-ABC (Del Moral, Doucet & Jasra 2012) and by population Monte Carlo (Sisson, Fan & Tanaka 2007, with the weights of
Beaumont et al. 2009). The error is the mean square of the average of the three posterior means, times the data sets
simulated, as in its table 3.2 (20.6 with nets and 72.9 with random points there). The second table has θ ~ N(0, 1), y |
θ ~ N(θ, 0.2²) with y = 1 observed, and a Gaussian kernel. It has CPU seconds and the squared error of the posterior
mean, in posterior variances.
"""

import json
import logging
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm

import ppl_backends as pb

HALF = 10.0
EVIDENCE = 4 / 3 * np.pi / (2 * HALF) ** 3
QUIET = {"progressbar": False}


def box(dim):
    """Return θ ~ U[−10, 10]^dim."""

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
    """Return data y | θ ~ ½ N(θ, 0.1 I) + ½ N(θ, 0.001 I)."""
    theta = parameters["x"]
    sd = np.where(rng.random(len(theta)) < 0.5, np.sqrt(0.1), np.sqrt(0.001))
    return theta + sd[:, None] * rng.standard_normal(theta.shape)


def toy(runs, **options):
    """Return figures of ``sample_abc``: see :func:`figures`."""
    found = []
    for seed in range(runs):
        idata = pb.sample_abc(
            box(3), simulate=mixture, observed=np.zeros(3), epsilon=1.0, random_seed=seed, **options, **QUIET
        )
        attrs = idata.posterior.attrs
        mean = float(idata["estimates"]["x_mean"].mean())
        found.append([mean**2, np.exp(attrs["log_evidence"]) / EVIDENCE, attrs["simulations"]])
    return figures(found)


def figures(found):
    """Return error of the mean with its standard error, bias and sd of the evidence, simulations, most over median."""
    square, ratio, simulations = np.array(found).T
    error = square.mean() * simulations.mean()
    spread = square.std() / len(square) ** 0.5 * simulations.mean()
    return error, spread, ratio.mean() - 1, ratio.std(), simulations.mean(), simulations.max() / np.median(simulations)


def sisson(runs, n=1000):
    """Run population Monte Carlo: propose every particle until a data set is within ε, the median before."""
    found = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-HALF, HALF, (n, 3))
        distance = np.linalg.norm(mixture({"x": x}, rng), axis=1)
        weights, simulations, epsilon = np.full(n, 1 / n), n, np.inf
        while epsilon > 1.0:
            epsilon = max(1.0, float(np.median(distance)))
            root = np.linalg.cholesky(2 * np.cov(x.T, aweights=weights))
            new, near, done = np.empty_like(x), np.empty(n), 0
            while done < n:
                tried = x[rng.choice(n, n, p=weights)] + rng.standard_normal((n, 3)) @ root.T
                inside = (np.abs(tried) <= HALF).all(axis=1)
                apart = np.where(inside, np.linalg.norm(mixture({"x": tried}, rng), axis=1), np.inf)
                hits = np.flatnonzero(apart <= epsilon)[: n - done]
                last = n - 1 if len(hits) + done < n else hits[-1]  # nothing is simulated after the last one
                simulations += int(inside[: last + 1].sum())
                new[done : done + len(hits)], near[done : done + len(hits)] = tried[hits], apart[hits]
                done += len(hits)
            z = np.linalg.solve(root, (new[:, None] - x[None]).reshape(-1, 3).T)
            density = np.exp(-0.5 * (z**2).sum(axis=0)).reshape(n, n) @ weights
            x, distance, weights = new, near, (1 / density) / (1 / density).sum()
        found.append([float((weights @ x).mean()) ** 2, np.nan, simulations])
    return figures(found)


def normal_model(epsilon):
    """Return a pm.Simulator that draws many data sets at once."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pm.Simulator("y", lambda rng, t, size: rng.normal(t, 0.2, size=size), theta, epsilon=epsilon, observed=[1.0])
    return model


def conjugate(runs, epsilon, sample):
    """Return CPU seconds of a run times its squared error of the mean."""
    noise = 0.04 + epsilon**2
    variance = 1 / (1 + 1 / noise)
    model = normal_model(epsilon)
    started = time.process_time()
    errors = [sample(model, seed) - variance / noise for seed in range(runs)]
    seconds = (time.process_time() - started) / runs
    return seconds, np.mean(np.square(errors)) / variance


def ours(model, seed):
    """Return the posterior mean by ``sample_abc``."""
    idata = pb.sample_abc(model, draws=2**15, data_sets=4, random_seed=seed, **QUIET)
    return float(idata["estimates"]["theta_mean"])


def pymc_smc(model, seed):
    """Return the posterior mean by ``pm.sample_smc``."""
    with model:
        idata = pm.sample_smc(1000, chains=4, cores=1, random_seed=seed, **QUIET)
    return float(idata.posterior["theta"].mean())


def pyabc(python, runs, epsilon):
    """Return CPU seconds of a run of pyABC, in an environment of its own, and its squared error."""
    worker = Path(__file__).parent / "peers" / "pyabc_worker.py"
    said = subprocess.run([python, worker, str(runs), str(epsilon)], capture_output=True, text=True, check=True).stdout
    return json.loads(said.splitlines()[-1])


def main(runs, python=None):
    """Print both tables."""
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    print("| sampler | M | adjusted MSE | bias of Z | sd of Z | simulations | most / median |")
    print("| --- | --- | --- | --- | --- | --- | --- |")

    def row(name, data_sets, found):
        error, spread, bias, sd, simulations, most = found
        evidence = f"{bias:.4f} | {sd:.4f}"
        print(
            f"| {name} | {data_sets} | {error:.2f} ± {spread:.2f} | {evidence} | {simulations:,.0f} | {most:.2f} |",
            flush=True,
        )

    for data_sets in (4, 10):
        for qmc in (True, False):
            row("nets" if qmc else "random points", data_sets, toy(runs, qmc=qmc, data_sets=data_sets))
    row("SMC-ABC", 2, toy(runs, method="smc", chains=1, draws=1000))
    row("SMC-ABC, r-hit", "r = 3", toy(max(runs // 5, 4), method="smc", chains=1, draws=1000, hits=3))
    row("population Monte Carlo", 1, sisson(runs))
    print("\n| ε | CPU s | squared error | pm.sample_smc | squared error | ratio | pyABC | squared error | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for epsilon in (0.3, 0.1, 0.03):
        several = max(runs // 4, 4)
        (a, b), (c, d) = (conjugate(several, epsilon, sample) for sample in (ours, pymc_smc))
        e, f = (np.nan, np.nan) if python is None else pyabc(python, max(several // 2, 4), epsilon)
        peers = " | ".join(f"{s:.2f} | {err:.1e} | {s * err / (a * b):.0f}" for s, err in ((c, d), (e, f)))
        print(f"| {epsilon} | {a:.2f} | {b:.1e} | {peers} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, *sys.argv[2:3])
