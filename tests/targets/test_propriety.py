"""Improper priors are detected from their density, along the axes and obliquely; proper ones pass."""

import numpy as np
import pytest
from scipy import stats

from ppl_backends.targets import FunctionTarget, as_target
from ppl_backends.targets.propriety import endless_direction, has_proper_prior, improper_coordinate, improper_note


def prior(dim, log_density, names=None):
    """Return a target with this log prior, its gradient by differences."""

    def value_and_gradient(x):
        steps = 1e-5 * np.eye(dim)
        ahead, behind = log_density(x[:, None] + steps), log_density(x[:, None] - steps)
        return log_density(x), (ahead - behind) / 2e-5

    return FunctionTarget(dim, lambda x: (np.zeros(len(x)), np.zeros_like(x)), value_and_gradient, names=names)


def normal(x, scale=1.0):
    return -0.5 * (x / scale) ** 2 - np.log(scale)


def hierarchy(x, on_mean, on_deviation):
    """Group effects x[2:] given their mean x[0] and log deviation x[1]."""
    effects = normal(x[..., 2:] - x[..., :1], np.exp(x[..., 1:2])).sum(axis=-1)
    return effects + on_mean(x[..., 0]) + on_deviation(x[..., 1])


def flat(x):
    return np.zeros_like(x)


def half_cauchy(u):
    return u - np.log1p(np.exp(2 * u))


IMPROPER = {
    "flat": (2, lambda x: normal(x[..., 0]), "x[1]"),
    "flat on a positive variable": (2, lambda x: normal(x[..., 0]) + x[..., 1], "x[1]"),
    "reciprocal of a scale": (2, lambda x: normal(x[..., 0]) - np.log(np.exp(x[..., 1])) + x[..., 1], "x[1]"),
    "random walk without a start": (5, lambda x: normal(np.diff(x)).sum(axis=-1), "x"),
    "walk of order two": (6, lambda x: normal(np.diff(x, 2)).sum(axis=-1), "x"),
    "group effects without a mean": (6, lambda x: hierarchy(x, flat, half_cauchy), "x"),
    "neighbours on a torus": (8, lambda x: normal(x - np.roll(x, 1, axis=-1)).sum(axis=-1), "x"),
}
PROPER = {
    "normal": (3, lambda x: normal(x).sum(axis=-1)),
    "very wide": (2, lambda x: normal(x, 1e5).sum(axis=-1)),
    "Cauchy": (2, lambda x: -np.log1p((x / 30) ** 2).sum(axis=-1)),
    "random walk": (5, lambda x: normal(np.diff(x)).sum(axis=-1) + normal(x[..., 0], 10)),
    "group effects": (6, lambda x: hierarchy(x, normal, half_cauchy)),
    "correlated": (3, lambda x: stats.multivariate_normal(cov=0.999 + 0.001 * np.eye(3)).logpdf(x)),
    "gamma with small parameters": (1, lambda u: (0.001 * u - 0.001 * np.exp(u)).sum(axis=-1)),
}


@pytest.mark.parametrize("name", IMPROPER)
def test_improper(name):
    dim, log_density, coordinate = IMPROPER[name]
    with np.errstate(all="ignore"):
        target = prior(dim, log_density)
        found = improper_coordinate(target)
        assert found is not None
        assert found.startswith(coordinate)
        assert improper_note(target) == f"up to a constant: the prior is improper along {found}"


@pytest.mark.parametrize("name", PROPER)
def test_proper(name):
    dim, log_density = PROPER[name]
    with np.errstate(all="ignore"):
        assert improper_coordinate(prior(dim, log_density)) is None


def test_nothing_is_said_of_a_prior_that_is_not_known():
    target = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    assert improper_note(target) is None


def test_a_prior_is_judged_by_one_compiled_program():
    """The program is that of the gradient, which samplers use too."""
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        pm.Normal("x", 0, pm.HalfNormal("scale", 1), shape=20)
    target = as_target(model, backend="jax")
    assert improper_coordinate(target) is None
    compiled = [kind for kind, function in target._compiled._functions.items() if function._function is not None]
    assert compiled == ["gradient"]


def test_rays_that_do_not_fall_from_any_point_are_endless():
    points = np.array([[0.1, 0.0, 0.0], [0.3, -0.5, 1.0], [-2.0, 0.4, 0.2]])
    steps = np.diff(np.eye(3), axis=0)
    walk = FunctionTarget(3, lambda x: (-0.5 * ((x @ steps.T) ** 2).sum(1), -x @ steps.T @ steps))
    level = np.ones(3) / np.sqrt(3)
    np.testing.assert_array_equal(endless_direction(walk, points, np.array([np.eye(3)[0], level])), level)
    assert endless_direction(walk, points, np.eye(3)) is None

    def neck(x):  # log scale x[0] with a flat prior: unbounded from x[1] = x[2] = 0 alone
        return hierarchy(np.insert(x, 0, 0.0, axis=1), flat, flat)

    funnel = FunctionTarget(3, lambda x: (neck(x), np.zeros_like(x)))
    assert endless_direction(funnel, points[:1], -np.eye(3)[:1]) is not None
    assert endless_direction(funnel, points, -np.eye(3)[:1]) is None
    wide = prior(3, lambda x: normal(x, 1e5).sum(axis=-1))
    assert has_proper_prior(wide)
    assert not has_proper_prior(walk)


def test_the_check_of_a_prior_does_not_evaluate_the_likelihood():
    """Its rays have a dozen points for each coordinate, which would take long with a million observations."""

    def no_likelihood(x):
        raise AssertionError("the likelihood was evaluated")

    proper = FunctionTarget(3, no_likelihood, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    flat = FunctionTarget(3, no_likelihood, lambda x: (-0.5 * x[:, 0] ** 2, -x * [1, 0, 0]))
    assert improper_coordinate(proper) is None
    assert improper_coordinate(flat) == "x[1]"
