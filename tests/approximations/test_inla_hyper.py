"""Nested Laplace approximations with hyper-parameters, against exact posteriors."""

import pickle
from contextlib import suppress

import numpy as np
import pymc as pm
import pytest
from scipy import sparse, stats
from scipy.integrate import trapezoid
from scipy.linalg import null_space
from scipy.special import gammaln, lambertw

import ppl_backends as pb
from ppl_backends.approximations.inla import latent
from ppl_backends.approximations.inla.conditional import conditional_modes
from ppl_backends.approximations.marginals import chosen
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.results.inference_data import group
from ppl_backends.targets import FunctionTarget
from ppl_backends.targets.factors import FunctionSites, Normal, Poisson
from tests.targets.models import mixture_with_labels

RNG = np.random.default_rng(5)
COUNTS = RNG.poisson(np.exp(1.0 + 0.7 * RNG.normal(size=14)))
PHI, S = np.linspace(-4, 8, 241), np.linspace(-6, 8, 1201)


def plates(counts=COUNTS, **options):
    """Return independent log rates with mean one and precision exp(φ)."""
    n = len(COUNTS)
    return pb.LatentGaussian(
        lambda phi: np.exp(phi[0]) * sparse.eye_array(n),
        Poisson(counts),
        mean=1.0,
        hyper_start=[0.0],
        hyper_prior=lambda phi: stats.norm.logpdf(phi[0], 1, 1),
        hyper_names=["log_tau"],
        **options,
    )


def exact_plates(sites=None, location=1.0):
    """Log evidence, mean and standard deviation of φ and of each log rate, by quadrature; ``sites`` are logs ``(n, s)``."""
    weight = stats.poisson.logpmf(COUNTS[:, None], np.exp(S)) if sites is None else sites
    log_prior = stats.norm.logpdf(S, location, np.exp(-0.5 * PHI)[:, None])  # (phi, s)
    joint = np.exp(weight[:, None] + log_prior)  # (n, phi, s)
    mass, first, second = (trapezoid(joint * S**p, S, axis=2) for p in (0, 1, 2))
    log_posterior = stats.norm.logpdf(PHI, 1, 1) + np.log(mass).sum(axis=0)
    log_evidence = np.log(trapezoid(np.exp(log_posterior - log_posterior.max()), PHI)) + log_posterior.max()
    share = np.exp(log_posterior - log_evidence)
    moments = [trapezoid(share * part / mass, PHI, axis=1) for part in (first, second)]
    phi_mean = trapezoid(share * PHI, PHI)
    phi_sd = np.sqrt(trapezoid(share * (PHI - phi_mean) ** 2, PHI))
    sd = np.sqrt(moments[1] - moments[0] ** 2)
    return log_evidence, np.r_[phi_mean, moments[0]], np.r_[phi_sd, sd], share


def quiet(model, **options):
    return pb.fit_inla(model, progressbar=False, **options)


@pytest.fixture(scope="module")
def fitted():
    return quiet(plates())


def test_poisson_plates_are_those_of_quadrature(fitted):
    log_evidence, mean, sd, share = exact_plates()
    q = fitted
    assert q.converged
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=0.03)
    np.testing.assert_allclose(q.sd / sd, 1, atol=0.02)
    assert q.log_evidence == pytest.approx(log_evidence, abs=2e-3)
    marginal = q.marginals("log_tau")
    distance = 0.5 * trapezoid(np.abs(np.interp(PHI, marginal.grid[0], marginal.density[0], 0, 0) - share), PHI)
    assert distance < 0.015


def test_laplace_alone_is_seen(monkeypatch):
    log_evidence, mean, sd, _ = exact_plates()
    monkeypatch.setattr(latent, "_evidence_terms", lambda *arguments: 0.0)
    monkeypatch.setattr(latent, "_means", lambda given, top, v: top.theta)
    q = quiet(plates())
    assert abs(q.log_evidence - log_evidence) > 8e-3
    assert np.abs((q.mean - mean) / sd).max() > 0.1


