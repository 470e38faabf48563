"""Filters that are wrong in a known way, and that the tests of the right ones tell from them."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from ppl_backends.targets.state_space import filter as engine
from ppl_backends.targets.state_space import step
from ppl_backends.targets.state_space.filter import Filter, draw_seeds
from tests.state_space.models import LG_POINT, LINEAR, data, kalman, repeated
from tests.state_space.test_filter import Y, ratios
from tests.statistics import t_bound


@pytest.fixture
def fresh_programs():
    engine._compiled.cache_clear()
    yield
    engine._compiled.cache_clear()


def standard_errors(values):
    return abs(values.mean() - 1) / (values.std(ddof=1) / np.sqrt(len(values)))


def test_increments_that_take_weights_for_equal_are_biased(monkeypatch, fresh_programs):
    resample = step._resample

    def broken(rule, p, t, carry, offset, rows):
        ancestors, base, resampled = resample(rule, p, t, carry, offset, rows)
        return ancestors, jnp.full_like(base, -np.log(base.shape[1])), resampled

    monkeypatch.setattr(step, "_resample", broken)
    assert standard_errors(ratios(Y, 64, resample_below=0.0)) > t_bound(1999)


def test_quasi_monte_carlo_without_sorting_gains_little(monkeypatch, fresh_programs):
    y = data("linear_gaussian", 30)
    right = np.log(ratios(y, 128, 400, method="sqmc")).var()
    engine._compiled.cache_clear()
    monkeypatch.setattr(step, "order_of", lambda x: jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2]))
    assert np.log(ratios(y, 128, 400, method="sqmc")).var() > 4 * right


def test_one_scramble_for_several_filters_makes_them_dependent():
    """Means of eight then vary as one does, where the test of independence asks for an eighth."""
    seeds = np.repeat(draw_seeds(np.random.default_rng(1), 500), 8)
    values = np.exp(Filter(LINEAR, Y, method="sqmc").run(repeated(LG_POINT, 4000), 16, seeds) - kalman(Y)[0])
    ratio = 8 * values.reshape(500, 8).mean(axis=1).var(ddof=1) / values.var(ddof=1)
    assert ratio > 7


def test_a_floor_under_densities_hides_a_row_that_cannot_be():
    y = np.array([0.1, 1e200, 0.2])
    floored = replace(
        LINEAR, proposal=None, log_observation=lambda p, t, x, y: jnp.maximum(LINEAR.log_observation(p, t, x, y), -39.1)
    )
    seeds = draw_seeds(np.random.default_rng(0), 4)
    assert np.isfinite(Filter(floored, y).run(repeated(LG_POINT, 4), 16, seeds)).all()
    assert (Filter(LINEAR, y).run(repeated(LG_POINT, 4), 16, seeds) == -np.inf).all()


def test_correlated_normals_need_sorted_particles(monkeypatch, fresh_programs):
    def variance():
        filters, rng = Filter(LINEAR, data("linear_gaussian", 50), method="guided"), np.random.default_rng(5)
        u = rng.standard_normal((300, filters.n_normals(25)))
        near = 0.99 * u + np.sqrt(1 - 0.99**2) * rng.standard_normal(u.shape)
        parameters = repeated(LG_POINT, 300)
        return np.var(filters.run_with_normals(parameters, 25, u) - filters.run_with_normals(parameters, 25, near))

    right = variance()
    engine._compiled.cache_clear()
    monkeypatch.setattr(step, "order_of", lambda x: jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2]))
    assert variance() > 3 * right
