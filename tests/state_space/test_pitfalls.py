"""Filters with a known error, which the tests of the right filters detect."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.targets.state_space import filter as engine
from ppl_backends.targets.state_space import step
from ppl_backends.targets.state_space.compiled import CompiledFilter
from ppl_backends.targets.state_space.filter import Filter, draw_seeds
from tests.state_space.models import LG_POINT, LINEAR, data, kalman, repeated
from tests.state_space.test_filter import WITH_GAPS, Y, assert_unbiased, ratios
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

    def broken(*arguments):
        ancestors, base, resampled = resample(*arguments)
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


def test_one_scramble_for_all_rows_is_biased(monkeypatch, fresh_programs):
    sobol = step.sobol
    monkeypatch.setattr(step, "sobol", lambda seeds, t, n_x, n_normals: sobol(seeds, 0 * t, n_x, n_normals))
    assert standard_errors(ratios(Y, 16, 8000, method="sqmc")) > t_bound(7999)


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


def test_a_proposal_that_looks_at_a_missing_row_loses_all_weight(monkeypatch, fresh_programs):
    """Where rows are missing, the right filter is unbiased (tests of the filter); this one does not know that they are."""
    rule = Filter.rule
    monkeypatch.setattr(Filter, "rule", lambda self, *options: replace(rule(self, *options), some_missing=False))
    assert (ratios(WITH_GAPS, 16, 20, method="guided") == 0).all()


def test_a_missing_row_is_no_row_of_zeros():
    seeds = draw_seeds(np.random.default_rng(1), 500)
    values = Filter(LINEAR, np.nan_to_num(WITH_GAPS)).run(repeated(LG_POINT, 500), 64, seeds)
    assert standard_errors(np.exp(values - kalman(WITH_GAPS)[0])) > t_bound(499)


PLANE = pb.StateSpaceModel(
    initial=lambda p, z: z,
    transition=lambda p, t, x, z: 0.9 * x + 0.4 * z,
    log_observation=lambda p, t, x, y: -0.5 * jnp.sum(((y - x) / 0.5) ** 2, axis=-1) - 2 * jnp.log(0.5),
    n_normals=2,
)


def plane_variance(method, runs=200):
    y = 0.7 * np.random.default_rng(6).normal(size=(20, 2))
    return np.var(Filter(PLANE, y, method=method).run({}, 256, draw_seeds(np.random.default_rng(1), runs)))


@pytest.mark.slow
def test_vectors_in_the_order_of_one_coordinate_gain_less_than_along_a_curve(monkeypatch, fresh_programs):
    right = plane_variance("sqmc")
    assert right < plane_variance("bootstrap") / 3
    engine._compiled.cache_clear()
    monkeypatch.setattr(step, "order_of", lambda x: jnp.argsort(x[..., 0], axis=1))
    assert plane_variance("sqmc") > 1.5 * right


@pytest.mark.parametrize("rho", [1 - 1e-9, -1 + 1e-9])
def test_next_to_a_unit_root_the_guided_filter_is_unbiased(rho):
    values = Filter(LINEAR, Y, method="guided").run(
        repeated(LG_POINT | {"rho": rho}, 1000), 64, draw_seeds(np.random.default_rng(1), 1000)
    )
    assert_unbiased(np.exp(values - kalman(Y, rho)[0]))


def test_a_bound_that_keeps_a_root_away_from_one_is_found_out():
    clipped = replace(LINEAR, initial=lambda p, z: p.sigma_x / jnp.sqrt(1 - jnp.clip(p.rho, -0.999, 0.999) ** 2) * z)
    rho = 1 - 1e-7
    values = Filter(clipped, Y).run(
        repeated(LG_POINT | {"rho": rho}, 400), 64, draw_seeds(np.random.default_rng(1), 400)
    )
    assert standard_errors(np.exp(values - kalman(Y, rho)[0])) > t_bound(399)


@pytest.mark.parametrize("rho", [1.0, -1.0, 1.1])
@pytest.mark.parametrize("method", ["bootstrap", "guided"])
def test_at_a_unit_root_the_likelihood_is_zero_in_both_forms(rho, method):
    filters, parameters = Filter(LINEAR, Y, method=method), repeated(LG_POINT | {"rho": rho}, 2)
    for form in (filters, CompiledFilter(filters, parameters)):
        assert (form.run(parameters, 16, np.arange(2, dtype=np.uint64)) == -np.inf).all()


def test_weights_that_are_not_numbers_would_spread(monkeypatch, fresh_programs):
    monkeypatch.setattr(step, "normalise", lambda log_weights: (log_weights, jnp.log(jnp.sum(jnp.exp(log_weights), 1))))
    values = Filter(LINEAR, Y).run(repeated(LG_POINT | {"rho": 1.1}, 2), 16, np.arange(2, dtype=np.uint64))
    assert np.isnan(values).all()


def test_a_series_of_one_row_begins_with_the_law_of_its_first_state(monkeypatch, fresh_programs):
    def broken(rule, values, source, rows, shape, kept=None):
        nothing = step.Carry(jnp.zeros(shape), jnp.full(shape, -jnp.log(shape[1] * 1.0)), jnp.zeros(shape[0]))
        return step.later_step(rule, values, source, rows, 0, nothing, kept)

    monkeypatch.setattr(step, "first_step", broken)
    assert standard_errors(ratios(Y[:1], 16)) > t_bound(1999)


def test_one_guided_particle_is_weighted_by_its_proposal(monkeypatch, fresh_programs):
    assert_unbiased(ratios(Y[:3], 1, method="guided"))
    engine._compiled.cache_clear()
    propose = step.from_proposal

    def broken(model, p, t, x, y, z):
        new, _ = propose(model, p, t, x, y, z)
        return new, jnp.broadcast_to(model.log_observation(p, t, new, y), z.shape[:2])

    monkeypatch.setattr(step, "from_proposal", broken)
    assert standard_errors(ratios(Y[:3], 1, method="guided")) > t_bound(1999)


def test_quasi_monte_carlo_needs_no_proposal():
    bootstrap = replace(LINEAR, proposal=None)
    y, seeds = data("linear_gaussian", 30), draw_seeds(np.random.default_rng(1), 400)
    values = {
        method: Filter(bootstrap, y, method=method).run(repeated(LG_POINT, 400), 128, seeds) - kalman(y)[0]
        for method in ("sqmc", "bootstrap")
    }
    assert_unbiased(np.exp(values["sqmc"]))
    assert values["sqmc"].var() < values["bootstrap"].var() / 10
