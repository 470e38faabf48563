"""Particle marginal Metropolis–Hastings by ``particles``, in an environment of its own: it needs NumPy before 2.

``python particles_pmmh_worker.py pmmh.json [NAME ...]`` reads what ``pmmh.py`` wrote, runs one chain on each series from the
posterior's mean with the posterior's covariance, and prints moments and effective draws a CPU second of both.

Environment: python -m venv ENV && ENV/bin/pip install particles "numpy<2"
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from particles import distributions as dists
from particles import kalman, mcmc
from particles import state_space_models as ssms

BURN = 10  # a tenth of the chain


class LotkaVolterra(ssms.StateSpaceModel):
    """Logs of prey and predators, one Euler step of 0.2 a row."""

    def PX0(self):
        """Return the distribution of the first state."""
        return dists.IndepProd(dists.Normal(scale=self.sigma), dists.Normal(scale=self.sigma))

    def PX(self, t, xp):
        """Return the distribution of the next state."""
        scale = self.sigma * np.sqrt(0.2)
        prey = xp[:, 0] + 0.2 * (self.alpha - np.exp(xp[:, 1]))
        predators = xp[:, 1] + 0.2 * (np.exp(xp[:, 0]) - self.gamma)
        return dists.IndepProd(dists.Normal(loc=prey, scale=scale), dists.Normal(loc=predators, scale=scale))

    def PY(self, t, xp, x):
        """Return the distribution of a row."""
        return dists.IndepProd(dists.Normal(loc=x[:, 0], scale=0.2), dists.Normal(loc=x[:, 1], scale=0.2))


class ThetaLogistic(ssms.ThetaLogistic):
    """The peer's model with τ₁ and τ₂ known."""

    default_params = {"tau0": 0.15, "tau1": 0.12, "tau2": 0.1, "sigmaX": 0.47, "sigmaY": 0.39}  # noqa: RUF012


GAMMA = dists.Gamma(2, 2)
CASES = {  # class, its names, priors, particles, iterations, filter
    "linear": (
        kalman.LinearGauss,
        ("rho", "sigmaX", "sigmaY"),
        (dists.Uniform(-1, 1), dists.Gamma(1, 1), dists.Gamma(1, 1)),
        (10, 4000, ssms.GuidedPF),
    ),
    "theta": (
        ThetaLogistic,
        ("tau0", "sigmaX", "sigmaY"),
        (dists.Normal(0, 0.5), GAMMA, GAMMA),
        (50, 4000, ssms.GuidedPF),
    ),
    "lotka": (
        LotkaVolterra,
        ("alpha", "gamma", "sigma"),
        (GAMMA, GAMMA, dists.Gamma(2, 4)),
        (200, 3000, ssms.Bootstrap),
    ),
}


def effective_size(x):
    """Return the effective sample size of a chain by the initial monotone sequence (Geyer 1992)."""
    n, x = len(x), x - x.mean()
    spectrum = np.fft.fft(x, 2 * n)
    correlation = np.fft.ifft(spectrum * np.conj(spectrum)).real[:n]
    pairs = (correlation / correlation[0])[: n - n % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    return n / (2 * pairs.sum() - 1)


def compare(name, ours):
    """Run the peer on one series and print both."""
    model, names, priors, (n_particles, iterations, filter_class) = CASES[name]
    prior = dists.StructDist(dict(zip(names, priors, strict=True)))
    y = np.array(ours["y"])
    start = np.zeros(1, dtype=prior.dtype)
    for each, mean in zip(names, ours["mean"], strict=True):
        start[each] = mean
    clock = time.process_time()
    chain = mcmc.PMMH(
        ssm_cls=model,
        prior=prior,
        data=[row[None] for row in y] if y.ndim == 2 else y,
        Nx=n_particles,
        niter=iterations,
        fk_cls=filter_class,
        theta0=start,
        rw_cov=np.array(ours["cov"]),
        adaptive=False,
        scale=1.0,
    )
    chain.run()
    seconds = time.process_time() - clock
    x = np.stack([chain.chain.theta[each] for each in names], axis=1)[iterations // BURN :]
    sizes = np.array([effective_size(column) for column in x.T])
    error = np.hypot(x.std(axis=0) / np.sqrt(sizes), ours["mcse_mean"])
    print(f"{name}: {seconds:.1f} CPU s, acceptance {chain.acc_rate:.2f}")
    print(f"  means {x.mean(axis=0).round(4)} ours {np.round(ours['mean'], 4)}")
    print(f"  z {((x.mean(axis=0) - ours['mean']) / error).round(2)}")
    print(f"  sds {x.std(axis=0).round(4)} ours {np.round(ours['sd'], 4)}")
    rates = np.array(ours["ess_bulk"]) / ours["seconds"]
    print(f"  ESS a CPU second {(sizes / seconds).round(2)} ours {rates.round(1)}")


if __name__ == "__main__":
    np.random.seed(1)  # noqa: NPY002, the peer draws from it
    made = json.loads(Path(sys.argv[1]).read_text())
    for each in sys.argv[2:] or list(made):
        compare(each, made[each])