def test_large_models_keep_the_terms_that_sparse_factors_know(fitted, monkeypatch):
    dense = fitted
    monkeypatch.setattr(latent, "DENSE", 0)
    large = quiet(plates())  # independent plates have no other terms
    np.testing.assert_allclose(large.mean, dense.mean, atol=1e-8)
    np.testing.assert_allclose(large.sd, dense.sd, atol=1e-8)
    assert large.log_evidence == pytest.approx(dense.log_evidence, abs=1e-8)


def normal_walk():
    steps = sparse.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(11, 12))
    walk = sparse.csc_matrix(steps.T @ steps)
    y = 2 * np.sin(np.arange(12) / 3) + 0.5 * np.cos(7 * np.arange(12))
    model = pb.LatentGaussian(
        lambda phi: np.exp(phi[0]) * walk,
        lambda phi: Normal(y, np.exp(phi[1]) * np.ones(12)),
        constraints=np.ones(12),
        hyper_start=[0.0, 0.0],
        hyper_prior=lambda phi: stats.norm.logpdf(phi, 0, 1).sum(),
    )
    return model, walk.toarray(), y


def test_intrinsic_normal_walk_with_two_hyper_parameters_is_exact_given_them():
    model, walk, y = normal_walk()
    basis = null_space(np.ones((1, 12)))
    base = basis @ np.linalg.inv(basis.T @ walk @ basis) @ basis.T  # covariance at φ = 0
    sides = np.linspace(-4.2, 4.2, 49), np.linspace(-3, 3, 49)
    log_posterior, means, squares = np.empty((49, 49)), np.empty((49, 49, 12)), np.empty((49, 49, 12))
    for i, a in enumerate(sides[0]):
        for j, b in enumerate(sides[1]):
            prior = np.exp(-a) * base
            cov = prior + np.exp(2 * b) * np.eye(12)
            gain = prior @ np.linalg.inv(cov)
            log_posterior[i, j] = (
                stats.multivariate_normal.logpdf(y, np.zeros(12), cov) + stats.norm.logpdf([a, b]).sum()
            )
            means[i, j] = gain @ y
            squares[i, j] = np.diagonal(prior - gain @ prior) + means[i, j] ** 2
    step = (sides[0][1] - sides[0][0]) * (sides[1][1] - sides[1][0])
    mass = np.exp(log_posterior).sum() * step
    share = np.exp(log_posterior) * step / mass
    mean, square = np.einsum("ij,ijd->d", share, means), np.einsum("ij,ijd->d", share, squares)
    q = quiet(model)
    assert q.converged
    sd = np.sqrt(square - mean**2)
    np.testing.assert_allclose((q.mean[2:] - mean) / sd, 0, atol=0.01)
    np.testing.assert_allclose(q.sd[2:] / sd, 1, atol=0.01)
    assert q.log_evidence == pytest.approx(np.log(mass), abs=0.01)
    for k in range(2):
        own = share.sum(axis=1 - k)
        centre = own @ sides[k]
        spread = np.sqrt(own @ (sides[k] - centre) ** 2)
        assert abs(q.mean[k] - centre) < 0.03 * spread
        assert abs(q.sd[k] / spread - 1) < 0.03
    assert abs(q.sample(50, np.random.default_rng(1))[:, 2:].sum(axis=1)).max() < 1e-9


def test_draws_have_the_moments(fitted):
    q = fitted
    posterior = group(q.to_inference_data(draws=2000, random_seed=1), "posterior")
    assert posterior.attrs["method"] == "inla"
    draws = np.c_[posterior["hyper"].values[0], posterior["latent"].values[0]]
    np.testing.assert_allclose((draws.mean(axis=0) - q.mean) / q.sd, 0, atol=5 / np.sqrt(2000))
    np.testing.assert_allclose(draws.std(axis=0) / q.sd, 1, atol=0.08)


