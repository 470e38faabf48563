"""Starts of models whose support depends on the data: PyMC's and Stan's own starting points are outside of it."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import pareto

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.targets.function import FunctionTarget
from ppl_backends.targets.pymc.target import PyMCTarget

SHAPE, N = 2.0, 40


def pareto_model(y):
    with pm.Model() as model:
        scale = pm.Uniform("scale", 0, 10)
        pm.Pareto("y", alpha=SHAPE, m=scale, observed=y)
    return model


def shifted_exponential(y, loc):
    with pm.Model() as model:
        loc = loc("loc")
        pm.Potential("y", pm.math.switch(pm.math.lt(y.min(), loc), -np.inf, (loc - y).sum()))
    return model


@pytest.fixture(scope="module")
def y():
    return pareto(SHAPE, scale=0.2).rvs(N, random_state=1)


def test_starts_are_among_draws_of_the_prior(y):
    target = PyMCTarget(pareto_model(y))
    x = target.initial_points(8, np.random.default_rng(0))
    assert np.isfinite(target.log_density(x)).all()
    assert len(np.unique(x)) > 1


def test_starts_without_a_proper_prior():
    y = 10.0 + np.random.default_rng(1).exponential(size=20)
    for observed in (y, y - 60.0):
        target = PyMCTarget(shifted_exponential(observed, lambda name: pm.Flat(name)))
        assert (target.initial_points(4, np.random.default_rng(0)) < observed.min()).all()


def test_approximations_say_what_they_lack_and_importance_sampling_is_right(y):
    """The scale has density (n + 1) t^n / m^(n + 1) on (0, m), with n = N·SHAPE and m the smallest observation."""
    model = pareto_model(y)
    with pytest.warns(ApproximationWarning, match="use sample_smc, which needs no mode"):
        assert not pb.fit_laplace(model, random_seed=1, progressbar=False).converged
    with pytest.warns(ApproximationWarning, match="the posterior density is zero at"):
        assert not pb.fit_vi(model, random_seed=1, progressbar=False).converged
    with pytest.warns(ApproximationWarning, match="poor start"):
        drawn = pb.sample_importance(model, random_seed=1, progressbar=False)
    n, smallest = N * SHAPE, y.min()
    evidence = N * np.log(SHAPE) - (SHAPE + 1) * np.log(y).sum() + (n + 1) * np.log(smallest) - np.log(10 * (n + 1))
    attrs = drawn.posterior.attrs
    assert abs(attrs["log_evidence"] - evidence) < 4 * max(attrs["log_evidence_se"], 1e-3)
    sd = smallest * np.sqrt((n + 1) / ((n + 3) * (n + 2) ** 2))
    np.testing.assert_allclose(drawn.posterior["scale"].mean(), smallest * (n + 1) / (n + 2), atol=0.1 * sd)


def test_function_targets_start_inside():
    """A half-normal density far from the origin."""
    target = FunctionTarget(
        2, lambda x: (np.where(x[:, 0] > 5, -0.5 * (x**2).sum(1), -np.inf), -x), names=["bounded", "free"]
    )
    assert (target.initial_points(4, np.random.default_rng(0))[:, 0] > 5).all()


def test_data_outside_every_support_are_named():
    with pytest.raises(ModelError, match=r"no starting point has a positive density.*'y' is -inf") as raised:
        pb.fit_laplace(pareto_model([-1.0, 2.0]), progressbar=False)
    assert "\n" not in str(raised.value)


def hard_constraint(width, at=0.0):
    with pm.Model() as model:
        a = pm.Normal("a", shape=6)
        pm.Potential("constraint", pm.math.switch((pm.math.abs(a - at) < width).all(), 0.0, -np.inf))
    return model


def test_the_starting_point_itself_is_taken_where_no_point_around_it_is_inside():
    target = PyMCTarget(hard_constraint(0.02))
    np.testing.assert_array_equal(target.initial_points(3, np.random.default_rng(0)), np.zeros((3, 6)))


def test_a_constraint_by_a_potential_that_nothing_satisfies_is_named():
    with pytest.raises(ModelError, match="the Potential 'constraint' is -inf: write a constraint into the prior"):
        pb.fit_laplace(hard_constraint(0.02, at=50.0), progressbar=False)
