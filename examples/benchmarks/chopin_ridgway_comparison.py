"""Ways to the posterior of a probit regression at equal CPU time, after Chopin & Ridgway (2017), Figures 5.3 and 5.5.

    python examples/benchmarks/chopin_ridgway_comparison.py pima german_credit sonar --seconds 0.5 --runs 16

Normal priors of sd 20 (intercept) and 5, predictors scaled as in the paper. Importance sampling, scrambled Sobol points
and SMC start from EP; random walk and HMC have its covariance and are tuned for a fifth of their draws; Gibbs is Albert
& Chib's with the scale move; NUTS is nutpie's, compiled beforehand, with 300 draws of adaptation. Every method takes
about the requested CPU seconds per run, which pilots determine. The time includes EP and adaptation. Independent runs
are the chains of one call.

With the mean squared error of a coefficient's mean over the runs, *ESS per CPU second* is posterior variance / MSE /
CPU; the inefficiency relative to importance sampling is the ratio of MSE × CPU, for means and for variances. The table
has medians over coefficients, and the ESS of the worst coefficient. The reference is importance sampling if its points
are worth 50,000 draws, and long HMC with EP's covariance otherwise. DNA has 400 of its rows, as in the paper, drawn at
random.
"""

import argparse
import time
import warnings

import numpy as np

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.targets.factors import Factors, Probit

PILOT, FEWEST, MOST = 200, 50, 200_000
ENOUGH = 50_000
ADAPTATION = 300
ROWS = {"dna": 400}


def prior_sd(p):
    """Return the paper's Gaussian priors."""
    return np.r_[20.0, np.full(p - 1, 5.0)]


def weighted(idata):
    """Return means and variances of each chain of importance sampling ``(runs, p)``, and what all points are worth."""
    theta, log_w = idata["proposal"]["theta"].values, idata["proposal"]["log_weight"].values
    w = np.exp(log_w - log_w.max(axis=1, keepdims=True))
    total = np.exp(log_w - log_w.max()).ravel()
    w /= w.sum(axis=1, keepdims=True)
    mean = np.einsum("cd,cdj->cj", w, theta)
    return mean, np.einsum("cd,cdj->cj", w, theta**2) - mean**2, total.sum() ** 2 / (total @ total)


def moments(theta):
    """Return means and variances of each run ``(runs, p)``."""
    return theta.mean(axis=1), theta.var(axis=1)


