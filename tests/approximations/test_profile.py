"""The marginal of a coordinate by Laplace's method, and Gaussians that are too narrow along the neck of a funnel."""

import numpy as np
import pytest
from scipy.special import ndtri

import ppl_backends as pb
from ppl_backends.approximations import GaussianApproximation
from ppl_backends.approximations.profile import marginal_along
from ppl_backends.errors import ApproximationWarning
from ppl_backends.targets import FunctionTarget

Y = 1.25 * ndtri((np.arange(10) + 0.5) / 10)


def hierarchy(x):
    """Return v ~ N(0, 1), effects ~ N(0, exp(2v)) and y ~ N(effects, 1), of which the effects are Gaussian given v."""
    v, effects = x[:, 0], x[:, 1:]
    precision = np.exp(-2 * v)[:, None]
    value = -0.5 * v**2 - len(Y) * v - 0.5 * (precision * effects**2 + (Y - effects) ** 2).sum(axis=1)
    slope = -v - len(Y) + (precision * effects**2).sum(axis=1)
    return value, np.column_stack([slope, -precision * effects + Y - effects])


def moments_of_v():
    """Return mean and standard deviation of v: the effects are integrated out."""
    v = np.linspace(-8, 8, 20_001)
    variance = 1 + np.exp(2 * v)
    log_density = -0.5 * v**2 - 0.5 * len(Y) * np.log(variance) - 0.5 * (Y**2).sum() / variance
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = density @ v
    return mean, np.sqrt(density @ (v - mean) ** 2)


@pytest.fixture(scope="module")
def target():
    return FunctionTarget(1 + len(Y), hierarchy)


def test_the_marginal_is_that_of_quadrature_if_the_others_are_gaussian(target):
    q = GaussianApproximation(np.r_[-0.5, 0.4 * Y], cov=np.diag([1.0, *np.full(len(Y), 0.2)]))
    mean, sd = moments_of_v()
    shift, ratio = marginal_along(target, q, 0).own_moments
    np.testing.assert_allclose([q.mean[0] + shift, ratio], [mean, sd], rtol=2e-3)


@pytest.mark.parametrize("seed", [1, 5])
def test_a_gaussian_in_the_mouth_of_a_funnel_has_not_converged(target, seed):
    with pytest.warns(ApproximationWarning, match="use sample_"):
        q = pb.fit_vi(target, random_seed=seed, progressbar=False)
    assert not q.converged
    assert q.sd[0] < 0.8 * moments_of_v()[1]


class ScaleAndLocation(FunctionTarget):
    """The logarithm of an inverse gamma variable, which is read as ``scale``, and a standard normal ``location``."""

    def __init__(self, shape):
        def density(x):
            x, z = x.T
            return -shape * x - np.exp(-x) - 0.5 * z**2, np.column_stack([-shape + np.exp(-x), -z])

        super().__init__(2, density)

    def constrain(self, x, rng=None):
        return {"scale": np.exp(x[:, 0]), "location": x[:, 1]}


def test_a_gaussian_that_misses_the_tail_of_a_scale_has_not_converged():
    """The standard deviation of an inverse gamma variable is its mean / √(shape − 2)."""
    with pytest.warns(ApproximationWarning, match="the standard deviation of scale is .* times the Gaussian's"):
        q = pb.fit_vi(ScaleAndLocation(3.5), random_seed=1, progressbar=False)
    scale = np.exp(q.sample(100_000, np.random.default_rng(1))[:, 0])
    assert scale.std() < 0.8 * (1 / 2.5) / np.sqrt(1.5)


def test_a_gaussian_that_has_the_moments_of_a_scale_converges():
    q = pb.fit_vi(ScaleAndLocation(20.0), random_seed=1, progressbar=False)
    assert q.converged
    scale = np.exp(q.sample(100_000, np.random.default_rng(1))[:, 0])
    np.testing.assert_allclose(scale.std(), (1 / 19) / np.sqrt(18), rtol=0.05)
