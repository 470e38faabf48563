"""Laplace on targets with known modes and evidences, and on targets without a mode."""

import numpy as np
import pytest
from scipy.special import gammaln

from ppl_backends.approximations import fit_laplace
from ppl_backends.approximations.laplace import gaussian_at_mode
from ppl_backends.approximations.modes import with_other_modes
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.targets import FunctionTarget


def gaussian_target(dim=4, seed=0, log_scale=-7.25):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dim, dim)) * np.geomspace(1e-2, 1e2, dim)[:, None]
    cov = root @ root.T
    precision, mean = np.linalg.inv(cov), rng.normal(size=dim) * 10

    def log_density(x):
        pull = -(x - mean) @ precision
        return log_scale + 0.5 * (pull * (x - mean)).sum(1), pull

    evidence = log_scale + 0.5 * dim * np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(cov)[1]
    return FunctionTarget(dim, log_density), mean, cov, evidence


def log_gamma_target(shape=7.0, rate=2.0):
    """Return the log of a Gamma variable: skewed, normalised."""

    def log_density(x):
        value = shape * x - rate * np.exp(x) + shape * np.log(rate) - gammaln(shape)
        return value.sum(1), shape - rate * np.exp(x)

    return FunctionTarget(1, log_density)


def quiet(target, **options):
    return fit_laplace(target, progressbar=False, **options)


def test_gaussian_is_exact():
    target, mean, cov, evidence = gaussian_target()
    q = quiet(target)
    sd = np.sqrt(np.diag(cov))
    assert q.converged
    np.testing.assert_allclose((q.mean - mean) / sd, 0, atol=1e-8)
    np.testing.assert_allclose(q.cov / np.outer(sd, sd), cov / np.outer(sd, sd), atol=1e-8)
    assert q.log_evidence == pytest.approx(evidence, abs=1e-8)
    assert q.names == target.names


def test_skewed_target_matches_stirling():
    # mode log(a/b), curvature a, so the evidence is Stirling's formula over the gamma function
    shape, rate = 7.0, 2.0
    q = quiet(log_gamma_target(shape, rate))
    assert q.mean[0] == pytest.approx(np.log(shape / rate), abs=1e-8)
    assert q.sd[0] == pytest.approx(shape**-0.5, rel=1e-8)
    stirling = shape * np.log(shape) - shape + 0.5 * np.log(2 * np.pi / shape)
    assert q.log_evidence == pytest.approx(stirling - gammaln(shape), abs=1e-8)


@pytest.mark.parametrize("start", [[30.0], [-30.0]])
def test_bad_starts_are_recovered_from(start):
    assert quiet(log_gamma_target(), initvals=start).mean[0] == pytest.approx(np.log(3.5), abs=1e-6)


def test_climbs_out_of_a_region_of_positive_curvature():
    # a Student t in each coordinate: the log density is convex beyond one scale from the mode
    def student(x):
        return -2 * np.log1p(x**2).sum(1), -4 * x / (1 + x**2)

    with pytest.warns(ApproximationWarning, match="the standard deviation of"):
        q = quiet(FunctionTarget(3, student), initvals=[50.0, -20.0, 3.0])
    np.testing.assert_allclose(q.mean, 0, atol=1e-6)
    np.testing.assert_allclose(q.cov, np.eye(3) / 4, atol=1e-8)


def test_dispersed_starts_rescue_a_start_without_density():
    def half_line(x):  # exponential with its mode's neighbourhood away from the origin
        return np.where(x[:, 0] > 0.1, 75 * np.log(np.abs(x[:, 0])) - 100 * x[:, 0], -np.inf), 75 / x - 100

    assert quiet(FunctionTarget(1, half_line), random_seed=1).mean[0] == pytest.approx(0.75, abs=1e-6)


def logistic(signed, prior_sd=np.inf):
    """Return logistic regression of rows ``signed`` = y x."""

    def log_density(x):
        s = x @ signed.T
        value = -np.logaddexp(0, -s).sum(1) - 0.5 * (x**2).sum(1) / prior_sd**2
        return value, (1 / (1 + np.exp(s))) @ signed - x / prior_sd**2

    return FunctionTarget(signed.shape[1], log_density, names=["intercept", "slope"])


SEPARATED = np.array([[1.0, 2.0], [1.0, 0.5], [-1.0, 0.5], [-1.0, 3.0]])


