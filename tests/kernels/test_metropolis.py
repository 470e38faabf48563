"""Properties of kernels besides invariance: edges, overflow, lengths, evaluations, antithetic draws."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from ppl_backends.errors import ModelError
from ppl_backends.kernels.cycle import Cycle
from ppl_backends.kernels.hmc import LEAPFROG, PAIRS, Hmc, Trajectory, across_jump, kick
from ppl_backends.kernels.independent import Independent
from ppl_backends.kernels.metric import SplitMetric, cross_fitted_metric, metric_from_points, scales_from_points
from ppl_backends.kernels.protocol import KernelParameters, accept, balanced_normals, block_of
from ppl_backends.kernels.table import KERNELS, make_kernel
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.population import Population

# Kolmogorov–Smirnov level per coordinate: two coordinates, false failure about 1e-5 for a fixed seed.
LEVEL = 5e-6
SHAPE = 2.0


@dataclass(frozen=True)
class Points(Population):
    """Two independent logs of Gamma(2) variables: skewed, with exact draws."""

    @property
    def log_density(self):
        return (SHAPE * self.x - np.exp(self.x)).sum(axis=1)

    @property
    def gradient(self):
        return SHAPE - np.exp(self.x)


class Normal(Points):
    """Standard normal variables."""

    log_density = property(lambda self: -0.5 * (self.x**2).sum(axis=1))
    gradient = property(lambda self: -self.x)


def at(kind):
    """Return the density that records of a kind have."""
    return lambda x, rng: kind(x)


METRIC = Gaussian(0.0, np.array([[0.9, 0.0], [0.4, 0.7]]))


class Boxed(Normal):
    """Standard normal variables inside a box alone."""

    low, high = -0.5, 1.2
    log_density = property(
        lambda self: np.where(
            ((self.x > self.low) & (self.x < self.high)).all(axis=1), Normal(self.x).log_density, -np.inf
        )
    )


class Walled(Boxed):
    """The same with a large negative number outside, as users write constraints into a Potential."""

    log_density = property(lambda self: np.maximum(Boxed(self.x).log_density, -1e10))


def p_values_in_a_box(kernel, n=40_000, steps=3, kind=Boxed):
    """KS p-values per coordinate after a few trajectories from exact draws, and the share of points that moved."""
    rng = np.random.default_rng(3)
    exact = stats.truncnorm(Boxed.low, Boxed.high)
    start = state = kind(exact.rvs((n, 2), random_state=rng))
    for _ in range(steps):
        state, _ = kernel.step(rng, state, at(kind), KernelParameters(METRIC, 0.9))
    return [stats.kstest(state.x[:, j], exact.cdf).pvalue for j in range(2)], (state.x != start.x).any(axis=1).mean()


@pytest.mark.parametrize("kind", [Boxed, Walled])
def test_trajectories_that_turn_round_at_the_edge_leave_target_invariant(kind):
    p, moved = p_values_in_a_box(Hmc(), kind=kind)
    assert min(p) > LEVEL
    assert moved > 0.9


@pytest.mark.parametrize("kind", [Points, Normal])
def test_a_step_far_up_or_down_a_slope_crosses_no_jump(kind):
    """Energy errors of trajectories that diverge stay visible."""
    rng = np.random.default_rng(1)
    move = 10.0 ** rng.uniform(-2, 3, (5000, 1)) * rng.standard_normal((5000, 2))
    x = METRIC.sample(5000, rng)
    before, after = kind(x), kind(np.minimum(x + METRIC.colour(move), 500.0))
    assert (np.abs(after.log_density - before.log_density) > 1e4).sum() > 500
    assert not across_jump(before, after, move, METRIC).any()
    there, back = (
        across_jump(*pair, move, METRIC) for pair in ((Walled(x), Walled(x + move)), (Walled(x + move), Walled(x)))
    )
    np.testing.assert_array_equal(there, back)
    assert there.any()


class HmcThatStopsAtTheEdge(Hmc):
    """Keeps its momentum where it cannot continue: two starts then lead to one end."""

    def step(self, rng, population, density, parameters):
        start = momentum = balanced_normals(rng, population.x.shape)
        proposal = population
        for _ in range(4):
            ahead = density(proposal.x + parameters.metric.colour(0.5 * parameters.scale * momentum), rng)
            proposal = ahead.where(ahead.log_density == -np.inf, proposal)
        kinetic = 0.5 * ((start**2).sum(axis=1) - (momentum**2).sum(axis=1))
        return accept(rng, population, proposal, self.log_ratio(population, proposal) + kinetic, kinetic)


def test_trajectories_that_stop_at_the_edge_are_caught():
    assert min(p_values_in_a_box(HmcThatStopsAtTheEdge())[0]) < LEVEL


@pytest.mark.parametrize("outer", [LEAPFROG, PAIRS])
def test_kicks_read_the_same_from_either_end_and_add_up(outer):
    for n_steps in (2, 4, 10):
        kicks = np.array([*(kick(k, outer) for k in range(n_steps)), outer])
        np.testing.assert_allclose(kicks, kicks[::-1], rtol=1e-15)
        assert kicks.sum() == pytest.approx(n_steps)


def test_steps_in_pairs_have_a_smaller_energy_error():
    """In a thousand dimensions: at this step leapfrog is accepted half of the time, pairs nearly always."""
    rng, acceptance = np.random.default_rng(8), {}
    state, parameters = Normal(rng.standard_normal((200, 1000))), KernelParameters(Gaussian(0.0, np.ones(1000)), 0.45)
    for outer in (LEAPFROG, PAIRS):
        drawn = Trajectory(np.full((1, 1), 0.45), 4, outer)
        _, info = Hmc().trajectory(rng, state, at(Normal), drawn, parameters)
        acceptance[outer] = info.acceptance.mean()
    assert acceptance[LEAPFROG] < 0.7
    assert acceptance[PAIRS] > 0.8


def test_balanced_normals_add_up_to_zero_and_are_standard_normal():
    rng = np.random.default_rng(9)
    batches = np.stack([balanced_normals(rng, (5, 2)) for _ in range(20_000)])
    np.testing.assert_allclose(batches.sum(axis=1), 0.0, atol=1e-12)
    for row in range(5):
        assert stats.kstest(batches[:, row, 0], "norm").pvalue > LEVEL
    products = batches[:, 0, 0] * batches[:, 1, 0]  # sd of the mean: 0.0073
    assert products.mean() == pytest.approx(-0.25, abs=0.03)
    assert abs((batches[:, 0, 0] * batches[:, 0, 1]).mean()) < 0.03
    assert balanced_normals(rng, (1, 3)).any()


def test_blocks_of_balanced_normals_add_up_to_zero_each_and_are_independent():
    rng = np.random.default_rng(9)
    batches = np.stack([balanced_normals(rng, (7, 1), blocks=3)[:, 0] for _ in range(20_000)])
    assert block_of(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    for rows in (slice(0, 3), slice(3, 5), slice(5, 7)):
        np.testing.assert_allclose(batches[:, rows].sum(axis=1), 0.0, atol=1e-12)
    np.testing.assert_allclose(batches.std(axis=0), 1.0, atol=0.025)  # of each, 0.005
    between = batches[:, 0] * batches[:, 3]
    assert abs(between.mean()) < 0.03
    assert balanced_normals(rng, (3, 2), blocks=5).all()  # alone in a block, a row is a plain draw
    assert [part.blocks for part in Cycle().in_blocks(3).parts] == [3, 3]
    assert [part.blocks for part in Cycle().parts] == [1, 1]


@pytest.mark.parametrize("kernel", [Hmc(), Independent()])
def test_moves_of_many_points_keep_their_mean_better_than_independent_ones(kernel):
    """On a normal: 400 means of 50 points, whose variance would be 1 / 50; the sd of the ratio is 0.07."""
    rng, means = np.random.default_rng(10), []
    for _ in range(400):
        state = Normal(rng.standard_normal((50, 3)))
        for _ in range(2):
            state, _ = kernel.step(rng, state, at(Normal), KernelParameters(Gaussian(0.0, np.ones(3)), 0.8))
        means.append(state.x.mean(axis=0))
    assert 50 * np.var(means) < 0.2


def test_no_gradient_is_evaluated_for_a_trajectory_that_has_ended():
    rows = []

    def counting(x, rng):
        rows.append(len(x))
        return Points(x)

    n_steps = np.array([1, 5, 2, 2, 3])
    state = Points(np.zeros((5, 2)))
    _, info = Hmc().step(
        np.random.default_rng(0), state, counting, KernelParameters(METRIC, np.full(5, 0.1), n_steps=n_steps)
    )
    np.testing.assert_array_equal(info.evaluations, n_steps)
    assert rows == [5, 4, 2, 1, 1]


@pytest.mark.parametrize("name", list(KERNELS))
def test_per_point_scales_move_each_point_by_its_own(name):
    rng = np.random.default_rng(0)
    state = Points(np.log(rng.gamma(SHAPE, size=(4000, 2))))
    scale = np.where(np.arange(4000) < 2000, 0.01, 1.0)
    _, info = make_kernel(name).step(rng, state, at(Points), KernelParameters(METRIC, scale))
    assert info.acceptance[:2000].min() > 0.8
    assert info.squared_jump[:2000].max() < info.squared_jump[2000:].mean()


@pytest.mark.parametrize("name", list(KERNELS))
def test_non_finite_proposals_are_rejected(name):
    class Wall(Points):
        @property
        def log_density(self):
            with np.errstate(invalid="ignore"):
                return np.where(self.x[:, 0] > 0, np.nan, np.where(self.x[:, 1] > 0, -np.inf, 0.0))

    rng = np.random.default_rng(0)
    state = Wall(np.full((500, 2), -0.1))
    state, info = make_kernel(name).step(rng, state, at(Wall), KernelParameters(Gaussian(0.0, np.ones(2)), 1.0))
    assert (state.x <= 0).all()
    assert np.isfinite(info.acceptance).all()


@pytest.mark.parametrize("name", ["mala", "barker", "hmc"])
def test_gradients_whose_length_overflows_are_no_force(name):
    class Cliff(Points):
        log_density = property(lambda self: np.zeros(len(self.x)))
        gradient = property(lambda self: np.where(self.x > 0, 1e200, 0.0))

    state, info = make_kernel(name).step(
        np.random.default_rng(0), Cliff(np.zeros((50, 2))), at(Cliff), KernelParameters(Gaussian(0.0, np.ones(2)), 0.5)
    )
    assert np.isfinite(state.x).all()
    assert np.isfinite(info.acceptance).all()


def test_independent_proposals_from_the_target_itself_are_all_accepted():
    class Normal(Points):
        log_density = property(lambda self: -0.5 * (((self.x - 3.0) / 2.0) ** 2).sum(axis=1))

    rng = np.random.default_rng(0)
    state = Normal(3.0 + 2.0 * rng.standard_normal((500, 2)))
    for metric in (Gaussian(np.full(2, 3.0), np.full(2, 2.0)), Gaussian(3.0, 2.0 * np.eye(2))):
        _, info = Independent().step(rng, state, at(Normal), KernelParameters(SplitMetric(metric, metric), 5.0))
        np.testing.assert_allclose(info.acceptance, 1.0, atol=1e-9)
        assert info.squared_jump.mean() == pytest.approx(4.0, rel=0.3)  # independent points are 2 d apart


def test_unknown_kernel_names_the_choices():
    with pytest.raises(ModelError, match="'mala'"):
        make_kernel("nuts")


def test_metric_estimates_a_covariance_and_withstands_cauchy_tails():
    rng = np.random.default_rng(3)
    factor = np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 10.0]])
    x = rng.standard_normal((20_000, 3)) @ factor.T
    estimated = metric_from_points(x).factor
    # Quantile scales and cut correlations of 20,000 Gaussian points are good to about two per cent.
    size = np.sqrt(np.diag(factor @ factor.T))
    error = (estimated @ estimated.T - factor @ factor.T) / np.outer(size, size)
    assert np.abs(error).max() < 0.06
    x[:, 2] = 10 * rng.standard_cauchy(20_000)
    scale = np.sqrt((metric_from_points(x).factor ** 2).sum(axis=1))
    assert 10 < scale[2] < 25  # the quantile scale of a Cauchy is 1.84 times its own


def test_a_diagonal_metric_has_the_scales_and_no_correlations():
    """The half distance of these quantiles of n normal draws scatters by about 0.9 σ / √n."""
    rng, n = np.random.default_rng(0), 20_000
    sd, correlation = np.array([0.1, 1.0, 5.0]), 0.9
    x = (
        rng.standard_normal((n, 1)) * np.sqrt(correlation) + rng.standard_normal((n, 3)) * np.sqrt(1 - correlation)
    ) * sd
    metric = scales_from_points(x, None)
    assert metric.factor.shape == (3,)
    np.testing.assert_allclose(metric.factor, sd, rtol=5 / np.sqrt(n))
    halves = cross_fitted_metric(x, kind="diagonal")
    assert halves.first.factor.shape == halves.second.factor.shape == (3,)


def test_a_reference_leaves_a_metric_little_to_estimate():
    """With two hundred points of a hundred correlated coordinates, only the reference whitens the target."""
    dim, rng = 100, np.random.default_rng(6)
    factor = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(np.arange(dim), np.arange(dim))))
    x = 3.0 + rng.standard_normal((200, dim)) @ (1.2 * factor).T
    reference = Gaussian(np.full(dim, 3.0), factor)

    def condition(metric):
        return np.linalg.cond(np.linalg.solve(metric.factor, 1.2 * factor))

    informed = metric_from_points(x, reference)
    assert condition(informed) < 2.0 < condition(metric_from_points(x))
    assert np.abs(informed.mean - 3.0).max() < 5 * 1.5 / 200**0.5  # medians


def test_a_metric_of_points_that_share_a_value_or_overflow_is_no_ridge():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2000, 3))
    x[:1600, 1] = 0.0  # four of five points: quantiles show no width
    assert metric_from_points(x).sd[1] > 0.1
    x = rng.standard_normal((2000, 3))
    for far in (np.inf, 1e200):
        x[0, 2] = far
        np.testing.assert_allclose(metric_from_points(x).sd, 1.0, atol=0.1)


def test_a_metric_is_as_narrow_as_a_ridge():
    """The last coordinate is the sum of the others, but for 10⁻⁴; shrunken correlations are two decades wider."""
    rng = np.random.default_rng(7)
    for dim in (3, 10):
        factor = np.eye(dim)
        factor[-1] = [*np.ones(dim - 1), 1e-4]
        for n in (200, 2000):
            metric = metric_from_points(3.0 + rng.standard_normal((n, dim)) @ factor.T)
            assert np.linalg.cond(np.linalg.solve(metric.factor, factor)) < 4.0
    few = metric_from_points(np.repeat(rng.standard_normal((5, 3)) @ factor[-3:, -3:].T, 100, axis=0))
    assert np.linalg.svd(few.factor)[1][-1] > 0.01  # five points do not determine a ridge


def test_metric_is_positive_definite_with_fewer_points_than_coordinates():
    rng = np.random.default_rng(4)
    metric = metric_from_points(rng.standard_normal((20, 50)))
    factor = metric.factor if metric.factor.ndim == 2 else np.diag(metric.factor)
    assert np.linalg.eigvalsh(factor @ factor.T).min() > 0


def test_cross_fitted_halves_do_not_see_their_own_points():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((100, 3))
    before = cross_fitted_metric(x)
    x[:50] *= 10
    after = cross_fitted_metric(x)
    np.testing.assert_array_equal(before.first.factor, after.first.factor)
    z = rng.standard_normal((100, 3))
    np.testing.assert_array_equal(before.colour(z)[:50], after.colour(z)[:50])
    assert not np.allclose(before.colour(z)[50:], after.colour(z)[50:])


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_gaps_between_modes_do_not_widen_a_local_metric(kind):
    """Of two modes 20 sds apart, half the distance of the quantiles of all points is 10."""
    rng, n = np.random.default_rng(12), 4_000
    x = rng.standard_normal((n, 2)) + 20.0 * (rng.random(n) < 0.4)[:, None]
    metric = cross_fitted_metric(x, kind=kind, local=True)
    for half in (metric.first, metric.second):
        factor = half.factor if half.factor.ndim == 2 else np.diag(half.factor)
        np.testing.assert_allclose(factor @ factor.T, np.eye(2), atol=10 * 0.9 / np.sqrt(n / 2))


@pytest.mark.parametrize("length", [0.5, 1.0, 3.0])
def test_trajectories_have_the_length_asked_for(length):
    """On average over 20,000 of them, whatever the step: the sd of a mean is below 0.004 lengths."""
    rng, scale = np.random.default_rng(11), np.full(20_000, min(0.7, length))
    h, n_steps, _ = Hmc(length, balanced=False).draw(rng, scale, len(scale))
    assert (h[:, 0] * n_steps).mean() == pytest.approx(length, rel=0.02)
