"""Every exact kernel leaves its target invariant, and a broken twin of each is caught."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from ppl_backends.errors import ModelError
from ppl_backends.kernels.metric import Metric, SplitMetric, cross_fitted_metric, metric_from_points
from ppl_backends.kernels.metropolis import (
    KERNELS,
    Hmc,
    Independent,
    KernelInfo,
    Mala,
    RandomWalk,
    balanced_normals,
    leapfrog,
    make_kernel,
    trajectory,
    two_stage,
)

# Kolmogorov–Smirnov level per coordinate: two coordinates, false failure about 1e-5 for a fixed seed.
LEVEL = 5e-6
SHAPE = 2.0


@dataclass(frozen=True)
class Points:
    """Two independent logs of Gamma(2) variables: skewed, with exact draws."""

    x: np.ndarray

    @property
    def log_density(self):
        return (SHAPE * self.x - np.exp(self.x)).sum(axis=1)

    @property
    def gradient(self):
        return SHAPE - np.exp(self.x)

    def where(self, accepted, proposal):
        return type(self)(np.where(accepted[:, None], proposal.x, self.x))

    def take(self, index):
        return type(self)(self.x[index])

    def scatter(self, index, rows):
        x = self.x.copy()
        x[index] = rows.x
        return type(self)(x)


class Normal(Points):
    """Standard normal variables."""

    log_density = property(lambda self: -0.5 * (self.x**2).sum(axis=1))
    gradient = property(lambda self: -self.x)


METRIC = Metric(np.array([[0.9, 0.0], [0.4, 0.7]]))


def p_values(kernel, scale, n=40_000, steps=3, seed=1):
    """KS p-values per coordinate after a few steps from exact draws."""
    rng = np.random.default_rng(seed)
    state = Points(np.log(rng.gamma(SHAPE, size=(n, 2))))
    for _ in range(steps):
        state, _ = kernel.step(rng, state, Points, scale, METRIC)
    return [stats.kstest(np.exp(state.x[:, j]), "gamma", args=(SHAPE,)).pvalue for j in range(2)]


@pytest.mark.parametrize("name", list(KERNELS))
@pytest.mark.parametrize("scale", [0.6, 1.4])
def test_kernel_leaves_target_invariant(name, scale):
    assert min(p_values(make_kernel(name), scale)) > LEVEL


def each_its_own(kernel, n=40_000, split=False):
    """KS p-values after three steps in which every point has its own step and length."""
    rng = np.random.default_rng(2)
    state = Points(np.log(rng.gamma(SHAPE, size=(n, 2))))
    metric = SplitMetric(METRIC, Metric(np.ones(2))) if split else METRIC
    scale, n_steps = rng.uniform(0.1, 1.2, n), rng.integers(1, 8, n)
    for _ in range(3):
        state, info = kernel.step_each(rng, state, Points, scale, n_steps, metric)
    assert info.gradients == pytest.approx(n_steps.mean())
    return [stats.kstest(np.exp(state.x[:, j]), "gamma", args=(SHAPE,)).pvalue for j in range(2)]


@pytest.mark.parametrize("split", [False, True])
def test_trajectories_of_every_length_leave_target_invariant(split):
    assert min(each_its_own(Hmc(), split=split)) > LEVEL


class HmcWithoutLastHalfKick(Hmc):
    """Ends its trajectories with a whole kick, so that they are not reversible."""

    def step_each(self, rng, state, evaluate, scale, n_steps, metric):
        h, start = scale[:, None], rng.standard_normal(state.x.shape)
        momentum, x = start + 0.5 * h * metric.whiten_gradient(state.gradient), state
        for _ in range(3):
            x = evaluate(x.x + metric.colour(h * momentum))
            momentum = momentum + h * metric.whiten_gradient(x.gradient)
        kinetic = 0.5 * ((start**2).sum(axis=1) - (momentum**2).sum(axis=1))
        accepted = np.log(rng.random(len(h))) < x.log_density - state.log_density + kinetic
        return state.where(accepted, x), KernelInfo(np.ones(len(h)), np.ones(len(h)), n_steps.mean())


def test_broken_trajectories_are_caught():
    assert min(each_its_own(HmcWithoutLastHalfKick())) < LEVEL


class Boxed(Normal):
    """Standard normal variables inside a box alone."""

    low, high = -0.5, 1.2
    log_density = property(
        lambda self: np.where(
            ((self.x > self.low) & (self.x < self.high)).all(axis=1), Normal(self.x).log_density, -np.inf
        )
    )


def p_values_in_a_box(kernel, n=40_000, steps=3):
    """KS p-values per coordinate after a few trajectories from exact draws, and the share of points that moved."""
    rng = np.random.default_rng(3)
    exact = stats.truncnorm(Boxed.low, Boxed.high)
    start = state = Boxed(exact.rvs((n, 2), random_state=rng))
    for _ in range(steps):
        state, _ = kernel.step(rng, state, Boxed, 0.9, METRIC)
    return [stats.kstest(state.x[:, j], exact.cdf).pvalue for j in range(2)], (state.x != start.x).any(axis=1).mean()


def test_trajectories_that_turn_round_at_the_edge_leave_target_invariant():
    p, moved = p_values_in_a_box(Hmc())
    assert min(p) > LEVEL
    assert moved > 0.9


class HmcThatStopsAtTheEdge(Hmc):
    """Keeps its momentum where it cannot go on: two starts then lead to one end."""

    def step(self, rng, state, evaluate, scale, metric):
        start = momentum = balanced_normals(rng, state.x.shape)
        proposal = state
        for _ in range(4):
            ahead = evaluate(proposal.x + metric.colour(0.5 * scale * momentum))
            proposal = ahead.where(ahead.log_density == -np.inf, proposal)
        kinetic = 0.5 * ((start**2).sum(axis=1) - (momentum**2).sum(axis=1))
        accepted = np.log(rng.random(len(start))) < proposal.log_density - state.log_density + kinetic
        return state.where(accepted, proposal), KernelInfo(np.ones(len(start)), np.ones(len(start)), 4)


def test_trajectories_that_stop_at_the_edge_are_caught():
    assert min(p_values_in_a_box(HmcThatStopsAtTheEdge())[0]) < LEVEL


@pytest.mark.parametrize("scheme", [leapfrog, two_stage])
def test_kicks_read_the_same_from_either_end_and_add_up(scheme):
    for n_steps in (2, 4, 10):
        kicks = scheme(n_steps)
        np.testing.assert_allclose(kicks, kicks[::-1], rtol=1e-15)
        assert kicks.sum() == pytest.approx(n_steps)


def test_steps_in_pairs_have_a_smaller_energy_error():
    """In a thousand dimensions: at this step leapfrog is accepted half of the time, pairs nearly always."""
    rng, acceptance = np.random.default_rng(8), {}
    state = Normal(rng.standard_normal((200, 1000)))
    for scheme in (leapfrog, two_stage):
        _, info = trajectory(rng, state, Normal, 0.45, scheme(4), Metric(np.ones(1000)), lambda slope: slope)
        acceptance[scheme] = info.acceptance.mean()
    assert acceptance[leapfrog] < 0.7
    assert acceptance[two_stage] > 0.8


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


@pytest.mark.parametrize("kernel", [Hmc(), Independent()])
def test_moves_of_many_points_keep_their_mean_better_than_independent_ones(kernel):
    """On a normal: 400 means of 50 points, whose variance would be 1 / 50; the sd of the ratio is 0.07."""
    rng, means = np.random.default_rng(10), []
    for _ in range(400):
        state = Normal(rng.standard_normal((50, 3)))
        for _ in range(2):
            state, _ = kernel.step(rng, state, Normal, 0.8, Metric(np.ones(3)))
        means.append(state.x.mean(axis=0))
    assert 50 * np.var(means) < 0.2


def test_no_gradient_is_evaluated_for_a_trajectory_that_has_ended():
    rows = []

    def counting(x):
        rows.append(len(x))
        return Points(x)

    n_steps = np.array([1, 5, 2, 2, 3])
    state = Points(np.zeros((5, 2)))
    Hmc().step_each(np.random.default_rng(0), state, counting, np.full(5, 0.1), n_steps, METRIC)
    assert rows == [5, 4, 2, 1, 1]


class MalaWithoutReverseDensity(Mala):
    """Forgets the proposal densities in the ratio."""

    def step(self, rng, state, evaluate, scale, metric):
        z = rng.standard_normal(state.x.shape)
        jump = 0.5 * scale**2 * metric.whiten_gradient(state.gradient) + scale * z
        proposal = evaluate(state.x + metric.colour(jump))
        accepted = np.log(rng.random(len(z))) < proposal.log_density - state.log_density
        return state.where(accepted, proposal), None


class RandomWalkWithDrift(RandomWalk):
    """An asymmetric proposal accepted as if it were symmetric."""

    def step(self, rng, state, evaluate, scale, metric):
        z = rng.standard_normal(state.x.shape) + 0.2
        proposal = evaluate(state.x + metric.colour(scale * z))
        accepted = np.log(rng.random(len(z))) < proposal.log_density - state.log_density
        return state.where(accepted, proposal), None


class HmcAcceptingEverything(Hmc):
    """Leapfrog without its correction."""

    def step(self, rng, state, evaluate, scale, metric):
        start = rng.standard_normal(state.x.shape)
        momentum = start + 0.5 * scale * metric.whiten_gradient(state.gradient)
        return evaluate(state.x + metric.colour(scale * momentum)), None


class IndependentWithoutReference(Independent):
    """Forgets the density that its proposals come from."""

    def step(self, rng, state, evaluate, scale, metric):
        h = min(scale, 1.0)
        y = metric.whiten(state.x)
        proposal = evaluate(metric.place(np.sqrt(1 - h**2) * y + h * rng.standard_normal(y.shape)))
        accepted = np.log(rng.random(len(y))) < proposal.log_density - state.log_density
        return state.where(accepted, proposal), None


BROKEN = [MalaWithoutReverseDensity(), RandomWalkWithDrift(), HmcAcceptingEverything(), IndependentWithoutReference()]


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_twin_is_caught(broken):
    assert min(p_values(broken, 1.4)) < LEVEL


@pytest.mark.parametrize("name", list(KERNELS))
def test_per_point_scales_move_each_point_by_its_own(name):
    rng = np.random.default_rng(0)
    state = Points(np.log(rng.gamma(SHAPE, size=(4000, 2))))
    scale = np.where(np.arange(4000) < 2000, 0.01, 1.0)
    _, info = make_kernel(name).step(rng, state, Points, scale, METRIC)
    assert info.acceptance[:2000].min() > 0.8
    assert info.squared_jump[:2000].max() < info.squared_jump[2000:].mean()


@pytest.mark.parametrize("name", list(KERNELS))
def test_non_finite_proposals_are_rejected(name):
    class Wall(Points):
        @property
        def log_density(self):
            with np.errstate(invalid="ignore"):
                return np.where(self.x[:, 0] > 0, np.nan, np.where(self.x[:, 1] > 0, -np.inf, 0.0))

        def where(self, accepted, proposal):
            return Wall(np.where(accepted[:, None], proposal.x, self.x))

    rng = np.random.default_rng(0)
    state = Wall(np.full((500, 2), -0.1))
    state, info = make_kernel(name).step(rng, state, Wall, 1.0, Metric(np.ones(2)))
    assert (state.x <= 0).all()
    assert np.isfinite(info.acceptance).all()


@pytest.mark.parametrize("name", ["mala", "hmc"])
def test_gradients_whose_length_overflows_are_no_force(name):
    class Cliff(Points):
        log_density = property(lambda self: np.zeros(len(self.x)))
        gradient = property(lambda self: np.where(self.x > 0, 1e200, 0.0))

    state, info = make_kernel(name).step(
        np.random.default_rng(0), Cliff(np.zeros((50, 2))), Cliff, 0.5, Metric(np.ones(2))
    )
    assert np.isfinite(state.x).all()
    assert np.isfinite(info.acceptance).all()


def test_independent_proposals_from_the_target_itself_are_all_accepted():
    class Normal(Points):
        log_density = property(lambda self: -0.5 * (((self.x - 3.0) / 2.0) ** 2).sum(axis=1))

    rng = np.random.default_rng(0)
    state = Normal(3.0 + 2.0 * rng.standard_normal((500, 2)))
    for metric in (Metric(np.full(2, 2.0), np.full(2, 3.0)), Metric(2.0 * np.eye(2), 3.0)):
        _, info = Independent().step(rng, state, Normal, 5.0, SplitMetric(metric, metric))
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


def test_a_reference_leaves_a_metric_little_to_estimate():
    """Two hundred points of a hundred correlated coordinates: the whitened target is round with the reference alone."""
    dim, rng = 100, np.random.default_rng(6)
    factor = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(np.arange(dim), np.arange(dim))))
    x = 3.0 + rng.standard_normal((200, dim)) @ (1.2 * factor).T
    reference = Metric(factor, np.full(dim, 3.0))

    def condition(metric):
        return np.linalg.cond(np.linalg.solve(metric.factor, 1.2 * factor))

    informed = metric_from_points(x, reference)
    assert condition(informed) < 2.0 < condition(metric_from_points(x))
    assert np.abs(informed.centre - 3.0).max() < 5 * 1.5 / 200**0.5  # medians


def test_metric_is_positive_definite_with_fewer_points_than_coordinates():
    rng = np.random.default_rng(4)
    metric = metric_from_points(rng.standard_normal((20, 50)))
    factor = metric.factor if metric.is_dense else np.diag(metric.factor)
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
