"""Simulators that draw from another model than the log density given beside them are found out."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.auxiliary_draws import slope_difference

OBSERVED = np.array([1, 0, 1, 1, 0, 1, 1, 0])
SAYS = "the simulator of 'y' does not draw from its log density"


def draw(theta, rng, size):
    return rng.binomial(1, 1 / (1 + np.exp(-theta)), size=(*size, 8))


def model(factor, random=draw, exact=True):
    """Return eight coin flips with log odds θ, whose log f is multiplied by a factor."""
    with pm.Model() as made:
        theta = pm.Normal("theta")
        logp = lambda value, t: factor * t * pt.sum(value)  # noqa: E731
        pb.Unnormalized("y", theta, logp=logp, random=random, observed=OBSERVED, exact=exact)
    return made


def run(made, step=None):
    options = {"draws": 20, "tune": 100, "chains": 2, "random_seed": 1, "progressbar": False}
    return pb.sample_mcmc(made, step=step or pb.steps.Exchange(), **options)


@pytest.mark.parametrize("factor", [2.0, -1.0, 0.5])
def test_draws_of_another_model_are_refused_if_they_are_declared_exact(factor):
    with pytest.raises(ModelError, match=SAYS):
        run(model(factor))


def warnings_of(*arguments):
    """Return the texts of the warnings of a run, among them those of its few draws."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", SamplerWarning)
        run(*arguments)
    return "; ".join(str(each.message) for each in seen)


def test_they_raise_a_warning_otherwise():
    assert SAYS in warnings_of(model(2.0, exact=False))


@pytest.mark.parametrize("step", [pb.steps.Exchange(), pb.steps.NoisyLangevin()])
def test_right_draws_raise_no_alarm(step):
    assert SAYS not in warnings_of(model(1.0), step)


def test_a_density_that_is_the_same_for_all_data_is_left_alone():
    assert SAYS not in warnings_of(model(0.0))


def test_slopes_of_right_draws_differ_by_their_standard_error():
    rng = np.random.default_rng(1)
    found = []
    for n in (5, 12):
        for _ in range(400):
            found.append(slope_difference(rng.binomial(n, 0.4, 200), rng.binomial(n, 1 / (1 + 1.5 / np.e), 200)))
    assert abs(np.mean(found)) < 0.3
    assert 0.8 < np.std(found) < 1.2
    assert np.abs(found).max() < 6
