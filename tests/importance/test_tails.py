"""Mixtures with Student t's: densities, draws and gradients agree, and the pilot takes them where tails ask for it."""

import numpy as np
import pytest
from scipy.stats import cauchy, kstest, logistic, multivariate_normal, multivariate_t, norm, t

from ppl_backends.approximations import GaussianApproximation, MixtureApproximation
from ppl_backends.importance.proposals import IndependentT, StudentT
from ppl_backends.importance.tails import heavy_axes, student_mixture, with_tails
from ppl_backends.targets import FunctionTarget

MEAN, COV = np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 0.5]])
Q = GaussianApproximation(MEAN, COV)
ROOT = np.linalg.cholesky(COV)
SHARES = np.array([5, 3, 8, 4, 12]) / 32


def mixture(shares=SHARES):
    found = student_mixture(Q)
    return type(found)(Q, found.students, shares)


LOW_RANK = GaussianApproximation(MEAN, cholesky=[1.0, 0.5], directions=np.array([[2.0], [-1.5]]))


def test_density():
    x = np.random.default_rng(0).normal(size=(200, 2)) * 5
    z = np.linalg.solve(ROOT, (x - MEAN).T).T
    parts = []
    for df in (1, 4):
        parts += [multivariate_t(MEAN, COV, df).pdf(x), t(df).pdf(z).prod(axis=1) / np.prod(np.diag(ROOT))]
    expected = SHARES @ np.array([*parts, multivariate_normal(MEAN, COV).pdf(x)])
    np.testing.assert_allclose(np.exp(mixture().log_density(x)), expected, rtol=1e-9)


TURN = np.array([[0.6, -0.8], [0.8, 0.6]])


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_density_of_scaled_tails(scale):
    x = np.random.default_rng(0).normal(size=(200, 2)) * 5
    part = StudentT(Q, 4.0, scale)
    np.testing.assert_allclose(part.log_density(x), multivariate_t(MEAN, scale**2 * COV, 4).logpdf(x))
    z = np.linalg.solve(ROOT, (part.from_uniform(np.random.default_rng(1).random((20_000, 3))) - MEAN).T) / scale
    assert min(kstest(row, t(4).cdf).pvalue for row in z) > 1e-5


def test_density_along_turned_axes():
    t_part = IndependentT(Q, 4.0, TURN, 2.0)
    x = np.random.default_rng(0).normal(size=(200, 2)) * 5
    z = np.linalg.solve(ROOT, (x - MEAN).T).T @ TURN
    np.testing.assert_allclose(
        np.exp(t_part.log_density(x)), t(4, scale=2).pdf(z).prod(axis=1) / np.prod(np.diag(ROOT)), rtol=1e-9
    )
    drawn = t_part.from_uniform(np.random.default_rng(1).random((20_000, 2)))
    back = np.linalg.solve(ROOT, (drawn - MEAN).T).T @ TURN
    assert min(kstest(column, t(4, scale=2).cdf).pvalue for column in back.T) > 1e-5


@pytest.mark.parametrize(("base", "axes"), [(Q, None), (Q, TURN), (LOW_RANK, None)])
def test_gradient(base, axes):
    x, step, q = np.random.default_rng(1).normal(size=(20, 2)) * 4, 1e-5, student_mixture(base, axes)
    q = q.with_parts(
        [student.with_scale(s) for student, s in zip(q.students, (0.5, 1.0, 2.0, 3.0), strict=True)], q.shares
    )
    parts = [*(student.log_density(x) for student in q.students), base.log_density(x)]
    np.testing.assert_allclose(q.component_log_densities(x), parts, atol=1e-9)
    value, slope = q.log_density_and_gradient(x)
    np.testing.assert_allclose(value, q.log_density(x))
    for j, unit in enumerate(np.eye(2) * step):
        differenced = (q.log_density(x + unit) - q.log_density(x - unit)) / (2 * step)
        np.testing.assert_allclose(slope[:, j], differenced, atol=1e-7)


def test_draws_follow_the_density():
    """The first coordinate has the same marginal under both kinds of t, since L is triangular."""
    x = mixture().sample(40_000, np.random.default_rng(2))
    z = (x[:, 0] - MEAN[0]) / COV[0, 0] ** 0.5
    one, four, own = SHARES[0] + SHARES[1], SHARES[2] + SHARES[3], SHARES[4]
    assert kstest(z, lambda v: one * t(1).cdf(v) + four * t(4).cdf(v) + own * norm.cdf(v)).pvalue > 1e-5


def known(dim, density, slope):
    return FunctionTarget(dim, lambda x: (density(x).sum(axis=1), slope(x)))