def test_marginals_of_some_coordinates(fitted):
    q = fitted
    some = q.marginals(["latent[3]", "log_tau"])
    np.testing.assert_allclose(some.mean, q.mean[[4, 0]], atol=1e-3)
    np.testing.assert_allclose(some.sd, q.sd[[4, 0]], rtol=5e-3)
    whole = q.quantile([0.1, 0.9])
    assert whole.shape == (2, 15)
    np.testing.assert_allclose(q.cdf(whole), [[0.1] * 15, [0.9] * 15], atol=1e-3)


def test_hyper_parameters_found_in_a_model(fitted):
    with pm.Model() as model:
        log_tau = pm.Normal("log_tau", 1, 1)
        rate = pm.Normal("rate", 1, pm.math.exp(-0.5 * log_tau), shape=len(COUNTS))
        pm.Poisson("y", pm.math.exp(rate), observed=COUNTS)
    found, described = quiet(model), fitted
    assert found.hyper.names == ("log_tau",)
    stored = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(*(q.sample(5, np.random.default_rng(1)) for q in (stored, found)))
    np.testing.assert_allclose(found.mean, described.mean, atol=2e-3)
    np.testing.assert_allclose(found.sd, described.sd, rtol=2e-3)
    assert found.log_evidence == pytest.approx(described.log_evidence, abs=2e-3)


GROUP = np.repeat(np.arange(8), 6)
RETURNS = np.exp(0.4 * RNG.normal(size=8))[GROUP] * RNG.normal(size=48)


def volatilities(likelihood):
    """Log variances of eight groups, with a likelihood of a kind of its own."""
    import pytensor.tensor as pt

    with pm.Model() as model:
        log_tau = pm.Normal("log_tau", 1, 1)
        h = pm.Normal("h", 0.5, pm.math.exp(-0.5 * log_tau), shape=8)[GROUP]
        if likelihood == "normal":
            pm.Normal("y", 0, pm.math.exp(0.5 * h), observed=RETURNS)
        else:
            pm.CustomDist(
                "y", h, logp=lambda y, h: -0.5 * h - 2.5 * pt.log1p(0.25 * y**2 * pt.exp(-h)), observed=RETURNS
            )
    return model


@pytest.mark.parametrize("likelihood", ["normal", "custom"])
def test_likelihoods_of_no_known_family(likelihood):
    if likelihood == "normal":
        rows = stats.norm.logpdf(RETURNS[:, None], 0, np.exp(0.5 * S))
    else:
        rows = -0.5 * S - 2.5 * np.log1p(0.25 * RETURNS[:, None] ** 2 * np.exp(-S))
    sites = np.stack([rows[g == GROUP].sum(axis=0) for g in range(8)])
    log_evidence, mean, sd, _ = exact_plates(sites, 0.5)
    found = quiet(volatilities(likelihood))
    assert found.hyper.names == ("log_tau",)
    np.testing.assert_allclose((found.mean - mean) / sd, 0, atol=0.01)
    np.testing.assert_allclose(found.sd / sd, 1, atol=0.01)
    assert found.log_evidence == pytest.approx(log_evidence, abs=0.01)


def test_a_model_without_hyper_parameters():
    model = pb.LatentGaussian(np.exp(1.0) * sparse.eye_array(14), Poisson(COUNTS), mean=1.0)
    q = quiet(model)
    assert q.converged
    assert q.dim == 14
    exact = np.exp(stats.poisson.logpmf(COUNTS[:, None], np.exp(S)) + stats.norm.logpdf(S, 1, np.exp(-0.5)))
    assert q.log_evidence == pytest.approx(np.log(trapezoid(exact, S)).sum(), abs=1e-4)


