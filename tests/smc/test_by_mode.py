"""Evidences of separated modes: shares and evidence are right, however many points are in each."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.smc.bridge_sampling import Sample, bridge_evidence
from ppl_backends.smc.by_mode import evidences_by_mode, modes_along_axes
from ppl_backends.targets import FunctionTarget
from tests.statistics import normal_bound

SHARE = 0.3


def mixture(x, dim, centre):
    """Return 0.3 N(−c, 1) + 0.7 N(c, 1) with its gradient."""
    far = np.stack([np.log(w) - 0.5 * ((x - s * centre) ** 2).sum(1) for w, s in ((SHARE, -1), (1 - SHARE, 1))])
    total = np.logaddexp(*far)
    belongs = np.exp(far - total)
    slope = -belongs[0][:, None] * (x + centre) - belongs[1][:, None] * (x - centre)
    return total - 0.5 * dim * np.log(2 * np.pi), slope


def centre_of(dim):
    return np.full(dim, 5.0 / np.sqrt(dim))  # ten apart along the diagonal: no coordinate shows a gap


def samples_with(share, dim, n, rng, runs=4):
    """Return points of the mixture, except for the share of its first mode."""
    found = []
    for _ in range(runs):
        side = np.where(rng.random(n) < share, -1.0, 1.0)[:, None]
        x = side * centre_of(dim) + rng.standard_normal((n, dim))
        found.append(Sample(x, mixture(x, dim, centre_of(dim))[0], np.arange(n)))
    return found


@pytest.mark.parametrize("held", [0.15, 0.3, 0.6])
def test_shares_do_not_depend_on_how_many_points_are_in_a_mode(held):
    rng, dim = np.random.default_rng(1), 8
    samples = samples_with(held, dim, 1000, rng)
    found = evidences_by_mode(samples, lambda x: mixture(x, dim, centre_of(dim))[0], rng)
    low = found.labels[0][np.argmin(samples[0].x.sum(1))]
    assert abs(found.shares[low] - SHARE) < 0.01
    assert found.evidence.standard_error < 0.02
    assert abs(found.evidence.log_evidence) < normal_bound() * found.evidence.standard_error
    chosen = samples[0].x[found.resampled(0, rng)]
    assert abs(np.mean(chosen.sum(1) < 0) - SHARE) < 0.01
    assert abs(np.mean(chosen.sum(1) < 0) - found.shares[low]) <= 1 / len(chosen)  # right but for rounding


def test_one_bridge_for_all_modes_takes_the_wrong_shares_for_right_ones():
    """The broken twin: with twice as many points in the first mode, its evidence is off by many errors."""
    rng, dim = np.random.default_rng(2), 2
    wide = np.array([10.0, 0.0])  # along an axis, so that a Gaussian is fitted to each mode
    samples = []
    for _ in range(4):
        x = np.where(rng.random(1000) < 0.6, -1.0, 1.0)[:, None] * wide + rng.standard_normal((1000, dim))
        samples.append(Sample(x, mixture(x, dim, wide)[0], np.arange(1000)))
    value = lambda x: mixture(x, dim, wide)[0]  # noqa: E731
    whole, parts = bridge_evidence(samples, value, rng), evidences_by_mode(samples, value, rng).evidence
    assert abs(whole.log_evidence) > 5 * whole.standard_error
    assert abs(parts.log_evidence) < normal_bound() * parts.standard_error


def test_one_mode_and_modes_with_too_few_points_have_none():
    rng, dim = np.random.default_rng(3), 4
    value = lambda x: mixture(x, dim, centre_of(dim))[0]  # noqa: E731
    assert evidences_by_mode(samples_with(1.0, dim, 500, rng), value, rng) is None
    assert evidences_by_mode(samples_with(0.02, dim, 500, rng), value, rng) is None
    heavy = rng.standard_cauchy((4000, 3))
    assert not modes_along_axes(heavy).any()


def test_a_run_from_the_prior_has_the_shares():
    dim = 6
    sd = 5.0

    def prior(x):
        return -0.5 * (x**2).sum(1) / sd**2 - dim * (np.log(sd) + 0.5 * np.log(2 * np.pi)), -x / sd**2

    def likelihood(x):
        value, slope = mixture(x, dim, centre_of(dim))
        base, base_slope = prior(x)
        return value - base, slope - base_slope

    target = FunctionTarget(dim, likelihood, prior, lambda n, rng: sd * rng.standard_normal((n, dim)))
    posterior = pb.sample_smc(target, draws=1000, chains=2, random_seed=3, progressbar=False).posterior
    assert posterior.attrs["log_evidence_method"] == "bridge sampling by mode"
    assert abs(float((posterior["x"].sum("x_dim_0") < 0).mean()) - SHARE) < 0.02
    assert abs(posterior.attrs["log_evidence"]) < normal_bound() * posterior.attrs["log_evidence_se"]
    assert sorted(np.round(posterior.attrs["mode_shares"], 1)) == [0.3, 0.7]
