"""Likelihoods that are not defined, simulators that fail in a later chain, and data that say nothing."""

import re
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


def constant(parameters, rng):
    return np.zeros(len(parameters["x"]))


def rounded(parameters, rng):
    """Return an informative number and one that is always 2."""
    return np.stack([conjugate(parameters, rng), np.full(len(parameters["x"]), 2.0)], axis=1)


def sometimes(parameters, rng):
    """Return data that are the same at all parameters, and a third of them NaN."""
    return np.where(rng.random(len(parameters["x"])) < 1 / 3, np.nan, 2.0)


@pytest.mark.parametrize("method", ["importance", "sequential", "smc"])
@pytest.mark.parametrize(
    ("simulate", "observed", "options", "message"),
    [
        (constant, 0.0, {}, r"have the same distance \(0\)"),
        (constant, 1.0, {}, r"have the same distance \(1\)"),
        (conjugate, 1.0, {"distance": lambda a, b: 3.0}, r"have the same distance \(3\)"),
        (sometimes, 1.0, {"epsilon": 1.5}, r"all \d+ data sets .* have the same distance \(1\)"),
        (conjugate, 1.0, {"epsilon": 1e3}, r"have the same weight at ε = 1e\+03"),
        (rounded, np.array([1.0, 5.0]), {}, r"1 of 2 summaries are the same .* at index 1 \(2, observed 5\)"),
        (rounded, np.array([1.0, 2.0]), {}, None),
    ],
)
def test_data_that_say_nothing_and_summaries_that_are_never_reached_are_named(
    method, simulate, observed, options, message
):
    size = {"chains": 2, "draws": 512, "pilot_points": 256, "max_simulations": 200_000, "random_seed": 1}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        idata = pb.sample_abc(
            standard_normal(), simulate=simulate, observed=observed, method=method, progressbar=False, **size, **options
        )
    found = [str(each.message) for each in seen if each.category is SamplerWarning]
    if message is None:
        assert not any("same" in each for each in found)
    else:
        assert len(found) == 1
        assert re.search(message, found[0])
        assert not idata.posterior.attrs["log_evidence_trusted"]


def test_a_rare_event_that_no_data_set_has_is_not_a_fault():
    """Return θ ~ N(0, 1) where hits of a series are rare: elements never vary near the posterior, and the sum does."""

    def simulate(parameters, rng):
        return (rng.random((len(parameters["x"]), 30)) < 0.01 * np.exp(parameters["x"])[:, :1]).astype(float)

    observed = np.zeros(30)
    observed[3] = 1.0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pb.sample_abc(
            standard_normal(),
            simulate=simulate,
            observed=observed,
            summary=lambda d: d.sum(axis=-1, keepdims=True),
            epsilon=0,
            random_seed=1,
            progressbar=False,
            chains=2,
            draws=512,
        )
    assert not any("same" in str(each.message) for each in seen)


@pytest.mark.parametrize("method", ["importance", "sequential", "smc"])
def test_a_simulator_that_fails_beside_the_posterior_is_not_trusted(method):
    """Half of the posterior N(1/2, 1/2) is above the first limit, and nothing near it above the second."""
    for limit, missing in ((0.5, True), (7.0, False)):

        def simulate(parameters, rng, limit=limit):
            return np.where(parameters["x"][:, 0] > limit, np.nan, conjugate(parameters, rng))

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            idata = pb.sample_abc(
                standard_normal(), simulate=simulate, method=method, chains=2, draws=1024, data_sets=4, **OPTIONS
            )
        assert any("are NaN or infinite at" in str(each.message) for each in seen) == missing
        assert idata.posterior.attrs["log_evidence_trusted"] == (not missing)


@pytest.mark.parametrize("method", ["sequential", "smc"])
def test_data_sets_that_are_not_finite_by_chance_are_no_fault(method):
    """Their share depends on the parameter and is up to nine tenths."""

    def simulate(parameters, rng):
        lost = rng.random(len(parameters["x"])) < 0.9 / (1 + np.exp(-parameters["x"][:, 0]))
        return np.where(lost, np.nan, conjugate(parameters, rng))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pb.sample_abc(standard_normal(), simulate=simulate, method=method, chains=2, draws=1024, **OPTIONS)
    assert not any("are NaN or infinite at" in str(each.message) for each in seen)


def test_an_error_of_a_batched_simulator_is_reported_itself():
    """A simulator that indexes its parameters fails in another way if they are single values."""

    def simulate(parameters, rng):
        data = conjugate(parameters, rng) + 0 * parameters["x"][:, 0]
        if (rng.random(len(data)) < 1e-3).any():
            raise ValueError("singular matrix")
        return data

    with pytest.raises(ModelError, match="singular matrix"):
        pb.sample_abc(standard_normal(), simulate=simulate, **OPTIONS)