def test_separated_data_are_reported():
    with pytest.warns(ApproximationWarning, match="the posterior is improper: its density does not fall along"):
        q = quiet(logistic(SEPARATED), random_seed=0)
    assert not q.converged
    assert np.isnan(q.log_evidence)
    assert np.all(np.linalg.eigvalsh(q.cov) > 0)
    assert np.all(q.sd < 1e3)


def test_a_proper_prior_gives_separated_data_a_mode():
    with pytest.warns(
        ApproximationWarning, match="the posterior mean of slope is more than a standard deviation from the Gaussian's"
    ):
        q = quiet(logistic(SEPARATED, prior_sd=5.0))
    assert np.isfinite(q.log_evidence)
    assert q.diagnostics["smallest_drop"] > 0.05


def test_a_flat_direction_is_reported():
    def ridge(x):  # depends on the sum alone
        total = x.sum(1)
        return -0.5 * total**2, -np.repeat(total[:, None], 2, axis=1)

    with pytest.warns(ApproximationWarning, match=r"improper: .* does not fall along x\[\d\].* give x a proper prior$"):
        q = quiet(FunctionTarget(2, ridge))
    assert not q.converged
    assert np.all(q.sd < 11)


def test_a_density_without_a_mode_is_reported():
    def funnel(x):  # centred funnel: unbounded as the scale goes to zero
        log_sd, z = x[:, 0], x[:, 1:]
        scaled = z * np.exp(-2 * log_sd)[:, None]
        value = -0.5 * (log_sd / 3) ** 2 - 5 * log_sd - 0.5 * (scaled * z).sum(1)
        return value, np.column_stack([-log_sd / 9 - 5 + (scaled * z).sum(1), -scaled])

    def saddle(x):
        return 0.5 * x[:, 0] ** 2 - 0.5 * x[:, 1] ** 2, x * np.array([1.0, -1.0])

    # The funnel does have a mode, far in its neck, where the log density along every axis is a Gaussian's; the saddle has
    # none, and no integral.
    with pytest.warns(ApproximationWarning, match="there is a mode, but the Gaussian there is not the posterior"):
        q = quiet(FunctionTarget(6, funnel))
    assert q.mean[0] == pytest.approx(-45, abs=1e-4)
    assert q.diagnostics["largest_drop"] == pytest.approx(0.5, abs=1e-3)
    assert not q.converged
    with pytest.warns(ApproximationWarning, match=r"improper: its density does not fall along x\[0\]"):
        q = quiet(FunctionTarget(2, saddle), max_iterations=20)
    assert not q.converged
    assert np.isnan(q.log_evidence)


def test_too_few_iterations_are_reported_with_the_decrement():
    with pytest.warns(ApproximationWarning, match="Newton decrement"):
        assert not quiet(log_gamma_target(), initvals=[3.0], max_iterations=1, random_seed=2).converged


def test_several_hundred_dimensions_dense_and_diagonal():
    dim = 350
    scale = np.geomspace(0.1, 10, dim)

    def independent(x):
        value = (30 * x / scale - np.exp(x / scale)).sum(1)
        return value, (30 - np.exp(x / scale)) / scale

    target = FunctionTarget(dim, independent)
    dense = quiet(target)
    diagonal = quiet(target, representation="diagonal")
    assert dense.converged
    assert diagonal.converged
    np.testing.assert_allclose(dense.mean, scale * np.log(30), rtol=1e-6)
    np.testing.assert_allclose(dense.sd, scale / 30**0.5, rtol=1e-6)
    np.testing.assert_allclose(diagonal.mean / scale, np.log(30), atol=1e-5)
    np.testing.assert_allclose(diagonal.sd, scale / 30**0.5, rtol=1e-4)
    assert np.isnan(diagonal.log_evidence)


def test_the_number_of_calls_is_small():
    target, *_ = gaussian_target()
    calls = []
    inner = target.evaluate
    target.evaluate = lambda x, gradient=False: calls.append(len(x)) or inner(x, gradient)
    gaussian_at_mode(target)
    assert len(calls) < 12


def test_no_other_mode_is_made_up():
    for target in (gaussian_target()[0], log_gamma_target()):
        found = quiet(target)
        assert with_other_modes(target, found) is found


