"""Tempering with an estimated likelihood: exact while an estimate stays with its point, and wrong if it is drawn again."""

import numpy as np
import pytest

from ppl_backends.kernels.table import make_kernel
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import Settings, run_tempering
from ppl_backends.targets.protocol import BaseTarget
from tests.statistics import assert_mean_is

Y, CHAINS = 1.0, 24
TRUTH = -0.25 * Y**2 - 0.5 * np.log(4 * np.pi)  # of y ~ N(θ, 1), θ ~ N(0, 1), whose posterior is N(y/2, 1/2)


class Noisy(BaseTarget):
    """Estimates that are noisy on one side only."""

    dim, names, has_split, is_estimated, has_gradient = 1, ("theta",), True, True, False

    def sample_prior(self, n, rng):
        return rng.standard_normal((n, 1))

    def evaluate_prior(self, x, gradient=False):
        return -0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi), None

    def log_likelihood_estimate(self, x, rng):
        noise = np.where(x[:, 0] > 0, 1.2, 0.0)
        exact = -0.5 * (Y - x[:, 0]) ** 2 - 0.5 * np.log(2 * np.pi)
        return exact + noise * rng.standard_normal(len(x)) - 0.5 * noise**2


class Refreshed(PriorPath):
    """The broken twin: particles get new estimates at every temperature."""

    def extend(self, population, stage, rng):
        return self.particles(population.x, stage.beta, False, rng)


def runs(path):
    settings = Settings()._asdict()
    made = [
        run_tempering(path, make_kernel("mixed"), 500, np.random.default_rng(seed), **settings)
        for seed in range(CHAINS)
    ]
    return np.exp([run.log_evidence - TRUTH for run in made]), np.array([(run.x[:, 0] > 0).mean() for run in made])


def test_evidence_and_posterior_are_exact():
    evidence, share = runs(PriorPath(Noisy()))
    assert_mean_is(evidence, 1.0)
    assert_mean_is(share, 0.7602499)  # P(θ > 0) under N(½, ½)


def test_broken_twin_with_estimates_drawn_anew():
    _, share = runs(Refreshed(Noisy()))
    with pytest.raises(AssertionError):
        assert_mean_is(share, 0.7602499)