def test_hyper_parameters_that_the_user_names():
    log_evidence, mean, sd, _ = exact_plates()

    def log_density(x):
        tau, rate = np.exp(x[:, :1]), x[:, 1:]
        parts = (
            COUNTS * rate
            - np.exp(rate)
            - gammaln(COUNTS + 1)
            + 0.5 * (x[:, :1] - np.log(2 * np.pi) - tau * (rate - 1) ** 2)
        )
        value = parts.sum(axis=1) + stats.norm.logpdf(x[:, 0], 1, 1)
        slope = (0.5 - 0.5 * tau * (rate - 1) ** 2).sum(axis=1) - (x[:, 0] - 1)
        return value, np.c_[slope, COUNTS - np.exp(rate) - tau * (rate - 1)]

    names = ["log_tau", *(f"rate[{j}]" for j in range(len(COUNTS)))]
    target = FunctionTarget(len(names), log_density, names=names)
    q = quiet(target, hyper=["log_tau", 0], points=13)  # one coordinate, named twice
    assert q.converged
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=0.05)
    np.testing.assert_allclose(q.sd / sd, 1, atol=0.03)
    assert q.log_evidence == pytest.approx(log_evidence, abs=0.05)
    with pytest.raises(ModelError, match="some have to be latent"):
        quiet(target, hyper=names)


def test_draws_given_named_hyper_parameters_are_as_wide_as_the_marginals():
    """The log of a Gamma(2) variable has the variance ψ′(2) = 0.64; that of the Gaussian at its mode is 0.5."""
    target = FunctionTarget(
        2, lambda x: (-0.5 * x[:, 0] ** 2 + 2 * x[:, 1] - np.exp(x[:, 1]), np.c_[-x[:, 0], 2 - np.exp(x[:, 1])])
    )
    draws = quiet(target, hyper=[0]).sample(10_000, np.random.default_rng(1))
    np.testing.assert_allclose(draws.std(axis=0), [1, np.sqrt(np.pi**2 / 6 - 1)], rtol=5 / np.sqrt(20_000))
    np.testing.assert_allclose(draws.mean(axis=0), [0, 1 - np.euler_gamma], atol=5 / np.sqrt(10_000))


def test_draws_keep_the_dependence_of_latent_variables_on_hyper_parameters():
    """The observed product exp(φ) z has a standard deviation of 0.2, much less than φ and z allow each by itself."""
    y, noise = np.array([3.0, -2.0, 1.5, 2.5]), 0.2

    def log_density(x):
        scale = np.exp(x[:, :1])
        z, residual = x[:, 1:], (y - scale * x[:, 1:]) / noise
        by_product = scale * residual / noise
        gradient = np.c_[-x[:, 0] + (by_product * z).sum(axis=1), by_product - z]
        return -0.5 * ((x**2).sum(axis=1) + (residual**2).sum(axis=1)), gradient

    phi = np.linspace(-3, 5, 2001)[:, None]
    precision = 1 + np.exp(2 * phi) / noise**2
    mean = np.exp(phi) * np.exp(phi) * y / noise**2 / precision
    log_weight = -0.5 * phi[:, 0] ** 2 - 2 * np.log(precision[:, 0]) + 0.5 * (mean * y).sum(axis=1) / noise**2
    weight = np.exp(log_weight - log_weight.max())[:, None] / np.exp(log_weight - log_weight.max()).sum()
    centre = (weight * mean).sum(axis=0)
    sd = np.sqrt((weight * (np.exp(2 * phi) / precision + (mean - centre) ** 2)).sum(axis=0))
    q = quiet(FunctionTarget(5, log_density), hyper=[0])
    assert q.converged
    draws = q.sample(20_000, np.random.default_rng(1))
    product = np.exp(draws[:, :1]) * draws[:, 1:]
    np.testing.assert_allclose((product.mean(axis=0) - centre) / sd, 0, atol=0.1)
    np.testing.assert_allclose(product.std(axis=0) / sd, 1, atol=0.1)