CAUCHY = (lambda x: -np.log1p(x**2), lambda x: -2 * x / (1 + x**2))
LOGISTIC = (lambda x: -x - 2 * np.logaddexp(0, -x), lambda x: -np.tanh(x / 2))
NORMAL = (lambda x: -0.5 * x**2, lambda x: -x)


def divergence(draws, target_density, found):
    """Kullback–Leibler divergence of a mixture from a target, and its standard error, from the target's own draws."""
    terms = target_density(draws) - found.log_density(draws)
    return terms.mean(), terms.std() / len(terms) ** 0.5


@pytest.mark.parametrize("dim", [1, 10])
def test_the_pilot_comes_near_to_a_cauchy_and_a_logistic(dim):
    rng = np.random.default_rng(3)
    for family, shape, variance in ((cauchy, CAUCHY, 0.5), (logistic, LOGISTIC, 2.0)):
        found = with_tails(known(dim, *shape), GaussianApproximation(np.zeros(dim), np.full(dim, variance)))
        draws = family.rvs(size=(40_000, dim), random_state=rng)
        value, error = divergence(draws, lambda x: family.logpdf(x).sum(axis=1), found)  # noqa: B023
        assert value < 0.02 * dim + 3 * error
        assert found.shares.min() >= 1 / 32
        np.testing.assert_array_equal(found.shares * 32 % 1, 0.0)


@pytest.mark.parametrize("dim", [1, 3, 10, 50])
@pytest.mark.parametrize("df", [1.0, 4.0])
def test_the_pilot_finds_the_scale_of_a_multivariate_t(dim, df):
    """Its Laplace approximation is (1 + dim/df)^½ times too narrow."""
    exact = multivariate_t(np.zeros(dim), np.eye(dim), df)

    def evaluate(x):
        square = (x**2).sum(axis=1)
        return -0.5 * (df + dim) * np.log1p(square / df), -(df + dim) * x / (df + square)[:, None]

    laplace = GaussianApproximation(np.zeros(dim), np.eye(dim) * df / (df + dim))
    found = with_tails(FunctionTarget(dim, evaluate), laplace)
    draws = exact.rvs(size=20_000, random_state=np.random.default_rng(4)).reshape(-1, dim)
    value, error = divergence(draws, exact.logpdf, found)
    assert value < 0.3 + 3 * error  # shares of 1/32 alone cost 0.03 to 0.17


def rotated_cauchys(dim):
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(dim, dim)))[0]
    return turn, FunctionTarget(dim, lambda x: (CAUCHY[0](x @ turn).sum(axis=1), CAUCHY[1](x @ turn) @ turn.T))


@pytest.mark.parametrize("dim", [2, 10, 30])
def test_the_axes_of_rotated_cauchys_are_found(dim):
    turn, target = rotated_cauchys(dim)
    q = GaussianApproximation(np.zeros(dim), np.full(dim, 0.5))
    found = np.abs(turn.T @ heavy_axes(target, q, np.random.default_rng(0)))
    np.testing.assert_allclose(found.max(axis=0), 1.0, atol=0.01)
    assert sorted(found.argmax(axis=0)) == list(range(dim))
    tailed = with_tails(target, q)
    assert tailed.students[1].axes is not None
    assert tailed.shares[1] > 0.5


def test_a_heavy_tail_beside_slopes_whose_squares_overflow_is_found():
    """Rates exp(48 x) have slopes of 10^154 to 10^308 at most points far out, where climbs stood still."""

    def evaluate(x):
        rates = np.exp(48 * x[:, 1:])
        value = cauchy.logpdf(x[:, 0]) - rates.sum(axis=1) + norm.logpdf(x[:, 1:]).sum(axis=1)
        return value, np.c_[-2 * x[:, 0] / (1 + x[:, 0] ** 2), -48 * rates - x[:, 1:]]

    q = GaussianApproximation(np.zeros(10), np.ones(10))
    found = np.abs(heavy_axes(FunctionTarget(10, evaluate), q, np.random.default_rng(0)))
    np.testing.assert_allclose(found[0, 0], 1.0, atol=0.01)


@pytest.mark.parametrize("dim", [1, 10, 50])
def test_the_pilot_takes_none_for_a_gaussian(dim):
    assert with_tails(known(dim, *NORMAL), GaussianApproximation(np.full(dim, 0.1), np.full(dim, 1.1))) is None


def test_no_tails_where_the_approximation_covers_two_modes():
    q = MixtureApproximation([0.5, 0.5], [[-4.0], [4.0]], [[[1.0]], [[1.0]]])
    assert with_tails(FunctionTarget(1, q.log_density_and_gradient), q) is None
