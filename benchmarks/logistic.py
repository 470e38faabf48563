"""Times and errors of the main calls on the logistic regression of the Pima data."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ppl_backends as pb
from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
from ppl_backends.datasets import load_binary_regression


class Pima:
    """Calls whose compilation happens in ``setup``, so that runs alone are timed."""

    timeout = 600  # compilation in setup included
    params = ("fit_laplace", "fit_ep", "sample_importance", "sample_smc")
    param_names = ("call",)

    def setup(self, call):
        data = load_binary_regression("pima")
        target = FactorsTarget(Factors(data.X, 0.0, Logit(data.y), 0.0, 0.04))
        calls = {
            "fit_laplace": lambda: pb.fit_laplace(target, progressbar=False),
            "fit_ep": lambda: pb.fit_ep(target),
            "sample_importance": lambda: pb.sample_importance(target, random_seed=1, progressbar=False),
            "sample_smc": lambda: pb.sample_smc(target, draws=500, chains=2, random_seed=1, progressbar=False),
        }
        self.run = calls[call]
        self.run()

    def time_call(self, call):
        self.run()

    def track_log_evidence(self, call):
        found = self.run()
        return float(found.posterior.attrs["log_evidence"] if hasattr(found, "posterior") else found.log_evidence)
