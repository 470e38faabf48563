"""Evidences of separated modes: shares and evidence are right, however many points are in each."""

import numpy as np
import pytest
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.numerics.gaps import modes_along_axes
from ppl_backends.smc.bridge_sampling import Sample, bridge_evidence
from ppl_backends.smc.by_mode import ModeEvidences, evidences_by_mode
from ppl_backends.smc.evidence import EvidenceEstimate, variance_of_means
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


@pytest.mark.slow
def test_modes_that_grow_late_have_the_shares():
    """The largest mode has few lineages, a run sees two of three modes, and no coordinate shows a gap."""
    dim, shares, centres = 10, np.array([0.2, 0.3, 0.5]), (4.0, 0.0, -4.0)
    shape = 0.64 * (0.3 + 0.7 * np.eye(dim))
    prior = normal_of(np.ones(dim), 5.0 * np.eye(dim))
    parts = [normal_of(np.full(dim, centre), shape) for centre in centres]

    def likelihood(x):
        values, slopes = (np.stack(each) for each in zip(*(part(x) for part in parts), strict=True))
        values += np.log(shares)[:, None]
        total = logsumexp(values, axis=0)
        slope = (np.exp(values - total)[:, :, None] * slopes).sum(axis=0)
        base, base_slope = prior(x)
        return total - base, slope - base_slope

    target = FunctionTarget(dim, likelihood, prior, lambda n, rng: 1.0 + np.sqrt(5.0) * rng.standard_normal((n, dim)))
    posterior = pb.sample_smc(target, initial="prior", draws=1000, random_seed=14, progressbar=False).posterior
    attrs, mean = posterior.attrs, posterior["x"].mean("x_dim_0")
    assert attrs["log_evidence_trusted"]
    assert abs(attrs["log_evidence"]) < normal_bound() * attrs["log_evidence_se"]
    assert np.allclose(np.sort(attrs["mode_shares"]), shares, atol=0.02)
    assert [float((abs(mean - centre) < 2).mean()) for centre in centres] == pytest.approx(shares, abs=0.03)


def normal_of(mean, cov):
    """Return a function for the log density of a normal distribution with its gradient."""
    precision, (_, log_det) = np.linalg.inv(cov), np.linalg.slogdet(2 * np.pi * cov)
    return lambda x: (
        -0.5 * (((x - mean) @ precision) * (x - mean)).sum(axis=1) - 0.5 * log_det,
        (mean - x) @ precision,
    )


def test_lineages_do_not_decide_means_of_modes_with_known_shares():
    """One lineage has all of a mode; within modes particles are independent."""
    rng, n, apart = np.random.default_rng(5), 4000, 10.0
    label = (np.arange(n) < 0.3 * n).astype(int)
    x, ancestor = apart * label[:, None] + rng.standard_normal((n, 1)), np.where(label == 1, 0, np.arange(n))
    shares, errors = np.array([0.7, 0.3]), np.array([0.01, 0.02])
    evidence = EvidenceEstimate(0.0, 0.01, 100.0, False, np.nan)
    found = ModeEvidences(evidence, shares, errors, [label, label])
    independent = [(x, np.arange(n)), (x, np.arange(n))]
    exact = 1.0 / (2 * n) + (0.7 * 0.3 * apart) ** 2 * (0.01**2 + 0.02**2)
    assert found.variance_of_means(independent)[0] == pytest.approx(exact, rel=0.1)
    one_lineage = [(x, ancestor), (x, ancestor)]
    assert variance_of_means(one_lineage)[0] > 100 * exact
    assert found.variance_of_means(one_lineage)[0] < 2 * exact
