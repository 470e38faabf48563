"""Paths of states out of SMC²: those of the posterior, and twins' that are not."""

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.results.inference_data import group
from ppl_backends.smc.filters import FilterPath
from tests.state_space.toys import Y, covariances, posterior, series, target
from tests.statistics import assert_mean_is

pytestmark = pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
OF_STATES, MARGINAL = covariances(len(Y))
MEANS = posterior()[2]
SDS = np.sqrt(np.diag(OF_STATES - OF_STATES @ np.linalg.solve(MARGINAL, OF_STATES)))
OPTIONS = {"draws": 64, "chains": 2, "n_particles": 6, "random_seed": 4, "progressbar": False, "states": True}


def smc2(y=Y, **options):
    return pb.sample_smc2(target(y), **(OPTIONS | options))


def standardised(**options):
    """Return the mean and mean square of the states of each chain ``(chains, 2 rows)``."""
    states = group(smc2(chains=16, **options), "posterior")["states"].values
    z = (states - MEANS) / SDS
    return np.concatenate([z.mean(axis=1), (z**2).mean(axis=1)], axis=1)


EXPECTED = np.repeat([0.0, 1.0], len(Y))


@pytest.mark.parametrize("moves", ["auto", pytest.param("partial", marks=pytest.mark.slow)])
def test_states_are_those_of_the_posterior(moves):
    assert_mean_is(standardised(moves=moves), EXPECTED, 0.03)


class LateStates(FilterPath):
    """A path that gives every row the state of the row before."""

    def states_of(self, runs, rng):
        return np.roll(super().states_of(runs, rng), 1, axis=2)


class Neighbours(FilterPath):
    """A path that takes the states out of the filter of another draw."""

    def states_of(self, runs, rng):
        return np.roll(super().states_of(runs, rng), 1, axis=1)


def test_states_of_other_rows_are_found_out(monkeypatch):
    monkeypatch.setattr("ppl_backends.state_space.smc2.FilterPath", LateStates)
    with pytest.raises(AssertionError):
        assert_mean_is(standardised(), EXPECTED, 0.03)


def with_the_level():
    """Return correlation of the level of the series with the mean of its states, which is negative given the data."""
    found = group(smc2(chains=4), "posterior")
    assert found["states"].dims == ("chain", "draw", "time")
    return np.corrcoef(found["x"].values.ravel(), found["states"].values.mean(axis=-1).ravel())[0, 1]


def test_states_go_with_the_parameters_of_their_draw(monkeypatch):
    assert with_the_level() < -0.5
    monkeypatch.setattr("ppl_backends.state_space.smc2.FilterPath", Neighbours)
    assert abs(with_the_level()) < 0.3


def test_states_leave_the_draws_as_they_are_and_are_drawn_anew_where_rows_are_let_in():
    longer = series(len(Y) + 2)
    seen, left = smc2(longer[: len(Y)]), smc2(longer[: len(Y)], states=False)
    assert "states" not in group(left, "posterior")
    np.testing.assert_array_equal(group(seen, "posterior")["x"], group(left, "posterior")["x"])
    options = {"random_seed": 2, "progressbar": False}
    assert "states" not in group(pb.update_smc(left, target(longer), **options), "posterior")
    states = group(pb.update_smc(seen, target(longer), **options), "posterior")["states"]
    assert states.shape == (2, 64, len(longer))
    assert np.isfinite(states).all()


def test_rows_that_were_not_let_in_have_no_states():
    idata = smc2(max_time=1e-9)
    for seen, states in zip(
        group(idata, "sample_stats")["n_observations"], group(idata, "posterior")["states"], strict=True
    ):
        rows = int(np.nanmax(seen))
        assert 0 < rows < len(Y)
        assert np.isfinite(states[:, :rows]).all()
        assert np.isnan(states[:, rows:]).all()
