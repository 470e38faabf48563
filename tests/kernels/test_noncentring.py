"""Non-centring: the change of variables, what it finds in hierarchies, and kernels that move in it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.metric import metric_from_points
from ppl_backends.kernels.noncentring import NestedNonCentring, NonCentring, find_noncentring, non_centred
from ppl_backends.kernels.noncentring.roots import funnel_axes
from ppl_backends.kernels.protocol import KernelParameters
from ppl_backends.numerics.population import Population
from tests.toys import banana, double_funnel, skewed_funnel
from tests.toys import funnel as funnel_target

N_EFFECTS, SD, PRIOR_SD = 6, 3.0, 4.0
OBSERVED, ERRORS = np.array([3.0, 1.0, -0.5, 0.8, -0.2, 2.0]), np.array([1.5, 1.0, 1.6, 1.1, 0.9, 1.8])


@dataclass(frozen=True)
class Points(Population):
    """Points with their log density and its gradient."""

    log_density: np.ndarray
    gradient: np.ndarray


def funnel_at(x, rng=None):
    return Points(x, *funnel(x))


def funnel(x):
    """Return Neal's funnel: v ~ N(0, 9), and effects of variance exp(v)."""
    v, effects = x[:, 0], x[:, 1:]
    squares = effects**2 * np.exp(-v)[:, None]
    value = -0.5 * (v / SD) ** 2 - 0.5 * effects.shape[1] * v - 0.5 * squares.sum(axis=1)
    slope = -v / SD**2 - 0.5 * effects.shape[1] + 0.5 * squares.sum(axis=1)
    return value, np.column_stack([slope, -effects * np.exp(-v)[:, None]])


def draw_funnel(n, rng):
    v = SD * rng.standard_normal(n)
    return np.column_stack([v, np.exp(0.5 * v)[:, None] * rng.standard_normal((n, N_EFFECTS))])


def hierarchy(x):
    """Return mu ~ N(0, 16), t = log tau ~ N(0, 1), effects ~ N(mu, tau²)."""
    mu, t, effects = x[:, 0], x[:, 1], x[:, 2:]
    away = (effects - mu[:, None]) * np.exp(-2 * t)[:, None]
    squares = (away * (effects - mu[:, None])).sum(axis=1)
    value = -0.5 * (mu / PRIOR_SD) ** 2 - 0.5 * t**2 - effects.shape[1] * t - 0.5 * squares
    slopes = [-mu / PRIOR_SD**2 + away.sum(axis=1), -t - effects.shape[1] + squares]
    return value, np.column_stack([*slopes, -away])


def schools(x):
    """Return the gradient of the hierarchy given one observation of each effect, with t ~ N(0, 4) and known errors."""
    gradient = hierarchy(x)[1]
    gradient[:, 1] += x[:, 1] - 0.25 * x[:, 1]
    gradient[:, 2:] += (OBSERVED - x[:, 2:]) / ERRORS**2
    return gradient


def draw_schools(n, rng):
    mu, t = PRIOR_SD * rng.standard_normal(50 * n), 2.0 * rng.standard_normal(50 * n)
    likelihood = stats.norm(mu[:, None], np.hypot(np.exp(t)[:, None], ERRORS)).logpdf(OBSERVED).sum(axis=1)
    chosen = rng.choice(50 * n, n, p=np.exp(likelihood - logsumexp(likelihood)))
    mu, t = mu[chosen, None], t[chosen, None]
    precision = np.exp(-2 * t) + ERRORS**-2
    mean = (mu * np.exp(-2 * t) + OBSERVED / ERRORS**2) / precision
    return np.column_stack([mu, t, mean + rng.standard_normal((n, N_EFFECTS)) / precision**0.5])


def draw_hierarchy(n, rng):
    mu, t = PRIOR_SD * rng.standard_normal(n), rng.standard_normal(n)
    effects = mu[:, None] + np.exp(t)[:, None] * rng.standard_normal((n, N_EFFECTS))
    return np.column_stack([mu, t, effects])


