"""The verdict of a Gaussian's own points, on targets whose moments are known."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import digamma, polygamma

import ppl_backends as pb
from ppl_backends.approximations import GaussianApproximation
from ppl_backends.approximations.resolve import is_poor_start, resolve_approximation
from ppl_backends.approximations.verdict import judge_gaussian, judge_moments
from ppl_backends.errors import ApproximationWarning
from ppl_backends.targets import FunctionTarget


def log_gammas(shape, dim):
    """Return logs of Gamma variables; the mode is 0 and the curvature ``shape``."""
    return FunctionTarget(dim, lambda x: ((shape * (x - np.exp(x))).sum(1), shape * (1 - np.exp(x))))


def ring(x):
    radius = np.maximum(np.linalg.norm(x, axis=1), 1e-12)
    return -0.5 * ((radius - 5) / 0.3) ** 2, -((radius - 5) / 0.09 / radius)[:, None] * x


def banana(x):
    bent = x[:, 1] + 0.03 * (x[:, 0] ** 2 - 100)
    value = -0.005 * x[:, 0] ** 2 - 0.5 * bent**2
    return value, np.column_stack([-x[:, 0] / 100 - 0.06 * bent * x[:, 0], -bent])


def funnel(x):
    v, z = x[:, :1], x[:, 1:]
    scaled = z * np.exp(-v)
    value = -(v[:, 0] ** 2) / 18 - 2.5 * v[:, 0] - 0.5 * (scaled * z).sum(1)
    return value, np.column_stack([-v[:, 0] / 9 - 2.5 + 0.5 * (scaled * z).sum(1), -scaled])


def student(df, dim):
    """Return a Student t about 0 in several dimensions."""

    def log_density(x):
        square = 1 + (x**2).sum(1) / df
        return -0.5 * (df + dim) * np.log(square), -(df + dim) / df * x / square[:, None]

    return FunctionTarget(dim, log_density)


@pytest.mark.parametrize("factor", [1 / 1.24, 1.24])
def test_a_standard_deviation_a_quarter_too_large_is_as_wrong_as_one_a_quarter_too_small(factor):
    assert f"is {factor:.2g} times the Gaussian's" in judge_moments(0.0, factor, "x")
    assert judge_moments(0.0, factor**0.7, "x") == ""


@pytest.mark.parametrize("dim", [3, 100])
def test_a_gaussian_posterior_is_judged_without_noise(dim):
    rng = np.random.default_rng(0)
    root = np.tril(rng.standard_normal((dim, dim))) / dim + np.eye(dim)
    cov, mean = root @ root.T, rng.standard_normal(dim)
    precision = np.linalg.inv(cov)

    def log_density(x):
        pull = -(x - mean) @ precision
        return 0.5 * (pull * (x - mean)).sum(1), pull

    target = FunctionTarget(dim, log_density)
    q = pb.fit_laplace(target, progressbar=False)
    assert q.converged
    assert q.trouble == ""
    assert q.diagnostics["mean_shift"] < 1e-6
    assert q.diagnostics["sd_ratio"] == pytest.approx(1, abs=1e-6)
    assert q.diagnostics["distance"] < 1e-3
    # The same target, a Gaussian that is off: 0.5 standard deviations along one coordinate, then a third too narrow
    moved = GaussianApproximation(mean + 0.5 * np.eye(dim)[1] * np.sqrt(cov[1, 1]), cov, log_evidence=q.log_evidence)
    assert (
        "the posterior mean of x[1] is 0.5 standard deviations from the Gaussian's"
        in judge_gaussian(target, moved).trouble
    )
    narrow = GaussianApproximation(mean, cov / 2.25, log_evidence=q.log_evidence)
    assert "the standard deviation of" in judge_gaussian(target, narrow).trouble


@pytest.mark.parametrize("dim", [1, 20, 200])
@pytest.mark.parametrize("shape", [10.0, 40.0])
def test_shift_of_skewed_posteriors(shape, dim):
    q = pb.fit_laplace(log_gammas(shape, dim), progressbar=False)
    exact = abs(digamma(shape) - np.log(shape)) / polygamma(1, shape) ** 0.5
    assert exact < 0.2
    assert q.converged
    assert q.diagnostics["mean_shift"] == pytest.approx(exact, rel=0.3)


@pytest.mark.parametrize("dim", [1, 20, 200])
def test_a_mean_a_third_of_a_deviation_off_is_flagged_in_any_dimension(dim):
    with pytest.warns(ApproximationWarning, match=r"the posterior mean of x\[\d+\] is 0.3\d* standard deviations from"):
        q = pb.fit_laplace(log_gammas(2.5, dim), progressbar=False)
    assert not q.converged
    assert np.isfinite(q.log_evidence)
    assert not is_poor_start(q)  # sound enough to begin with


@pytest.mark.parametrize("df", [3, 5])
@pytest.mark.parametrize("dim", [1, 5, 20])
def test_heavy_tails_are_flagged(df, dim):
    with pytest.warns(ApproximationWarning, match="the standard deviation of"):
        assert not pb.fit_laplace(student(df, dim), progressbar=False).converged


@pytest.mark.parametrize("start", [[0.0, 0.0], [1.0, 2.0], [-6.0, 0.5]])
def test_a_ring_is_flagged_from_any_start(start):
    with pytest.warns(ApproximationWarning, match=r"no mode there|flat along|curved along"):
        q = pb.fit_laplace(FunctionTarget(2, ring), initvals=start, progressbar=False)
    assert not q.converged
    assert np.all(q.sd < 11)


def test_a_ridge_falls_too_fast_along_an_axis():
    with pytest.warns(ApproximationWarning, match=r"the density is curved along x\[0\]: .* falls by [2-9].*, not 0.5"):
        q = pb.fit_laplace(FunctionTarget(2, banana), progressbar=False)
    assert not q.converged
    assert np.isnan(q.log_evidence)


def eight_schools():
    errors = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, shape=8)
        pm.Normal("y", mu + tau * z, errors, observed=np.array([28.0, 8, -3, 7, -1, 1, 18, 12]))
    return model


def grouped_counts():
    """Return a negative binomial regression with 20 groups."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(20), 10)
    rate = np.exp(1 + 0.5 * rng.standard_normal(20)[group])
    with pm.Model() as model:
        level, scale, alpha = pm.Normal("level", 0, 2), pm.HalfNormal("scale", 1), pm.Exponential("alpha", 1)
        z = pm.Normal("z", 0, 1, shape=20)
        pm.NegativeBinomial("y", mu=pm.math.exp(level + scale * z[group]), alpha=alpha, observed=rng.poisson(rate))
    return model


