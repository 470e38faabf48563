"""Filters compiled by Numba: those of JAX for the same normals, unbiased from seeds, and refused where there is no form."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.kernels.particle.filters import compiled
from ppl_backends.targets.state_space.compiled import CompiledFilter, resample, sorted_places
from ppl_backends.targets.state_space.filter import Filter
from tests.state_space.models import LG_POINT, LINEAR, LOG_2PI, repeated
from tests.state_space.test_filter import WITH_GAPS, Y, assert_unbiased, ratios
from tests.state_space.test_ready import CASES
from tests.statistics import assert_mean_is

MIX = np.array([[0.8, 0.1], [-0.2, 0.7]])

VECTOR = pb.StateSpaceModel(
    initial=lambda p, z: p.mean + z,
    transition=lambda p, t, x, z: jnp.where(t % 2 == 0, x @ MIX, jnp.tanh(x[..., ::-1])) + p.u[..., None] * z,
    log_observation=lambda p, t, x, y: -0.5 * jnp.sum((y - jnp.maximum(x, -1.0)) ** 2, axis=-1) - LOG_2PI,
    n_normals=2,
)

MODELS = {
    "guided, with gaps": (LINEAR, WITH_GAPS, LG_POINT, {}, "guided"),
    "leverage": (*CASES["leverage"][:3], {}, "guided"),
    "Lotka-Volterra": (*CASES["Lotka-Volterra"][:3], {}, "bootstrap"),
    "vectors": (
        VECTOR,
        np.random.default_rng(3).normal(size=(6, 2)),
        {"mean": np.array([0.3, -0.2])},
        {"u": np.linspace(0.2, 1, 6)},
        "bootstrap",
    ),
}


@pytest.mark.parametrize(
    "case", [case if case == "vectors" else pytest.param(case, marks=pytest.mark.slow) for case in MODELS]
)
def test_both_forms_give_the_same_likelihood_for_the_same_normals(case):
    model, y, point, covariates, method = MODELS[case]
    parameters = {name: np.stack([value, 1.1 * np.asarray(value)]) for name, value in point.items()}
    slow = Filter(model, y, covariates, method)
    fast, u = CompiledFilter(slow, parameters), np.random.default_rng(2).standard_normal((2, slow.n_normals(20)))
    for smooth in (False, True)[: 2 if y.ndim == 1 else 1]:
        expected = slow.run_with_normals(parameters, 20, u, smooth)
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(fast.run_with_normals(parameters, 20, u, smooth), expected, rtol=1e-10, atol=1e-10)


def by_numba(*arguments, **options):
    return CompiledFilter(Filter(*arguments, **options), repeated(LG_POINT, 1))


@pytest.mark.parametrize(("n_x", "threshold"), [(1, 0.5), (16, 0.0), (16, 0.5), (16, 1.0)])
def test_the_likelihood_from_seeds_is_unbiased(n_x, threshold):
    assert_unbiased(ratios(Y[:3], n_x, resample_below=threshold, filter_of=by_numba))


def test_a_likelihood_of_zero_is_zero():
    y = np.array([0.1, 1e200, 0.2])
    assert (by_numba(LINEAR, y).run(repeated(LG_POINT, 2), 4, np.arange(2, dtype=np.uint64)) == -np.inf).all()


def test_a_function_without_a_form_for_numba_stays_with_jax():
    def transition(p, t, x, z):
        return p.rho * jnp.sort(x[..., None])[..., 0] + p.sigma_x * z

    sorting = replace(LINEAR, proposal=None, transition=transition)
    filters = Filter(sorting, Y)
    assert compiled(filters, repeated(LG_POINT, 1)) is filters
    auxiliary = Filter(LINEAR, Y, method="auxiliary")
    assert compiled(auxiliary, repeated(LG_POINT, 1)) is auxiliary


VALUES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "sorted": lambda rng, n: np.sort(rng.standard_normal(n)),
    "ties": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "equal": lambda rng, n: np.zeros(n),
    "heavy tails": lambda rng, n: rng.standard_cauchy(n) ** 3,
    "an outlier": lambda rng, n: np.append(rng.standard_normal(n - 1), 1e300),
    "the widest range": lambda rng, n: np.append(rng.standard_normal(n - 1), [-1.7e308, 1.7e308])[-n:],
    "infinite": lambda rng, n: np.append(rng.standard_normal(n - 1), np.inf),
    "not a number": lambda rng, n: np.append(np.nan, rng.standard_normal(n - 1)),
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("n", [1, 2, 64, 1000])
def test_particles_are_sorted_whatever_they_are(make, n):
    values = make(np.random.default_rng(1), n)
    order = sorted_places(values)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    np.testing.assert_array_equal(values[order], np.sort(values))


def test_systematic_resampling_gives_every_particle_its_share():
    rng, n = np.random.default_rng(2), 40
    x, weights, parents = np.arange(float(n))[:, None], rng.dirichlet(np.full(n, 0.3)), np.empty((n, 1))
    counts = np.zeros((2000, n))
    for run in counts:
        resample(x, weights, rng.random(), False, parents)
        run += np.bincount(parents[:, 0].astype(int), minlength=n)
    assert (np.abs(counts - n * weights) < 1).all()
    assert_mean_is(counts, n * weights, 5e-3)  # for shares too small to have been met
