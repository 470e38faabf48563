"""SMC² by ``particles`` on the linear Gaussian series, in an environment of its own: it needs NumPy before 2.

``python particles_smc2_worker.py 4 > particles.jsonl`` makes four runs of 40 chains of 10 parameters each (waste-free,
its default) with guided filters of 32 particles, and prints evidence, means and CPU seconds. ``--bootstrap`` uses
bootstrap filters of 50 particles instead.

Environment: python -m venv ENV && ENV/bin/pip install particles "numpy<2"
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import particles
from particles import distributions as dists
from particles import smc_samplers
from particles import state_space_models as ssms

DATA = Path(__file__).parents[3] / "tests" / "state_space" / "data" / "linear_gaussian.csv"


class LinearGaussian(ssms.StateSpaceModel):
    """A stationary autoregression seen through noise."""

    def PX0(self):
        """Return the distribution of the first state."""
        return dists.Normal(scale=self.sigma_x / np.sqrt(1 - self.rho**2))

    def PX(self, t, xp):
        """Return the distribution of the next state."""
        return dists.Normal(loc=self.rho * xp, scale=self.sigma_x)

    def PY(self, t, xp, x):
        """Return the distribution of a row."""
        return dists.Normal(loc=x, scale=self.sigma_y)

    def _given(self, mean, variance, y):
        new = 1 / (1 / variance + 1 / self.sigma_y**2)
        return dists.Normal(loc=new * (mean / variance + y / self.sigma_y**2), scale=np.sqrt(new))

    def proposal0(self, data):
        """Return the distribution of the first state given its row."""
        return self._given(0.0, self.sigma_x**2 / (1 - self.rho**2), data[0])

    def proposal(self, t, xp, data):
        """Return the distribution of the next state given its row."""
        return self._given(self.rho * xp, self.sigma_x**2, data[t])


def run(seed, bootstrap):
    """Return one run with its CPU seconds."""
    np.random.seed(seed)  # noqa: NPY002 (the generator that the package draws from)
    y, clock = np.loadtxt(DATA, skiprows=1), time.process_time()
    prior = {"rho": dists.Uniform(-1, 1), "sigma_x": dists.Gamma(1, 1), "sigma_y": dists.Gamma(1, 1)}
    path = smc_samplers.SMC2(
        ssm_cls=LinearGaussian,
        prior=dists.StructDist(prior),
        data=y,
        init_Nx=50 if bootstrap else 32,
        fk_cls=ssms.Bootstrap if bootstrap else ssms.GuidedPF,
        len_chain=10,
    )
    smc = particles.SMC(fk=path, N=40)
    smc.run()
    found = {name: float(np.average(smc.X.theta[name], weights=smc.W)) for name in prior}
    return {
        "seed": seed,
        "log_evidence": float(smc.logLt),
        "mean": list(found.values()),
        "cpu": time.process_time() - clock,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=int)
    parser.add_argument("--bootstrap", action="store_true")
    given = parser.parse_args()
    for seed in range(given.runs):
        print(json.dumps(run(seed, given.bootstrap)), flush=True)