def test_a_row_of_zeros_is_a_constant(fitted):
    design = sparse.vstack([sparse.eye_array(len(COUNTS)), sparse.csr_array((1, len(COUNTS)))]).tocsr()
    q = quiet(plates([*COUNTS, 2], design=design))
    assert q.converged
    np.testing.assert_allclose(q.mean, fitted.mean, atol=1e-6)
    assert q.log_evidence == pytest.approx(fitted.log_evidence - 1 - np.log(2), abs=1e-6)


def narrow_and_wide(narrow):
    """Return a model whose likelihood is the same for all of three hyper-parameters with two modes at zero."""
    return pb.LatentGaussian(
        sparse.eye_array(3),
        Poisson(COUNTS[:3]),
        mean=1.0,
        hyper_start=[0.0, 0.0, 0.0],
        hyper_prior=lambda phi: np.logaddexp(*(stats.norm.logpdf(phi, 0, sd).sum() for sd in (narrow, 1.0))),
    )


def test_a_narrow_mode_of_three_hyper_parameters_in_a_wide_one_is_integrated_over():
    fit = quiet(narrow_and_wide(0.1))
    one = quiet(pb.LatentGaussian(sparse.eye_array(3), Poisson(COUNTS[:3]), mean=1.0))
    assert fit.converged
    assert fit.log_evidence == pytest.approx(one.log_evidence + np.log(2), abs=0.05)
    square = fit.hyper.weights @ fit.hyper.points**2
    np.testing.assert_allclose(np.sqrt(square), np.sqrt((0.1**2 + 1) / 2), rtol=0.1)


def test_a_very_narrow_mode_of_three_hyper_parameters_in_a_wide_one_is_flagged():
    with pytest.warns(ApproximationWarning, match=r"around the points has \d+% of the mass"):
        assert not quiet(narrow_and_wide(0.05)).converged


@pytest.mark.slow
def test_effects_named_instead_of_their_scale_are_flagged():
    y = np.array([1.2, -0.4, 0.3, 0.9, -0.8])

    def log_density(x):
        effect, tau = x[:, :5], np.exp(-2 * x[:, 5:])
        square = (effect**2).sum(axis=1)
        value = stats.norm.logpdf(y, effect, 0.6).sum(axis=1) + stats.norm.logpdf(x[:, 5], -1, 1)
        value += -0.5 * tau[:, 0] * square - 5 * (x[:, 5] + 0.5 * np.log(2 * np.pi))
        slope = tau[:, 0] * square - 5 - (x[:, 5] + 1)
        return value, np.c_[(y - effect) / 0.36 - tau * effect, slope]

    target = FunctionTarget(6, log_density, names=[*(f"th[{j}]" for j in range(5)), "log_tau"])
    assert quiet(target, hyper=["log_tau"], points=9).converged
    with pytest.warns(ApproximationWarning, match=r"only \d+ of \d+ points of φ are effective"):
        assert not quiet(target, hyper=["th"], points=9).converged


def squared(x):
    """Sixteen data of mean 9 of N(φ² + b, 1) with φ, b standard normal, so that φ has two modes; φ comes first."""
    residual = 9.0 - x[:, 0] ** 2 - x[:, 1]
    value = -8 * residual**2 - 0.5 * (x**2).sum(axis=1)
    return value, 16 * residual[:, None] * np.c_[2 * x[:, 0], np.ones(len(x))] - x


@pytest.mark.parametrize(("hyper", "said"), [("phi", "another mode of the hyper-parameters"), ("b", "given the hyper")])
def test_other_modes_of_named_hyper_parameters_and_given_them_are_flagged(hyper, said):
    with pytest.warns(ApproximationWarning, match=rf"{said}.* of the mass"):
        assert not quiet(FunctionTarget(2, squared, names=["phi", "b"]), hyper=[hyper], points=9).converged