@pytest.fixture(scope="module", params=["coordinates", "axes", "nested"])
def change(request):
    """Return a change with all of its terms."""
    rng = np.random.default_rng(0)
    outer = NonCentring(
        effects=np.array([1, 3]),
        others=np.array([0, 2, 4]),
        centre=rng.standard_normal(3),
        spread=np.array([0.5, 1.0, 2.0]),
        log_scale=0.5 * rng.standard_normal((7, 2)),
        log_precision=rng.standard_normal(2),
        products=np.array([[0, 0], [0, 1], [0, 2]]),
        mean=0.3 * rng.standard_normal((7, 2)),
        of_data=0.3 * rng.standard_normal((7, 2)),
        axes=rng.standard_normal((5, 5)) if request.param == "axes" else None,
    )
    if request.param != "nested":
        return outer
    inner = NonCentring(
        effects=np.array([2]),
        others=np.array([0, 1, 3, 4]),
        centre=rng.standard_normal(4),
        spread=np.ones(4),
        log_scale=0.3 * rng.standard_normal((9, 1)),
        log_precision=rng.standard_normal(1),
        products=np.empty((0, 2), int),
        mean=0.3 * rng.standard_normal((5, 1)),
        of_data=0.3 * rng.standard_normal((5, 1)),
    )
    return NestedNonCentring(outer, inner)


def test_there_and_back_again(change):
    x = np.random.default_rng(1).standard_normal((50, 5))
    back = change.to_x(change.to_z(x))
    np.testing.assert_allclose(back, x, atol=1e-12)