def two_modes(share):
    """Return a share of N(6, 1), the rest of N(-6, 1)."""

    def log_density(x):
        logs = np.log([share, 1 - share]) - 0.5 * np.stack([(x[:, 0] - 6) ** 2, (x[:, 0] + 6) ** 2], axis=1)
        value = np.logaddexp(*logs.T)
        belongs = np.exp(logs - value[:, None])
        return value, (belongs @ [6.0, -6.0])[:, None] - x

    return FunctionTarget(1, log_density)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_gaussian_at_one_mode_of_two_has_not_converged(share):
    with pytest.warns(ApproximationWarning, match=f"another mode, where a Gaussian has {1 - share:.0%} of the mass"):
        q = fit_laplace(two_modes(share), initvals=[5.0], progressbar=False)
    assert not q.converged
    assert q.diagnostics["other_mode_share"] == pytest.approx(1 - share, abs=1e-4)


def test_a_mode_where_no_draw_of_the_prior_is_inside_the_support():
    def log_likelihood(x):
        return np.where(x[:, 0] > 5.5, -200 * (x[:, 0] - 6.5) ** 2, -np.inf), -400 * (x - 6.5)

    def log_prior(x):
        return -0.5 * (x**2).sum(axis=1), -x

    target = FunctionTarget(1, log_likelihood, log_prior, lambda n, rng: rng.standard_normal((n, 1)))
    q = quiet(target, initvals=[6.4])
    assert q.converged
    assert q.mean == pytest.approx([2600 / 401])
    assert with_other_modes(target, q) is q


def test_a_negligible_mode_is_not_held_against_a_gaussian():
    assert quiet(two_modes(0.999), initvals=[5.0]).converged


def test_other_modes_are_found_from_dispersed_points_and_weighted_by_their_evidences():
    target = two_modes(0.2)
    mixture = with_other_modes(target, gaussian_at_mode(target, start=[5.0]))
    order = np.argsort(mixture.means[:, 0])
    np.testing.assert_allclose(mixture.means[order, 0], [-6.0, 6.0], atol=1e-6)
    np.testing.assert_allclose(mixture.weights[order], [0.8, 0.2], atol=1e-6)
    assert mixture.log_evidence == pytest.approx(0.5 * np.log(2 * np.pi), abs=1e-6)


@pytest.mark.parametrize("df", [1, np.inf])
def test_a_mixture_at_all_modes_is_judged_by_its_points(df):
    """Three coordinates of Cauchy tails around each mode have 2.4 times the mass of the Gaussians there."""

    def one(x, centre):
        square = (x - centre) ** 2
        if np.isinf(df):
            return -0.5 * square.sum(axis=1), centre - x
        return -np.log1p(square).sum(axis=1), -2 * (x - centre) / (1 + square)

    def log_density(x):
        (a, by_a), (b, by_b) = one(x, 8.0), one(x, -8.0)
        value = np.logaddexp(a, b)
        return value, np.exp(a - value)[:, None] * by_a + np.exp(b - value)[:, None] * by_b

    target = FunctionTarget(3, log_density)
    mixture = with_other_modes(target, gaussian_at_mode(target, start=[7.5] * 3))
    assert mixture.n_components == 2
    assert mixture.converged == bool(np.isinf(df))
    if not mixture.converged:
        assert "the mixture at its 2 modes is not the posterior: by 256 of its points" in mixture.trouble
    else:
        assert mixture.diagnostics["distance"] == pytest.approx(0.0, abs=1e-6)


def test_bad_input():
    nowhere = FunctionTarget(2, lambda x: (np.full(len(x), np.nan), np.zeros_like(x)))
    with pytest.raises(ModelError, match="no starting point has a positive density; check the data"):
        quiet(nowhere)
    with pytest.raises(ModelError, match="representation='sparse'"):
        quiet(log_gamma_target(), representation="sparse")
    with pytest.raises(ModelError, match="max_iterations=0"):
        quiet(log_gamma_target(), max_iterations=0)
    with pytest.raises(ModelError, match="expected \\(n_points, 1\\)"):
        quiet(log_gamma_target(), initvals=[1.0, 2.0])


def test_initvals_that_are_no_numbers_are_refused():
    target = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    with pytest.raises(ModelError, match=r"^initvals: x\[1\] is nan on the unconstrained scale: give a number inside"):
        fit_laplace(target, initvals={"x": [0.0, np.nan]}, progressbar=False)