class Methods:
    """The methods on one data set: name → a function of runs, draws and a seed to means and variances of each run."""

    def __init__(self, name):
        X, y, *_ = load_binary_regression(name, scaling="gelman")
        if name in ROWS:
            kept = np.random.default_rng(0).permutation(len(y))[: ROWS[name]]
            X, y = X[kept], y[kept]
            X = X[:, np.r_[True, np.ptp(X[:, 1:], axis=0) > 0]]
        self.p = X.shape[1]
        self.target = pb.as_target(Factors(X, None, Probit(y), 0.0, prior_sd(self.p) ** -2.0))
        self.nuts_model = self._compiled(X, y)
        steps = {
            "random walk": lambda: pb.steps.RandomWalk(approximation="ep"),
            "HMC": lambda: pb.steps.HMC(approximation="ep"),
            "Gibbs": lambda: pb.steps.AlbertChib(),
        }
        self.calls = {
            "importance": lambda *run: weighted(self.importance(*run, qmc=False))[:2],
            "scrambled Sobol": lambda *run: weighted(self.importance(*run, qmc=True))[:2],
            **{name: lambda *run, make=make: self.chains(make(), *run) for name, make in steps.items()},
            "NUTS": self.nuts,
            "SMC": self.smc,
        }

    def importance(self, runs, draws, seed, qmc):
        """Return importance sampling from EP's Gaussian."""
        options = {"approximation": "ep", "proposal": "gaussian", "qmc": qmc, "random_seed": seed, "progressbar": False}
        return pb.sample_importance(self.target, draws=draws, chains=runs, **options)

    def chains(self, step, runs, draws, seed):
        """Return Markov chains, all runs as one batch."""
        options = {"step": step, "draws": draws, "tune": draws // 5, "chains": runs, "cores": 1, "progressbar": False}
        idata = pb.sample_mcmc(self.target, random_seed=seed, **options)
        return moments(idata.posterior["theta"].values)

    def smc(self, runs, draws, seed):
        """Return tempering from EP's Gaussian."""
        options = {"initial": "ep", "draws": draws, "chains": runs, "cores": 1, "random_seed": seed}
        return moments(pb.sample_smc(self.target, progressbar=False, **options).posterior["theta"].values)

    def _compiled(self, X, y):
        import nutpie
        import pymc as pm

        with pm.Model() as model:
            beta = pm.Normal("beta", 0, prior_sd(self.p), shape=self.p)
            pm.Bernoulli("y", p=pm.math.invprobit(X @ beta), observed=np.asarray(y, dtype=int))
        # At random coefficients a probit can be 0 or 1 to machine precision, and NUTS finds no start of its own.
        return nutpie.compile_pymc_model(model, initial_points={"beta": np.zeros(self.p)}, jitter_rvs=set())

    def nuts(self, runs, draws, seed):
        """Return NUTS with adaptation, one chain a run."""
        import nutpie

        options = {"draws": draws, "tune": ADAPTATION, "chains": runs, "cores": 1, "seed": seed, "progress_bar": False}
        return moments(nutpie.sample(self.nuts_model, **options).posterior["beta"].values)


def cpu(call, *arguments):
    """Return what a call returns, and its CPU seconds."""
    clock = time.process_time()
    found = call(*arguments)
    return found, time.process_time() - clock


def long_run(methods):
    """Return reference means and variances ``(p,)``, and where they are from."""
    mean, variance, worth = weighted(methods.importance(8, 2**14, 1, qmc=True))
    if worth >= ENOUGH:
        return mean.mean(axis=0), variance.mean(axis=0), f"importance sampling, worth {worth:.0f} draws"
    mean, variance = methods.calls["HMC"](8, 4000, 1)
    return mean.mean(axis=0), (variance + mean**2).mean(axis=0) - mean.mean(axis=0) ** 2, "HMC, 8 × 4,000 draws"


def compare(name, seconds, runs, names=None):
    """Print the table of one data set."""
    methods = Methods(name)
    mean, variance, source = long_run(methods)
    print(f"\n{name}: {methods.p} coefficients; reference by {source}", flush=True)
    print("| method | draws | CPU s a run | ESS per CPU s: median | worst | inefficiency: means | variances |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    base = None
    for method in names or methods.calls:
        call = methods.calls[method]
        call(2, FEWEST, 0)  # whatever is compiled
        _, least = cpu(call, runs, FEWEST, 0)
        _, pilot = cpu(call, runs, FEWEST + PILOT, 0)
        a_draw = max(pilot - least, 1e-4) / PILOT
        draws = int(np.clip(FEWEST + (seconds * runs - least) / a_draw, FEWEST, MOST))
        (means, variances), spent = cpu(call, runs, draws, 7)
        spent /= runs
        cost_mean = ((means - mean) ** 2).mean(axis=0) * spent
        cost_variance = ((variances - variance) ** 2).mean(axis=0) * spent
        base = (cost_mean, cost_variance) if base is None else base
        ess = variance / cost_mean
        ratio = [np.median(cost / first) for cost, first in zip((cost_mean, cost_variance), base, strict=True)]
        cells = [
            f"{draws:,}",
            f"{spent:.2f}",
            f"{np.median(ess):,.0f}",
            f"{ess.min():,.0f}",
            *map("{:.2g}".format, ratio),
        ]
        print(f"| {method} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--methods", nargs="+", help="the first one is what the others are compared with")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for each in given.names:
        compare(each, given.seconds, given.runs, given.methods)