def test_another_mode_of_the_hyper_parameters_of_a_latent_gaussian_model_is_flagged():
    modes = [-3.0, 4.0]
    model = pb.LatentGaussian(
        lambda phi: np.exp(0.1 * phi[0]) * sparse.eye_array(14),
        Poisson(COUNTS),
        mean=1.0,
        hyper_start=[3.5],
        hyper_prior=lambda phi: np.logaddexp(*stats.norm.logpdf(phi[0], modes, 0.4)),
    )
    with pytest.warns(ApproximationWarning, match="another mode of the hyper-parameters, at hyper"):
        assert not quiet(model).converged


@pytest.mark.slow
def test_a_mode_of_the_hyper_parameters_that_the_search_misses_is_told():
    with pytest.warns(ApproximationWarning, match=r"a mode with about 1\d % of the posterior, at `mu.*holds no draw"):
        q = pb.fit_inla(mixture_with_labels(), progressbar=False)
    assert not q.converged


def test_names_of_variables_stand_for_their_coordinates():
    names = ("mu", "tau_log__", "tau_extra_log__", "u[0]", "u[1]")
    assert chosen(["tau", "u"], names).tolist() == [1, 3, 4]
    assert chosen(["tau_log__", -1], names).tolist() == [1, 4]
    with pytest.raises(ModelError, match="'ta' is not a coordinate; the 5 coordinates are"):
        chosen("ta", names)


def test_at_most_six_hyper_parameters():
    target = FunctionTarget(9, lambda x: (-0.5 * (x**2).sum(1), -x))
    with pytest.raises(ModelError, match="8 hyper-parameters; at most 6"):
        quiet(target, hyper=list(range(8)))


def test_what_is_no_model_is_refused_in_one_line(fitted):
    with pytest.raises(ModelError, match=r"^precision=3: expected a matrix \(d, d\)"):
        pb.LatentGaussian(3, Poisson(COUNTS))
    with pytest.raises(ModelError, match=r"^likelihood=None: expected sites"):
        pb.LatentGaussian(sparse.eye_array(14), None)
    with pytest.raises(ModelError, match=r"^quantile\(1.5\): probabilities are from 0 to 1"):
        fitted.quantile(1.5)


@pytest.mark.filterwarnings("ignore::ppl_backends.errors.ApproximationWarning")
def test_means_of_wide_sites_are_found_though_full_steps_swing():
    precision = 1 / 36
    q = pb.fit_inla(pb.LatentGaussian(sparse.csc_matrix([[precision]]), Poisson([0])), progressbar=False)
    mode = -lambertw(1 / precision).real
    variance = 1 / (precision + np.exp(mode))
    assert np.exp(q.mean[0] + 0.5 * variance) == pytest.approx(-precision * q.mean[0], rel=1e-3)


@pytest.mark.filterwarnings("ignore::ppl_backends.errors.ApproximationWarning")
def test_a_walk_with_outliers_has_means_within_its_data_or_is_refused():
    rng, n = np.random.default_rng(1), 60
    walk = np.zeros(n)
    for t in range(1, n):
        walk[t] = 0.8 * walk[t - 1] + 0.5 * rng.standard_normal()
    y = walk + 0.3 * rng.standard_t(3, size=n)
    step = sparse.diags_array([-0.82, 1.0], offsets=[0, 1], shape=(n - 1, n))
    start = sparse.diags_array(np.eye(n)[0])
    for innovation, scale in ((0.6, 0.16), (0.54, 0.18)):
        precision = sparse.csc_matrix(step.T @ step / innovation**2 + start)
        sites = FunctionSites(lambda s, scale=scale: -2 * np.log1p((s - y) ** 2 / (3 * scale**2)), n)
        with suppress(ModelError):
            q = pb.fit_inla(pb.LatentGaussian(precision, sites), progressbar=False)
            assert np.all(np.abs(q.mean) < np.abs(y).max())


