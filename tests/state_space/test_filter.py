"""Likelihoods of particle filters: unbiased on short data with an exact answer, replayed, resumed, refused."""

import re
import warnings

import numpy as np
import pytest

from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.targets.state_space.filter import METHODS, Filter, draw_seeds
from tests.state_space.models import LG_POINT, LINEAR, data, kalman, repeated
from tests.statistics import t_bound

Y = np.array([-1.2, 0.3, 1.6, 2.4, 1.1, -0.4])
WITH_GAPS = np.array([np.nan, 0.3, np.nan, np.nan, 1.1, 2.0])
RUNS = 2000


def ratios(y, n_x, runs=RUNS, seed=1, filter_of=Filter, **options):
    """Return L̂ / L of independent runs."""
    estimated = filter_of(LINEAR, y, **options).run(
        repeated(LG_POINT, runs), n_x, draw_seeds(np.random.default_rng(seed), runs)
    )
    return np.exp(estimated - kalman(y)[0])


def assert_unbiased(values):
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(values.mean() - 1) < t_bound(len(values) - 1) * error, (values.mean(), error)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("y", [Y, WITH_GAPS, Y[:1]], ids=["complete", "missing rows", "one row"])
def test_the_likelihood_is_unbiased(method, y):
    assert_unbiased(ratios(y, 16, method=method))


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n_x", [1, 16])
@pytest.mark.parametrize("method", ["bootstrap", *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:])])
def test_the_likelihood_is_unbiased_at_every_threshold(method, threshold, n_x):
    assert_unbiased(ratios(Y[:3], n_x, method=method, resample_below=threshold))


@pytest.mark.parametrize(
    "method",
    ["bootstrap", pytest.param("auxiliary", marks=pytest.mark.slow), pytest.param("sqmc", marks=pytest.mark.slow)],
)
def test_a_filter_in_pieces_is_the_filter_in_one(method):
    rng = np.random.default_rng(3)
    parameters, seeds = repeated(LG_POINT, 5), draw_seeds(rng, 5)
    filters = Filter(LINEAR, Y, method=method)
    whole = filters.run(parameters, 16, seeds)
    state, pieces = filters.start(parameters, 16, seeds), []
    for t, n in [(0, 1), (1, 2), (3, 3)]:
        state, increments = filters.advance(parameters, state, t, n)
        pieces.append(increments)
    np.testing.assert_array_equal(state.log_likelihood, whole)
    np.testing.assert_allclose(np.concatenate(pieces, axis=1).sum(axis=1), whole, rtol=1e-12)
    history = filters.history(parameters, 16, seeds)
    np.testing.assert_allclose(history.increments.sum(axis=0), whole, rtol=1e-12)
    np.testing.assert_allclose(history.x[-1], state.x, rtol=1e-12)


def test_a_filter_does_not_depend_on_its_neighbours():
    parameters, seeds = repeated(LG_POINT, 9), draw_seeds(np.random.default_rng(3), 9)
    filters = Filter(LINEAR, Y)
    few = filters.run({name: value[:3] for name, value in parameters.items()}, 16, seeds[:3])
    np.testing.assert_allclose(filters.run(parameters, 16, seeds)[:3], few, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bootstrap", "sqmc"])
def test_filters_of_different_seeds_are_independent(method):
    """The variance of the mean of eight is an eighth of the variance of one, within a factor that 500 groups give."""
    values = ratios(Y, 16, runs=4000, method=method).reshape(500, 8)
    ratio = 8 * values.mean(axis=1).var(ddof=1) / values.var(ddof=1)
    assert 0.7 < ratio < 1.4


def test_quasi_monte_carlo_has_a_variance_many_times_smaller():
    y = data("linear_gaussian", 30)
    assert np.log(ratios(y, 128, 400, method="sqmc")).var() < np.log(ratios(y, 128, 400)).var() / 10


def test_one_outlier_makes_a_likelihood_of_zero_and_no_nan():
    y = np.array([0.1, 1e200, 0.2])
    state = Filter(LINEAR, y)
    assert (state.run(repeated(LG_POINT, 4), 16, draw_seeds(np.random.default_rng(0), 4)) == -np.inf).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transition": lambda p, t, x, z: x.sum(axis=1)}, "transition returned shape"),
        ({"log_observation": lambda p, t, x, y: p.sigmay * x}, "p.sigmay, which does not exist; known are rho"),
        ({"initial": lambda p, z: 0.0}, "initial returned"),
        ({"log_observation": lambda p, t, x, y: np.log(x)}, "log_observation of the state-space model failed"),
        ({"log_observation": lambda p, t, x, y: Y[t] * x}, "log_observation .* write it with jax.numpy, and jnp.where"),
        ({"transition": lambda p, t, x, z: x if t > 3 else z}, "transition .* write it with jax.numpy, and jnp.where"),
    ],
)
def test_functions_that_do_not_fit_are_named(change, message):
    from dataclasses import replace

    with pytest.raises(ModelError, match=message) as caught:
        Filter(replace(LINEAR, **change), Y).run(repeated(LG_POINT, 2), 8, np.arange(2, dtype=np.uint64))
    assert "\n" not in str(caught.value)


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="method='kalman': expected"):
        Filter(LINEAR, Y, method="kalman")
    with pytest.raises(ModelError, match="power of two, not 100 particles: write n_particles=128"):
        ratios(Y, 100, 2, method="sqmc")
    with pytest.raises(ModelError, match="covariate 'u' has 2 rows and the data have 6"):
        Filter(LINEAR, Y, {"u": np.zeros(2)})


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([0.0, 2.0, np.nan, 1.0, -1.0], None),
        ([0.0, 2.0, np.nan, 3.0, 1.0], r"row 3 \(.*index 3 is out of bounds for axis 0 with size 3\)"),
    ],
)
def test_an_index_beyond_the_end_is_named(y, says):
    """JAX would take the last of three categories for the fourth, and the likelihood would be that of other data."""
    import jax.numpy as jnp

    import ppl_backends as pb

    model = pb.StateSpaceModel(
        initial=lambda p, z: z,
        transition=lambda p, t, x, z: p.a * x + z,
        log_observation=lambda p, t, x, y: jnp.log(jnp.array([0.2, 0.3, 0.5]))[y.astype(int)] - 0.5 * x**2,
    )
    filters = Filter(model, np.array(y))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SamplerWarning)
        filters.state_shape({"a": np.zeros(2)})
        filters.state_shape({"a": np.zeros(2)})
    assert len(caught) == (says is not None)  # once for each filter
    if says:
        assert re.search(says, str(caught[0].message))