def test_the_determinant_and_the_gradient_are_those_of_differences(change):
    z = np.random.default_rng(2).standard_normal((8, 5))

    def log_density(z):
        x, log_determinant = change.to_x(z), change.log_determinant(z)
        return -0.5 * (x**2).sum(axis=1) + log_determinant

    step = 1e-6 * np.eye(5)
    jacobian = np.stack([(change.to_x(z + e) - change.to_x(z - e)) / 2e-6 for e in step], axis=2)
    np.testing.assert_allclose(np.linalg.slogdet(jacobian)[1], change.log_determinant(z), atol=1e-6)
    slope = np.column_stack([(log_density(z + e) - log_density(z - e)) / 2e-6 for e in step])
    np.testing.assert_allclose(change.gradient(z, -change.to_x(z)), slope, atol=1e-6)
    np.testing.assert_allclose(change.gradient_in_x(z, slope), -change.to_x(z), atol=1e-5)
    assert sorted([*change.effects, *change.others]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", [0, 2, 3, 5])
def test_few_points_of_many_coordinates_show_no_roots_by_chance(seed):
    """Five hundred particles of a funnel in a hundred dimensions; up to 28 coordinates were roots, or no effects."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(500)
    weights = np.exp(0.8 * rng.standard_normal(500))
    x = np.column_stack([v, np.exp(0.5 * v)[:, None] * rng.standard_normal((500, 99))])
    x = x[np.sort(rng.choice(500, 500, p=weights / weights.sum()))]
    found = find_noncentring(x, funnel_target(99).log_density_and_gradient(x)[1])
    assert 0 in found.others
    assert len(found.effects) >= 97


@pytest.mark.parametrize(("sds", "least"), [((0.2, 0.2), 1.0), ((0.8, 0.8), 0.5), ((0.8, 0.1), 0.5), ((0.8, 0.2), 0.1)])
def test_coordinates_whose_scales_hardly_vary_are_left_as_they_are(sds, least):
    """Of slopes of effects with log-normal scales exp(-4 sd²) is linear: 0.85 (0.96 with 0.1) and 0.08.

    Effects of a root that others ask for are changed with less, so that a group is not divided.
    """
    rng = np.random.default_rng(7)
    z = rng.standard_normal((1000, N_EFFECTS))
    log_scale, of_root = rng.standard_normal((1000, 1)), np.repeat(sds, N_EFFECTS // 2)
    slope = -log_scale + ((z**2 - 1.0) * of_root).sum(axis=1, keepdims=True)
    scale = np.exp(of_root * log_scale)
    found = find_noncentring(np.hstack([log_scale, scale * z]), np.hstack([slope, -z / scale]))
    effects = [] if found is None else found.effects.tolist()
    assert effects == (1 + np.flatnonzero(of_root > least)).tolist()


@pytest.mark.parametrize("n", [100, 1000])
def test_a_funnel_is_straightened(n):
    x = draw_funnel(n, np.random.default_rng(3))
    found = find_noncentring(x, funnel(x)[1])
    assert list(found.effects) == list(range(1, 1 + N_EFFECTS))
    # Slopes of log |g| have a residual sd of 1.11; the likelihood of the slopes knows the coefficients better
    np.testing.assert_allclose(found.log_scale[1] / found.spread, 0.5, atol=4 * 1.11 / SD / n**0.5)
    z = found.to_z(x)
    np.testing.assert_allclose(z[:, 1:].std(axis=0), 1.0, atol=5 / (2 * n) ** 0.5)


def test_the_mean_of_a_hierarchy_is_left_and_its_effects_are_standardised_by_mean_and_scale():
    x = draw_hierarchy(2000, np.random.default_rng(4))
    found = find_noncentring(x, hierarchy(x)[1])
    assert list(found.effects) == list(range(2, 2 + N_EFFECTS))
    np.testing.assert_allclose(found.mean[1] / found.spread[0], 1.0, atol=0.01)  # of mu: pinned down by the narrowest
    np.testing.assert_allclose(found.log_scale[2] / found.spread[1], 1.0, atol=4 * 1.11 / 2000**0.5)
    np.testing.assert_allclose(found.log_scale[1], 0.0, atol=1e-12)  # scales do not depend on mu


def test_effects_with_data_are_standardised_in_a_neck_that_no_point_has_reached():
    rng = np.random.default_rng(4)
    x = draw_schools(8000, rng)
    inside = x[:, 1] > -1.5
    change = find_noncentring(x[inside], schools(x[inside]))
    neck = x[x[:, 1] < -3.0]
    z = change.to_z(neck)[:, change.effects]
    assert list(change.effects) == list(range(2, 2 + N_EFFECTS))
    # without the noise-free fit the mean square is above a thousand
    assert np.mean(z**2) == pytest.approx(1.0, abs=4 * (2 / z.size) ** 0.5)


@pytest.mark.parametrize("n", [500, 2000])
def test_a_funnel_along_no_coordinate_is_straightened(n):
    rng = np.random.default_rng(9)
    x, turn = draw_funnel(n, rng), stats.ortho_group.rvs(1 + N_EFFECTS, random_state=rng)
    found = find_noncentring(x @ turn.T, funnel(x)[1] @ turn.T)
    assert len(found.effects) == N_EFFECTS
    root = np.linalg.inv(found.axes)[0] @ turn
    assert np.linalg.norm(root[1:]) < 0.1 * abs(root[0])
    z = found.to_z(x @ turn.T)
    np.testing.assert_allclose(z[:, found.effects].std(axis=0), 1.0, atol=5 / (2 * n) ** 0.5 + 0.1)


def test_the_direction_of_a_funnel_is_known_best_where_effects_are_wide():
    """With unweighted gradients of the widest tenth, the median is above 0.015."""
    angles = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, turn = draw_funnel(2000, rng), stats.ortho_group.rvs(1 + N_EFFECTS, random_state=rng)
        axes = next(funnel_axes(x @ turn.T, funnel(x)[1] @ turn.T, np.empty(0, int)))
        root = np.linalg.inv(axes)[0] @ turn
        angles.append(np.linalg.norm(root[1:]) / abs(root[0]))
    assert np.median(angles) < 0.008


def few_means(design, y, n, rng):
    """Draw b ~ N(0, I) and log s, s ~ HN(1), given y ~ N(design b, s² I); return points and gradients."""
    s = np.exp(np.linspace(-12, 2.5, 20_001))
    gram = design @ design.T
    values, vectors = np.linalg.eigh(gram)
    variance = values + s[:, None] ** 2
    logs = np.log(s) - 0.5 * s**2 - 0.5 * ((vectors.T @ y) ** 2 / variance + np.log(variance)).sum(axis=1)
    weight = np.exp(logs - logs.max())
    s = rng.choice(s, n, p=weight / weight.sum())[:, None]
    b = rng.standard_normal((n, design.shape[1]))
    left = y - b @ design.T - s * rng.standard_normal((n, len(y)))
    b += np.linalg.solve(gram + s[:, :, None] ** 2 * np.eye(len(y)), left[..., None])[..., 0] @ design
    left = y - b @ design.T
    slope = np.hstack([left @ design / s**2 - b, (left**2).sum(axis=1)[:, None] / s**2 - len(y) + 1 - s**2])
    return np.column_stack([b, np.log(s)]), slope


@pytest.mark.parametrize("seed", range(5))
def test_the_only_narrow_axis_is_exact_where_no_point_has_been(seed):
    """Points with s > 0.1 determine the change; it has to fit in the neck below, down to 0.003."""
    d, rng = 50, np.random.default_rng(seed)
    one_sum = np.ones((1, d)), np.array([3.0])
    x, slope = few_means(*one_sum, 3000, rng)
    seen = x[:, -1] > np.log(0.1)
    found = find_noncentring(x[seen][:2000], slope[seen][:2000])
    assert len(found.effects) == 1
    assert found.axes is not None
    row = np.linalg.inv(found.axes)[found.effects[0]]
    np.testing.assert_allclose(row / row[0], np.r_[np.ones(d), 0.0], atol=1e-6)
    deep = few_means(*one_sum, 20_000, rng)[0]
    deep = deep[(deep[:, -1] < np.log(0.03)) & (deep[:, -1] > np.log(0.003))]
    z = found.to_z(deep)[:, found.effects[0]]
    assert abs(z.mean()) < 5 / len(z) ** 0.5
    assert abs(z.std() - 1) < 5 / (2 * len(z)) ** 0.5 + 0.05


@pytest.mark.parametrize("seed", range(3))
def test_effects_along_few_axes_are_independent_where_no_point_has_been(seed):
    """Their slopes then have no noise, and their means are right in the neck: at s = 0.02, z had a variance of 20."""
    rng = np.random.default_rng(seed)
    design, y = rng.standard_normal((5, 50)), rng.standard_normal(5)
    x, slope = few_means(design, y, 3000, rng)
    seen = x[:, -1] > np.log(0.1)
    found = find_noncentring(x[seen][:2000], slope[seen][:2000])
    assert len(found.effects) == 5
    deep = few_means(design, y, 20_000, rng)[0]
    deep = deep[(deep[:, -1] < np.log(0.03)) & (deep[:, -1] > np.log(0.01))]
    # The variance of 300 draws has an error of 0.08, and scales have one of 5 %
    np.testing.assert_allclose(np.var(found.to_z(deep)[:, found.effects], axis=0), 1.0, atol=0.5)


def correlated(x):
    """Return the gradient for pairs of effects of covariance LLᵀ, where L = [[exp a, 0], [c, exp b]].

    a and b are N(0, 1), and c is N(0, exp(2b)).
    """
    a, b, c = (x[:, k, None] for k in range(3))
    first, second = x[:, 3::2] * np.exp(-a), x[:, 4::2]
    second = (second - c * first) * np.exp(-b)  # of L⁻¹ times the effects
    down = second * np.exp(-b)
    across = (first - c * down) * np.exp(-a)
    of_scales = [-a + (across * first * np.exp(a) - 1).sum(axis=1, keepdims=True)]
    of_scales += [-b - 1 + (c * np.exp(-b)) ** 2 + (second**2 - 1).sum(axis=1, keepdims=True)]
    of_scales += [-c * np.exp(-2 * b) + (down * first).sum(axis=1, keepdims=True)]
    return np.hstack([*of_scales, -np.stack([across, down], axis=2).reshape(len(x), -1)])


@pytest.mark.parametrize("n_pairs", [4, 8])
def test_a_covariance_whose_scale_is_explained_by_another_is_an_effect_and_no_root(n_pairs):
    rng = np.random.default_rng(n_pairs)
    a, b = rng.standard_normal((2, 1000, 1))
    c = np.exp(b) * rng.standard_normal((1000, 1))
    normals = rng.standard_normal((1000, n_pairs, 2))
    first = np.exp(a) * normals[:, :, 0]
    pairs = np.stack([first, c * normals[:, :, 0] + np.exp(b) * normals[:, :, 1]], axis=2)
    x = np.hstack([a, b, c, pairs.reshape(1000, -1)])
    np.testing.assert_array_equal(find_noncentring(x, correlated(x)).effects, np.arange(2, 3 + 2 * n_pairs))


SCHOOLS, CLASSES = 5, 4


@pytest.mark.parametrize("seed", range(3))
def test_skewed_effects_are_centred_in_a_neck_that_no_point_has_reached(seed):
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(2000)
    x = np.column_stack([v, np.exp(v)[:, None] * rng.gumbel(size=(2000, 5))])
    found = find_noncentring(x, skewed_funnel(5, 1.0).log_density_and_gradient(x)[1])
    assert list(found.effects) == [1, 2, 3, 4, 5]
    # Their mean is 0.58 scales from zero, the mode of each. The narrowest points that decide it have v = -3.
    beyond = np.column_stack([np.full(200, -4.0), np.exp(-4.0) * rng.gumbel(size=(200, 5))])
    z = found.to_z(beyond)[:, 1:]
    assert np.all(np.abs(np.median(z, axis=0)) < 3.0)
    assert np.all(z.std(axis=0) < 2.0 * np.pi / 6**0.5)


FIRST = np.array([0.8, -1.0, 0.6, 1.1, -0.8, -0.3, -0.2, 0.4])
SECOND = np.array([1.2, -0.4, 0.3, 1.6, -1.5, 0.6, -0.8, 0.1])
ROOT_MEANS, ROOT_SDS = np.array([-0.5, -0.3, -1.5]), np.array([0.4, 0.1, 1.0])


def observed_twice(roots):
    """Return precision and mean of effects N(0, 1), given N(lam effect, s²) for two s; log lam and log s are the roots."""
    w = np.exp(2 * (roots[:, :1] - roots[:, 1:]))
    precision, parts = 1 + w.sum(axis=1), w[:, None] * np.stack([FIRST, SECOND], axis=1) * np.exp(-roots[:, :1, None])
    return w, precision[:, None], parts / precision[:, None, None]


def draw_observed_twice(n, rng):
    roots = ROOT_MEANS + ROOT_SDS * rng.standard_normal((n, 3))
    _, precision, parts = observed_twice(roots)
    return np.hstack([roots, parts.sum(axis=2) + rng.standard_normal((n, len(FIRST))) / precision**0.5])


def slope_observed_twice(x):
    """Return the gradient of Gaussian roots and of the effects given them."""
    roots = x[:, :3]
    w, precision, parts = observed_twice(roots)
    mean = parts.sum(axis=2)
    away = x[:, 3:] - mean
    by_root = np.hstack([2 * (precision - 1), -2 * w])  # of the precision
    of_mean = (
        np.stack([mean, *(-2 * parts).transpose(2, 0, 1)], axis=2) - (mean / precision)[:, :, None] * by_root[:, None]
    )
    left = 0.5 * (len(FIRST) / precision - (away**2).sum(axis=1, keepdims=True)) * by_root
    left += precision * np.einsum("nk,nkj->nj", away, of_mean)
    return np.hstack([left - (roots - ROOT_MEANS) / ROOT_SDS**2, -precision * away])


@pytest.mark.parametrize("seed", range(4))
def test_effects_that_further_data_of_unknown_scale_inform_are_centred_in_a_neck_that_no_point_has_reached(seed):
    """The median of |z|, 0.67 for a standard normal, was 4 to 9: the mean followed the neck's root."""
    rng = np.random.default_rng(seed)
    x = draw_observed_twice(3000, rng)
    x = x[x[:, 2] > -2.2][:1500]
    change = find_noncentring(x, slope_observed_twice(x))
    deep = draw_observed_twice(40_000, rng)
    deep = deep[(deep[:, 2] < -4) & (deep[:, 2] > -5)]
    assert np.median(np.abs(change.to_z(deep)[:, change.effects])) < 2.0


def nested(x):
    """Return the gradient for the log scales t, u ~ N(0, 1), schools N(0, exp(2t)) and classes N(school, exp(2u))."""
    t, u, means, classes = x[:, 0], x[:, 1], x[:, 2 : 2 + SCHOOLS], x[:, 2 + SCHOOLS :].reshape(len(x), SCHOOLS, -1)
    away = (classes - means[:, :, None]) * np.exp(-2 * u)[:, None, None]
    squares = (away * (classes - means[:, :, None])).sum(axis=(1, 2))
    precision = np.exp(-2 * t)[:, None]
    of_scales = [
        -t + (precision * means**2).sum(axis=1) - SCHOOLS,
        -u + squares - SCHOOLS * CLASSES,
    ]
    return np.column_stack([*of_scales, away.sum(axis=2) - precision * means, -away.reshape(len(x), -1)])


@pytest.mark.parametrize("seed", range(4))
def test_both_levels_of_a_nested_hierarchy_are_standardised(seed):
    """No single change does: the means of the schools are as narrow as the classes, given these."""
    rng = np.random.default_rng(seed)
    t, u = rng.standard_normal((2, 2000, 1))
    means = np.exp(t) * rng.standard_normal((2000, SCHOOLS))
    normals = rng.standard_normal((2000, SCHOOLS, CLASSES))
    classes = means[:, :, None] + np.exp(u)[:, :, None] * normals
    x = np.hstack([t, u, means, classes.reshape(2000, -1)])
    found = find_noncentring(x, nested(x))
    assert set(found.effects) == set(range(2, 2 + SCHOOLS * (1 + CLASSES)))
    assert found.scaling == [0, 1]
    z = found.to_z(x)[:, 2:]
    own = np.hstack([means / np.exp(t), normals.reshape(2000, -1)])
    assert np.abs(z - own).mean() < 0.1
    slopes = found.gradient(found.to_z(x), nested(x))[:, 2:]
    assert 0.9 < (slopes**2).mean() < 1.1  # that of standard normal variables is one


def test_a_scale_that_is_largest_in_the_middle_is_found():
    target, rng = double_funnel(5), np.random.default_rng(10)
    v = 3.0 * rng.standard_normal(2000)
    x = np.column_stack([v, np.exp(-0.5 * np.abs(v))[:, None] * rng.standard_normal((2000, 5))])
    found = find_noncentring(x, target.log_density_and_gradient(x)[1])
    assert list(found.effects) == [1, 2, 3, 4, 5]
    z = found.to_z(x)[:, 1:]
    necks = np.abs(v) > 4
    np.testing.assert_allclose(z[necks].std(axis=0), 1.0, atol=5 / (2 * necks.sum()) ** 0.5 + 0.1)


def test_a_banana_is_straightened():
    target, rng = banana(), np.random.default_rng(11)
    first = 3.0 * rng.standard_normal(1000)
    x = np.column_stack([first, 9 - first**2 + rng.standard_normal(1000)])
    found = find_noncentring(x, target.log_density_and_gradient(x)[1])
    assert list(found.effects) == [1]
    np.testing.assert_allclose(found.to_z(x)[:, 1], x[:, 1] - 9 + first**2, atol=0.15)


def test_nothing_is_found_in_gaussians_and_logistic_regressions():
    rng = np.random.default_rng(5)
    found = 0
    for dim in (2, 8, 20):
        factor = rng.standard_normal((dim, dim)) + 2 * np.eye(dim)
        for _ in range(30):
            x = rng.standard_normal((500, dim)) @ factor.T
            found += find_noncentring(x, -x @ np.linalg.inv(factor @ factor.T)) is not None
    assert found <= 1  # 190 tests at 4.5 standard errors, of responses with heavier tails, 90 times
    design = rng.standard_normal((60, 4))
    beta = rng.standard_normal((500, 4))
    fitted = 1 / (1 + np.exp(-beta @ design.T))
    assert find_noncentring(beta, (0.5 - fitted) @ design - beta) is None


def test_too_little_to_go_by_finds_nothing():
    x = draw_funnel(40, np.random.default_rng(6))
    assert find_noncentring(x, funnel(x)[1]) is None
    x = draw_funnel(500, np.random.default_rng(6))
    gradient = funnel(x)[1]
    gradient[:480] = np.nan
    assert find_noncentring(x, gradient) is None


def moved(x, broken):
    """Return the points after trajectories in the new variables; broken ones leave out the determinant."""
    found = find_noncentring(x, funnel(x)[1])
    rng = np.random.default_rng(7)
    metric = metric_from_points(found.to_z(x))
    for _ in range(15):
        points, at = non_centred(found, funnel_at(x), funnel_at)
        if broken:
            points, at = without_determinant(points), lambda z, rng, at=at: without_determinant(at(z, rng))
        after, info = Hmc().step(rng, points, at, KernelParameters(metric, 0.5))
        x = after.here.x
    return x, info


def without_determinant(points):
    return replace(points, log_determinant=np.zeros(len(points.x)))


def test_a_kernel_in_the_new_variables_leaves_the_density_invariant_and_goes_everywhere():
    start = draw_funnel(2000, np.random.default_rng(8))
    x, info = moved(start, broken=False)
    assert stats.kstest(x[:, 0], stats.norm(0, SD).cdf).pvalue > 1e-3
    z = x[:, 1:] * np.exp(-0.5 * x[:, :1])
    assert stats.kstest(z.ravel(), stats.norm.cdf).pvalue > 1e-3
    assert info.acceptance.mean() > 0.9
    assert abs(np.corrcoef(start[:, 0], x[:, 0])[0, 1]) < 0.1
    broken, _ = moved(start, broken=True)
    assert stats.kstest(broken[:, 0], stats.norm(0, SD).cdf).pvalue < 1e-6
