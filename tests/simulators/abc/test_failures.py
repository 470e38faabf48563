"""Ordinary likelihoods that are not defined, and simulators that fail in a later chain."""

import warnings

import numpy as np
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from tests.simulators.abc.toys import OBSERVED, conjugate, conjugate_answer, standard_normal
from tests.statistics import normal_bound

OPTIONS = {"observed": OBSERVED, "epsilon": 0.1, "random_seed": 1, "progressbar": False}


def cut_above(limit):
    """Return θ ~ N(0, 1) with an observation 1 ~ N(θ, 1), whose density is NaN above a limit."""
    prior = standard_normal()

    def log_likelihood(x):
        return np.where(x[:, 0] > limit, np.nan, stats.norm.logpdf(x[:, 0], 1.0, 1.0)), 1.0 - x

    return pb.FunctionTarget(
        1, log_likelihood, prior._log_prior, prior._sample_prior, prior_from_uniform=stats.norm.ppf
    )


@pytest.mark.parametrize("method", ["sequential", "importance", "smc"])
@pytest.mark.parametrize("hits", [None, 3])
def test_an_ordinary_likelihood_that_is_nan_near_the_posterior_is_not_trusted(method, hits):
    """Half of the posterior is above the first limit, nothing near it above the second."""
    for limit, missing in ((1.0, True), (8.0, False)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            options = {"method": method, "hits": hits, "chains": 2, "draws": 1024} | OPTIONS
            idata = pb.sample_abc(cut_above(limit), simulate=conjugate, **options)
        assert any("is NaN or +inf" in str(each.message) for each in seen) == missing
        assert idata.posterior.attrs["log_evidence_trusted"] == (not missing)
        assert (np.nanmax(idata.sample_stats["undefined"]) > 0.02) == missing


class Fails:
    """The conjugate simulator, which raises an error after a number of data sets."""

    def __init__(self, after):
        self.left = after

    def __call__(self, parameters, rng):
        self.left -= len(parameters["x"])
        if self.left < 0:
            raise ValueError("singular matrix")
        return conjugate(parameters, rng)


def test_a_simulator_that_fails_in_a_later_chain_does_not_lose_the_others():
    options = {"method": "smc", "chains": 4, "draws": 500, "kernel": "gaussian"} | OPTIONS
    with pytest.warns(
        SamplerWarning, match=r"2 of 4 chains did not reach .*simulator 'y' failed at x=.*singular matrix"
    ):
        idata = pb.sample_abc(standard_normal(), simulate=Fails(12_000), **options)
    attrs = idata.posterior.attrs
    assert idata.posterior.sizes["chain"] == 2
    assert attrs["log_evidence_trusted"] == 0
    assert abs(attrs["log_evidence"] - conjugate_answer(0.1)[2]) < normal_bound() * attrs["log_evidence_se"]
    with pytest.raises(ModelError, match="singular matrix"):
        pb.sample_abc(standard_normal(), simulate=Fails(2_000), **options)