@pytest.mark.slow
def test_areas_in_pymc_are_those_of_matrices():
    """Besag, York and Mollié's model of 2 × 4 areas: pm.ICAR's sum is nearly zero, that of the matrices is zero."""
    rng, n = np.random.default_rng(4), 8
    line = [sparse.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(k, k)) for k in (4, 2)]
    neighbours = sparse.kronsum(*line).toarray()
    y = rng.poisson(np.exp(1.0 + 0.6 * rng.normal(size=n)))
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1, shape=2)
        level, own = pm.Normal("level", 0, 2), pm.Normal("own", 0, 1, shape=n)
        shared = pm.ICAR("shared", W=neighbours.astype(int))
        pm.Poisson("y", pm.math.exp(level + sd[0] * own + sd[1] * shared), observed=y)
    structure = sparse.csc_array(np.diag(neighbours.sum(axis=1)) - neighbours)
    parts = sparse.eye_array(n), structure
    matrices = pb.LatentGaussian(
        lambda phi: sparse.block_diag([[[0.25]], *(np.exp(-2 * p) * part for p, part in zip(phi, parts, strict=True))]),
        Poisson(y),
        design=sparse.hstack([np.ones((n, 1)), parts[0], parts[0]]),
        constraints=np.r_[np.zeros(n + 1), np.ones(n)],
        hyper_start=[0.0, 0.0],
        hyper_prior=lambda phi: (np.log(2) + stats.norm.logpdf(np.exp(phi)) + phi).sum(),
    )
    q, of_matrices = quiet(model), quiet(matrices)
    assert q.converged
    assert of_matrices.converged
    place = chosen(["sd_log__[0]", "sd_log__[1]", "level"], q.names)
    np.testing.assert_allclose(q.mean[place], of_matrices.mean[:3], atol=0.01)
    np.testing.assert_allclose(q.sd[place], of_matrices.sd[:3], rtol=0.01)


def test_names_of_the_hyper_parameters_that_auto_finds_are_fitted_as_auto():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        rate = pm.Normal("rate", 1, 0.5) + scale * pm.Normal("z", shape=6)
        pm.Poisson("y", pm.math.exp(rate), observed=COUNTS[:6])
    found, named = quiet(model), quiet(model, hyper=["scale"])
    assert named.converged
    np.testing.assert_array_equal(named.mean, found.mean)
    np.testing.assert_array_equal(named.hyper.points, found.hyper.points)
    assert named.log_evidence == found.log_evidence


def test_climbs_to_conditional_modes_use_few_sizes_of_batches():
    """JAX compiles a program for each size: of 100 seconds for a map of 25 areas, 40 were spent so."""
    sizes = set()

    class Recorded(FunctionTarget):
        def hessian(self, x, part="joint"):
            sizes.add(len(x))
            return -(1 + np.exp(x))[:, :, None] * np.eye(2)

        def log_density_and_gradient(self, x):
            sizes.add(len(x))
            return super().log_density_and_gradient(x)

    target = Recorded(2, lambda x: ((x - np.exp(x) - 0.5 * x**2).sum(axis=1), 1 - np.exp(x) - x))
    starts = 3 * np.random.default_rng(1).standard_normal((300, 2))
    found = conditional_modes(target, starts, np.zeros(300, dtype=int))
    np.testing.assert_allclose(found.x[:, 1], 0.0, atol=1e-3)  # 1 - e^x - x is zero there
    assert all(size & (size - 1) == 0 for size in sizes if size > 64)


def test_a_start_of_the_wrong_length_is_refused_when_hyper_parameters_are_named():
    target = FunctionTarget(3, lambda x: (-0.5 * (x**2).sum(axis=1), -x), names=["phi", "a", "b"])
    with pytest.raises(ModelError, match=r"initvals has shape \(2,\): expected .* dim=3"):
        quiet(target, hyper=["phi"], initvals=np.zeros(2))
