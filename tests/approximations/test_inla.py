"""Improved Laplace marginals against quadrature, their joint distribution, and the warnings where they fail."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.integrate import trapezoid

import ppl_backends as pb
from ppl_backends.approximations.inla import conditional
from ppl_backends.approximations.inla.copula import GaussianCopula
from ppl_backends.approximations.marginals import Marginals
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.results.inference_data import group
from ppl_backends.targets import FunctionTarget
from ppl_backends.targets.factors import Factors, FactorsTarget, Logit, StudentT
from tests.approximations.test_laplace import gaussian_target

X = np.array([[1.0, -1.1], [1.0, -0.4], [1.0, 0.1], [1.0, 0.3], [1.0, 0.9], [1.0, 1.4]])
Y = np.array([0, 0, 1, 0, 1, 1])
SIDES = [np.linspace(-12, 12, 601), np.linspace(-8, 24, 801)]


def skewed_target():
    """Return nearly separated data with a Cauchy prior: both coordinates skewed, with heavy tails."""
    return FactorsTarget(Factors([X, np.eye(2)], 0.0, [Logit(Y), StudentT(np.zeros(2), 3.0, 2.5)], 0.0, 0.0))


def quadrature(target):
    """Log evidence, means, standard deviations and marginal densities on ``SIDES``."""
    points = np.stack(np.meshgrid(*SIDES, indexing="ij"), axis=-1)
    joint = np.exp(target.log_density(points.reshape(-1, 2))).reshape(points.shape[:2])
    densities = [trapezoid(joint, SIDES[1 - j], axis=1 - j) for j in range(2)]
    evidence = trapezoid(densities[0], SIDES[0])
    densities = [density / evidence for density in densities]
    mean = np.array([trapezoid(s * p, s) for s, p in zip(SIDES, densities, strict=True)])
    var = np.array([trapezoid((s - m) ** 2 * p, s) for s, p, m in zip(SIDES, densities, mean, strict=True)])
    return np.log(evidence), mean, np.sqrt(var), densities


def quiet(target, **options):
    return pb.fit_inla(target, progressbar=False, **options)


def largest_error(marginals, densities):
    """Return the largest total variation distance to the exact marginals."""
    found = [np.interp(s, g, p, 0, 0) for s, g, p in zip(SIDES, marginals.grid, marginals.density, strict=True)]
    pairs = zip(SIDES, found, densities, strict=True)
    return max(0.5 * trapezoid(np.abs(p - exact), s) for s, p, exact in pairs)


def test_skewed_marginals_are_those_of_quadrature():
    target = skewed_target()
    log_evidence, mean, sd, densities = quadrature(target)
    q = quiet(target)
    laplace = q.gaussian_at_mode
    assert q.converged
    assert np.abs((laplace.mean - mean) / sd).max() > 0.3  # where the Gaussian is far off
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=0.03)
    np.testing.assert_allclose(q.sd / sd, 1, atol=0.03)
    assert largest_error(q.marginals(), densities) < 0.012
    assert abs(q.log_evidence - log_evidence) < 4 * q.log_evidence_se < 0.2
    assert abs(laplace.log_evidence - log_evidence) > 0.1
    exact = np.interp(0.9, np.cumsum(densities[1]) * (SIDES[1][1] - SIDES[1][0]), SIDES[1])
    assert abs(q.quantile(0.9)[1] - exact) < 0.05 * sd[1]


def test_a_hessian_left_at_the_joint_mode_is_seen(monkeypatch):
    target = skewed_target()
    densities = quadrature(target)[3]
    steps = conditional._steps

    def without_determinant(*arguments):
        step, log_determinant, gain, definite = steps(*arguments)
        return step, np.zeros_like(log_determinant), gain, definite

    monkeypatch.setattr(conditional, "_steps", without_determinant)
    assert largest_error(quiet(target).marginals(), densities) > 0.04


def test_gaussian_is_exact():
    target, mean, cov, evidence = gaussian_target()
    q = quiet(target)
    sd = np.sqrt(np.diag(cov))
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=1e-5)
    np.testing.assert_allclose(q.std / sd, 1, atol=1e-4)
    np.testing.assert_allclose(q.cov / np.outer(sd, sd), cov / np.outer(sd, sd), atol=1e-3)
    assert q.log_evidence == pytest.approx(evidence, abs=1e-4)


def test_probabilities_quantiles_and_densities_agree():
    q = quiet(skewed_target())
    p = np.array([0.01, 0.3, 0.5, 0.99])
    np.testing.assert_allclose(q.cdf(q.quantile(p)), np.tile(p[:, None], 2), atol=1e-3)
    step = 1e-2
    slope = (q.cdf(q.mean[None] + step) - q.cdf(q.mean[None] - step)) / (2 * step)
    np.testing.assert_allclose(slope, q.pdf(q.mean[None]), rtol=1e-2)
    assert q.quantile(0.5).shape == (2,)
    assert q.marginals("theta[1]").mean == pytest.approx(q.mean[1])
    np.testing.assert_array_equal(q.cdf([-1e3, 1e3]), [[0, 0], [1, 1]])


def test_joint_distribution_has_the_marginals_and_a_density():
    q = quiet(skewed_target())
    draws = q.sample(20_000, np.random.default_rng(1))
    scores = stats.norm.ppf(np.clip([np.interp(c, s, f) for c, s, f in _distributions(q, draws)], 1e-9, 1 - 1e-9))
    assert np.abs(scores.mean(axis=1)).max() < 5 / np.sqrt(20_000)
    assert np.abs(scores.std(axis=1) - 1).max() < 5 / np.sqrt(40_000)
    points = np.stack(np.meshgrid(*SIDES, indexing="ij"), axis=-1)
    density = np.exp(q.log_density(points.reshape(-1, 2))).reshape(points.shape[:2])
    assert trapezoid(trapezoid(density, SIDES[1]), SIDES[0]) == pytest.approx(1, abs=2e-3)
    x = draws[:5]
    value, gradient = q.log_density_and_gradient(x)
    for j in range(2):
        h = 1e-5 * np.eye(2)[j]
        slope = (q.log_density(x + h) - q.log_density(x - h)) / 2e-5
        np.testing.assert_allclose(gradient[:, j], slope, rtol=1e-3, atol=1e-4)
    assert value.shape == (5,)


def _distributions(q, draws):
    marginals = q.marginals()
    for j in range(q.dim):
        yield draws[:, j], marginals.grid[j], q.cdf(np.repeat(marginals.grid[j][:, None], q.dim, axis=1))[:, j]


def test_some_coordinates_only():
    target = skewed_target()
    whole, part = quiet(target), quiet(target, coordinates="theta[1]")
    assert part.mean[1] == pytest.approx(whole.mean[1], abs=1e-9)
    assert part.mean[0] == pytest.approx(part.gaussian_at_mode.mean[0], abs=1e-9)


def test_separated_data_have_no_mode():
    flat = FactorsTarget(Factors(X[:4], 0.0, Logit([0, 0, 1, 1]), 0.0, 0.0))
    with pytest.warns(ApproximationWarning, match="INLA of factors"):
        q = quiet(flat)
    assert not q.converged
    assert np.isnan(q.log_evidence)


@pytest.mark.slow
def test_a_density_that_stays_level_beyond_its_mode_is_flagged():
    def well(x):
        square = (x**2).sum(axis=1)
        return -0.5 * np.minimum(square, 2.0), np.where(square[:, None] < 2, -x, 0.0)

    with pytest.warns(
        ApproximationWarning, match=r"still 37% of its peak at an end of its grid, so the posterior may be imp"
    ):
        q = pb.fit_inla(FunctionTarget(1, well), progressbar=False)
    assert not q.converged


def test_a_climb_into_a_funnel_has_a_result():
    """The likelihood has two predictors, so that nothing is integrated over, and the joint density has no mode."""

    rng, group = np.random.default_rng(3), np.arange(60) % 10
    y = np.exp(0.5 * np.cumsum(0.3 * rng.standard_normal(60))) * rng.standard_normal(60)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        u, v = pm.Normal("u", 0, tau, shape=10), pm.Normal("v", 0, 1, shape=10)
        pm.Normal("y", u[group], pm.math.exp(v[group]), observed=y)
    with pytest.warns(ApproximationWarning, match="no mode there"):
        q = quiet(model)
    assert not q.converged
    assert np.isfinite(q.quantile(0.5)).all()


def test_correlations_that_round_to_a_singular_matrix_have_a_copula():
    """Where a climb ends in a funnel without a mode, correlations are 1 within rounding error."""
    gaussian = pb.GaussianApproximation(np.zeros(2), cholesky=np.array([[1.0, 0.0], [1.0, 1e-9]]))
    z = np.linspace(-6, 6, 201)
    marginals = Marginals.of_densities(gaussian.names, np.tile(z, (2, 1)), np.tile(stats.norm.pdf(z), (2, 1)))
    x = GaussianCopula(gaussian, marginals).sample(1000, np.random.default_rng(1))
    assert np.allclose(x[:, 0], x[:, 1], atol=1e-6)
    assert abs(x[:, 0].std() - 1) < 4 / np.sqrt(2 * 1000)


def test_a_regression_in_pymc_is_that_of_its_factors():
    """Its sites are log-concave, so that no other mode is looked for."""
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((60, 2)), rng.integers(0, 2, 60)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=2)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)
    found, expected = (
        pb.fit_inla(model),
        pb.fit_inla(pb.Factors(X, 0.0, Logit(y), prior_mean=0.0, prior_precision=0.25)),
    )
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-5)


def test_another_mode_is_spoken_of():
    def log_density(x):
        parts = np.stack([stats.norm.logpdf(x, m, 0.3).sum(axis=1) for m in (-4.0, 4.0)])
        top = np.logaddexp(*parts)
        share = np.exp(parts - top)
        return top, sum(s[:, None] * (m - x) / 0.09 for s, m in zip(share, (-4.0, 4.0), strict=True))

    target = FunctionTarget(2, log_density, sample_prior=lambda n, rng: 4 * rng.normal(size=(n, 2)))
    with pytest.warns(ApproximationWarning, match="another mode"):
        assert not quiet(target, initvals=np.full(2, -4.0)).converged


def test_results_leave_in_model_space():
    q = quiet(skewed_target())
    posterior = group(q.to_inference_data(draws=4000, random_seed=1), "posterior")
    assert posterior.attrs["method"] == "inla"
    assert posterior.attrs["accuracy"] == "approximate"
    assert posterior.attrs["log_evidence"] == q.log_evidence
    draws = posterior["theta"].values[0]
    np.testing.assert_allclose((draws.mean(axis=0) - q.mean) / q.sd, 0, atol=5 / np.sqrt(4000))


def test_tempered_posterior_and_unknown_coordinates():
    wider = quiet(skewed_target(), power=0.5)
    assert np.all(wider.sd > quiet(skewed_target()).sd)
    with pytest.raises(ModelError, match="'gamma' is not a coordinate"):
        quiet(skewed_target(), coordinates="gamma")
