"""Waste-free tempering SMC by ``particles``, in an environment of its own: it needs NumPy before 2.

Reads requests as lines of JSON (problem, seed, number of starts M, chain length P) and answers each with a line.

Environment: python -m venv ENV && ENV/bin/pip install particles "numpy<2"
"""

import json
import sys
import time
import warnings
from pathlib import Path

root = Path(__file__).parents[3]
sys.path[:0] = [str(root), str(Path(__file__).parents[1])]

import numpy as np  # noqa: E402
import particles  # noqa: E402
from particles import distributions as dists  # noqa: E402
from particles import smc_samplers  # noqa: E402
from scipy import special  # noqa: E402

from peers.problems import PROBLEMS  # noqa: E402


class Normals(dists.ProbDist):
    """Independent normal variables as one vector."""

    dtype = "float64"

    def __init__(self, mean, sd):
        self.mean, self.sd, self.dim = mean, sd, len(mean)

    def rvs(self, size=1):
        """Return draws ``(size, dim)``."""
        return self.mean + self.sd * np.random.standard_normal((size, self.dim))  # noqa: NPY002

    def logpdf(self, x):
        """Log density ``(n,)``."""
        z = (x - self.mean) / self.sd
        return -0.5 * (z**2).sum(axis=1) - np.log(self.sd).sum() - 0.5 * self.dim * np.log(2 * np.pi)


class Model(smc_samplers.StaticModel):
    """A problem as ``particles`` takes it."""

    def __init__(self, problem):
        super().__init__(data=None, prior=dists.StructDist({"theta": Normals(problem.mean, problem.sd)}))
        self.problem = problem

    def loglik(self, theta, t=None):
        """Log likelihood ``(n,)``."""
        value = self.problem.log_likelihood(np, special, theta["theta"])
        return np.where(np.isnan(value), -np.inf, value)


def run(problem, seed, starts, length):
    """Return one run with its CPU seconds."""
    np.random.seed(seed)  # noqa: NPY002 (the generator that the package draws from)
    clock = time.process_time()
    sampler = smc_samplers.AdaptiveTempering(Model(problem), wastefree=True, len_chain=length)
    smc = particles.SMC(fk=sampler, N=starts, collect=[smc_samplers.Var_logLt()])
    smc.run()
    quantities = problem.quantities(problem.values(special, np.asarray(smc.X.theta["theta"])))
    mean = smc.W @ quantities
    return {
        "seconds": time.process_time() - clock,
        "log_evidence": float(smc.summaries.logLts[-1]),
        "log_evidence_se": float(smc.summaries.var_logLt[-1] ** 0.5),
        "mean": mean.tolist(),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    known = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("problem")
        known[name] = known.get(name) or PROBLEMS[name]()
        try:
            answer = run(known[name], **request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
