"""Filters around a path: the distribution of fresh filters, whatever proposes their states, and twins with another one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_backends.kernels.particle import regeneration
from ppl_backends.kernels.particle.regeneration import Filters, KeptPaths, around, no_paths, paths_out_of
from ppl_backends.targets.state_space import resampling, step
from ppl_backends.targets.state_space.filter import Filter, draw_seeds
from tests.state_space.models import LINEAR, repeated
from tests.statistics import assert_mean_is

POINT = {"rho": 0.8, "sigma_x": 0.6, "sigma_y": 0.5}
Y = np.array([0.3, -1.4, 1.2, 0.9, np.nan, -0.2, 0.8, 1.9])
FIRST, SIZE, RUNS = 5, 6, 8000


@pytest.fixture
def fresh_programs():
    def clear():
        regeneration._around.cache_clear()
        regeneration._traced.cache_clear()

    clear()
    yield clear
    clear()


def run(method, runs=RUNS):
    """Log likelihoods by fresh filters of all rows, and by filters around paths out of those of the first rows."""
    filters, values = Filters.of(Filter(LINEAR, Y, method=method), False), repeated(POINT, runs)
    rng, ahead = np.random.default_rng(3), filters.ahead
    state, _ = ahead.advance(values, ahead.start(values, SIZE, draw_seeds(rng, runs)), 0, FIRST)
    paths = paths_out_of(filters, values, state, no_paths(ahead, values, runs), FIRST, draw_seeds(rng, runs))
    kept = KeptPaths(*paths, np.full(runs, FIRST), draw_seeds(rng, runs))
    new, _ = around(filters, values, kept, FIRST, SIZE, draw_seeds(rng, runs))
    both = [ahead.advance(values, each, FIRST, len(Y) - FIRST)[0].log_likelihood for each in (state, new)]
    return state.log_likelihood, new.log_likelihood, *both


def assert_same_law(method):
    """Assert that old and new estimates have one distribution under weights L̂, as in SMC², also for later rows."""
    old, new, old_all, new_all = run(method)
    weights = np.exp(old - np.log(np.exp(old).mean()))
    centre = np.average(old, weights=weights)
    of_all = np.average(old_all, weights=weights)
    differences = [new - old, (new - centre) ** 2 - (old - centre) ** 2]
    differences += [new_all - old_all, (new_all - of_all) ** 2 - (old_all - of_all) ** 2]
    assert_mean_is(np.stack([weights * each for each in differences], axis=1), np.zeros(4))


SLOW = [pytest.param(method, marks=pytest.mark.slow) for method in ("bootstrap", "auxiliary")]


@pytest.mark.parametrize("method", ["guided", *SLOW])
def test_filters_around_paths_have_the_law_of_fresh_ones(method):
    assert_same_law(method)


@pytest.mark.slow
def test_the_weight_of_a_path_from_a_proposal_is_not_that_of_the_transition(monkeypatch, fresh_programs):
    def by_transition(rule, p, t, rows, x, log_g, kept):
        if kept is None:
            return x, log_g
        own = step.observation(rule.model, p, t, kept.x[:, None], rows)[:, 0]
        return x.at[:, 0].set(kept.x), log_g.at[:, 0].set(own)

    monkeypatch.setattr(step, "_with_kept", by_transition)
    with pytest.raises(AssertionError):
        assert_same_law("guided")


def forgetful(weights, offset, uniform):
    """Return systematic resampling as usual, with its first point given to the path."""
    return resampling.systematic(weights, offset).at[:, 0].set(0)


@pytest.mark.parametrize("own", [0.02, 0.15, 0.4, 0.75])
def test_ancestors_beside_a_path_are_those_of_systematic_resampling_given_it(own):
    """Offspring of all particles, and of the neighbours, beside turned ancestors of which the first happens to be 0."""
    n, runs = 5, 100_000
    weights = jnp.broadcast_to(np.append(own, (1 - own) * np.array([0.1, 0.4, 0.3, 0.2])), (runs, n))
    u = jax.random.uniform(jax.random.key(1), (runs, 4))
    plain = resampling.systematic(weights, u[:, 0])
    turned = jnp.take_along_axis(plain, (jnp.arange(n) + jnp.floor(n * u[:, 1:2]).astype(int)) % n, axis=1)
    given = figures(np.asarray(turned)[np.asarray(turned[:, 0]) == 0])
    for draw, right in ((resampling.keeping_the_first, True), (forgetful, False)):
        drawn = np.asarray(draw(weights, u[:, 2], u[:, [3, 0]]))
        assert (drawn[:, 0] == 0).all()
        found = figures(drawn)
        error = np.sqrt(given.var(axis=0) / len(given) + found.var(axis=0) / len(found))
        assert (np.abs(given.mean(axis=0) - found.mean(axis=0)) <= 5 * error + 1e-12).all() == right


def figures(ancestors):
    """Return the numbers of offspring, and whether the neighbours of the path are its siblings."""
    offspring = [(ancestors == j).sum(axis=1) for j in range(ancestors.shape[1])]
    return np.stack([*offspring, ancestors[:, 1] == 0, ancestors[:, -1] == 0], axis=1)
