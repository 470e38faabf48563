"""Densities that jump: they are told from rough ones, and sampled by moves without gradients."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import gammaln, logsumexp

import ppl_backends as pb
from ppl_backends.results.inference_data import group
from ppl_backends.smc.jumps import density_jumps
from ppl_backends.smc.path import BridgePath

DIM = 3
START = pb.GaussianApproximation(np.zeros(DIM), np.ones(DIM))


def path_to(log_density):
    return BridgePath(pb.FunctionTarget(DIM, log_density), START)


def step_at(place, height):
    """Return a standard normal density with a step along its first coordinate, which gradients do not show."""
    return lambda x: (-0.5 * (x**2).sum(1) + height * (x[:, 0] > place), -x)


def rough_t(scale):
    """Return Student densities so narrow that they are unresolved between the points of a segment."""
    return lambda x: (
        -1.5 * np.log1p((x / scale) ** 2).sum(1),
        -3.0 * x / (scale**2 + x**2),
    )


@pytest.mark.parametrize(
    ("log_density", "expected"),
    [
        (step_at(0.1, 3.0), True),
        (step_at(0.1, 100.0), True),
        (step_at(0.1, 0.5), False),  # moves cross small steps
        (step_at(4.0, 3.0), False),  # beyond the particles
        (lambda x: (-np.abs(x).sum(1) * 50, -50 * np.sign(x)), False),
        (rough_t(1e-3), False),
        (lambda x: (-0.5e6 * (x**2).sum(1), -1e6 * x), False),
        (
            lambda x: (np.where(x[:, 0] > 0, -0.5 * (x**2).sum(1), -np.inf), -x),
            False,
        ),  # an edge, where moves are rejected
        (lambda x: (1e6 * np.sin(1e3 * x).sum(1), 1e9 * np.cos(1e3 * x)), False),
    ],
)
def test_jumps_are_told_from_kinks_peaks_edges_and_waves(log_density, expected):
    x = START.sample(500, np.random.default_rng(1))
    assert density_jumps(path_to(log_density), x, 1.0) == expected
    assert not density_jumps(path_to(log_density), np.zeros((10, DIM)), 1.0)  # copies of one particle


@pytest.mark.slow
def test_the_evidence_of_a_change_point_on_a_continuous_time():
    n, rate = 40, 0.2
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.poisson(5, 15), rng.poisson(2, n - 15)])
    with pm.Model() as model:
        before, after = pm.Exponential("before", rate), pm.Exponential("after", rate)
        change = pm.Uniform("change", 0, n)
        pm.Poisson("y", pm.math.switch(np.arange(n) < change, before, after), observed=y)

    def log_integral(counts):  # of exponential rates against Poisson counts, without the factorials
        total = 1 + counts.sum()
        return np.log(rate) + gammaln(total) - total * np.log(rate + len(counts))

    parts = [log_integral(y[:k]) + log_integral(y[k:]) for k in range(1, n + 1)]
    exact = logsumexp(parts) - np.log(n) - gammaln(y + 1).sum()
    idata = pb.sample_smc(model, draws=1000, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["kernel"] == "mixed"
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"] - exact) < 4 * attrs["log_evidence_se"]
    weights = np.exp(np.array(parts) - logsumexp(parts))
    times = np.arange(1, n + 1) - 0.5
    mean, sd = weights @ times, np.sqrt(weights @ times**2 - (weights @ times) ** 2 + 1 / 12)
    assert abs(float(group(idata, "posterior")["change"].mean()) - mean) < 0.2 * sd
