"""Targets that are zero on most of the prior: no beta makes that step smaller."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.results.inference_data import group
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import run_tempering
from tests.toys import LOG_2PI


def restricted(dim, inside):
    """Return N(0, I) with a likelihood of one inside a region and of zero elsewhere."""

    def log_prior(x):
        return -0.5 * (x**2).sum(axis=1) - 0.5 * dim * LOG_2PI, -x

    def log_likelihood(x):
        return np.where(inside(x), 0.0, -np.inf), np.zeros_like(x)

    return pb.FunctionTarget(dim, log_likelihood, log_prior, lambda n, rng: rng.standard_normal((n, dim)))


def above(low):
    """Log probability, mean and sd of a standard normal above ``low``."""
    log_share = stats.norm.logsf(low)
    mean = np.exp(stats.norm.logpdf(low) - log_share)
    return log_share, mean, np.sqrt(1 + low * mean - mean**2)


def check(idata, name, log_share, mean, sd, coordinates=1):
    """Evidence, moments, and enough distinct draws behind them."""
    posterior, figures = group(idata, "posterior"), group(idata, "sample_stats")
    x = posterior[name].values.reshape(-1, coordinates)
    attrs = posterior.attrs
    assert attrs["log_evidence_trusted"] == 1, attrs["warnings"]
    assert abs(attrs["log_evidence"] - log_share) < 5 * attrs["log_evidence_se"]
    assert attrs["log_evidence_se"] < 0.15
    # At least 80 independent draws a chain: 5 standard errors.
    tolerance = 5 / (80 * len(posterior.chain)) ** 0.5
    assert np.all(np.abs(x.mean(axis=0) - mean) < tolerance * sd)
    assert np.all(np.abs(x.std(axis=0) / sd - 1) < 0.9 * tolerance)
    assert figures["n_distinct"].isel(stage=-1).min() > 0.5 * len(posterior.draw)


@pytest.mark.parametrize("low", [0.5, 1.3, 2.5, 3.09])
def test_a_tail_of_the_prior_is_right_and_trusted(low):
    """0.1 % to 30 % of the prior; a single step from few points left four to ten distinct draws of a thousand, trusted."""
    target = restricted(1, lambda x: x[:, 0] > low)
    idata = pb.sample_smc(target, draws=1000, chains=2, random_seed=1, progressbar=False)
    check(idata, "x", *above(low))


def test_the_ladder_goes_on_where_the_likelihood_varies_inside():
    """The posterior is N(1, ¼) above one; no step keeps more particles than the sixth that begins inside."""

    def log_prior(x):
        return -0.5 * (x**2).sum(axis=1) - 2 * LOG_2PI, -x

    def log_likelihood(x):
        value = -2 * ((x - 1) ** 2).sum(axis=1) + 4 * np.log(2) + 0.5 * (x**2).sum(axis=1)
        return np.where(x[:, 1] > 1, value, -np.inf), -4 * (x - 1) + x

    target = pb.FunctionTarget(4, log_likelihood, log_prior, lambda n, rng: rng.standard_normal((n, 4)))
    idata = pb.sample_smc(target, draws=1000, chains=2, random_seed=1, progressbar=False)
    _, mean, sd = above(0.0)
    means, sds = np.array([1, 1 + mean / 2, 1, 1]), np.array([0.5, sd / 2, 0.5, 0.5])
    check(idata, "x", np.log(0.5), means, sds, coordinates=4)


def test_a_potential_of_minus_infinity_in_pymc_is_right_and_trusted():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=2)
        pm.Potential("inside", pm.math.switch(pm.math.and_(x[0] > 1.5, x[1] > 1.5), 0.0, -np.inf))
    log_share, mean, sd = above(1.5)
    idata = pb.sample_smc(model, draws=1000, chains=2, random_seed=2, progressbar=False)
    check(idata, "x", 2 * log_share, mean, sd, coordinates=2)


def test_an_ordering_of_five_coordinates_is_right_and_trusted():
    """One permutation of 120; means of normal order statistics."""
    target = restricted(5, lambda x: (np.diff(x, axis=1) > 0).all(axis=1))
    idata = pb.sample_smc(target, draws=1000, chains=2, random_seed=3, progressbar=False)
    mean = np.array([-1.16296, -0.49502, 0.0, 0.49502, 1.16296])
    sd = np.sqrt([0.447534, 0.311519, 0.286834, 0.311519, 0.447534])
    check(idata, "x", -np.log(120), mean, sd, coordinates=5)


def test_the_evidence_without_bias_is_that_of_a_binomial_share():
    """Means of evidences over 60 runs of 100 particles, with the draws that a pilot decided on."""
    path, n = PriorPath(restricted(1, lambda x: x[:, 0] > 2.0)), 100
    runs = [run_tempering(path, Hmc(), n, np.random.default_rng([7, k]), unbiased=True) for k in range(60)]
    evidence = np.exp([run.log_evidence for run in runs])
    assert abs(evidence.mean() - stats.norm.sf(2.0)) < 4.5 * evidence.std(ddof=1) / len(runs) ** 0.5
    reported = np.mean([run.lineage.variance for run in runs]) ** 0.5
    assert reported == pytest.approx(np.std(evidence) / evidence.mean(), rel=0.4)


def test_too_few_points_inside_are_a_reason():
    """A region of 1e-4 of the prior."""
    target = restricted(1, lambda x: x[:, 0] > 3.7)
    with pytest.warns(pb.errors.SamplerWarning, match="draws of the start have descendants"):
        idata = pb.sample_smc(target, draws=1000, chains=2, random_seed=1, progressbar=False)
    assert group(idata, "posterior").attrs["log_evidence_trusted"] == 0