@pytest.mark.parametrize("model", [eight_schools, pytest.param(grouped_counts, marks=pytest.mark.slow)])
def test_hierarchical_models_are_flagged(model):
    with pytest.warns(ApproximationWarning, match=r"the posterior mean of (tau|scale)_log__ is more than a standard"):
        assert not pb.fit_laplace(model(), progressbar=False).converged


def test_a_poor_start_is_named_as_one():
    target = FunctionTarget(6, funnel)
    with pytest.warns(
        ApproximationWarning, match="initial: the Laplace approximation of function target is a poor start"
    ):
        found = resolve_approximation(target, "laplace", argument="initial")
    assert is_poor_start(found)
    # One that is a third of a deviation off is used without a word
    assert not resolve_approximation(log_gammas(2.5, 3), "laplace", argument="initial").converged


def test_variational_inference_says_that_its_gaussian_is_far_from_a_ring():
    with pytest.warns(ApproximationWarning, match="the Gaussian is far from the posterior"):
        q = pb.fit_vi(FunctionTarget(2, ring), random_seed=1, progressbar=False)
    assert not q.converged


def test_tempering_from_a_poor_start_blames_the_start():
    target = FunctionTarget(6, funnel)
    with pytest.warns() as caught:
        idata = pb.sample_smc(
            target,
            initial=pb.fit_laplace(target, progressbar=False),
            draws=100,
            chains=2,
            ess_threshold=0.5,
            max_moves=3,
            random_seed=1,
            progressbar=False,
        )
    said = " ".join(str(warning.message) for warning in caught)
    assert "the laplace approximation that it starts from is far from the posterior" in said
    assert idata.posterior.attrs["log_evidence_trusted"] == 0


def test_a_funnel_without_a_prior_starts_in_its_mouth_and_is_right():
    """Its mode is 7.5 standard deviations down the neck, and a run from there is low by 0.2 and more."""
    with pytest.warns() as caught:
        idata = pb.sample_smc(
            FunctionTarget(6, funnel), initial="laplace", draws=1000, chains=2, random_seed=1, progressbar=False
        )
    assert any("a poor start" in str(one.message) and "variational" in str(one.message) for one in caught)
    attrs, exact = idata.posterior.attrs, np.log(3) + 3 * np.log(2 * np.pi)
    assert attrs["initial"].startswith("variational inference")
    assert attrs["log_evidence_trusted"], attrs["warnings"]
    assert attrs["log_evidence_se"] < 0.01
    assert attrs["log_evidence"] == pytest.approx(exact, abs=4.5 * attrs["log_evidence_se"])
